"""The Adult table: its accounting to the printed digits, and its rows run on a small stand-in."""

import dataclasses

import numpy as np
import optax
import pytest

import dpjax
from experiments.data import Split, load_data, load_stand_in
from experiments.gdp import adult
from experiments.gdp.classifiers import Problem, fit
from experiments.lib.figures import draw_figures
from experiments.lib.models import TabularMLP
from experiments.lib.registry import Record, Row
from experiments.lib.runner import Plan, run_row


def test_the_accounts_have_the_digits_of_the_source():
    mechanism = adult.PRIVATE.mechanism(adult.PUBLISHED_SIZE, "one person")
    assert mechanism.num_steps == 2060
    source = adult.EXPERIMENT.rows("paper")[0].source
    mu = dpjax.accounting.gdp.mu_of_event(mechanism.event, "add_remove")
    epsilon = dpjax.accounting.epsilon(
        mechanism.event, 1e-5, adjacency="add_remove", method="gdp_clt"
    )
    assert (round(mu, 2), round(epsilon, 1)) == (source["CLT μ"], source["CLT ε"])


def test_both_profiles_run_everything_as_published():
    rows = adult.EXPERIMENT.rows("paper")
    assert adult.EXPERIMENT.rows("quick") == rows
    assert [row.name for row in rows[:3]] == ["NoisySGD", "SGD, no privacy", "logistic regression"]
    assert all(row.source == {"test accuracy %": None} for row in rows[1:])


def test_a_tenth_of_the_training_part_is_held_out_once_and_for_all():
    x, y = np.arange(87).reshape(29, 3), np.arange(29)
    whole = dataclasses.replace(load_data("digits"), train=Split(x, y))
    split = adult._hold_out_tenth(whole)
    assert (len(split.train.y), len(split.test.y)) == (27, 2)
    assert sorted([*split.train.y, *split.test.y]) == list(range(29))
    for part in (split.train, split.test):
        np.testing.assert_array_equal(part.x, x[part.y])
    np.testing.assert_array_equal(split.test.y, adult._hold_out_tenth(whole).test.y)


def test_the_split_has_the_published_size():
    assert adult.PUBLISHED_SIZE == 32_561 - 32_561 // 10


@pytest.fixture
def tumours(monkeypatch):
    """The experiment on the small stand-in, as where Adult cannot be had."""
    stand_in = load_stand_in("adult")
    monkeypatch.setattr(adult, "_data", lambda: stand_in)


SHORT = {"learning_rate": 0.5, "epochs": 4}


def run(row, tmp_path, **changes):
    plan = Plan("quick", tmp_path, False, print)
    return run_row(adult.EXPERIMENT, Row(row.name, {**row.settings, **changes}, row.source), plan)


def test_the_rows_learn_and_are_drawn(tumours, tmp_path):
    private, plain, logistic = adult.EXPERIMENT.rows("quick")[:3]
    records = [
        run(private, tmp_path, expected_batch_size=64, seeds=(0, 1), **SHORT),
        run(plain, tmp_path, batch_size=64, seeds=(0,), **SHORT),
        run(logistic, tmp_path),
    ]
    assert [record.error for record in records] == ["", "", ""]
    # 63 % of the tumours are benign.
    assert all(record.measured["published test part %"] > 85 for record in records)
    lowest, highest = records[0].measured["lowest, highest %"]
    assert lowest <= records[0].measured["test accuracy %"] <= highest
    assert [bool(record.certified) for record in records] == [True, False, False]
    short = dataclasses.replace(adult.PRIVATE, epochs=4, expected_batch_size=64)
    for name, size in (("published size", 29_305), ("as run", 455 - 45)):
        epsilon = short.mechanism(size, "one person").certificate(1e-5).epsilon
        assert records[0].certified[f"ε, {name}"] == epsilon
    assert "one person" in records[0].certificate
    assert "Every ε is that of one run" in records[0].note
    (figure,) = draw_figures(adult.EXPERIMENT, records, tmp_path)
    assert figure.path.stat().st_size > 10_000
    assert any("expected batch size" in remark for remark in adult.EXPERIMENT.remarks(records))


@pytest.mark.parametrize(("clt", "verdict"), [(10.2, "is below"), (12.0, "is not below")])
def test_remarks_judge_the_central_limit(clt, verdict):
    private = adult.EXPERIMENT.rows("quick")[0]
    measured = {"CLT ε": clt, "MA ε": 14.7, "Rényi ε, improved": 13.5}
    record = Record(
        "gdp_adult", private.name, "quick", private.settings, private.source,
        measured, {"ε, published size": 11.801}, 1.0,
    )  # fmt: skip
    remarks = adult.EXPERIMENT.remarks([record])
    assert any(f"{verdict} the certified ε = 11.81" in remark for remark in remarks)


def test_drowned_in_noise_nothing_is_learned(tmp_path):
    tumours = load_stand_in("adult")
    problem = Problem(TabularMLP(), optax.sgd, tumours, "one person", adult.PUBLISHED_SIZE)
    changes = {"noise_multiplier": 1000.0, "expected_batch_size": 64, "seeds": (0,)}
    settings = dataclasses.replace(adult.PRIVATE, **SHORT, **changes)
    (drowned,) = fit(problem, settings, tmp_path)
    assert drowned.curve[-1][1] < 75


@pytest.mark.parametrize("name", adult._CLASSICAL)
def test_every_classical_classifier_is_there(name):
    assert hasattr(adult._classical(name), "fit")
