"""The curves of an event, with the true one between them, and close together."""

import functools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import (
    MNIST_RATE,
    Noiseless,
    fixed_size,
    gaussian,
    laplace,
    mnist_steps,
    poisson,
    response,
)
from helpers.tradeoff_cases import assert_is_trade_off
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dpjax.accounting import (
    UnsupportedEventError,
    epsilon,
    epsilon_bounds,
    event_tradeoff,
    profile_bounds,
    risk,
    tradeoff,
    tradeoff_bounds,
    tradeoff_curve,
)

LEVELS = np.concatenate([np.geomspace(1e-5, 0.01, 30), np.linspace(0.02, 0.99, 60)])
ROW = poisson(1.1, MNIST_RATE, mnist_steps(60))
CASES = {
    "row": (ROW, "add_remove"),
    "one step": (poisson(0.5, 1e-3, 1), "add_remove"),
    "replaced": (poisson(1.3, 0.01, 200), "replace_one"),
    "laplace": (laplace(5.0, 3), "add_remove"),
    "response": (response(0.9, 3, 100), "replace_one"),
    "fixed size": (fixed_size(1.3, 10, 1_000, 200), "replace_one"),
    "mixed": (
        dp_event.ComposedDpEvent([poisson(1.3, 0.01, 200), gaussian(4.0), laplace(9.0)]),
        "add_remove",
    ),
}


@functools.cache
def _bracket(name):
    event, adjacency = CASES[name]
    return tradeoff_bounds(event, adjacency=adjacency)


@pytest.mark.parametrize("name", CASES)
def test_tradeoff_bounds_are_close(name):
    lower, upper = _bracket(name)
    for curve in (lower, upper):
        assert curve.is_symmetric
        assert_is_trade_off(curve)
    most, least = lower.true_positive_rate(LEVELS), upper.true_positive_rate(LEVELS)
    assert np.all(least <= most)
    assert np.all(most - least <= 0.004 * most)
    assert risk.advantage(upper) <= risk.advantage(lower) <= 1.004 * risk.advantage(upper) + 1e-12


@pytest.mark.parametrize("name", ["row", "replaced", "mixed"])
def test_tradeoff_curve_has_certified_epsilon(name):
    event, adjacency = CASES[name]
    lower, upper = _bracket(name)
    for delta in (1e-2, 1e-5, 1e-7):
        least, most = epsilon_bounds(event, delta, adjacency=adjacency)
        assert least <= lower.epsilon(delta) <= 1.002 * most + 1e-4
        assert 0.998 * least - 1e-3 <= upper.epsilon(delta) <= most


# A sample of nearly everything is composed on the grid, and exactly a Gaussian but for 1e-12.
NEARLY_ALL = poisson(10.0, 1 - 1e-12, 100)


def test_tradeoff_bounds_enclose_gaussian():
    exact = tradeoff.Gaussian(1.0)
    lower, upper = tradeoff_bounds(NEARLY_ALL, adjacency="add_remove")
    for levels in (LEVELS, 1 - LEVELS, np.geomspace(1e-12, 1e-5, 20)):
        assert np.all(lower(levels) <= exact(levels) + 1e-9)
        assert np.all(exact(levels) <= upper(levels) + 1e-9)
    assert tradeoff.distance(lower, upper) < 1e-3


def test_power_curve_through_points_of_lower_profile():
    # Chords of a convex profile lie above it: they are a broken twin of the polygon below.
    exact = tradeoff.Gaussian(1.0)
    epsilons = np.append(-0.4, np.linspace(0.0, 8.0, 21))
    deltas = np.asarray(exact.delta(epsilons))
    inside = tradeoff.from_profile(*event_tradeoff._below(epsilons, deltas))
    through = tradeoff.from_profile(epsilons[1:], deltas[1:])
    losses = np.linspace(0.0, 8.0, 400)
    assert np.all(inside.delta(losses) <= exact.delta(losses) + 1e-15)
    assert np.all(inside(LEVELS) >= exact(LEVELS) - 1e-15)
    assert np.max(through.delta(losses) - exact.delta(losses)) > 1e-3
    assert np.max(exact(LEVELS) - through(LEVELS)) > 1e-3


@given(
    st.lists(st.floats(0.01, 2.0), min_size=4, max_size=30),
    st.lists(st.floats(-3.0, 5.0), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
)
def test_below_is_below_any_convex_profile(steps, losses, weights):
    """Of finitely many losses, whose profiles have kinks anywhere."""
    weights = np.array(weights[: len(losses)]) / len(losses)

    def delta(epsilon):
        gain = -np.expm1(np.minimum(np.asarray(epsilon)[..., None] - np.array(losses), 0.0))
        return np.maximum(gain @ weights, np.maximum(0, -np.expm1(np.minimum(epsilon, 0.0))))

    epsilons = np.cumsum(np.append(-steps[0], steps))
    epsilons[1] = 0.0
    knots, values = event_tradeoff._below(epsilons, delta(epsilons))
    assert np.all(np.diff(knots) >= 0)
    fine = np.linspace(0.0, epsilons[-1], 200)
    polygon = np.interp(np.exp(fine), np.exp(knots), values)
    assert np.all(polygon <= delta(fine) + 1e-12)


@pytest.mark.parametrize("name", ["row", "one step"])
def test_tradeoff_bounds_grid_is_fine_enough(name, monkeypatch):
    """Four times as many epsilons change neither end by a thousandth of what it says."""
    before = _bracket(name)
    monkeypatch.setattr(event_tradeoff, "_NEAR_POINTS", 8_000)
    monkeypatch.setattr(event_tradeoff, "_FAR_POINTS", 12_000)
    for coarse, fine in zip(before, _bracket.__wrapped__(name), strict=True):
        np.testing.assert_allclose(
            coarse.true_positive_rate(LEVELS), fine.true_positive_rate(LEVELS), rtol=1e-3
        )
        assert risk.advantage(coarse) == pytest.approx(risk.advantage(fine), rel=1e-3)


def test_tradeoff_bounds_of_responses_against_binomial():
    """Two buckets, so that the loss counts the answers that are kept."""
    kept, count = 0.6, 30
    successes = np.arange(count + 1)
    exact = tradeoff.Discrete(
        binom.pmf(successes, count, 1 - kept), binom.pmf(successes, count, kept)
    )
    lower, upper = tradeoff_bounds(response(0.8, 2, count), adjacency="replace_one")
    assert np.all(lower(LEVELS) <= exact(LEVELS) + 1e-9)
    assert np.all(exact(LEVELS) <= upper(LEVELS) + 1e-9)
    assert tradeoff.distance(lower, upper) < 5e-3


def test_tradeoff_bounds_of_both_orders():
    """One step's curve is min{f, f^-1}** of the mixture, not the mixture itself."""
    step = tradeoff.mixture(tradeoff.Gaussian(1.0), 0.3)
    lower, upper = tradeoff_bounds(poisson(1.0, 0.3, 1), adjacency="add_remove")
    both = step.symmetrized()
    assert np.all(lower(LEVELS) <= both(LEVELS) + 1e-9)
    assert np.all(both(LEVELS) <= upper(LEVELS) + 1e-9)
    for one in (step, step.inverse()):
        assert np.max(one(LEVELS) - upper(LEVELS)) > 1e-3


def test_tradeoff_curve_has_profile_bounds():
    epsilons = np.linspace(0.0, 4.0, 30)
    lower, upper = _bracket("replaced")
    ends = profile_bounds(CASES["replaced"][0], epsilons, adjacency="replace_one")
    np.testing.assert_allclose(lower.delta(epsilons), ends.upper, rtol=1e-3, atol=1e-10)
    np.testing.assert_allclose(upper.delta(epsilons), ends.lower, rtol=1e-3, atol=1e-10)


def test_tradeoff_curve_closed_forms():
    for adjacency, clips in (("add_remove", 1), ("replace_one", 2)):
        bracket = tradeoff_bounds(gaussian(4.0, 16), adjacency=adjacency)
        assert bracket.is_exact
        assert bracket.lower == tradeoff_curve(gaussian(4.0, 16), adjacency=adjacency)
        assert bracket.lower.mu == pytest.approx(clips)
    nothing = tradeoff_bounds(dp_event.NoOpDpEvent(), adjacency="add_remove")
    assert nothing.lower == tradeoff.Identity()
    everything = tradeoff_curve(Noiseless(1.0).event, adjacency="add_remove")
    assert everything(0.0) == 0.0


def test_tradeoff_curve_of_hardly_any_noise():
    for event in (poisson(0.3, 0.5, 400), laplace(0.001, 2)):
        lower, upper = tradeoff_bounds(event, adjacency="add_remove")
        assert risk.advantage(lower) >= 1 - 1e-12
        assert risk.advantage(lower) >= risk.advantage(upper) - 1e-12
        assert math.isinf(lower.epsilon(1e-3))


def test_tradeoff_curve_without_upper_curve():
    event = dp_event.RepeatAndSelectDpEvent(dp_event.ZCDpEvent(1 / 32), 10, 1)
    with pytest.raises(UnsupportedEventError, match="no privacy loss"):
        tradeoff_bounds(event, adjacency="add_remove")
    curve = tradeoff_curve(event, adjacency="add_remove")
    assert_is_trade_off(curve)
    certified = epsilon(event, 1e-5, adjacency="add_remove", method="rdp")
    assert 0.998 * certified <= curve.epsilon(1e-5) <= 1.03 * certified


def test_tradeoff_curve_refuses():
    with pytest.raises(UnsupportedEventError, match="no Rényi divergence"):
        tradeoff_curve(fixed_size(1.0, 10, 1_000, 3), adjacency="add_remove")
    for function in (tradeoff_bounds, tradeoff_curve):
        with pytest.raises(ValueError, match="adjacency must be one of"):
            function(gaussian(1.0), adjacency="swap")
        with pytest.raises(ValueError, match=r"event must be a dp_accounting\.DpEvent"):
            function(1.0, adjacency="add_remove")
