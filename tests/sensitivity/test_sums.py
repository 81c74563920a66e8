"""Sums over records move by their stated sensitivity, whatever the number of records."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.bayes.conjugate import BetaBinomial, NormalKnownVariance, StatisticRelease
from dpjax.bayes.regression import PerturbedStatistics, RegressionBounds, RegressionStatistics
from dpjax.bayes.regression.statistics import clipped_statistics, sufficient_statistics
from dpjax.mechanisms import DiscreteLaplace, Laplace
from dpjax.sensitivity.sums import SUM_ROUNDING, products_in_blocks, sum_in_blocks

MANY = 200_000


def rows(n, seed=0):
    """Rows at the bound, whose products no float32 holds."""
    x = np.random.default_rng(seed).normal(size=(n, 2)) + 3.0
    return x, np.full(n, 0.7)


def excess(sums, n):
    """By how much more than its own norm the last record moves the triangle of xtx, in L2."""
    x, y = rows(n)
    with_it, without = (np.asarray(sums(x[:m], y[:m]).xtx, np.float64) for m in (n, n - 1))
    own = np.outer(x[-1], x[-1]) / np.sum(x[-1] ** 2)
    upper = np.triu_indices(2)
    return np.linalg.norm((with_it - without)[upper]) - np.linalg.norm(own[upper])


BOUNDS = RegressionBounds(x_norm=1.0, y_size=1.0)


def test_a_record_moves_the_statistics_by_its_own_size():
    assert abs(excess(lambda x, y: clipped_statistics(BOUNDS, x, y), MANY)) < SUM_ROUNDING / 1000


@pytest.mark.slow
def test_power_sums_in_float32_are_moved_farther():
    def sums(x, y):
        return sufficient_statistics(*BOUNDS.clip(jnp.array(x), jnp.array(y)))

    assert max(excess(sums, n) for n in range(MANY, MANY + 4)) > 10 * SUM_ROUNDING


def test_sums_in_blocks_have_hardly_any_error():
    for n in (0, 1, 255, 257, 70_000):
        terms = np.random.default_rng(n).uniform(size=(n, 3))
        exact = [float(sum(map(Fraction, column))) for column in terms.T]
        np.testing.assert_allclose(sum_in_blocks(terms), exact, rtol=2.0**-45)
        np.testing.assert_allclose(
            products_in_blocks(terms, terms), terms.T @ terms, rtol=2.0**-40, atol=0
        )
    whole = np.full(70_000, 2**40, np.int64)
    assert sum_in_blocks(whole) == 70_000 * 2**40  # above 2^53, so not through floats


def test_clipped_statistics_take_any_record_and_any_batch():
    bounds = RegressionBounds(x_norm=2.0, y_size=3.0)
    x = np.array([[3e200, 4e200], [np.nan, 1.0], [np.inf, 0.0], [0.3, 0.4], [0.0, 0.0]])
    y = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0])
    found = clipped_statistics(bounds, x, y)
    np.testing.assert_allclose(found.xtx, [[1.44 + 0.09, 1.92 + 0.12], [2.04, 2.56 + 0.16]])
    np.testing.assert_allclose(found.xty, [-3 * 1.2 + 0.3, -3 * 1.6 + 0.4])
    np.testing.assert_allclose(found.yty, 28.0)
    stacked = clipped_statistics(bounds, np.stack([x, x]), np.stack([y, y]))
    np.testing.assert_array_equal(stacked.xtx[1], found.xtx)
    np.testing.assert_array_equal(stacked.yty, [found.yty] * 2)


def test_records_on_a_grid_stay_within_their_bounds():
    bounds, unit = RegressionBounds(x_norm=1.0, y_size=0.5), 2.0**-6
    x, y = np.random.default_rng(1).normal(size=(500, 3)), np.linspace(-2, 2, 500)
    for one, target in zip(x, y, strict=True):
        found = clipped_statistics(bounds, one[None], target[None], unit)
        assert np.trace(found.xtx) <= 1.0
        assert found.yty <= 0.25
        assert np.all(found.xtx / unit**2 == np.rint(found.xtx / unit**2))


def test_released_records_are_the_clipped_statistics_plus_noise_under_jit_too():
    scales = RegressionStatistics(1e-3, 1e-3, 1e-3)
    used = PerturbedStatistics(
        RegressionBounds(x_norm=1.0, y_size=0.5), 2, scales, "gaussian", "add_remove"
    )
    x, y = rows(300)
    exact = clipped_statistics(used.bounds, x, y)
    key = jax.random.key(0)
    for release in (used.release_records, jax.jit(used.release_records)):
        for got, expected in zip(release(key, x, y), exact, strict=True):
            np.testing.assert_allclose(got, expected, atol=0.01)
    with pytest.raises(ValueError, match=r"x must be of shape \(n, 2\)"):
        used.release_records(key, x[:, :1], y)
    with pytest.raises(ValueError, match="y must be targets of shape"):
        used.release_records(key, x, y[:-1])


def test_conjugate_sums_are_those_of_the_records_whatever_their_number():
    records = np.random.default_rng(2).uniform(size=MANY)
    normal = NormalKnownVariance((0.0, 1.0), variance=1.0, prior_mean=0.0, prior_variance=1.0)
    moves = normal.sensitivity(norm="l1", adjacency="replace_one")
    released = StatisticRelease(normal, Laplace(moves, 1e-9)).release(jax.random.key(0), records)
    exact = np.asarray(records, np.float32).sum(dtype=np.float64)
    assert abs(released[0] - exact) < 1e-6
    # power: in float32 it would be rounded to a multiple of 2^-7
    assert abs(np.float32(exact) - exact) > 1e-6
    coin = BetaBinomial()
    count = coin.sensitivity(norm="l1", adjacency="replace_one")
    ones = StatisticRelease(coin, DiscreteLaplace(count, 1 / 64)).release(
        jax.random.key(0), records > 0.5
    )
    assert ones.tolist() == [int((records > 0.5).sum())]
