import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from tradeoff_cases import LEVELS, LOSSES, closed_forms

from dpjax.accounting.tradeoff import (
    Discrete,
    Gaussian,
    Identity,
    Laplace,
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
def test_sampling_against_brute_force(mu, rate):
    brute, curve = _brute(mu, rate), mixture(Gaussian(mu), rate)
    pairs = [(curve, brute), (curve.inverse(), brute.inverse())]
    pairs.append((subsample(Gaussian(mu), rate), brute.symmetrized()))
    for found, expected in pairs:
        np.testing.assert_allclose(found(LEVELS), expected(LEVELS), rtol=1e-4, atol=2e-7)
        np.testing.assert_allclose(found.delta(LOSSES), expected.delta(LOSSES), atol=2e-7)


@given(closed_forms(), st.sampled_from([1e-6, 0.01, 0.5, 1.0]))
def test_the_profile_of_a_sampled_curve(curve, rate):
    sampled, losses = subsample(curve, rate), np.geomspace(1e-6, 5, 20)
    expected = rate * np.asarray(curve.delta(np.log1p(np.expm1(losses) / rate)))
    np.testing.assert_allclose(sampled.delta(losses), expected, rtol=1e-9, atol=1e-15)
    mirrored = 1 - np.exp(-losses) * (1 - expected)
    np.testing.assert_allclose(sampled.delta(-losses), mirrored, atol=1e-12)


def test_a_sampled_curve_keeps_its_tails():
    mu, rate = 2.0, 1e-3
    curve = subsample(Gaussian(mu), rate)
    exact = rate * Gaussian(mu).true_positive_rate(1e-12) + (1 - rate) * 1e-12
    assert curve.true_positive_rate(1e-12) == pytest.approx(exact, rel=1e-12)
    assert 0 < curve.delta(10.0) < 1e-12
    assert curve.delta(curve.epsilon(1e-12)) == pytest.approx(1e-12, rel=1e-9)


def test_the_ends_of_the_rates():
    curve = Laplace(1.0)
    assert mixture(curve, 0.0) == subsample(curve, 0) == Identity()
    assert mixture(curve, 1.0) is subsample(curve, 1) is curve


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_out_of_range_is_refused(rate):
    for operator in (mixture, subsample):
        with pytest.raises(ValueError, match=r"rate must be in \[0, 1\], got"):
            operator(Gaussian(1.0), rate)
