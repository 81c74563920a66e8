"""Selected accuracies, numbers of candidates of figure 7, and the search on scattering features."""

import dataclasses

import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import stats

from dpjax.accounting import epsilon, epsilon_bounds
from dpjax.accounting.accountants import compute_rdp
from dpjax.accounting.events import decompose
from dpjax.sampling import PoissonRepetitions, TruncatedNegativeBinomial
from experiments.data import load_data
from experiments.lib.registry import Row, RowContext
from experiments.scattering import linear
from experiments.training import tuned

PAPER = {row.name: row for row in tuned.rows("paper")}


def pool():
    """Candidates of which some have equal scores; the first of these are worse."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, 30) / 10
    return tuned.Pool(scores, 50 * scores + 10 * rng.random(30), untrained=3.0)


@pytest.mark.parametrize(
    "repetitions",
    [
        PoissonRepetitions(2.0),
        TruncatedNegativeBinomial(4.0, shape=0.0),
        TruncatedNegativeBinomial(4.0, shape=1.0),
        tuned.SeparateRuns(3.0),
    ],
    ids=str,
)
def test_accuracies_of_the_selected_candidate_are_those_of_searches(repetitions):
    """Off by five standard errors with probability below 1e-5 each."""
    candidates, rng, found = pool(), np.random.default_rng(1), []
    for _ in range(20_000):
        drawn = rng.integers(0, 30, repetitions.quantile(rng.random()))
        best = max(drawn, key=lambda each: candidates.scores[each], default=None)
        found.append(candidates.untrained if best is None else candidates.accuracies[best])
    error = np.std(found) / np.sqrt(len(found))
    assert abs(candidates.mean_accuracy(repetitions) - np.mean(found)) <= 5 * error
    # Of a share of a tenth the standard error is 0.0021.
    tenth = candidates.accuracy_quantile(repetitions, 0.1) * np.array([1 - 1e-9, 1 + 1e-9])
    below, upto = np.mean(np.less.outer(found, tenth), axis=0)
    assert below <= 0.1106
    assert upto >= 0.0894
    # Power: not of searches with half as many candidates more.
    other = dataclasses.replace(repetitions, expected=1.5 * repetitions.expected)
    assert abs(candidates.mean_accuracy(other) - np.mean(found)) > 5 * error


def test_equal_scores_have_equal_chances():
    candidates = pool()
    chances = candidates.chances(PoissonRepetitions(2.0))
    assert chances.sum() == pytest.approx(1 - np.exp(-2.0))
    for score in np.unique(candidates.scores):
        assert np.ptp(chances[candidates.scores == score]) == 0
    order = np.argsort(candidates.scores)
    assert np.all(np.diff(chances[order]) >= 0)


@pytest.mark.parametrize("gamma", [1e-4, 0.025, 0.5])
def test_mean_number_is_that_of_the_distributions_of_figure_7(gamma):
    draws = stats.nbinom(0.5, gamma)
    means = {
        "logarithmic": stats.logser(1 - gamma).mean(),
        "η = 0.5": draws.mean() / (1 - draws.pmf(0)),
        "geometric": stats.geom(gamma).mean(),
    }
    for name, mean in means.items():
        assert tuned.mean_number(name, gamma) == pytest.approx(mean, rel=1e-9)
        assert tuned.repetitions_of(name, mean).gamma == pytest.approx(gamma, rel=1e-6)


def test_run_of_the_source_has_its_rényi_divergences():
    """Of the list in tensorflow/privacy, research/hyperparameters_2022, at four of its orders."""
    found = compute_rdp(decompose(tuned.SOURCE_RUN, "zero_out"), (2.0, 4.0, 8.0, 12.0))
    published = [0.329014798, 0.668461534, 1.38297035, 2.19017390]
    np.testing.assert_allclose(found, published, rtol=1e-6)


@pytest.mark.slow
def test_figure_has_the_account_of_the_run_with_the_ε_of_the_source(tmp_path):
    row = PAPER["figure 7: geometric"]
    changes = {"data": "digits", "batch_size": 128, "num_steps": 10, "pool": 4}
    settings = {**row.settings, **changes, "gammas": [0.1, 0.5]}
    result = tuned.run_row(Row(row.name, settings, {}), RowContext(tmp_path, True, "paper"))
    run, _, _ = tuned.figure_pool("digits", 128, 10, tuple(settings["rates"]), 4, 0)

    # One run is as private as the source's, within what the search for its noise allows.
    source = epsilon(tuned.SOURCE_RUN, 1e-5, adjacency="zero_out")
    assert 0.99 * source <= run.certificate(1e-5).epsilon <= source

    # A search is the best of ten on average.
    for event, suffix in ((run.guarantee.event, ""), (tuned.SOURCE_RUN, ", source's run")):
        search = RepeatAndSelectDpEvent(event, mean=10.0, shape=1.0)
        lower, upper = epsilon_bounds(search, 1e-5, adjacency="zero_out")
        assert result.certified[f"ε{suffix}"] == pytest.approx(upper)
        assert result.certified[f"ε{suffix}, lower bound"] == pytest.approx(lower)
        # The abscissa is that of Papernot & Steinke, Theorem 2, at the orders of its file.
        orders = np.array([*np.arange(1.5, 5, 0.5), *range(5, 64)])
        rdp = compute_rdp(decompose(event, "zero_out"), tuple(orders))
        least = np.min(2 * ((1 - 1 / orders) * rdp + np.log(10) / orders))
        abscissa = np.min(rdp + least + np.log(10) / (orders - 1))
        assert result.measured[f"least Rényi divergence{suffix}"] == pytest.approx(
            abscissa, rel=0.01
        )
    points = result.series[tuned.POINTS]
    assert [point[0] for point in points] == [0.1, 0.5]
    assert points[0][1:] == (
        result.measured["least Rényi divergence"], result.certified["ε"],
        result.certified["ε, lower bound"], result.measured["test accuracy %"],
    )  # fmt: skip
    # Fewer candidates cost less.
    assert points[1][2] < points[0][2]


def test_scattering_search_has_its_tuning_within_ε():
    settings = PAPER["ScatterNet: MNIST, logarithmic, mean 4"].settings
    mechanism = tuned.scattering_mechanism(settings, 60_000)
    certificate = mechanism.certificate(1e-5)
    assert 2.9 < certificate.epsilon <= 3.0
    assert certificate.guarantee.tuning == "counted"
    one = mechanism.run.certificate(1e-5).epsilon
    assert one < 0.9 * certificate.epsilon
    # Normalisation is of one image at a time, so that nothing else is released.
    assert settings["training"]["normalization"] == linear.GROUPS
    digits = load_data("digits").train.x[:20]
    features = linear.scattering(digits)
    together = linear.normalize_groups(features, 27)
    np.testing.assert_array_equal(linear.normalize_groups(features[7:8], 27)[0], together[7])


@pytest.mark.slow
def test_scattering_search_resumes_to_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr(linear, "load_images", lambda name: load_data("digits"))
    row = PAPER["ScatterNet: MNIST, logarithmic, mean 4"]
    training = {
        **row.settings["training"], "num_train": 400, "num_test": 100, "epochs": 2,
        "sampling_rate": 0.2, "seeds": (0,),
    }  # fmt: skip
    short = Row(row.name, {**row.settings, "training": training}, {})
    folder = tmp_path / "row"
    folder.mkdir()
    first = tuned.run_row(short, RowContext(folder, True, "paper"))
    assert first.certified["ε"] <= 3.0
    assert first.measured["learning rates"][0] in row.settings["rates"]
    assert tuned.run_row(short, RowContext(folder, False, "paper")) == first
