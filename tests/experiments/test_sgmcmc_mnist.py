"""The MNIST table of private chains: its accounts to the printed digits, one row run for real."""

import dataclasses

import numpy as np
import pytest

import dpjax
from experiments.data import load_data
from experiments.lib.registry import Result, Row, RowContext
from experiments.pate.accounts import BOTH, EPSILON
from experiments.pate.answers import STUDENT
from experiments.sgmcmc import mnist
from experiments.sgmcmc.mnist import (
    ACCURACY,
    AS_RUN,
    DEVIATION,
    Settings,
    epsilon_by_batch,
    noisy_sgd_mechanism,
    out_of_distribution_images,
)


def rows(profile="quick"):
    return {row.name: row for row in mnist.rows(profile)}


def settings_of(name, profile="quick"):
    return Settings(**rows(profile)[name].settings)


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.5, (36.2, 3.5, 2.35, 2.29)), (1.0, (8.87, 1.90, 1.58, 1.56))]
)
def test_epsilon_by_batch_is_far_above_the_claim(temperature, expected):
    assert tuple(epsilon_by_batch(temperature).values()) == pytest.approx(expected, rel=0.01)
    assert min(expected) > 10 * rows()["MNIST: DP-SGLD"].source["ε"]


def test_rows_have_the_published_values():
    printed = {name: tuple(row.source.values()) for name, row in rows().items() if row.source}
    assert printed["MNIST: DP-SGLD"] == (99.12, 0.10)
    assert printed["SVHN: DP-SGHMC"] == (92.84, 0.43)
    assert len(printed) == 10
    paper = settings_of("MNIST: DP-SGLD", "paper")
    found = (paper.num_steps, paper.l2_clip, paper.step_size, paper.delta, paper.temperature)
    assert found == (10_000, 4.0, 0.1, 1e-5, 0.5)
    svhn = settings_of("SVHN: DP-SGLD", "paper")
    assert (svhn.data, svhn.delta, svhn.network, svhn.num_steps) == ("svhn", 1e-6, "CNN", 10_000)


def test_published_epsilon_of_svhn_is_at_its_whole_training_part():
    settings = settings_of("SVHN: DP-SGLD")
    mnist_settings = settings_of("MNIST: DP-SGLD")
    found = mnist.published_epsilon(settings)
    # More images lower the sampling rate and, at the same step size, the noise multiplier.
    smaller = dataclasses.replace(settings, delta=mnist_settings.delta)
    assert found > mnist.published_epsilon(smaller) > 10 * 0.12
    chain = settings.chain(73_257, 10_000)
    expected = dpjax.accounting.epsilon(chain.event, 1e-6, adjacency="zero_out", method="pld")
    assert found == expected


def test_noisy_sgd_mechanism_has_the_event_of_the_chain():
    pairs = {
        "MNIST: DP-SGLD, temperature 1": "MNIST: DP-SGD",
        "frontier, ε = 0.1": "MNIST: DP-SGD at ε = 0.1",
    }
    for chain_row, point_row in pairs.items():
        chain = settings_of(chain_row).chain(50_000, 1_000)
        beside = noisy_sgd_mechanism(settings_of(point_row).chain(50_000, 1_000))
        assert beside.event == chain.event
        assert beside.l2_clip != chain.l2_clip


def test_settings_chain_of_sghmc_has_the_noise_of_sgld():
    one, other = (
        settings_of(f"MNIST: {name}").chain(50_000, 10) for name in ("DP-SGLD", "DP-SGHMC")
    )
    np.testing.assert_allclose(one.noise_multipliers, other.noise_multipliers)


@pytest.mark.parametrize("name", [name for name in rows() if name.startswith("frontier")])
def test_settings_chain_of_the_frontier_keeps_its_budget(name):
    settings = settings_of(name)
    epsilon = settings.chain(50_000, settings.num_steps).certificate(settings.delta).epsilon
    assert 0.99 * settings.target < epsilon <= settings.target


@pytest.mark.parametrize("name", list(mnist._ENSEMBLES))
def test_run_row_of_pate_is_the_record_of_its_own_experiment(name, tmp_path, monkeypatch):
    module, row = mnist._ENSEMBLES[name]
    ran = []

    def run_row(row, context):
        ran.append(row.name)
        return Result({STUDENT: 97.0, BOTH: 1.1}, {EPSILON: 2.9}, "A note.")

    monkeypatch.setattr(module, "run_row", run_row)
    monkeypatch.setattr(module, "data_set", lambda: load_data("digits"))
    folder = tmp_path / "results" / "work" / "sgmcmc_mnist" / "row"
    context = RowContext(folder, fresh=False, profile="quick")
    for _ in range(2):  # the second time there is a record
        result = mnist.run_row(rows()[name], context)
        assert result.measured[ACCURACY] == 97.0
        assert result.certified == {AS_RUN: 2.9}
        assert "A note." in result.note
    assert ran == [row]
    assert rows()[name].settings["row"] == row


def test_calibration_error_is_larger_for_overconfident_predictions():
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, 20_000)
    calibrated = np.stack([sure, 1 - sure], axis=1)
    labels = (rng.random(20_000) > sure).astype(int)
    # Each bin's accuracy has a standard deviation of at most 0.8 points.
    assert mnist.calibration_error_percent(calibrated, labels) < 2
    odds = (sure / (1 - sure)) ** 3
    overconfident = np.stack([odds / (1 + odds), 1 / (1 + odds)], axis=1)
    assert mnist.calibration_error_percent(overconfident, labels) > 10
    likelihoods = [
        mnist.negative_log_likelihood(each, labels) for each in (calibrated, overconfident)
    ]
    assert likelihoods[0] < likelihoods[1]
    bins = mnist.reliability(overconfident, labels)
    assert bins.share.sum() == pytest.approx(1)
    assert (bins.accuracy < bins.confidence)[-3:].all()


def test_negative_log_likelihood_of_a_certain_wrong_prediction_is_finite():
    assert 50 < mnist.negative_log_likelihood([[1.0, 0.0]], [1]) < np.inf


def test_entropies_and_auroc_percent_from_guessing_to_certainty():
    known, strange = (
        mnist.entropies(np.eye(10)),
        mnist.entropies(np.full((9, 10), 0.1)),
    )
    np.testing.assert_allclose(strange, np.log(10))
    assert mnist.auroc_percent(known, strange) == 100
    assert mnist.auroc_percent(known, known) == 50
    assert mnist.auroc_percent(strange, known) == 0


def test_out_of_distribution_images_keep_the_pixels():
    images = np.random.default_rng(0).random((3, 28, 28, 1)).astype(np.float32)
    strange = out_of_distribution_images(images)
    for name in ("on their side", "shuffled"):
        assert not np.array_equal(strange[name], images)
        np.testing.assert_array_equal(
            np.sort(strange[name].reshape(3, -1)), np.sort(images.reshape(3, -1))
        )
    np.testing.assert_allclose(strange["inverted"] + images, 1)
    assert "inverted" not in out_of_distribution_images(images.repeat(3, axis=-1))


@pytest.fixture
def short_row():
    row = rows()["SVHN: DP-SGLD"]
    short = {"num_steps": 40, "num_kept": 4, "delta": 1e-5, "runs": 2}
    return Row(row.name, {**row.settings, **short}, row.source)


def test_run_row_learns_resumes_and_is_certified_as_run(short_row, tmp_path, monkeypatch):
    stand_in = dataclasses.replace(load_data("digits"), is_stand_in=True, note="This is not SVHN.")
    monkeypatch.setattr(mnist, "load_images", lambda name: stand_in)
    context = RowContext(tmp_path, fresh=True, profile="quick")
    result = mnist.run_row(short_row, context)
    again = mnist.run_row(short_row, context)  # its states lie on disk
    assert again.measured == result.measured
    assert result.measured[ACCURACY] > 30
    chain = Settings(**short_row.settings).chain(1_437, 40)
    assert result.certified[AS_RUN] == chain.certificate(1e-5).epsilon
    assert result.measured[DEVIATION] > 0
