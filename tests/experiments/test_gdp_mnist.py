"""The MNIST table: its accounting to the printed digits, and one short row run for real."""

import dataclasses

import pytest

import dpjax
from experiments.data import load_data
from experiments.gdp import mnist
from experiments.gdp.mnist import Settings
from experiments.lib.registry import Record, Row, RowContext

ROWS = [row for row, _ in enumerate(mnist.published_mechanisms())]


@pytest.mark.parametrize("index", ROWS)
def test_the_central_limit_has_the_printed_digits(index):
    mechanism = mnist.published_mechanisms()[index]
    printed = mnist.EXPERIMENT.rows("paper")[index].source
    epsilon = dpjax.accounting.epsilon(
        mechanism.event, 1e-5, adjacency="add_remove", method="gdp_clt"
    )
    mu = dpjax.accounting.gdp.mu_of_event(mechanism.event, "add_remove")
    assert round(epsilon, 2) == printed["CLT ε"]
    assert round(mu, 2) == printed["CLT μ"]


def test_quick_runs_the_first_row_in_full_and_paper_all():
    quick, paper = mnist.EXPERIMENT.rows("quick"), mnist.EXPERIMENT.rows("paper")
    assert quick[0].settings == {**paper[0].settings, "seeds": 1}
    assert {row.settings["seeds"] for row in paper} == {3}
    assert [row.settings["epochs"] for row in paper] == [15, 60, 45, 62, 68, 100]
    assert all(row.settings["epochs"] < row.settings["published_epochs"] for row in quick[1:])


@pytest.fixture
def digits(monkeypatch):
    """The experiment on the small stand-in, as where MNIST cannot be had."""
    stand_in = dataclasses.replace(load_data("digits"), is_stand_in=True, note="digits.")
    monkeypatch.setattr(mnist, "load_mnist", lambda: stand_in)


def short_row(**changes):
    row = mnist.EXPERIMENT.rows("paper")[0]
    return Row(row.name, {**row.settings, "epochs": 3, "seeds": 2, **changes}, row.source)


def test_a_short_row_learns_resumes_and_is_certified_as_run(digits, tmp_path):
    context = RowContext(tmp_path, fresh=True, profile="quick")
    result = mnist.EXPERIMENT.run_row(short_row(), context)
    again = mnist.EXPERIMENT.run_row(short_row(), context)  # from its last checkpoint
    assert again.measured == result.measured
    assert result.measured["test accuracy %"] > 20
    by_seed = result.series["final accuracy % by seed"]
    assert len(set(by_seed.tolist())) == 2  # other initial parameters, batches and noise
    assert result.measured["test accuracy %"] == pytest.approx(by_seed.mean())
    assert result.measured["lowest, highest %"] == sorted(by_seed.tolist())
    assert result.certified["ε, published epochs"] == pytest.approx(0.8648, abs=2e-3)
    settings = {name: value for name, value in short_row().settings.items() if name != "seeds"}
    as_run = Settings(**settings).mechanism(1437, 3)
    assert result.certified["ε, as run"] == as_run.certificate(1e-5).epsilon
    assert "one image" in result.certificate
    assert "digits." in result.note
    assert "Shortened" in result.note


def test_drowned_in_noise_nothing_is_learned(digits, tmp_path):
    context = RowContext(tmp_path, fresh=True, profile="quick")
    result = mnist.EXPERIMENT.run_row(short_row(noise_multiplier=1000.0, seeds=1), context)
    assert result.measured["test accuracy %"] < 25


def record_of(row, by_seed):
    """A record of a row in full, with made-up accuracies."""
    mean = sum(by_seed) / len(by_seed)
    costs = {"CLT ε": row.source["CLT ε"], "MA ε": row.source["MA ε"], "Rényi ε, improved": 1.0}
    series = {"accuracy % by epoch": [[1.0, mean]], "final accuracy % by seed": by_seed}
    measured, certified = {"test accuracy %": mean, **costs}, {"ε, published epochs": 1.0}
    return Record(
        "gdp_mnist", row.name, "paper", row.settings, row.source, measured, certified, 1.0,
        series=series,
    )  # fmt: skip


def test_remarks_compare_the_mean_over_seeds_and_each_seed_with_the_source():
    first, second, *_ = mnist.EXPERIMENT.rows("paper")  # 95.0 and 96.6
    records = [record_of(first, [94.7, 95.1, 95.5]), record_of(second, [96.3, 96.5, 96.7])]
    remark = mnist.EXPERIMENT.remarks(records)[0]
    assert "-0.10 to +0.10 points" in remark
    assert "-0.30, +0.00, +0.30 points" in remark
    assert set(mnist.EXPERIMENT.figures(records)) == {"accuracy", "epsilon"}


def test_one_seed_has_no_remark_on_seeds():
    records = [record_of(row, [95.0]) for row in mnist.EXPERIMENT.rows("quick")]
    assert not any("seeds" in remark for remark in mnist.EXPERIMENT.remarks(records))
