"""Releases known by (epsilon, delta) alone: against the closed form of their composition."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.special import ndtr

from dpjax.accounting import (
    ApproximateDpEvent,
    UnsupportedEventError,
    epsilon,
    epsilon_bounds,
    profile_bounds,
    tradeoff_curve,
)
from dpjax.accounting.tradeoff import ApproximateDP

CASES = [(1, 1.0, 1e-6), (10, 0.1, 1e-7), (5, 2.0, 0.0), (50, 0.3, 1e-8), (3, 20.0, 1e-6)]


def repeated(event, count):
    return dp_event.SelfComposedDpEvent(event, count)


def optimal_composition(count, epsilon, delta):
    """Epsilons and deltas of Kairouz, Oh & Viswanath (2015), Theorem 3.3, in 40 digits."""
    epsilons, deltas = [], []
    with mpmath.workdps(40):
        e = mpmath.e ** mpmath.mpf(epsilon)
        for i in range(count // 2 + 1):
            terms = (
                math.comb(count, j) * (e ** (count - j) - e ** (count - 2 * i + j))
                for j in range(i)
            )
            left = 1 - sum(terms) / (1 + e) ** count
            epsilons.append((count - 2 * i) * epsilon)
            deltas.append(float(1 - (1 - mpmath.mpf(delta)) ** count * left))
    return np.array(epsilons), np.array(deltas)


def agrees(event, epsilons, deltas):
    """Whether the upper bound is the closed form, and the lower bound close below it."""
    bounds = profile_bounds(event, epsilons, adjacency="replace_one")
    return (
        np.all(bounds.upper >= deltas * (1 - 1e-12))
        and np.allclose(bounds.upper, deltas, rtol=1e-6, atol=1e-12)
        and np.all(bounds.lower <= deltas * (1 + 1e-12))
        and np.allclose(bounds.lower, deltas, rtol=1e-2, atol=1e-6)
    )


@pytest.mark.parametrize(("count", "budget", "delta"), CASES)
def test_composition_is_the_optimal_one(count, budget, delta):
    event = repeated(ApproximateDpEvent(budget, delta=delta), count)
    assert agrees(event, *optimal_composition(count, budget, delta))


@pytest.mark.parametrize(("count", "budget", "delta"), [(9, 0.1, 1e-7), (10, 0.1, 2e-7)])
def test_power_another_guarantee_is_found(count, budget, delta):
    event = repeated(ApproximateDpEvent(budget, delta=delta), count)
    assert not agrees(event, *optimal_composition(10, 0.1, 1e-7))


def test_total_variation_alone_adds_up():
    bounds = profile_bounds(
        repeated(ApproximateDpEvent(0.0, delta=1e-3), 4), [0.0, 1.0], adjacency="zero_out"
    )
    np.testing.assert_allclose(bounds.upper, 1 - (1 - 1e-3) ** 4, rtol=1e-9)
    np.testing.assert_allclose(bounds.lower, bounds.upper, rtol=1e-3)


@pytest.mark.parametrize("budget", [1.0, 1e-5])
def test_composes_with_gaussian_noise(budget):
    """Bounds enclose the sum of two profiles, integrated over the Gaussian's loss."""
    delta, noise = 1e-4, 2.0
    event = dp_event.ComposedDpEvent(
        [ApproximateDpEvent(budget, delta=delta), dp_event.GaussianDpEvent(noise)]
    )
    lower, upper = epsilon_bounds(event, 1e-3, adjacency="zero_out")

    def profile(eps):
        mu, losses = 1 / noise, np.array([eps - budget, eps + budget])
        gaussian = ndtr(mu / 2 - losses / mu) - np.exp(losses) * ndtr(-mu / 2 - losses / mu)
        high = 1 / (1 + math.exp(-budget))
        return delta + (1 - delta) * (high * gaussian[0] + (1 - high) * gaussian[1])

    assert profile(upper) <= 1e-3 * (1 + 1e-6)
    assert profile(lower) >= 1e-3 * (1 - 1e-6)
    assert lower >= 0.99 * upper


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_guarantee_is_stated_for_neighbors(adjacency):
    event = ApproximateDpEvent(1.0, delta=1e-6)
    assert epsilon(event, 1e-5, adjacency=adjacency) == pytest.approx(1.0, abs=1e-3)
    assert tradeoff_curve(event, adjacency=adjacency) == ApproximateDP(1.0, slack=1e-6)


def test_zero_influence_costs_nothing():
    assert epsilon(ApproximateDpEvent(0.0), 1e-5, adjacency="zero_out") == 0.0


def test_sampling_is_refused():
    event = dp_event.PoissonSampledDpEvent(0.1, ApproximateDpEvent(1.0, delta=1e-6))
    with pytest.raises(UnsupportedEventError, match="ApproximateDpEvent"):
        epsilon(event, 1e-5, adjacency="zero_out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 0.0), "epsilon must be a finite number >= 0, got -1.0"),
        ((math.inf, 0.0), "epsilon must be a finite number >= 0, got inf"),
        ((701.0, 0.0), r"epsilon must be a number in \[0, 700\], got 701.0"),
        ((1.0, 1.0), r"delta must be a number in \[0, 1\), got 1.0"),
        ((1.0, -1e-6), r"delta must be in \[0, 1\], got -1e-06"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ApproximateDpEvent(arguments[0], delta=arguments[1])
