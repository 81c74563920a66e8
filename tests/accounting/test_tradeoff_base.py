import math

import numpy as np
import pytest
from helpers.tradeoff_cases import LEVELS, LOSSES, assert_is_trade_off, curves, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Laplace,
    Mixture,
    Symmetrized,
    TradeOff,
    mixture,
)
from dpjax.accounting.tradeoff.base import bisect_decreasing, golden_section_max


class _ByProfile(TradeOff):
    """A curve that knows its two profiles alone."""

    def __init__(self, curve: TradeOff) -> None:
        object.__setattr__(self, "curve", curve)

    def _delta_pq(self, epsilon):
        return self.curve._delta_pq(epsilon)

    def _delta_qp(self, epsilon):
        return self.curve._delta_qp(epsilon)


@settings(max_examples=40)
@given(curves())
def test_curves_are_trade_off_functions(curve):
    assert_is_trade_off(curve)


@pytest.mark.slow
@settings(max_examples=40)
@given(curves())
def test_inverse_of_inverse_is_the_curve(curve):
    back = curve.inverse()
    assert_is_trade_off(back)
    np.testing.assert_allclose(back.inverse()(LEVELS), curve(LEVELS), rtol=1e-9, atol=1e-12)
    # f^-1(f(alpha)) is the least level of that error.
    reached = LEVELS[curve(LEVELS) > 1e-290]
    assert np.all(back(curve(reached)) <= reached + 1e-9)
    np.testing.assert_allclose(
        back.delta(LOSSES),
        1 - np.exp(LOSSES) + np.exp(LOSSES) * curve.delta(-LOSSES),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(curves())
def test_symmetrized_is_symmetric_and_below(curve):
    both = curve.symmetrized()
    assert both.is_symmetric
    assert_is_trade_off(both)
    np.testing.assert_allclose(both.inverse()(LEVELS), both(LEVELS), rtol=1e-9, atol=1e-12)
    assert np.all(both(LEVELS) <= np.minimum(curve(LEVELS), curve.inverse()(LEVELS)) + 1e-12)
    # The greatest such: of any greater curve the profile is smaller somewhere.
    larger = np.maximum(curve.delta(LOSSES), curve.inverse().delta(LOSSES))
    np.testing.assert_allclose(both.delta(LOSSES), larger, rtol=0, atol=1e-9)


@pytest.mark.slow
@given(pairs())
def test_symmetrized_discrete_pair_is_biconjugate(pair):
    np.testing.assert_allclose(
        pair.symmetrized()(LEVELS), Symmetrized(pair)(LEVELS), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(
    "curve",
    [
        Gaussian(0.4),
        Gaussian(6.0),
        Laplace(0.7),
        ApproximateDP(1.0, slack=1e-9),
        mixture(Gaussian(2.0), 0.3),
        Discrete([0.2, 0.5, 0.3], [0.6, 0.4, 0.0]),
    ],
)
def test_errors_from_profiles(curve):
    found = _ByProfile(curve)
    np.testing.assert_allclose(found(LEVELS), curve(LEVELS), rtol=1e-9, atol=1e-300)
    rates = curve.true_positive_rate(LEVELS)
    np.testing.assert_allclose(found.true_positive_rate(LEVELS), rates, rtol=1e-9, atol=1e-300)


@given(st.floats(0, 20), st.floats(1e-12, 0.99))
def test_delta_of_approximate_dp(budget, slack):
    curve = ApproximateDP(budget, slack=slack)
    assert curve.delta(budget) == slack
    assert curve.epsilon(slack) == pytest.approx(budget, rel=1e-9, abs=1e-3 * slack)
    assert curve.epsilon(0.0) == (math.inf if slack > 0 else budget)


@given(curves(), st.floats(1e-12, 0.9))
def test_epsilon_is_least(curve, delta):
    least = curve.epsilon(delta)
    if math.isinf(least):
        assert curve.delta(1e6) > delta
    else:
        assert curve.delta(least) <= delta
        assert least == 0 or curve.delta(least * (1 - 1e-9)) >= delta * (1 - 1e-6) - 1e-16


def test_call_keeps_shapes():
    curve = mixture(Gaussian(1.0), 0.1).symmetrized()
    assert isinstance(curve, Symmetrized)
    for method in (curve, curve.delta, curve.epsilon, curve.true_positive_rate):
        assert isinstance(method(0.5), float)
        table = method(np.full((2, 3), 0.5))
        assert table.shape == (2, 3)
        assert np.all(table == method(0.5))
    assert isinstance(Mixture(Gaussian(1.0), 0.1).inverse().inverse(), Mixture)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, [0.5, 2.0]])
def test_call_refuses_what_is_no_probability(bad):
    curve = Gaussian(1.0)
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], got"):
        curve(bad)
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], got"):
        curve.true_positive_rate(bad)
    with pytest.raises(ValueError, match=r"delta must be in \[0, 1\], got"):
        curve.epsilon(bad)


def test_delta_refuses_nan():
    with pytest.raises(ValueError, match="epsilon must be real, got nan"):
        Gaussian(1.0).delta(math.nan)


def test_bisect_decreasing_and_golden_section_max():
    centres = np.array([[-3.0, 0.1], [2.0, 9.0]])
    found = golden_section_max(
        lambda x: -((x - centres) ** 2), np.full((2, 2), -5.0), np.full((2, 2), 10.0)
    )
    np.testing.assert_allclose(found, 0.0, atol=1e-15)
    targets = np.array([2.0, 1.0, 0.5, 1e-9, 0.0])
    least = bisect_decreasing(lambda x: np.exp(-x), targets)
    np.testing.assert_allclose(least[:4], [0.0, 0.0, np.log(2), 9 * np.log(10)], rtol=1e-12)
    assert np.all(np.exp(-least) <= targets)
    assert bisect_decreasing(lambda x: np.ones_like(x), np.array(0.5)) == math.inf
