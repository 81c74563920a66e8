import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.tradeoff_cases import LEVELS, LOSSES

from dpjax.accounting import gdp
from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    gaussian_delta,
    gaussian_type_two,
)


@pytest.mark.parametrize("mu", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("alpha", [1e-30, 1e-12, 0.05, 0.7, 1 - 2**-30])
def test_gaussian_against_high_precision(mu, alpha):
    with mpmath.workdps(60):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(alpha))
        exact = mpmath.ncdf(quantile - mu)
        power = mpmath.ncdf(mu - quantile)
    curve = Gaussian(mu)
    assert curve(alpha) == pytest.approx(float(exact), rel=1e-12)
    assert curve.true_positive_rate(alpha) == pytest.approx(float(power), rel=1e-12)


@pytest.mark.parametrize("mu", [0.2, 3.0, 60.0])
def test_gaussian_delta_is_that_of_gdp(mu):
    curve, losses = Gaussian(mu), np.abs(LOSSES)
    np.testing.assert_array_equal(curve.delta(losses), gdp.delta(mu, losses))
    for delta in (1e-30, 1e-12, 1e-5, 0.3):
        assert curve.epsilon(delta) == pytest.approx(gdp.epsilon(mu, delta), rel=1e-9)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_laplace_is_test_of_shifted_noise(scale):
    # The likelihood ratio is monotone, so the best test rejects beyond a threshold.
    threshold = np.linspace(-3 * scale, 3 * scale + 1, 101)

    def survival(x):
        tail = np.exp(-np.abs(x) / scale) / 2
        return np.where(x > 0, tail, 1 - tail)

    curve = Laplace(scale)
    missed = 1 - survival(threshold - 1)
    # Above level one half thresholds reach every randomised test of the plateau as well.
    np.testing.assert_allclose(curve(survival(threshold)), missed, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_laplace_delta_in_closed_form(scale):
    curve, losses = Laplace(scale), np.linspace(0, 1 / scale, 7)
    np.testing.assert_allclose(
        curve.delta(losses), 1 - np.exp((losses - 1 / scale) / 2), atol=1e-15
    )
    assert curve.delta(1 / scale) == 0
    assert curve.epsilon(0.0) == pytest.approx(1 / scale, rel=1e-12)
    assert curve.epsilon(1e-5) == pytest.approx(1 / scale + 2 * math.log1p(-1e-5), rel=1e-9)


@pytest.mark.parametrize(("budget", "slack"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.3), (2.0, 1e-6)])
def test_approximate_dp_is_largest_of_three_lines(budget, slack):
    steep = 1 - slack - np.exp(budget) * LEVELS
    flat = np.exp(-budget) * (1 - slack - LEVELS)
    expected = np.maximum(0, np.maximum(steep, flat))
    np.testing.assert_allclose(ApproximateDP(budget, slack=slack)(LEVELS), expected, atol=1e-15)


def test_as_discrete_is_the_same_curve():
    for curve in (Identity(), ApproximateDP(1.5, slack=0.01), ApproximateDP(0.0, slack=1.0)):
        pair = curve.as_discrete()
        np.testing.assert_allclose(pair(LEVELS), curve(LEVELS), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(pair.delta(LOSSES), curve.delta(LOSSES), atol=1e-15)
    assert Gaussian(1.0).as_discrete() is None


def test_degenerate_curves():
    perfect = Identity()(LEVELS)
    for curve in (Gaussian(0.0), ApproximateDP(0.0), ApproximateDP(0.0, slack=0.0)):
        np.testing.assert_allclose(curve(LEVELS), perfect, atol=1e-15)
        assert curve.epsilon(1e-12) == 0
    for curve in (Gaussian(1e3), ApproximateDP(1.0, slack=1.0), Laplace(1e-3)):
        np.testing.assert_array_equal(curve(LEVELS[1:]), 0.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1"])
def test_curves_refuse(bad):
    with pytest.raises(ValueError, match="mu must be a finite number >= 0, got"):
        Gaussian(bad)
    with pytest.raises(ValueError, match="noise_multiplier must be a finite number > 0, got"):
        Laplace(bad)
    with pytest.raises(ValueError, match="budget must be a finite number >= 0, got"):
        ApproximateDP(bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_approximate_dp_refuses_slack(bad):
    with pytest.raises(ValueError, match=r"slack must be in \[0, 1\], got"):
        ApproximateDP(1.0, slack=bad)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mu", [0.1, 1.0, 6.0])
def test_gaussian_functions_agree_with_the_host(mu):
    alpha = np.array([1e-30, 1e-12, 0.05, 0.5, 0.999])
    np.testing.assert_allclose(gaussian_type_two(mu, alpha), Gaussian(mu)(alpha), rtol=1e-10)
    # log Phi rounds to within some 1e-13, of which small deltas are a difference.
    losses = mu * mu / 2 + mu * np.array([-1.0, 0.0, 1.0, 6.0])
    np.testing.assert_allclose(gaussian_delta(mu, losses), gdp.delta(mu, losses), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_gaussian_functions_differentiate_compile_and_vectorise():
    mu, epsilon, alpha, step = 1.2, 2.0, 0.01, 1e-5
    slope = jax.jit(jax.grad(gaussian_type_two, argnums=1))(mu, alpha)
    ratio = -np.exp(mu * jax.scipy.special.ndtri(1 - alpha) - mu**2 / 2)
    assert float(slope) == pytest.approx(float(ratio), rel=1e-9)
    tilt = jax.jit(jax.grad(gaussian_delta))(mu, epsilon)
    secant = (gdp.delta(mu + step, epsilon) - gdp.delta(mu - step, epsilon)) / (2 * step)
    assert float(tilt) == pytest.approx(secant, rel=1e-7)
    table = jax.vmap(gaussian_delta, in_axes=(None, 0))(mu, jnp.arange(3.0))
    np.testing.assert_allclose(table, gdp.delta(mu, np.arange(3.0)), rtol=1e-12)
    assert table.dtype == jnp.float64
