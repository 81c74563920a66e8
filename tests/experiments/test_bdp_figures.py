"""Figures 1, 3, 4 and 5 of the Bayesian accountant: the published order, and what is certified."""

import math

import numpy as np
import pytest

from dpjax.accounting import log_moments
from dpjax.bdp import subsampled_gaussian_log_moments
from experiments.bdp import costs, figures

FIRST, LAST = "1: 0.05 quantile", "1: 0.99 quantile"


def certified_once(size, rate, noise, num_steps, *rest, exact=costs.certified_epsilon):
    """Takes a second each: of all of them, those of whole runs are exact."""
    return exact(size, rate, noise, num_steps, *rest) if num_steps >= 100 else 1e-3


@pytest.fixture(scope="module")
def records(run_rows):
    """Few draws, few noises."""
    left_out = ("1: 0.5 quantile", "1: 0.75 quantile", "5: C = 0.1", "5: C = 0.7")
    names = [row.name for row in figures.rows("quick") if row.name not in left_out]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "certified_epsilon", certified_once)
        return run_rows(figures, *names, seeds=1)


def ratio(record):
    return record.measured[figures.SOURCES_PAIRS] / record.measured[figures.SOURCES_MA]


def test_run_curves_exceeds_the_moments_accountant_at_the_least_noise_only(records):
    assert 0.5 < ratio(records[FIRST]) < 2.5
    assert ratio(records[LAST]) < 0.02
    steps = records[FIRST].series["pairs, published"][0]
    assert np.all(np.diff(steps) >= 0)
    assert len(steps) == 100


def test_run_curves_certifies_less_than_every_bdp_epsilon_of_figure_1(records):
    for name in (FIRST, LAST):
        certified, measured = records[name].certified, records[name].measured
        bayesian = [measured[figures.NORMS], measured[figures.CLIPPED]]
        assert certified["DP ε"] < certified["DP ε, replace one"] < min(bayesian)
        assert certified["DP ε, unclipped"] == math.inf
        assert measured[figures.BEST_MA] < measured[figures.SOURCES_MA] / 100


def test_run_curves_of_clipped_norms_is_at_most_the_moments_accountant(records):
    orders = [order + 1 for order in costs.ORDERS]
    for name in ("3: 0.05 quantile", "3: 0.99 quantile"):
        known = log_moments.compute_epsilon([1.1, 2.8], figures.RATE, 1, figures.DELTA, orders)
        assert np.all(np.array(records[name].measured[figures.CLIPPED]) <= known * (1 + 1e-6))
        pairs = np.array(records[name].measured[figures.SOURCES_PAIRS])
        assert np.all(pairs <= np.array(records[name].measured[figures.SOURCES_MA]))
    least = records["3: 0.05 quantile"].measured[figures.CLIPPED]
    np.testing.assert_allclose(least, known, rtol=1e-3)
    # Not clipped, they do.
    unclipped = records["4: 0.05 quantile"].measured[figures.NORMS]
    assert unclipped[0] > 2 * known[0]


@pytest.mark.parametrize("distance", [0.1, 0.7, 1.0])
def test_order_curves_of_equal_norms_are_the_moments_accountant(distance):
    orders = range(1, 51)
    bayesian, _ = figures.order_curves(distance, orders)
    settings = {"sampling_rate": 64 / 60_000, "num_steps": 10_000, "delta": 1e-5}

    def known(noise):
        return np.array(
            [log_moments.compute_epsilon(noise, **settings, orders=(o + 1,)) for o in orders]
        )

    np.testing.assert_allclose(bayesian, known(1 / distance), rtol=1e-10)
    assert np.abs(bayesian / known(1.001 / distance) - 1).max() > 1e-8
    assert (np.argmin(bayesian) + 1 == 50) == (distance == 0.1)


def test_run_formula_of_printed_formulas_is_far_from_the_exact_values(records):
    reverse, pairs = records[figures.REVERSE].measured, records[figures.PAIRS].measured
    assert reverse[figures.PRINTED] == pytest.approx(0.0170, abs=5e-5)
    assert reverse[figures.EXACT] == pytest.approx(0.00016, abs=5e-6)
    assert pairs[figures.PRINTED] == pytest.approx(6.7e-4, abs=5e-6)
    assert pairs[figures.EXACT] == pytest.approx(8.3e-4, abs=5e-6)


def test_log_moments_by_interpolation_are_slightly_above_the_exact_ones():
    distances = np.random.default_rng(0).uniform(0, 3, 200)
    settings = {"sampling_rate": 1e-3, "noise_std": 1.7}
    exact = subsampled_gaussian_log_moments(costs.ORDERS, distances, **settings)
    found = costs.log_moments(distances, **settings)
    assert np.all(found >= exact * (1 - 1e-9))
    assert np.all(found <= exact + 0.02)
    assert np.all(found[:, :8] <= exact[:, :8] * (1 + 1e-3))


def test_distances_are_those_of_clipped_gradients():
    drawn = np.random.default_rng(1).normal(size=(3, 6, 4))
    lengths = np.linalg.norm(drawn, axis=-1)
    clipped = drawn * np.minimum(1, 1.5 / lengths)[..., None]
    found = figures.distances(drawn @ drawn.swapaxes(-1, -2), 1.5)
    first, second = np.triu_indices(6, 1)
    apart = np.linalg.norm(clipped[:, first] - clipped[:, second], axis=-1)
    np.testing.assert_allclose(found.norms, np.minimum(lengths, 1.5), rtol=1e-12)
    np.testing.assert_allclose(found.pairs, apart, rtol=1e-9)
