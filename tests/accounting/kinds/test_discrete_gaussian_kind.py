"""Discrete Gaussian noise: certificates against the exact delta, by enumeration in 40 digits."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import certified_of
from scipy.optimize import brentq

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
from dpjax.accounting.kinds.discrete_gaussian import (
    DiscreteGaussianDpEvent,
    DiscreteGaussianNoise,
    unit_mu,
)
from dpjax.adjacency import ADJACENCIES
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
        reach = math.ceil(14 * math.sqrt(variance)) + 14
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


def all_shifts(squared, largest=None):
    """Every falling tuple of positive integers whose squares sum to at most ``squared``."""
    yield ()
    for first in range(1, (largest or squared) + 1):
        if first**2 <= squared:
            yield from ((first, *rest) for rest in all_shifts(squared - first**2, first))


@functools.cache
def float_losses(variance, shift):
    """The losses of a shift and their masses, by convolution of the entries' noise in floats."""
    reach = math.ceil(17 * math.sqrt(variance)) + 2
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    masses = np.ones(1)
    for entry in shift:
        masses = np.convolve(masses, np.kron(weights / weights.sum(), np.eye(1, entry)[0]))
    # The noise of every entry starts at -reach.
    sums = np.arange(masses.size) - reach * sum(shift)
    return (2 * sums + sum(entry**2 for entry in shift)) / (2 * variance), masses


def float_delta(variance, shift, eps):
    losses, masses = float_losses(variance, shift)
    return masses @ np.maximum(0, -np.expm1(np.minimum(eps - losses, 0)))


def float_epsilon(variance, shift, delta):
    if float_delta(variance, shift, 0.0) <= delta:
        return 0.0
    last = float_losses(variance, shift)[0][-1]
    return brentq(lambda eps: float_delta(variance, shift, eps) - delta, 0, last, xtol=1e-12)


@pytest.mark.parametrize(("variance", "shift"), [(0.3, (1, 2)), (16, (2,)), (16, (1, 1))])
def test_oracles_agree(variance, shift):
    for eps in (*EPSILONS, 9.0):
        exact = exact_delta(variance, shift, eps)
        assert float_delta(variance, shift, eps) == pytest.approx(exact, rel=1e-11, abs=1e-40)


def worst_delta(variance, squared, eps):
    """The largest delta of all integer shifts of this squared length, of few entries or of many.

    Of so many that they are not enumerated the sum of the noise is all but continuous.
    """
    if squared <= 9:
        shifts = [s for s in all_shifts(squared) if sum(e**2 for e in s) == squared]
        return max(float_delta(variance, shift, eps) for shift in shifts)
    return max(
        float_delta(variance, (math.isqrt(squared),), eps),
        float(gdp.delta(math.sqrt(squared / variance), eps)) * (1 + 1e-6),
    )


@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_profile_bounds_enclose_exact_delta(variance, shift):
    found = profile_bounds(release_event(variance, shift), EPSILONS, adjacency="add_remove")
    squared = sum(entry**2 for entry in shift)
    exact = np.array([exact_delta(variance, shift, eps) for eps in EPSILONS])
    worst = np.array([worst_delta(variance, squared, eps) for eps in EPSILONS])
    seen = exact > 1e-12
    assert np.all(found.lower[seen] <= worst[seen])
    assert np.all(exact[seen] <= found.upper[seen])


@pytest.mark.parametrize("squared", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("scale", [0.5, 0.8, 1.7])
def test_profile_bounds_are_attained_by_the_worst_shift(scale, squared):
    """Of one release the profile is exact: rounding is all that is added."""
    event = DiscreteGaussianDpEvent(scale / math.sqrt(squared), scale)
    kink = squared / (2 * scale**2)
    epsilons = np.array([0.0, 0.3, 1.0, 1.3, 2.0]) * kink
    upper = profile_bounds(event, epsilons, adjacency="add_remove").upper
    exact = [
        [float_delta(scale**2, shift, eps) for eps in epsilons] for shift in all_shifts(squared)
    ]
    assert np.all(exact <= upper * (1 + 1e-12))
    assert np.all(upper[[0, 2, 4]] <= np.max(exact, axis=0)[[0, 2, 4]] * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("scale", [0.5, 0.75, 1.0, 1.6, 2.5, 3.7, 6.0, 9.9, 10.1, 50.0])
def test_epsilon_bounds_of_one_release_are_narrow(scale, adjacency):
    """The truth, of all shifts, is within; the ends are 1 % apart, before 29 %."""
    for value in (1.0, math.sqrt(2), 1.9, 2.0, 3.0, 5.0):
        whole = math.floor(value**2 + 1e-9)
        worst = [s for s in all_shifts(whole) if sum(e**2 for e in s) == whole]
        for delta in (1e-3, 1e-8):
            mechanism = DiscreteGaussian(Sensitivity(value, "l2", adjacency), scale)
            lower, upper = epsilon_bounds(mechanism.event, delta, adjacency=adjacency)
            assert upper <= 1.01 * lower
            # The Gaussian bounds of larger scales are above and below every shift.
            some = worst if scale < 4 and whole <= 9 else worst[-1:]
            exact = max(float_epsilon(scale**2, shift, delta) for shift in some)
            assert exact <= upper * (1 + 1e-9)
            if some is worst:
                assert lower <= exact


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 6.0, 12.0])
@pytest.mark.parametrize(("squared", "count"), [(1, 2), (1, 3), (2, 2), (3, 3)])
def test_epsilon_bounds_of_compositions_against_enumeration(scale, squared, count):
    """Of shifts by single units several releases are one release of longer vectors."""
    event = DiscreteGaussianDpEvent(scale / math.sqrt(squared), scale)
    composed = dp_event.SelfComposedDpEvent(event, count)
    lower, upper = epsilon_bounds(composed, 1e-6, adjacency="zero_out")
    ones = (1,) * (squared * count)
    assert float_delta(scale**2, ones, upper) <= 1e-6 <= float_delta(scale**2, ones, lower)
    assert upper <= 1.01 * lower


@pytest.mark.parametrize("scale", [0.7, 2.5])
def test_epsilon_bounds_with_discrete_laplace_noise_against_enumeration(scale):
    parameter, delta = 0.4, 1e-6
    event = dp_event.ComposedDpEvent(
        [DiscreteGaussianDpEvent(scale, scale), dp_event.DiscreteLaplaceDpEvent(parameter, 1)]
    )
    lower, upper = epsilon_bounds(event, delta, adjacency="add_remove")
    # A unit's shift of discrete Laplace noise has two losses, of opposite signs.
    kept = 1 / (1 + math.exp(-parameter))

    def exact(eps):
        inside, outside = (float_delta(scale**2, (1,), eps + sign * parameter) for sign in (-1, 1))
        return kept * inside + (1 - kept) * outside

    assert exact(upper) <= delta <= exact(lower)
    assert upper <= 1.01 * lower


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0, 4.0, 30.0])
def test_unit_mu_of_any_integer_shift(variance):
    """mu grows at most in proportion to the shift, and no less mu does for a shift of one."""
    mu = unit_mu(variance)
    one_knot = (1 / variance) * (np.arange(1, 6) - 0.5)
    for shift in (1, 2, 3, 7):
        for eps in (0.0, *shift * one_knot):
            exact = float_delta(variance, (shift,), eps)
            assert exact <= gdp.delta(shift * mu, eps) * (1 + 1e-9) + 1e-30
    epsilons = np.linspace(0.0, 3 / variance, 400)
    exact = np.array([float_delta(variance, (1,), eps) for eps in epsilons])
    assert np.any(exact > gdp.delta(0.99 * mu, epsilons))


@pytest.mark.parametrize("variance", [9e3, 1.1e4, 1e6])
@pytest.mark.parametrize("shift", [1, 50])
def test_mu_of_fine_noise_is_that_of_its_gaussian_and_more(variance, shift):
    """The noise is of variance V - w before it is rounded at random, with w between 1/12 and 4."""
    scale = math.sqrt(variance)
    event = DiscreteGaussianDpEvent(scale / shift, scale)
    squared = DiscreteGaussianNoise(event, "add_remove").squared_mu()
    assert shift**2 / (variance - 1 / 12) <= squared <= shift**2 / (variance - 4) * (1 + 1e-9)


@pytest.mark.parametrize("variance", [5.0, 12.0])
def test_epsilon_bounds_of_many_entries(variance):
    """And not by much: with the noise's own variance alone it is above."""
    entries = 36
    for delta in (0.1, 1e-4, 1e-8):
        event = DiscreteGaussianDpEvent(math.sqrt(variance / entries), math.sqrt(variance))
        lower, upper = epsilon_bounds(event, delta, adjacency="add_remove")
        exact = float_epsilon(variance, (1,) * entries, delta)
        assert 0.97 * exact <= lower <= exact <= upper


@pytest.mark.slow
@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_power_gaussian_of_the_same_variance(variance, shift):
    """Power check: at the noise's own variance the Gaussian bound is below the exact delta."""
    mu = math.sqrt(sum(entry**2 for entry in shift) / variance)
    epsilons = np.linspace(0.0, 3 * mu, 40)
    exact = np.array([exact_delta(variance, shift, eps) for eps in epsilons])
    assert np.any(exact > gdp.delta(mu, epsilons) * (1 + 1e-6))


@pytest.mark.parametrize(("variance", "shift"), [case for case in CASES if case[0] > 8])
@pytest.mark.parametrize("reduction", [4.0, 3.0])
def test_gaussian_bound_of_smaller_reductions(variance, shift, reduction):
    """The argument needs no more than that exp(-2 pi^2 w) is next to nothing."""
    mu = math.sqrt(sum(entry**2 for entry in shift) / (variance - reduction))
    for eps in EPSILONS:
        assert exact_delta(variance, shift, eps) <= gdp.delta(mu, eps) * (1 + 1e-12) + 1e-30


@pytest.mark.parametrize(("variance", "shift"), [(9, (3,)), (100, (6, -8))])
def test_profile_bounds_of_sampled_release(variance, shift):
    """The rounding commutes with the shift, so the sampled Gaussian bounds the sampled release."""
    noise = math.sqrt((variance - 4) / sum(entry**2 for entry in shift))
    event = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(noise))
    upper = profile_bounds(event, EPSILONS, adjacency="add_remove", direction="remove").upper
    exact = [exact_delta(variance, shift, eps, rate=mpmath.mpf("0.2")) for eps in EPSILONS]
    assert np.all(np.array(exact) <= upper)


@pytest.mark.parametrize("delta", [1e-4, 1e-8])
@pytest.mark.parametrize(("variance", "shift"), CASES)
def test_epsilon_bounds_against_exact_delta(variance, shift, delta):
    event = release_event(variance, shift)
    bounds = epsilon_bounds(event, delta, adjacency="add_remove")
    assert exact_delta(variance, shift, bounds.upper) <= delta
    squared = sum(entry**2 for entry in shift)
    assert worst_delta(variance, squared, bounds.lower) >= delta
    assert bounds.upper <= 1.01 * bounds.lower


def test_epsilon_of_published_figure():
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
def test_certified_epsilon_of_coarse_noise_is_exact(variance):
    event = DiscreteGaussianDpEvent(math.sqrt(variance), math.sqrt(variance))
    method, certified = certified_of(event, 1e-6, "add_remove")
    exact = float_epsilon(variance, (1,), 1e-6)
    assert (method, certified) == ("pld", pytest.approx(exact, rel=1e-5))
    assert certified >= exact * (1 - 1e-9)
    assert certified < epsilon(event, 1e-6, adjacency="add_remove", method="rdp")


@pytest.mark.parametrize(("edge", "squared"), [(100.0, 16), (1e4, 9), (1e4, 1e4), (9.0, 30)])
def test_epsilon_bounds_are_continuous_in_scale(edge, squared):
    def bounds(variance, squared):
        event = DiscreteGaussianDpEvent(math.sqrt(variance / squared), math.sqrt(variance))
        return epsilon_bounds(event, 1e-6, adjacency="add_remove")

    below = bounds(edge * (1 - 1e-9), squared)
    above = bounds(edge * (1 + 1e-9), squared)
    assert below == pytest.approx(above, rel=5e-3)
    assert bounds(edge, squared) == pytest.approx(bounds(edge, squared + 1e-9), rel=1e-6)


def test_certified_epsilon_takes_smaller_renyi_bound():
    """Coarse noise that 49 units move: no exact loss, and a Gaussian that is far above."""
    event = DiscreteGaussianDpEvent(0.6 / 7, 0.6)
    tight, loose = (
        epsilon(event, 1e-6, adjacency="add_remove", method=method) for method in ("rdp", "pld")
    )
    # rho-zCDP with rho = 49 / (2 * 0.36), by Canonne, Kamath & Steinke 2020, Proposition 7.
    rho = 49 / 0.72
    assert tight <= rho + 2 * math.sqrt(rho * math.log(1e6)) < loose
    assert certified_of(event, 1e-6, "add_remove") == ("rdp", tight)
    curve = tradeoff_curve(event, adjacency="add_remove")
    assert curve.epsilon(1e-6) <= 1.03 * tight < loose
    assert float_epsilon(0.36, (1,) * 49, 1e-6) <= tight


@pytest.mark.parametrize("scale", [1e-170, 1e-3, 1e16, 2.0**63, 1e200])
@pytest.mark.parametrize("noise", [1e-99, 0.3, 1.0, 1e90])
def test_certified_epsilon_of_extreme_scales(scale, noise):
    """Of fine noise it is that of Gaussian noise, of noise that hides nothing that of zCDP."""
    value = certified_of(DiscreteGaussianDpEvent(noise, scale), 1e-6, "add_remove")[1]
    zcdp = epsilon(dp_event.ZCDpEvent(0.5 / noise**2), 1e-6, adjacency="add_remove", method="rdp")
    if scale >= 1e16 and noise in (0.3, 1.0):
        assert value == pytest.approx(gdp.epsilon(1 / noise, 1e-6), rel=1e-3)
    elif scale < 1 or noise == 1e-99:
        assert value == pytest.approx(zcdp, rel=1e-9)
    else:
        assert value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one", "zero_out"])
@pytest.mark.parametrize("target", [0.4, 0.7, 0.9, 2.0])
def test_calibrate_discrete_gaussian(target, adjacency):
    used = DiscreteGaussian(Sensitivity(1, "l2", adjacency), 3.0)
    found = calibrate(used, epsilon=target, delta=1e-6)
    assert 0.99 * target <= found.certificate(1e-6).epsilon <= target


def test_epsilon_applies_adjacency_once():
    one = DiscreteGaussian(Sensitivity(6.0, "l2", "add_remove"), 9.0)
    other = DiscreteGaussian(Sensitivity(6.0, "l2", "replace_one"), 9.0)
    assert one.certificate(1e-5).epsilon == pytest.approx(other.certificate(1e-5).epsilon)
    assert one.certificate(1e-5).epsilon_lower == pytest.approx(
        other.certificate(1e-5).epsilon_lower
    )


def test_epsilon_bounds_with_releases_of_other_kinds():
    gaussian = DiscreteGaussian(Sensitivity(3.0, "l2", "add_remove"), 12.0)
    laplace = DiscreteLaplace(Sensitivity(3.0, "l1", "add_remove"), 9.0)
    twice = Composition((gaussian, gaussian)).certificate(1e-6)
    squared = 2 * 9 / 144
    assert twice.epsilon == pytest.approx(gdp.epsilon(math.sqrt(squared), 1e-6), rel=2e-3)
    both = Composition((gaussian, laplace)).certificate(1e-6)
    assert max(gaussian.certificate(1e-6).epsilon, 1 / 3) < both.epsilon
    assert both.epsilon < gaussian.certificate(1e-6).epsilon + 1 / 3


@pytest.mark.parametrize("variance", [16, 144])
def test_tradeoff_curve_is_below_the_exact_one(variance):
    shift = (math.isqrt(variance),)
    event = release_event(variance, shift)
    lower, upper = tradeoff_bounds(event, adjacency="add_remove")
    for eps in EPSILONS[:5]:
        assert exact_delta(variance, shift, eps) <= lower.delta(eps)
        assert upper.delta(eps) <= worst_delta(variance, variance, eps)
    assert tradeoff_curve(event, adjacency="add_remove").delta(1.0) == lower.delta(1.0)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_epsilon_of_sensitivity_below_one_unit(adjacency):
    moves = Sensitivity(0.4, "l2", adjacency).clip_bound  # no mechanism has it
    event = DiscreteGaussianDpEvent(4.0 / moves, 4.0)
    with pytest.raises(UnsupportedEventError, match="as close as the sensitivity"):
        epsilon_bounds(event, 1e-5, adjacency=adjacency)
    stated = epsilon(dp_event.ZCDpEvent(0.005), 1e-5, adjacency=adjacency, method="rdp")
    assert certified_of(event, 1e-5, adjacency) == ("rdp", pytest.approx(stated, rel=1e-12))


def test_epsilon_of_fractional_squared_sensitivity():
    """No two integer vectors are 1.5 apart: the bounds are those of the square root of two."""
    ends = [
        epsilon_bounds(DiscreteGaussianDpEvent(6 / moved, 6.0), 1e-5, adjacency="add_remove")
        for moved in (1.0, 1.5, math.sqrt(2))
    ]
    assert ends[1] == pytest.approx(ends[2], rel=1e-9)
    assert ends[0].upper < ends[1].lower
    assert exact_delta(36, (1, 1), ends[1].upper) <= 1e-5 <= exact_delta(36, (1, 1), ends[1].lower)
