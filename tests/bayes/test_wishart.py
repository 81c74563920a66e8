"""Wishart noise: its distribution, exact profile against densities, calibration, and attacks."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.accounting import calibrate
from dpjax.accounting.kinds.wishart import WishartDpEvent, wishart_curve
from dpjax.bayes.regression import (
    RegressionBounds,
    RegressionStatistics,
    WishartNoise,
    sufficient_statistics,
)
from dpjax.bayes.regression.statistics import clipped_statistics
from experiments.published.regression import sheffet_degrees_of_freedom, wishart_noise

FALSE_ALARM = 1e-6  # of one assertion
_FARTHEST = -stats.norm.ppf(FALSE_ALARM / 2)
BOUNDS = RegressionBounds(x_norm_bound=1.2, y_bound=0.9)  # rows of norm at most 1.5
SQUARE = 2.25
NUM_DRAWS = 20_000
ADJACENCIES = ("add_remove", "replace_one")


def mechanism(degrees_of_freedom=8, adjacency="add_remove", scale=SQUARE, num_features=2):
    return WishartNoise(
        BOUNDS,
        num_features,
        degrees_of_freedom=degrees_of_freedom,
        scale=scale,
        adjacency=adjacency,
    )


@functools.cache
def noises(used, seed=0):
    """Releases of no records at all: joint matrices, in float64."""
    d = used.num_features
    empty = sufficient_statistics(jnp.zeros((0, d)), jnp.zeros(0))
    draw = jax.jit(jax.vmap(lambda key: used.release(key, empty)))
    xtx, xty, yty = draw(jax.random.split(jax.random.key(seed), NUM_DRAWS))
    matrices = np.zeros((NUM_DRAWS, d + 1, d + 1))
    matrices[:, :d, :d], matrices[:, d, d] = xtx, yty
    matrices[:, :d, d] = matrices[:, d, :d] = xty
    return matrices


def row(angle, used):
    """A row of the largest norm: by the angle, mostly features or mostly target."""
    features = np.linspace(1, 2, used.num_features)
    features *= math.cos(angle) / np.linalg.norm(features)
    return math.sqrt(SQUARE) * np.append(features, math.sin(angle))


def log_density(matrices, degrees_of_freedom, scale):
    """Of a Wishart matrix with scale matrix scale I, up to a constant; -inf off its support."""
    d = matrices.shape[-1]
    eigenvalues = np.linalg.eigvalsh(matrices)
    inside = eigenvalues[:, 0] > 0
    logs = np.log(np.where(inside[:, None], eigenvalues, 1.0)).sum(axis=1)
    value = (degrees_of_freedom - d - 1) / 2 * logs - eigenvalues.sum(axis=1) / (2 * scale)
    return np.where(inside, value, -np.inf)


def losses(matrices, used, ones, others):
    """Log ratios of the density of noise plus ``ones`` to that of noise plus ``others``."""
    distribution = used.degrees_of_freedom, used.scale
    return log_density(matrices - ones, *distribution) - log_density(
        matrices - others, *distribution
    )


def agrees(values, delta, epsilon):
    """Whether losses, drawn under the first distribution, have this delta at this epsilon."""
    gains = np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0)
    error = gains.std() / math.sqrt(gains.size)
    return abs(gains.mean() - delta) <= _FARTHEST * error + 1e-5


@pytest.mark.parametrize(("num_features", "degrees_of_freedom"), [(1, 5), (2, 8), (4, 30)])
def test_event_has_the_profile_of_the_densities_in_every_dimension(
    num_features, degrees_of_freedom
):
    used = mechanism(degrees_of_freedom, num_features=num_features)
    noise = noises(used)
    curve = used.event.add_remove_tradeoff
    forgets_the_dimension = WishartDpEvent(degrees_of_freedom, 1.0).add_remove_tradeoff
    for angle in (0.0, 0.7, math.pi / 2):
        square = np.outer(*2 * [row(angle, used)])
        without = losses(noise, used, 0 * square, square)
        held = losses(noise + square, used, square, 0 * square)
        for epsilon in (0.0, 0.2):
            assert agrees(without, curve.inverse().delta(epsilon), epsilon)
            assert agrees(held, curve.delta(epsilon), epsilon)
            assert not agrees(without, forgets_the_dimension.inverse().delta(epsilon), epsilon)
            assert not agrees(held, forgets_the_dimension.delta(epsilon), epsilon)


def test_event_has_the_two_directions_in_order():
    used = mechanism()
    square = np.outer(*2 * [row(0.7, used)])
    without = losses(noises(used), used, 0 * square, square)
    assert not agrees(without, used.event.add_remove_tradeoff.delta(0.2), 0.2)
    held = losses(noises(used) + square, used, square, 0 * square)
    assert held.max() <= 0.5 + 1e-5  # half the squared norm over the scale
    # noise alone is not above the row in this share of draws, which nothing can hide
    assert np.isinf(without).any()
    assert used.delta(600.0) == pytest.approx(stats.chi2.cdf(1.0, 6), rel=1e-9)


def test_event_of_shorter_rows_has_a_smaller_loss():
    used = mechanism()
    square = np.outer(*2 * [row(0.7, used)])
    short = losses(noises(used), used, 0 * square, square / 2)
    assert agrees(short, WishartDpEvent(6, 2.0).add_remove_tradeoff.inverse().delta(0.1), 0.1)
    assert not agrees(short, used.delta(0.1), 0.1)


@pytest.mark.parametrize("angle", [0.4, math.pi / 2])
def test_delta_under_replace_one_is_a_bound(angle):
    used = mechanism(30, "replace_one")
    ones = np.outer(*2 * [row(0.0, used)])
    others = np.outer(*2 * [row(angle, used)])
    values = losses(noises(used) + ones, used, ones, others)
    within = {}
    for epsilon in (0.0, 0.1, 0.2):
        gains = np.maximum(-np.expm1(np.minimum(epsilon - values, 0.0)), 0.0)
        most = used.delta(epsilon)
        margin = _FARTHEST * gains.std() / math.sqrt(gains.size)
        assert gains.mean() - margin <= most
        within[epsilon] = gains.mean() - margin <= mechanism(30).delta(epsilon)
    # the bound is not idle: what holds under add/remove does not hold here
    assert angle < 1 or not any(within.values())


def test_release_has_wishart_noise():
    used = mechanism(8)
    noise = noises(used)

    def fits(values, degrees):
        return stats.kstest(values, stats.chi2(degrees).cdf).pvalue > FALSE_ALARM

    direction = row(0.7, used) / math.sqrt(SQUARE)
    along = np.einsum("i,nij,j->n", direction, noise, direction) / used.scale
    across = 1 / np.einsum("i,nij,j->n", direction, np.linalg.inv(noise), direction) / used.scale
    assert fits(along, 8)
    assert fits(across, 6)
    assert not fits(along, 8.2)
    assert not fits(across, 6.2)
    assert np.linalg.eigvalsh(noise)[:, 0].min() > 0


def test_release_is_the_statistics_plus_noise():
    used = mechanism(40)
    key = jax.random.key(3)
    x, y = jnp.array([[0.3, 0.1], [-0.2, 0.5]]), jnp.array([0.4, -0.8])
    exact = sufficient_statistics(x, y)
    released, noise = (
        used.release(key, exact),
        used.release(key, jax.tree.map(jnp.zeros_like, exact)),
    )
    for got, plain, added in zip(released, exact, noise, strict=True):
        np.testing.assert_allclose(got, plain + added, rtol=1e-5)
    far = 100 * x, 100 * y
    clipped = used.release(key, sufficient_statistics(*BOUNDS.clip(*far)))
    for got, expected in zip(used.release_records(key, *far), clipped, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_debias_subtracts_the_mean():
    used = mechanism(8)
    mean = noises(used).mean(axis=0)
    debiased = used.debias(RegressionStatistics(mean[:2, :2], mean[:2, 2], mean[2, 2]))
    for entries in debiased:
        np.testing.assert_allclose(entries, 0, atol=5 * used.scale * math.sqrt(16 / NUM_DRAWS))
    assert mean[0, 0] > 7 * used.scale


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_from_epsilon_takes_the_fewest_degrees_of_freedom(adjacency, epsilon):
    made = WishartNoise.from_epsilon(
        BOUNDS, epsilon=epsilon, delta=1e-5, adjacency=adjacency, num_features=11
    )
    assert made.scale == pytest.approx(SQUARE)
    assert made.delta(epsilon) <= 1e-5
    fewer = dataclasses.replace(made, degrees_of_freedom=made.degrees_of_freedom - 1)
    assert fewer.delta(epsilon) > 1e-5
    exact = float(wishart_curve(made.event, adjacency).epsilon(1e-5))
    certificate = made.certificate(1e-5)
    assert exact <= certificate.epsilon <= 1.01 * exact
    assert exact <= epsilon


@pytest.mark.parametrize("num_features", [1, 2, 7])
def test_release_records_rounds_within_the_bounds(num_features):
    """Exactly, as sums of one record: of rows at the bound and far above, in 500 directions."""
    bounds = RegressionBounds(x_norm_bound=0.7, y_bound=0.3)
    used = WishartNoise(
        bounds, num_features, degrees_of_freedom=12, scale=0.7**2 + 0.3**2, adjacency="replace_one"
    )
    x = np.random.default_rng(0).normal(size=(500, 1, num_features))
    x *= 0.7 / np.linalg.norm(x, axis=-1, keepdims=True)
    y = np.array([0.3, -0.3, -5.0, np.nan, 0.1] * 100)[:, None]
    for factor in (1.0, 1e9):
        xtx, _, yty = clipped_statistics(bounds, factor * x, y, used._record_unit)
        norms = [sum(map(Fraction, np.diagonal(one).tolist())) for one in xtx]
        assert max(norms) <= Fraction(0.7) ** 2
        assert max(map(Fraction, yty.tolist())) <= Fraction(0.3) ** 2
        # Not by much shorter rows.
        assert min(norms) >= Fraction(0.7) ** 2 * (1 - Fraction(2) ** -12)


def test_calibrate_and_description_of_the_scale():
    found = calibrate(mechanism(30), epsilon=0.5, delta=1e-5)
    description = mechanism(40).guarantee.description
    assert "rows of 3 entries, features and target, of norm at most 1.5" in description["statistic"]
    assert "40 degrees of freedom and scale 2.25: of mean 90" in description["noise"]
    assert found.degrees_of_freedom == 30
    assert 1e-5 * 0.8 < found.delta(0.5) <= 1e-5
    assert found.event.scale_over_square == pytest.approx(found.scale / SQUARE)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sheffet_degrees_of_freedom_are_safe_and_many_times_too_many(adjacency):
    for dimension in (1, 2, 12):
        for epsilon in (0.02, 0.1, 0.5, 0.9, 0.999):
            for delta in (1e-12, 1e-6, 1e-3, 0.3):
                degrees = sheffet_degrees_of_freedom(dimension, epsilon=epsilon, delta=delta)
                event = WishartDpEvent(degrees - dimension + 1, 1.0)
                assert wishart_curve(event, adjacency).delta(epsilon) < delta
                fewer = WishartDpEvent((degrees - dimension) // 5 + 1, 1.0)
                assert delta > 0.1 or wishart_curve(fewer, adjacency).delta(epsilon) <= delta


def test_sheffet_degrees_of_freedom_need_a_small_epsilon():
    """By its formula at epsilon 5, which it excludes, twelve degrees are too few."""
    degrees = math.floor(14 / 25 * 2 * math.log(4 / 1e-4)) + 1
    assert wishart_curve(WishartDpEvent(degrees, 1.0), "replace_one").delta(5.0) > 1e-4
    with pytest.raises(ValueError, match="epsilon must be in"):
        sheffet_degrees_of_freedom(2, epsilon=1.0, delta=1e-4)
    with pytest.raises(
        ValueError, match=r"delta must be in \(0, 1 / e\), for which the theorem is"
    ):
        sheffet_degrees_of_freedom(2, epsilon=0.5, delta=0.4)


def test_wishart_noise_refuses_as_many_degrees_as_dimensions():
    with pytest.raises(ValueError, match="degrees_of_freedom must be a whole number >= 5, got 4"):
        mechanism(4)  # the dimension and one: nothing is hidden
    with pytest.raises(TypeError, match="key must be a scalar JAX key"):
        wishart_noise(0, 2, 5, 1.0)
