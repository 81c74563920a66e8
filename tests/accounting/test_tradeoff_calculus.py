"""Subsampled curves, curves of groups, and comparisons, against brute force and closed forms."""

import numpy as np
import pytest
from helpers.tradeoff_cases import LEVELS, LOSSES, closed_forms
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Group,
    Identity,
    Laplace,
    distance,
    group,
    is_at_least,
    mixture,
    subsample,
)


def _brute(mu: float, rate: float) -> Discrete:
    """Neyman and Pearson on a fine grid of outcomes: an upper curve within 1e-6 of the truth."""
    edges = np.append(np.append(-np.inf, np.linspace(-9, 9 + mu, 20_000)), np.inf)

    def cells(shift):
        # Through both tails, so that no cell is a difference of numbers near one.
        below, above = np.diff(norm.cdf(edges - shift)), -np.diff(norm.sf(edges - shift))
        return np.where(edges[1:] < shift, below, above)

    absent, present = cells(0.0), cells(mu)
    return Discrete(absent, (1 - rate) * absent + rate * present)


@pytest.mark.parametrize(("mu", "rate"), [(0.5, 0.1), (2.0, 256 / 60_000), (4.0, 0.9)])
def test_subsample_against_brute_force(mu, rate):
    brute, curve = _brute(mu, rate), mixture(Gaussian(mu), rate)
    pairs = [(curve, brute), (curve.inverse(), brute.inverse())]
    pairs.append((subsample(Gaussian(mu), rate), brute.symmetrized()))
    for found, expected in pairs:
        np.testing.assert_allclose(found(LEVELS), expected(LEVELS), rtol=1e-4, atol=2e-7)
        np.testing.assert_allclose(found.delta(LOSSES), expected.delta(LOSSES), atol=2e-7)


@given(closed_forms(), st.sampled_from([1e-6, 0.01, 0.5, 1.0]))
def test_subsample_profile(curve, rate):
    sampled, losses = subsample(curve, rate), np.geomspace(1e-6, 5, 20)
    expected = rate * np.asarray(curve.delta(np.log1p(np.expm1(losses) / rate)))
    np.testing.assert_allclose(sampled.delta(losses), expected, rtol=1e-9, atol=1e-15)
    mirrored = 1 - np.exp(-losses) * (1 - expected)
    np.testing.assert_allclose(sampled.delta(-losses), mirrored, atol=1e-12)


def test_subsample_keeps_tails():
    mu, rate = 2.0, 1e-3
    curve = subsample(Gaussian(mu), rate)
    exact = rate * Gaussian(mu).true_positive_rate(1e-12) + (1 - rate) * 1e-12
    assert curve.true_positive_rate(1e-12) == pytest.approx(exact, rel=1e-12)
    assert 0 < curve.delta(10.0) < 1e-12
    assert curve.delta(curve.epsilon(1e-12)) == pytest.approx(1e-12, rel=1e-9)


def test_subsample_at_ends_of_rates():
    curve = Laplace(1.0)
    assert mixture(curve, 0.0) == subsample(curve, 0) == Identity()
    assert mixture(curve, 1.0) is subsample(curve, 1) is curve


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_subsample_refuses(rate):
    for operator in (mixture, subsample):
        with pytest.raises(ValueError, match=r"rate must be in \[0, 1\], got"):
            operator(Gaussian(1.0), rate)


@pytest.mark.parametrize(("mu", "size"), [(0.5, 2), (1.0, 3), (2.0, 5)])
def test_group_of_gaussians(mu, size):
    found, exact = Group(Gaussian(mu), size), group(Gaussian(mu), size)
    assert exact == Gaussian(mu * size)
    np.testing.assert_allclose(found(LEVELS), exact(LEVELS), rtol=1e-8, atol=1e-14)
    losses = np.append(LOSSES, 25.0)
    np.testing.assert_allclose(found.delta(losses), exact.delta(losses), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("budget", [0.3, 1.0, 3.0])
def test_group_of_pure_dp(budget):
    curve = group(ApproximateDP(budget), 3)
    assert is_at_least(curve, ApproximateDP(3 * budget))
    # The bound is attained at the least levels.
    assert curve.true_positive_rate(1e-9) == pytest.approx(1e-9 * np.exp(3 * budget), rel=1e-9)
    assert curve.delta(3 * budget) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_group_of_laplace(scale):
    found, exact = group(Laplace(scale), 2), Laplace(scale / 2)
    np.testing.assert_allclose(found(LEVELS), exact(LEVELS), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found.delta(LOSSES), exact.delta(LOSSES), rtol=1e-9, atol=1e-14)


def test_group_of_asymmetric_curve():
    curve = mixture(Gaussian(2.0), 0.3)
    twice = group(curve, 2)
    np.testing.assert_allclose(twice(LEVELS), curve(1 - curve(LEVELS)), rtol=1e-9, atol=1e-14)
    back = twice.inverse()
    np.testing.assert_allclose(back(twice(LEVELS)), LEVELS, rtol=0, atol=1e-9)
    assert not twice.is_symmetric


def test_group_of_curve_with_infinite_losses():
    pair = Discrete([0.0, 2 / 3, 1 / 3], [0.5, 0.5, 0.0])
    assert group(pair, 2)(0.0) == pair(0.5)
    assert group(pair, 2).delta(100.0) == pytest.approx(1 - pair(0.5))
    assert group(pair, 1) is pair
    assert group(Identity(), 7) == Identity()


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_group_refuses(size):
    with pytest.raises(ValueError, match="size must be a whole number >= 1, got"):
        group(Gaussian(1.0), size)


@pytest.mark.slow
def test_is_at_least_orders_families():
    families = [
        [Identity(), Gaussian(0.1), Gaussian(0.1001), Gaussian(5.0)],
        [Identity(), Laplace(2.0), Laplace(1.99), Laplace(0.1)],
        [ApproximateDP(0.0), ApproximateDP(0.0, slack=0.1), ApproximateDP(1.0, slack=0.1)],
        [subsample(Gaussian(1.0), 0.1), subsample(Gaussian(1.0), 0.11), Gaussian(1.0)],
    ]
    for family in families:
        for i, f in enumerate(family):
            for j, g in enumerate(family):
                assert is_at_least(f, g) == (i <= j)


@pytest.mark.parametrize("budget", [20.0, 25.0])
def test_is_at_least_sees_far_tail(budget):
    # Both are the same curve to within 1e-8, but at the least levels.
    rare = Discrete([np.exp(-budget) * 1e-9, 1 - np.exp(-budget) * 1e-9], [1e-9, 1 - 1e-9])
    assert distance(rare, Identity()) < 1e-8
    assert not is_at_least(rare, Identity())
    assert not is_at_least(rare.inverse(), Identity())
    assert is_at_least(Identity(), rare)


def test_is_at_least_of_crossing_curves():
    f, g = Gaussian(1.0), ApproximateDP(1.0)
    assert not is_at_least(f, g)
    assert not is_at_least(g, f)
    h = mixture(Gaussian(2.0), 0.3)
    assert not is_at_least(h, h.inverse())
    assert not is_at_least(h.inverse(), h)


def test_distance_of_gaussians():
    mu = 0.8
    # The slopes agree where the quantile is half of mu, as for the total variation distance.
    assert distance(Gaussian(mu), Identity()) == pytest.approx(Gaussian(mu).delta(0.0), rel=1e-5)
    assert distance(Gaussian(mu), Gaussian(mu)) == 0
