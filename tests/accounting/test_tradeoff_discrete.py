import itertools
import math

import numpy as np
import pytest
from helpers.tradeoff_cases import LEVELS, LOSSES, assert_is_trade_off, masses, pairs
from hypothesis import given
from hypothesis import strategies as st

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    from_distributions,
    from_log_likelihood_ratios,
    from_profile,
    is_at_least,
    piecewise_linear,
    subsample,
)


@given(st.integers(1, 6).flatmap(lambda size: st.tuples(masses(size), masses(size))))
def test_discrete_is_best_of_all_tests(pair):
    p, q = pair
    events = np.array(list(itertools.product([0, 1], repeat=p.size)))
    curve = from_distributions(p, q)
    # No deterministic test is below the curve, and the best at each slope is on it.
    assert np.all(curve(np.minimum(events @ p, 1.0)) <= 1 - events @ q + 1e-12)
    gains = (events @ q)[:, None] - np.exp(LOSSES) * (events @ p)[:, None]
    np.testing.assert_allclose(curve.delta(LOSSES), gains.max(axis=0), atol=1e-12)


@given(pairs())
def test_discrete_from_losses_and_from_knots(pair):
    finite = pair.p > 0
    by_losses = from_log_likelihood_ratios(pair.losses[finite], pair.p[finite])
    np.testing.assert_allclose(by_losses(LEVELS), pair(LEVELS), rtol=1e-9, atol=1e-14)
    x, last = np.unique(pair.alphas[::-1], return_index=True)
    by_knots = piecewise_linear(x, pair.betas[::-1][last])
    np.testing.assert_allclose(by_knots(LEVELS), pair(LEVELS), atol=1e-9)


def test_discrete_keeps_tails():
    p = np.array([1e-40, 1e-25, 1.0])
    q = np.array([1e-30, 1e-20, 1.0])
    curve = Discrete(p, q)
    assert curve.true_positive_rate(1e-40) == pytest.approx(1e-30, rel=1e-12)
    assert curve.delta(12.0) == pytest.approx(1e-30 + 1e-20 - np.exp(12) * 1e-25, rel=1e-9)
    assert curve.inverse()(1 - 2.0**-52) == pytest.approx(2.0**-52, rel=1e-4)


@given(st.lists(st.tuples(st.floats(0, 6), st.floats(0, 1)), min_size=1, max_size=6))
def test_from_profile_is_least_curve_above_pairs(budgets):
    curve = from_profile(*np.transpose(budgets))
    assert curve.is_symmetric
    assert_is_trade_off(curve)
    each = [ApproximateDP(budget, slack=slack)(LEVELS) for budget, slack in budgets]
    np.testing.assert_allclose(curve(LEVELS), np.max(each, axis=0), rtol=1e-7, atol=1e-9)
    for budget, slack in budgets:
        assert curve.delta(budget) <= slack + 1e-9


def test_from_profile_of_a_gaussian():
    exact, losses = Gaussian(1.0), np.linspace(0, 7, 400)
    below = from_profile(losses, exact.delta(losses))
    assert is_at_least(exact, below)
    assert np.max(exact(LEVELS) - below(LEVELS)) < 3e-5
    assert below.delta(6.0) == pytest.approx(exact.delta(6.0), rel=1e-3)


def test_piecewise_linear_of_convex_and_dented_points():
    x = np.linspace(0, 1, 30)
    above = piecewise_linear(x, Gaussian(1.0)(x))
    assert is_at_least(above, Gaussian(1.0))
    np.testing.assert_allclose(above(x), Gaussian(1.0)(x), atol=1e-15)
    dented = piecewise_linear([0.0, 0.4, 0.5, 0.6], [0.9, 0.5, 0.1, 0.1])
    assert dented(0.4) == pytest.approx(0.9 - 0.8 * 0.8)
    assert dented(0.8) == pytest.approx(0.1 * 0.4, abs=0.03)
    assert piecewise_linear([0.0], [0.5])(0.5) == 0.25
    assert piecewise_linear([1.0], [0.0])(0.5) == 0.5


@pytest.mark.parametrize(
    ("alphas", "betas", "name"),
    [
        ([0.0, 0.0], [1.0, 1.0], "alphas"),
        ([-0.1, 0.5], [1.0, 0.1], "alphas"),
        ([0.5, math.nan], [0.1, 0.1], "alphas"),
        ([], [], "alphas"),
        ([0.0, 0.5], [0.5, 0.51], "betas"),
        ([0.0, 0.5], [1.0, 0.6], "betas"),
        ([0.0, 0.5], [1.0, -0.1], "betas"),
        ([0.0, 0.5], [1.0, math.nan], "betas"),
        ([0.0, 0.5], [1.0], "betas"),
    ],
)
def test_piecewise_linear_refuses(alphas, betas, name):
    with pytest.raises(ValueError, match=rf"{name} must be .*, got \["):
        piecewise_linear(alphas, betas)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Discrete([0.5, 0.6], [0.5, 0.5]), r"p must be one axis of numbers .*0\.6"),
        (lambda: Discrete([0.5, 0.5], [1.5, -0.5]), r"q must be one axis of numbers .*-0\.5"),
        (lambda: Discrete([0.5, 0.5], [1.0]), "q must be of the shape of p"),
        (lambda: from_profile([-1.0], [0.1]), r"epsilons must be .* in \[0, 700\], got \[-1"),
        (lambda: from_profile([], []), "epsilons must be at least one"),
        (lambda: from_profile([1.0], [1.1]), r"deltas must be .* got \[1\.1\]"),
        (lambda: from_profile([1.0, 2.0], [0.1]), "deltas must be one number"),
        (lambda: from_log_likelihood_ratios([1.0], [1.0]), "losses must be such that"),
        (lambda: from_log_likelihood_ratios([math.nan], [1.0]), "losses must be"),
    ],
)
def test_constructors_refuse(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_symmetrized_keeps_tiny_losses():
    sampled = subsample(ApproximateDP(1e-3), 1e-7)
    assert sampled.as_discrete().delta(0.0) == pytest.approx(sampled.delta(0.0), rel=1e-3)


def test_symmetrized_of_nearly_disjoint_pairs():
    p = np.array([1.48262701e-11, 1.57181105e-04, 8.78058954e-02])
    q = np.array([1.0, 1.35729304e-16, 4.15786570e-15])
    pair = Discrete(np.append(p, 1 - np.sum(p)), np.append(q, 2.4e-15))
    assert pair.symmetrized().delta(0.0) == pytest.approx(pair.delta(0.0), abs=1e-14)


def test_delta_at_infinity():
    assert Discrete([0.5, 0.5], [1.0, 0.0]).delta(math.inf) == 0.0
    assert ApproximateDP(1.0, slack=0.1).as_discrete().delta(math.inf) == pytest.approx(0.1)
