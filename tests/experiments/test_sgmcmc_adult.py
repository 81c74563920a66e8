"""The Adult figure on the small stand-in: certified ε, accuracies, remarks and figure."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import SGLD
from dpjax.mechanisms import Composition
from experiments.data import Split, load_stand_in
from experiments.lib.registry import Row, experiment_of
from experiments.lib.runner import Plan, run_row
from experiments.sgmcmc import adult

STAND_IN = load_stand_in("adult")
# The first 120 features of half of the tumours are enough, and fast.
SMALL = dataclasses.replace(
    STAND_IN,
    train=Split(STAND_IN.train.x[::2, :120], STAND_IN.train.y[::2]),
    test=Split(STAND_IN.test.x[:, :120], STAND_IN.test.y),
)
EPSILON = 3.0
SHORT = ("OPS", "hybrid", "DP-SGD", "DP-SGLD")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Every row of one epsilon, with shorter chains."""
    folder = tmp_path_factory.mktemp("results")
    plan = Plan("quick", folder, False, print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adult, "data_set", lambda: SMALL)
        patch.setattr(adult, "SAMPLING_RATE", 0.25)
        patch.setattr(adult, "NUM_STEPS", 60)
        patch.setattr(adult, "_draws", _means)
        rows = adult.rows("quick")
        some = [row for row in rows if row.name == adult.SOURCE_STEP]
        some += [_at(row) for row in rows if row.settings["method"] in SHORT and "= 1" in row.name]
        found = [run_row(experiment_of(adult), row, plan) for row in some]
    assert [record.error for record in found] == [""] * 5
    return {record.row: record for record in found}


def _means(train, mechanism, num_runs, key):
    """Differences of class means, in the place of posterior samples, which take long."""
    ones = train.y == 1
    return np.tile(train.x[ones].mean(axis=0) - train.x[~ones].mean(axis=0), (num_runs, 1))


def _at(row):
    settings = {**row.settings, "epsilon": EPSILON, "runs": 2}
    return Row(row.name.replace("ε = 1", f"ε = {EPSILON:g}"), settings, row.source)


def test_run_row_certifies_the_epsilon_asked_for(records):
    for method in ("DP-SGD", "DP-SGLD"):
        assert 2.96 < records[f"{method}, ε = 3"].certified["ε"] <= EPSILON


def test_run_row_certifies_nothing_of_a_markov_chains_last_state(records):
    for method in ("OPS", "hybrid"):
        record = records[f"{method}, ε = 3"]
        assert record.certified == {}
        assert 2.5 < record.measured[adult.TARGET] <= EPSILON
        assert "not exact" in record.note
    assert any("certified" in remark for remark in adult.remarks(records.values()))


def test_run_row_learns_by_every_method(records):
    guess = 100 * max(np.mean(SMALL.test.y == label) for label in (0, 1))
    assert all(record.measured[adult.ACCURACY] > guess + 8 for record in records.values())
    assert all(record.measured[adult.NLL] < 0.6 for record in records.values())


def test_run_row_claims_less_than_is_certified(records):
    record = records[adult.SOURCE_STEP]
    assert record.measured[adult.CLAIM] < record.certified["ε"]
    assert "temperature 0.5" in record.certificate


def test_calibrate_chain_bounds_the_step_size():
    steps = [
        adult.calibrate_chain(adult.make_sgld(SMALL.train, 0.1, 0.01), epsilon).step_size
        for epsilon in (1e-3, 3.0)
    ]
    assert steps[0] < steps[1] == 1.5


def test_scores_average_predictions_not_weights():
    weights = np.array([[[-9.0], [1.0]], [[9.0], [1.0]]])
    test = Split(np.array([[1.0]]), np.array([1]))
    found = adult.scores(weights, test)
    assert found[adult.ACCURACY] == 50
    assert found[adult.LAST] == 100
    assert found[adult.ERROR] == pytest.approx(2 * np.std([0, 100], ddof=1) / 2**0.5)
    averages = [(adult_sigmoid(w) + adult_sigmoid(1)) / 2 for w in (-9, 9)]
    assert found[adult.NLL] == pytest.approx(-np.mean(np.log(averages)))


def adult_sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def test_chains_from_begin_at_their_starts():
    starts = jnp.array([[50.0, 0.0], [0.0, -50.0]])
    train = Split(np.eye(2, dtype=np.float32)[[0, 1] * 8], np.array([0, 1] * 8))
    chain = SGLD(
        dpjax.PoissonSampling(16, 0.5),
        l2_clip=1.0,
        step_size=1e-4,
        num_steps=20,
        adjacency="add_remove",
    )
    kept = adult._chains_from(starts, train, chain, jax.random.key(0))
    assert kept.shape == (2, 1, 2)
    np.testing.assert_allclose(kept[:, 0], starts, atol=0.3)
    assert not np.array_equal(kept[0, 0] - starts[0], kept[1, 0] - starts[1])


def test_hybrid_has_half_of_epsilon_for_each_part():
    both = adult.hybrid(
        adult._one_sample(2.0),
        adult.make_sgld(SMALL.train, 0.1),
        epsilon=2.0,
        delta=1e-5,
    )
    assert isinstance(both, Composition)
    assert both.mechanisms[0].epsilon <= 1
    assert certified_epsilon(both.event, 1e-5, adjacency="add_remove") <= 2


def test_draws_are_of_the_tempered_posterior():
    # two records and a tiny power: the posterior is nearly the prior
    train = Split(np.array([[1.0], [0.5]], np.float32), np.array([1, 0]))
    mechanism = adult._one_sample(0.01)
    draws = adult._draws(train, mechanism, 400, jax.random.key(1))
    # five standard errors: a false alarm in a million or less
    assert abs(draws.mean()) < 5 / 400**0.5
    assert abs(draws.var() - 1) < 5 * (2 / 400) ** 0.5
