"""Discrete noise on whole numbers: guarantees in closed form, and exact releases."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from helpers.noise_checks import FALSE_ALARM, attacked_epsilon, chi_square_p, release

from dpjax import sensitivity
from dpjax.accounting import calibrate
from dpjax.mechanisms import Composition, DiscreteGaussian, DiscreteLaplace, Gaussian
from dpjax.sensitivity import Sensitivity

ADJACENCIES = ("add_remove", "replace_one")
KEY = jax.random.key(5)


def laplace(scale=4.0, value=3, adjacency="add_remove"):
    return DiscreteLaplace(Sensitivity(value, "l1", adjacency), scale)


def gaussian(scale=4.0, value=3, adjacency="add_remove"):
    return DiscreteGaussian(Sensitivity(value, "l2", adjacency), scale)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("value", [1, 2, 3, 30])
def test_certificate_of_discrete_laplace(adjacency, value):
    used = laplace(8.0, value, adjacency)
    assert used.pure_epsilon == value / 8
    certificate = used.certificate(1e-9)
    assert value / 8 - 1e-8 <= certificate.epsilon <= value / 8 * (1 + 1e-9)
    # At the largest loss but one delta is 1 - exp(-1 / scale), and epsilon two steps of 1 / scale.
    delta, below = -math.expm1(-1 / 8.0), max(value - 2, 0) / 8
    assert used.certificate(delta).epsilon == pytest.approx(below, rel=0.01, abs=1e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("value", [4097, 50_001])
def test_certificate_of_discrete_laplace_on_fine_grid(adjacency, value):
    used = laplace(value / 0.7, value, adjacency)
    assert 0.7 * (1 - 1e-8) <= used.certificate(1e-9).epsilon <= 0.7 * 1.005
    exact = 0.7 + 2 * math.log1p(-0.1)  # of continuous noise, which so fine a grid cannot beat
    assert exact <= used.certificate(0.1).epsilon <= exact * 1.01


def test_discrete_laplace_from_epsilon_is_exact():
    count = sensitivity.of_count(norm="l1", adjacency="replace_one")
    used = DiscreteLaplace.from_epsilon(count, epsilon=0.1)
    assert used.scale == 1 / Fraction(0.1)
    assert used.pure_epsilon == 0.1


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("scale", [4.0, 20.0])
def test_certificate_of_discrete_gaussian_is_near_continuous(adjacency, scale):
    used = gaussian(scale, adjacency=adjacency)
    assert used.rho == pytest.approx((3 / scale) ** 2 / 2)
    certificate = used.certificate(1e-6)
    assert certificate.accountant == "pld"
    continuous = Gaussian(Sensitivity(3.0, "l2", adjacency), scale).certificate(1e-6).epsilon
    assert 0.99 * continuous < certificate.epsilon
    reduced = Gaussian(Sensitivity(3.0, "l2", adjacency), math.sqrt(scale**2 - 1 / 12))
    assert certificate.epsilon <= 1.001 * reduced.certificate(1e-6).epsilon


@pytest.mark.parametrize("scale", [0.6, 2.0, 10.0])
def test_certificate_of_discrete_gaussian_is_above_exact_loss(scale):
    """Canonne, Kamath, Steinke 2020, Theorem 7, for one entry moved by one."""
    used = gaussian(scale, 1)
    exact = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        scale, value_discretization_interval=1e-3, pessimistic_estimate=False
    )
    for delta in (1e-3, 1e-6):
        lower = exact.get_epsilon_for_delta(delta)
        assert lower - 2e-3 <= used.certificate(delta).epsilon <= 1.6 * lower + 0.05


def test_calibrate_discrete_noise():
    for used in (laplace(), gaussian()):
        found = calibrate(used, epsilon=0.5, delta=1e-6)
        assert 0.495 <= found.certificate(1e-6).epsilon <= 0.5


def test_certificate_of_composed_discrete_noise():
    for scale in (2.0, 9.0):
        alone = gaussian(scale).certificate(1e-6).epsilon
        both = Composition((laplace(), gaussian(scale))).certificate(1e-6).epsilon
        assert alone < both < 3 / 4 + alone
    twice = Composition((laplace(8.0), laplace(4.0)))
    assert twice.certificate(1e-9).epsilon == pytest.approx(9 / 8, rel=0.005)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, Fraction(20, 3)])
def test_standard_deviation_and_half_width(scale):
    k = np.arange(-3000, 3001)
    laws = {
        laplace: np.exp(-np.abs(k) / float(scale)),
        gaussian: np.exp(-(k**2) / (2 * float(scale) ** 2)),
    }
    for make, weights in laws.items():
        law, used = weights / weights.sum(), make(scale)
        assert used.standard_deviation == pytest.approx(np.sqrt(np.sum(law * k**2)), rel=1e-9)
        for level in (0.5, 0.95, 0.999):
            width = used.half_width(level)
            assert width == int(width)
            assert law[np.abs(k) <= width].sum() >= level
            if make is laplace and width > 0:
                assert law[np.abs(k) < width].sum() < level


@pytest.mark.parametrize("used", [laplace(Fraction(7, 2)), gaussian(3.0)])
def test_release_adds_integer_noise(used):
    value = {"a": np.array([[10, 20], [30, 40]], np.uint8), "b": -7}
    released = release(used, KEY, value)
    assert released["a"].dtype == released["b"].dtype == np.int64
    noise = release(used, KEY, {"a": np.zeros((2, 2), int), "b": 0})
    np.testing.assert_array_equal(released["a"] - value["a"], noise["a"])
    assert released["b"] + 7 == noise["b"]
    jitted = jax.jit(partial(release, used))(KEY, jax.tree.map(jnp.asarray, value))
    jax.tree.map(np.testing.assert_array_equal, jitted, released)


def test_confidence_interval_of_integers():
    low, high = laplace().confidence_interval(np.array([5, 6]), 0.9)
    width = laplace().half_width(0.9)
    assert low.tolist() == [5 - width, 6 - width]
    assert high.tolist() == [5 + width, 6 + width]


def test_release_attacked_epsilon():
    used = laplace(2.0, 2)
    zeros = np.zeros(20_000, np.int64)
    ones, others = (release(used, jax.random.key(seed), zeros) for seed in (1, 2))
    outcomes = [lambda x, t=t: x >= t for t in (0, 1, 2)]
    attacked = attacked_epsilon(ones + 2, others, outcomes)
    assert 0.8 < attacked <= used.pure_epsilon == 1.0
    # power: moved by three instead of two
    assert attacked_epsilon(ones + 3, others, [lambda x: x >= 3]) > used.pure_epsilon


def test_release_of_sum_on_a_grid():
    records = sensitivity.to_grid(sensitivity.clip_to(np.array([0.31, 9.0, np.nan]), (0, 2)), 0.01)
    bounds = sensitivity.to_grid((0, 2), 0.01)
    stated = sensitivity.of_sum(bounds, norm="l1", adjacency="replace_one")
    assert stated.value == 200
    used = DiscreteLaplace.from_epsilon(stated, epsilon=1.0)
    noise = release(used, KEY, 0)
    assert release(used, KEY, records.sum()) - noise == 31 + 200 + 0


def test_release_beyond_64_bits_is_exact():
    used = gaussian(100.0)
    noise = release(used, KEY, [0, 0])
    released = release(used, KEY, [10**30, -(2**63)])
    assert [int(r) - int(n) for r, n in zip(released, noise, strict=True)] == [10**30, -(2**63)]


def test_scale_of_any_float_type_is_a_fraction():
    one = Sensitivity(np.float32(1), "l1", "add_remove")
    assert DiscreteLaplace.from_epsilon(one, epsilon=np.float32(0.5)).scale == 2
    DiscreteLaplace(one, np.float32(2.5)).release(KEY, 3)


def test_standard_deviation_of_hardly_any_noise():
    assert DiscreteLaplace(Sensitivity(1.0, "l1", "add_remove"), 1e-4).standard_deviation < 1e-300


@pytest.mark.parametrize("cls", [DiscreteLaplace, DiscreteGaussian])
def test_release_noise_has_distribution_of_guarantee(cls):
    used = cls(Sensitivity(2, cls.norm, "add_remove"), Fraction(3, 2))
    noise = release(used, KEY, np.zeros(20_000, int))
    k = np.arange(-60, 61)
    if cls is DiscreteLaplace:  # from epsilon: sensitivity over scale
        weights = [np.exp(-np.abs(k) * used.pure_epsilon / 2 * f) for f in (1.0, 2 / 3)]
    else:  # from rho: squared sensitivity over twice the variance
        weights = [np.exp(-(k**2) * used.rho / 4 * f) for f in (1.0, 3 / 2)]
    stated, other = ((w / w.sum())[60 + np.arange(-3, 4)] for w in weights)
    cells = range(-3, 4)
    assert chi_square_p(noise, lambda cell: stated[cell + 3], cells) > FALSE_ALARM
    # power: the variance (or the squared scale) taken for the scale, or the other way round
    assert chi_square_p(noise, lambda cell: other[cell + 3], cells) < FALSE_ALARM
