"""Sums over records move by their stated sensitivity, whatever the number of records."""

from fractions import Fraction
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.bayes.conjugate import (
    BetaBinomial,
    NormalKnownVariance,
    NormalUnknownVariance,
    SufficientStatisticsMechanism,
)
from dpjax.bayes.regression import (
    AdaSSP,
    HistogramBounds,
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
)
from dpjax.bayes.regression.statistics import clipped_statistics, sufficient_statistics
from dpjax.mechanisms import ClippedSum, DiscreteLaplace, Gaussian, Laplace, additive
from dpjax.mechanisms._exact_noise import as_fraction
from dpjax.sensitivity import SUM_ROUNDING, products_in_blocks, sum_in_blocks

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


BOUNDS = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)


def test_sum_moves_by_size_of_record():
    assert abs(excess(lambda x, y: clipped_statistics(BOUNDS, x, y), MANY)) < SUM_ROUNDING / 1000


@pytest.mark.slow
def test_power_sums_in_float32():
    def sums(x, y):
        return sufficient_statistics(*BOUNDS.clip(jnp.array(x), jnp.array(y)))

    assert max(excess(sums, n) for n in range(MANY, MANY + 4)) > 10 * SUM_ROUNDING


def test_sum_in_blocks_error():
    for n in (0, 1, 255, 257, 70_000):
        terms = np.random.default_rng(n).uniform(size=(n, 3))
        exact = [float(sum(map(Fraction, column))) for column in terms.T]
        np.testing.assert_allclose(sum_in_blocks(terms), exact, rtol=2.0**-45)
        np.testing.assert_allclose(
            products_in_blocks(terms, terms), terms.T @ terms, rtol=2.0**-40, atol=0
        )
    whole = np.full(70_000, 2**40, np.int64)
    assert sum_in_blocks(whole) == 70_000 * 2**40  # above 2^53, so not through floats


def test_clipped_statistics_of_any_records():
    bounds = RegressionBounds(x_norm_bound=2.0, y_bound=3.0)
    x = np.array([[3e200, 4e200], [np.nan, 1.0], [np.inf, 0.0], [0.3, 0.4], [0.0, 0.0]])
    y = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0])
    found = clipped_statistics(bounds, x, y)
    np.testing.assert_allclose(found.xtx, [[1.44 + 0.09, 1.92 + 0.12], [2.04, 2.56 + 0.16]])
    np.testing.assert_allclose(found.xty, [-3 * 1.2 + 0.3, -3 * 1.6 + 0.4])
    np.testing.assert_allclose(found.yty, 28.0)
    stacked = clipped_statistics(bounds, np.stack([x, x]), np.stack([y, y]))
    np.testing.assert_array_equal(stacked.xtx[1], found.xtx)
    np.testing.assert_array_equal(stacked.yty, [found.yty] * 2)


def test_records_on_a_grid_keep_bounds():
    bounds, unit = RegressionBounds(x_norm_bound=1.0, y_bound=0.5), 2.0**-6
    x, y = np.random.default_rng(1).normal(size=(500, 3)), np.linspace(-2, 2, 500)
    for one, target in zip(x, y, strict=True):
        found = clipped_statistics(bounds, one[None], target[None], unit)
        assert np.trace(found.xtx) <= 1.0
        assert found.yty <= 0.25
        assert np.all(found.xtx / unit**2 == np.rint(found.xtx / unit**2))


def test_release_records_under_jit():
    scales = RegressionStatistics(1e-3, 1e-3, 1e-3)
    used = PerturbedStatistics(
        RegressionBounds(x_norm_bound=1.0, y_bound=0.5), 2, scales, "gaussian", "add_remove"
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


def test_conjugate_sum_records_of_any_number():
    records = np.random.default_rng(2).uniform(size=MANY)
    normal = NormalKnownVariance((0.0, 1.0), variance=1.0, prior_mean=0.0, prior_variance=1.0)
    moves = normal.sensitivity(norm="l1", adjacency="replace_one")
    released = SufficientStatisticsMechanism(normal, Laplace(moves, 1e-9)).release(
        jax.random.key(0), records
    )
    exact = np.asarray(records, np.float32).sum(dtype=np.float64)
    assert abs(released[0] - exact) < 1e-6
    # power: in float32 it would be rounded to a multiple of 2^-7
    assert abs(np.float32(exact) - exact) > 1e-6
    coin = BetaBinomial()
    count = coin.sensitivity(norm="l1", adjacency="replace_one")
    ones = SufficientStatisticsMechanism(coin, DiscreteLaplace(count, 1 / 64)).release(
        jax.random.key(0), records > 0.5
    )
    assert ones.tolist() == [int((records > 0.5).sum())]


KEY = jax.random.key(4)
NORMAL = NormalKnownVariance((0.0, 1.0), variance=1.0, prior_mean=0.0, prior_variance=1.0)
MOMENTS = NormalUnknownVariance(
    (0.0, 1.0), prior_mean=0.5, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
)


def conjugate(family, cls, adjacency):
    moves = family.sensitivity(norm=cls.norm, adjacency=adjacency)
    return SufficientStatisticsMechanism(family, cls(moves, 3.0))


def releases_of_sums(adjacency):
    """Releases of sums of floats over five records, with the stated scales of their noise."""
    x, y = rows(5)
    box, sizes = ((0.0, 0.0), (1.0, 7.0)), (1.0, 2.0)
    total = ClippedSum(box, scale=3.0, adjacency=adjacency)
    histograms = HistogramBounds(
        x_norm_bounds=sizes, y_bounds=sizes, quantile=0.5, scale=3.0, adjacency=adjacency
    )
    ridge = AdaSSP(BOUNDS, 2, mu=1.0, delta=1e-5, adjacency=adjacency)
    found = {
        "ClippedSum": (partial(total.release, KEY, x), [3.0]),
        "HistogramBounds": (partial(histograms.release, KEY, x, y), [3.0]),
        "AdaSSP": (partial(ridge.release_records, KEY, x, y), [part.scale for part in ridge.parts]),
    }
    for family, cls in product((NORMAL, MOMENTS), (Gaussian, Laplace)):
        release = conjugate(family, cls, adjacency).release
        found[f"{type(family).__name__} {cls.__name__}"] = partial(release, KEY, y), [3.0]
    for distribution in ("gaussian", "laplace"):
        scales = RegressionStatistics(3.0, 5.0, 7.0)
        used = PerturbedStatistics(BOUNDS, 2, scales, distribution, adjacency)
        found[f"regression {distribution}"] = partial(used.release_records, KEY, x, y), [*scales]
    return found


def drawn_scales(release, monkeypatch):
    """The scales of the noise of a release, in the units of the statistic, in their order."""
    scales = []
    grid_for = additive.grid_for

    def keep(*arguments):
        grid = grid_for(*arguments)
        scales.append(grid.scale * as_fraction(2) ** grid.exponent)
        return grid

    with monkeypatch.context() as patch:
        patch.setattr(additive, "grid_for", keep)
        release()
    return scales


def cover_the_rounding(scales, stated):
    return all(
        drawn >= as_fraction(scale) * (1 + as_fraction(SUM_ROUNDING))
        for drawn, scale in zip(scales, stated, strict=True)
    )


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("name", releases_of_sums("add_remove"))
def test_noise_covers_rounding_of_float_sums(name, adjacency, monkeypatch):
    release, stated = releases_of_sums(adjacency)[name]
    scales = drawn_scales(release, monkeypatch)
    assert cover_the_rounding(scales, stated)
    larger = [scale * (1 + 2 * SUM_ROUNDING) for scale in stated]
    assert not cover_the_rounding(scales, larger)

    # power: the same release with the rounding left out
    add_noise = additive.AdditiveNoise.add_noise
    without = lambda *args, rounding, **options: add_noise(*args, **options)  # noqa: E731
    monkeypatch.setattr(additive.AdditiveNoise, "add_noise", without)
    assert not cover_the_rounding(drawn_scales(release, monkeypatch), stated)


def test_noise_of_integer_sums_is_as_stated(monkeypatch):
    counts = conjugate(BetaBinomial(), Gaussian, "add_remove")
    release = partial(counts.release, KEY, rows(5)[1] > 0)
    assert not cover_the_rounding(drawn_scales(release, monkeypatch), [3.0])
