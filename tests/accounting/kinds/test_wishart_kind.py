"""The curve of Wishart noise: against mpmath, against brute force, and through every accountant."""

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event

from dpjax.accounting import (
    UnsupportedEventError,
    epsilon,
    epsilon_bounds,
    gdp,
    profile_bounds,
    tradeoff_bounds,
)
from dpjax.accounting.kinds.wishart import (
    ChiSquare,
    ReplaceOneChiSquare,
    WishartDpEvent,
    wishart_curve,
)
from dpjax.accounting.tradeoff import TradeOff

CASES = [(3.0, 0.5), (20.0, 1.0), (100.0, 1.0), (400.0, 2.5)]


def exact_delta(degrees, shift, epsilon, *, with_over_without):
    """The integral of the positive part of p - e^epsilon q, by quadrature in 40 digits."""
    with mpmath.workdps(40):

        def density(x):
            half = mpmath.mpf(degrees) / 2
            return x ** (half - 1) * mpmath.exp(-x / 2) / (2**half * mpmath.gamma(half))

        def still(m):
            return density(m) if m > 0 else mpmath.mpf(0)

        def moved(m):
            return density(m - shift) if m > shift else mpmath.mpf(0)

        p, q = (moved, still) if with_over_without else (still, moved)

        def excess(m):
            return p(m) - mpmath.exp(epsilon) * q(m)

        # one change of sign above the shift
        grid = [shift + mpmath.mpf(10) ** mpmath.mpf(x) for x in np.linspace(-6, 3.5, 400)]
        signs = [excess(m) > 0 for m in grid]
        change = next((i for i in range(399) if signs[i] != signs[i + 1]), None)
        if change is None:
            return 0.0 if with_over_without else float(mpmath.quad(still, [0, shift]))
        low, high = grid[change], grid[change + 1]
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if (excess(middle) > 0) == signs[change] else (low, middle)
        if with_over_without:
            ends = [shift + (low - shift) * 2**i for i in range(60)]
            return float(mpmath.quad(excess, [m for m in ends if m < 40 * degrees]))
        parts = [shift + (low - shift) * i / 8 for i in range(9)]
        return float(mpmath.quad(still, [0, shift]) + mpmath.quad(excess, parts))


@pytest.mark.slow
@pytest.mark.parametrize(("degrees", "shift"), CASES)
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 1.0])
def test_chi_square_profiles_are_integrals_of_densities(degrees, shift, epsilon):
    curve = ChiSquare(degrees, shift)
    forward = exact_delta(degrees, shift, epsilon, with_over_without=True)
    backward = exact_delta(degrees, shift, epsilon, with_over_without=False)
    assert curve.delta(epsilon) == pytest.approx(forward, rel=1e-9, abs=1e-16)
    assert curve.inverse().delta(epsilon) == pytest.approx(backward, rel=1e-9)
    # Neither direction is the other's.
    assert curve.delta(epsilon) != pytest.approx(backward, rel=1e-3, abs=0) or epsilon == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("degrees", "shift"), CASES)
def test_chi_square_profile_and_curve_agree(degrees, shift):
    curve = ChiSquare(degrees, shift)
    levels = np.append(np.geomspace(1e-9, 0.5, 30), [0.0, 0.9, 1.0])
    by_lines = TradeOff._errors(curve, levels)[1]
    assert np.all(curve.true_positive_rate(levels) <= by_lines + 1e-12)
    np.testing.assert_allclose(
        1 - curve(levels), curve.true_positive_rate(levels), rtol=1e-9, atol=1e-12
    )
    gains = curve.true_positive_rate(np.linspace(0, 1, 200_001))
    for loss in (0.0, 0.1, 0.2):
        attained = np.max(gains - np.exp(loss) * np.linspace(0, 1, 200_001))
        assert attained == pytest.approx(curve.delta(loss), abs=2e-5)


def test_chi_square_infinite_loss_in_one_direction():
    curve = ChiSquare(20.0, 1.0)
    assert curve.delta(0.45) > 0
    assert curve.delta(0.5) == 0.0
    revealed = float(mpmath.gammainc(10, 0, 0.5, regularized=True))
    assert curve.inverse().delta(700.0) == pytest.approx(revealed, rel=1e-10)
    assert curve.inverse()(0.0) == pytest.approx(1 - revealed, rel=1e-12)


@pytest.mark.parametrize(("degrees", "shift"), CASES[1:])
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_replace_one_chi_square_composes_two_curves(degrees, shift, loss):
    curve = ChiSquare(degrees, shift)
    exchanged = ReplaceOneChiSquare(curve)
    thresholds = np.linspace(0, 12 * degrees, 400_001)
    levels = 1 - curve._above(thresholds)
    after = curve.true_positive_rate(curve._below(thresholds + shift))
    brute = np.max(after - np.exp(loss) * levels)
    assert exchanged.delta(loss) == pytest.approx(brute, rel=1e-6, abs=1e-12)
    # It is no less than either alone.
    assert exchanged.delta(loss) > curve.symmetrized().delta(loss)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("degrees", "scale"), [(100, 1.0), (24, 0.7), (1_000, 2.0)])
def test_loss_distribution_has_epsilon_of_the_curve(adjacency, degrees, scale):
    event = WishartDpEvent(degrees, scale)
    curve = wishart_curve(event, adjacency)
    for delta in (1e-2, 1e-4):
        exact = curve.epsilon(delta)
        certified = epsilon(event, delta, adjacency=adjacency)
        assert exact <= certified <= max(exact * 1.01, 1e-4)
        bracket = epsilon_bounds(event, delta, adjacency=adjacency)
        alone = wishart_curve(event, "add_remove").epsilon(delta)
        assert bracket.lower <= alone <= bracket.lower + max(2e-3 * certified, 1e-4)


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_profile_bounds_of_both_directions(direction):
    event, losses = WishartDpEvent(20, 1.0), np.linspace(-0.6, 0.6, 13)
    curve = (
        event.add_remove_tradeoff if direction == "remove" else event.add_remove_tradeoff.inverse()
    )
    other = curve.inverse()
    lower, upper = profile_bounds(event, losses, adjacency="add_remove", direction=direction)

    def holds(exact):
        return np.all((lower <= exact + 1e-12) & (exact <= upper + 1e-12))

    assert holds(curve.delta(losses))
    assert not holds(other.delta(losses))
    assert np.max(upper - lower) < 1e-3


def test_epsilon_of_composition_approaches_a_gaussian():
    step = WishartDpEvent(1_000, 1.0)
    four = dp_event.SelfComposedDpEvent(step, 4)
    lower, upper = epsilon_bounds(four, 1e-5, adjacency="add_remove")
    # A quarter of the degrees of freedom doubles the loss's deviation as well, but is more skewed.
    quarter = wishart_curve(WishartDpEvent(250, 1.0), "add_remove").epsilon(1e-5)
    limit = gdp.epsilon(500**-0.5, 1e-5)
    assert lower < upper < 1.002 * lower
    assert limit < upper < 1.06 * limit < quarter
    with_noise = dp_event.ComposedDpEvent([step, dp_event.GaussianDpEvent(10.0)])
    assert epsilon(with_noise, 1e-5, adjacency="replace_one") > upper


def test_tradeoff_bounds_of_one_release():
    event = WishartDpEvent(100, 1.0)
    lower, upper = tradeoff_bounds(event, adjacency="add_remove")
    assert lower == upper == event.add_remove_tradeoff.symmetrized()
    lower, upper = tradeoff_bounds(event, adjacency="replace_one")
    assert lower(0.05) < event.add_remove_tradeoff.symmetrized()(0.05) <= upper(0.05)
    twice = tradeoff_bounds(dp_event.SelfComposedDpEvent(event, 2), adjacency="add_remove")
    assert twice.upper(0.05) < event.add_remove_tradeoff(0.05)


def test_epsilon_of_no_noise_and_unsupported_methods():
    with pytest.raises(UnsupportedEventError, match="reveals the row with probability"):
        epsilon(WishartDpEvent(3, 0.01), 0.1, adjacency="add_remove")
    for method in ("rdp", "moments", "gdp_clt"):
        with pytest.raises(UnsupportedEventError, match="Methods that support it: 'pld'"):
            epsilon(WishartDpEvent(100, 1.0), 1e-5, adjacency="replace_one", method=method)
    sampled = dp_event.PoissonSampledDpEvent(0.1, WishartDpEvent(100, 1.0))
    with pytest.raises(
        UnsupportedEventError,
        match="no privacy loss distribution of PoissonSampledDpEvent of WishartDpEvent",
    ):
        epsilon(sampled, 1e-5, adjacency="add_remove")


@pytest.mark.parametrize("degrees", [2.0, 0.0, float("nan")])
def test_chi_square_refuses_two_degrees_of_freedom(degrees):
    with pytest.raises(ValueError, match="degrees_of_freedom must be a finite number > "):
        ChiSquare(degrees, 1.0)
