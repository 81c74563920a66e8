"""Regressions over wines of several holders: protocol, penalty, published noise, costs, figures."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.bayes.regression import RegressionBounds
from dpjax.federated import Parties, simulated_entropy
from experiments.bayes import holders, holders_costs, wine_fits
from experiments.lib.registry import experiment_of
from experiments.lib.repetition import compare_records

TEN = "distributed, N = 10, T = 0"
SMALL = "additive shares: N = 10, M = 3, 78 numbers"


@pytest.fixture(scope="module")
def records(run_rows):
    names = [
        row.name
        for row in holders.rows("quick")
        if row.settings.get("num_holders") not in (5, 20, 100)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "_NUM_ENTRIES", 1000)
        patch.setattr(holders, "_EPSILONS", (0.1, 0.3, 1.0))
        return run_rows(holders, *names)


def test_run_row_certifies_the_epsilons_asked_for(records):
    for name in (holders.TRUSTED, TEN, "input perturbation, 2,000 holders"):
        asked = records[name].settings["epsilons"]
        np.testing.assert_allclose(records[name].certified["ε, in this order"], asked, rtol=1e-3)
    published = records[holders.AS_PUBLISHED]
    lower = np.array(published.certified[holders.LOWER])
    assert np.all(lower > published.settings["epsilons"])
    assert np.all(lower < published.certified["ε, in this order"])


def simulated_task(*, num_repeats=400, epsilon=2.0):
    """Many splits of simulated records, few for training, so that the noise matters."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(600, 4)) / 2, float)
    y = jnp.asarray(x @ np.array([1.0, -0.5, 0.25, 0.0]) + 0.5 * rng.normal(size=600), float)
    bounds = RegressionBounds(x_norm_bound=1.5, y_bound=1.5)
    records = wine_fits.Records(x, y, 1.0, bounds)
    splits = wine_fits.draw_splits(records, 400, num_repeats, seed=0)
    return wine_fits.Task(records, splits, jax.random.key(0), epsilon, 1e-4)


def test_distributed_has_the_trusted_error_within_two_percent_at_ten_holders():
    """The mean error over 400 paired runs is within 2 %, by more than five standard errors.

    So a true difference of 2 % or more passes with probability below 3e-7. Power: the noise for
    T = 7 has an error that is more than 2 % larger, by as many standard errors.
    """
    task = simulated_task()
    sums = holders.holder_sums(task, 10)
    trusted = errors_of(wine_fits.perturbed_statistics(task), task)

    def excess(num_colluders, seed):
        parties = Parties(num_holders=10, num_nodes=3, num_colluders=num_colluders)
        fit = holders.distributed(task, parties, sums, simulated_entropy(seed)).fit
        differences = errors_of(fit, task) / trusted.mean() - trusted / trusted.mean()
        return differences.mean(), differences.std(ddof=1) / math.sqrt(len(differences))

    mean, error = excess(0, seed=1)
    assert abs(mean) + 5 * error < 0.02
    mean, error = excess(7, seed=2)
    assert mean - 5 * error > 0.02


def errors_of(fit, task):
    return wine_fits.score(fit.posteriors, task.records, task.splits).error


@pytest.mark.parametrize(("num_holders", "num_colluders"), [(5, 1), (12, 5)])
def test_distributed_has_the_noise_and_error_that_the_penalty_predicts(num_holders, num_colluders):
    """Of 100 runs with 15 noisy entries, and of 4,000 entries: within five standard errors."""
    task = simulated_task(num_repeats=100)
    parties = Parties(num_holders=num_holders, num_nodes=2, num_colluders=num_colluders)
    penalty = holders.noise_penalty(parties)
    assert penalty == math.sqrt(num_holders / (num_holders - num_colluders - 1))
    sums = holders.holder_sums(task, num_holders)
    found = holders.distributed(task, parties, sums, simulated_entropy(3))
    assert abs(found.noise_ratio / penalty - 1) < 5 / math.sqrt(2 * 100 * 15)
    assert abs(found.noise_ratio - 1) > 5 / math.sqrt(2 * 100 * 15)  # power: no penalty
    measured = holders.measured_penalty(parties, 4000, simulated_entropy(4))
    assert abs(measured / penalty - 1) < 5 / math.sqrt(2 * 4000)
    predicted = errors_of(holders.trusted_with_noise(task, penalty), task)
    differences = errors_of(found.fit, task) - predicted
    assert abs(differences.mean()) < 5 * differences.std(ddof=1) / math.sqrt(100)


def test_holder_sums_have_all_records_once():
    task = simulated_task(num_repeats=2)
    whole = wine_fits.perturbation(task).sum_records
    for run, own in zip(task.splits.train, holders.holder_sums(task, 7), strict=True):
        exact = whole(np.asarray(task.records.x)[run], np.asarray(task.records.y)[run])
        np.testing.assert_allclose(np.sum(own, axis=0), exact, rtol=1e-12)


def test_sensitivity_bounds_replacements_and_is_at_most_twice_attained():
    """On random and extreme pairs of records in the box, and attained to one half."""
    rng, bounds = np.random.default_rng(1), np.array([1.0, 0.5, 2.0, 1.5])

    def products(record):
        return np.outer(record, record)[np.triu_indices(4)][:-1]  # without the squared target

    claimed = holders._sensitivity(bounds)
    pairs = rng.uniform(-1, 1, (500, 2, 4)) * bounds
    corners = np.sign(rng.normal(size=(500, 2, 4))) * bounds
    moves = [
        np.linalg.norm(products(one) - products(other))
        for one, other in np.concatenate([pairs, corners])
    ]
    assert max(moves) <= claimed
    assert np.linalg.norm(products(bounds)) >= claimed / 2


@pytest.mark.parametrize("claimed", [1.0, 10.0])
def test_mechanisms_have_the_epsilon_of_the_closed_form(claimed):
    """Of the Gaussian mechanism (Balle & Wang 2018, Theorem 8), with the squares' true size."""
    of_products = math.sqrt(2 * math.log(1.25 / 0.7e-4)) / (0.7 * claimed)
    of_squares = math.sqrt(2 * math.log(1.25 / 0.3e-4)) / (0.3 * claimed)
    for mechanism, size in zip(holders.mechanisms(claimed, 1e-4), (1, 0.5), strict=True):
        mu = math.hypot(size / of_products, 7.5 / of_squares)
        epsilon = mechanism.certificate(1e-4).epsilon
        low, high = (stats.norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        assert high - math.exp(epsilon) * low == pytest.approx(1e-4, rel=1e-2)
        assert epsilon > 1.5 * claimed


def test_published_errors_without_noise_are_those_of_ridge_regression():
    task = simulated_task(num_repeats=3)
    x, y = np.asarray(task.records.x), np.asarray(task.records.y)
    data = holders.scale_as_published(x, y)
    np.testing.assert_allclose(data.values.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.ptp(data.values, axis=0), 10.0)
    options = {"delta": 1e-4, "every_record_perturbed": False, "seed": 0}
    found = holders.published_errors(data, task.splits, claimed=1e9, **options)
    exact = wine_fits.non_private(task._replace(records=task.records._replace(x=task.records.x)))
    assert np.all(found < 1.3 * errors_of(exact, task))
    noisy = holders.published_errors(data, task.splits, claimed=0.1, **options)
    assert np.all(noisy > 1.5 * errors_of(exact, task))


def test_run_row_has_the_bytes_of_the_message_format(run_rows):
    """A round of 78 statistics takes at most 100 ms; bytes are as the message format has them."""
    (record,) = run_rows(holders_costs, SMALL).values()
    small = record.measured
    assert small[holders_costs.TOGETHER] < 100
    # Header, identifier of the draw, words and digest, to three nodes, whose sums name all draws.
    assert small[holders_costs.SENT] == 3 * (56 + 8 + 8 * 78 + 16)
    of_nodes = 3 * (56 + 8 * 10 + 8 * 78 + 16)
    assert small[holders_costs.ALL_SENT] == 10 * small[holders_costs.SENT] + of_nodes
    # Rows run again are compared by their bytes, not by their times.
    for column, num_differences in ((holders_costs.HOLDER, 0), (holders_costs.SENT, 1)):
        other = dataclasses.replace(record, measured={**small, column: 10**6})
        differences = compare_records(record, other, experiment_of(holders_costs).tolerance)
        assert len(differences) == num_differences


def test_measure_paillier_counts_the_bytes_of_ciphertexts():
    """A small key: 12 ciphertexts for 78 numbers of 66 bits, at most 7 in each."""
    plan = holders_costs.FederatedSum(
        holders_costs.make_mechanism(78), Parties(num_holders=3, num_nodes=2)
    )
    costs = holders_costs.measure_paillier(plan, np.zeros((3, 78)), 512)
    assert costs.bytes_of_holder == 12 * 128
    assert costs.bytes_of_all == 4 * costs.bytes_of_holder
    assert len(costs.holders) == 3


def test_measure_shares_of_a_million_numbers_take_at_most_two_seconds():
    """CPU time of the slowest holder, the slowest node and the analyst, one after another.

    Nodes add three holders' shares here: their time is scaled to ten.
    """
    plan = holders_costs.FederatedSum(
        holders_costs.make_mechanism(10**6), Parties(num_holders=3, num_nodes=2)
    )
    costs = holders_costs.measure_shares(plan, np.full((3, 10**6), 1e-3))
    assert max(costs.holders) + max(costs.nodes) * 10 / 3 + costs.analyst < 2
    assert costs.bytes_of_holder == 2 * (56 + 8 + 8 * 10**6 + 16)
