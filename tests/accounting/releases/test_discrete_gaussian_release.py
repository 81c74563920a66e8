"""Discrete Gaussian noise: certificates against the exact delta, by enumeration in 40 digits."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event

from dpjax.accounting import (
    UnsupportedEventError,
    calibrate,
    epsilon,
    epsilon_bounds,
    gdp,
    profile_bounds,
    tradeoff_bounds,
    tradeoff_curve,
)
from dpjax.accounting.accountants import guarantee
from dpjax.accounting.releases.discrete_gaussian import DiscreteGaussianDpEvent
from dpjax.mechanisms import Composition, DiscreteGaussian, DiscreteLaplace
from dpjax.sensitivity import Sensitivity

# Variance of the noise and the integer shift, in one, two and three dimensions.
CASES = [
    (5, (1,)),
    (9, (3,)),
    (16, (2,)),
    (40, (6,)),
    (144, (12,)),
    (900, (31,)),
    (16, (1, 1)),
    (25, (3, 4)),
    (100, (6, -8)),
    (36, (1, 2, 2)),
]
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


@functools.cache
def inner_products(variance, shift):
    """The distribution of noise times shift, which alone determines an outcome's ratio."""
    with mpmath.workdps(40):
        reach = 14 * math.isqrt(variance) + 14
        weights = {
            k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * variance)) for k in range(-reach, reach + 1)
        }
        total = sum(weights.values())
        masses = {0: mpmath.mpf(1)}
        for entry in shift:
            collected = {}
            for (level, mass), (k, weight) in itertools.product(masses.items(), weights.items()):
                at = level + entry * k
                collected[at] = collected.get(at, 0) + mass * weight / total
            masses = collected
        return masses


def exact_delta(variance, shift, eps, rate=1):
    """The hockey-stick divergence of a release with the record, drawn at ``rate``, from without."""
    squared = sum(entry**2 for entry in shift)
    with mpmath.workdps(40):
        scale = mpmath.exp(mpmath.mpf(eps))
        total = mpmath.mpf(0)
        for level, mass in inner_products(variance, shift).items():
            ratio = mpmath.exp(mpmath.mpf(2 * level - squared) / (2 * variance))
            total += mass * max(rate * ratio + 1 - rate - scale, 0)
        return float(total)


def release_event(variance, shift):
    scale, moved = math.sqrt(variance), math.sqrt(sum(entry**2 for entry in shift))
    return DiscreteGaussianDpEvent(scale / moved, scale)


@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_the_exact_delta_is_between_the_bounds(variance, shift):
    found = profile_bounds(release_event(variance, shift), EPSILONS, adjacency="add_remove")
    exact = np.array([exact_delta(variance, shift, eps) for eps in EPSILONS])
    seen = exact > 1e-12
    assert np.all(found.lower[seen] <= exact[seen])
    assert np.all(exact[seen] <= found.upper[seen])


@pytest.mark.slow
@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_a_gaussian_of_the_same_variance_is_no_bound(variance, shift):
    """Power check: without the reduction by 4 units the bound is below the exact delta."""
    mu = math.sqrt(sum(entry**2 for entry in shift) / variance)
    epsilons = np.linspace(0.0, 3 * mu, 40)
    exact = np.array([exact_delta(variance, shift, eps) for eps in epsilons])
    assert np.any(exact > gdp.delta(mu, epsilons) * (1 + 1e-6))


@pytest.mark.parametrize(("variance", "shift"), [case for case in CASES if case[0] > 8])
@pytest.mark.parametrize("reduction", [4.0, 3.0])
def test_a_smaller_reduction_holds_too_where_the_rounding_is_exact_enough(
    variance, shift, reduction
):
    """The argument needs no more than that exp(-2 pi^2 w) is next to nothing."""
    mu = math.sqrt(sum(entry**2 for entry in shift) / (variance - reduction))
    for eps in EPSILONS:
        assert exact_delta(variance, shift, eps) <= gdp.delta(mu, eps) * (1 + 1e-12) + 1e-30


@pytest.mark.parametrize(("variance", "shift"), [(9, (3,)), (100, (6, -8))])
def test_a_sampled_release_is_bounded_too(variance, shift):
    """The rounding commutes with the shift, so the sampled Gaussian bounds the sampled release."""
    noise = math.sqrt((variance - 4) / sum(entry**2 for entry in shift))
    event = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(noise))
    upper = profile_bounds(event, EPSILONS, adjacency="add_remove", direction="remove").upper
    exact = [exact_delta(variance, shift, eps, rate=mpmath.mpf("0.2")) for eps in EPSILONS]
    assert np.all(np.array(exact) <= upper)


@pytest.mark.parametrize("delta", [1e-4, 1e-8])
@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_the_certified_epsilon_is_above_the_exact_one_and_near_it(variance, shift, delta):
    event = release_event(variance, shift)
    bounds = epsilon_bounds(event, delta, adjacency="add_remove")
    assert exact_delta(variance, shift, bounds.upper) <= delta
    assert exact_delta(variance, shift, bounds.lower) >= delta
    if variance >= 100:  # the Gaussian bound is 2 % off in the noise at most
        assert exact_delta(variance, shift, bounds.upper * 0.955) > delta


def test_the_published_figure():
    """A scale equal to the sensitivity at delta = 1e-4: 3.80 instead of 4.18 by zCDP."""
    event = DiscreteGaussianDpEvent(1.0, 1000.0)
    certified = {
        method: epsilon(event, 1e-4, adjacency="add_remove", method=method)
        for method in ("pld", "rdp", "gdp_clt")
    }
    assert certified["pld"] == pytest.approx(3.80, abs=0.01)
    assert certified["gdp_clt"] == pytest.approx(3.80, abs=0.01)
    assert certified["rdp"] == pytest.approx(4.18, abs=0.01)


@pytest.mark.parametrize("variance", [0.3, 2.0, 4.9])
def test_coarse_noise_has_the_renyi_bound_alone(variance):
    event = DiscreteGaussianDpEvent(math.sqrt(variance), math.sqrt(variance))
    method, certified = guarantee(event, 1e-6, "add_remove")
    stated = epsilon(dp_event.ZCDpEvent(0.5 / variance), 1e-6, adjacency="add_remove", method="rdp")
    assert (method, certified) == ("rdp", pytest.approx(stated, rel=1e-12))
    with pytest.raises(UnsupportedEventError, match="too coarse for a Gaussian bound"):
        epsilon(event, 1e-6, adjacency="add_remove", method="pld")


def test_the_smaller_bound_is_certified_and_changes_continuously_with_the_scale():
    def certified(variance):
        scale = math.sqrt(variance)
        return guarantee(DiscreteGaussianDpEvent(scale, scale), 1e-6, "add_remove")

    assert certified(6.0)[0] == certified(16.0)[0] == "rdp"
    assert certified(64.0)[0] == certified(200.0)[0] == "pld"
    for variance in (5.0, 128.0):
        below, above = certified(variance - 1e-6)[1], certified(variance + 1e-6)[1]
        assert below == pytest.approx(above, rel=2e-3)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one", "zero_out"])
@pytest.mark.parametrize("target", [0.4, 0.7, 0.9, 2.0])
def test_calibration_reaches_any_target(target, adjacency):
    used = DiscreteGaussian(Sensitivity(1, "l2", adjacency), 3.0)
    found = calibrate(used, epsilon=target, delta=1e-6)
    assert 0.99 * target <= found.certificate(1e-6).epsilon <= target


def test_the_adjacency_counts_once():
    one = DiscreteGaussian(Sensitivity(6.0, "l2", "add_remove"), 9.0)
    other = DiscreteGaussian(Sensitivity(6.0, "l2", "replace_one"), 9.0)
    assert one.certificate(1e-5).epsilon == pytest.approx(other.certificate(1e-5).epsilon)
    assert one.certificate(1e-5).epsilon_lower == pytest.approx(
        other.certificate(1e-5).epsilon_lower
    )


def test_compositions_hold_with_releases_of_other_kinds():
    gaussian = DiscreteGaussian(Sensitivity(3.0, "l2", "add_remove"), 12.0)
    laplace = DiscreteLaplace(Sensitivity(3.0, "l1", "add_remove"), 9.0)
    twice = Composition((gaussian, gaussian)).certificate(1e-6)
    squared = 2 * 9 / 144
    assert twice.epsilon == pytest.approx(
        gdp.epsilon(math.sqrt(squared * 144 / 140), 1e-6), rel=2e-3
    )
    both = Composition((gaussian, laplace)).certificate(1e-6)
    assert max(gaussian.certificate(1e-6).epsilon, 1 / 3) < both.epsilon
    assert both.epsilon < gaussian.certificate(1e-6).epsilon + 1 / 3


@pytest.mark.parametrize("variance", [16, 144])
def test_the_certified_curve_is_below_the_exact_one(variance):
    shift = (math.isqrt(variance),)
    event = release_event(variance, shift)
    lower, upper = tradeoff_bounds(event, adjacency="add_remove")
    for eps in EPSILONS[:5]:
        exact = exact_delta(variance, shift, eps)
        assert upper.delta(eps) <= exact <= lower.delta(eps)
    assert tradeoff_curve(event, adjacency="add_remove").delta(1.0) == lower.delta(1.0)


def test_a_sensitivity_below_one_unit_has_no_lower_bound():
    event = DiscreteGaussianDpEvent(10.0, 4.0)
    with pytest.raises(UnsupportedEventError, match="as close as the sensitivity"):
        epsilon_bounds(event, 1e-5, adjacency="add_remove")
    assert guarantee(event, 1e-5, "add_remove")[1] > 0


def test_the_lower_bound_of_a_sensitivity_between_integers_is_that_of_one_entry():
    """No integer is 1.5 from another: sensitivities 1.5 and 1 have the same lower bound."""
    ends = [
        epsilon_bounds(DiscreteGaussianDpEvent(6 / moved, 6.0), 1e-5, adjacency="add_remove")
        for moved in (1.0, 1.5, math.sqrt(2))
    ]
    assert ends[1].lower == pytest.approx(ends[0].lower, rel=2e-3)
    assert ends[1].lower < ends[2].lower
    assert ends[0].upper < ends[1].upper
    assert exact_delta(36, (1,), ends[1].lower) >= 1e-5
