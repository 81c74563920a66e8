import math

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from dpjax.accounting import log_moments
from dpjax.accounting.log_moments import log_ratio_moment

NOISES = (0.3, 1.1, 6.0, 50.0)
RATES = (1e-6, 0.004, 0.5, 1 - 1e-9, 1.0)
GRID = tuple(np.ravel(axis) for axis in np.meshgrid(NOISES, RATES))
POINTS = ((0.3, 0.004), (0.3, 1 - 1e-9), (1.1, 1e-6), (6.0, 0.5), (50.0, 1e-6))
MARGIN = 13


def exact(power, noise, rate):
    """log E[L^power] by 40-digit Gauss-Legendre quadrature, in pieces short for its features."""
    with mp.workdps(40):
        power, noise, rate = mpf(power), mpf(float(noise)), mpf(float(rate))

        def integrand(z):
            ratio = 1 - rate + rate * mpmath.exp(z / noise - 1 / (2 * noise**2))
            return mpmath.npdf(z) * ratio**power

        low, high = (
            -MARGIN + min(0, lowest_mode(power, noise, rate)),
            MARGIN + max(0, power / noise),
        )
        width = min(3, 3 * noise, 6 * noise / mpmath.sqrt(max(4, 1 - power)))
        pieces = int(mpmath.ceil((high - low) / width))
        points = [low + (high - low) * i / pieces for i in range(pieces + 1)]
        return float(mpmath.log(mpmath.quad(integrand, points, maxdegree=5)))


def lowest_mode(power, noise, rate):
    if power > 0:
        return 0
    low, high = power / noise, mpf(0)
    for _ in range(60):
        middle = (low + high) / 2
        risen = rate * mpmath.exp(middle / noise - 1 / (2 * noise**2))
        rises = -middle + power * risen / (1 - rate + risen) / noise > 0
        low, high = (middle, high) if rises else (low, middle)
    return low


def exact_whole(power, noise, rate):
    with mp.workdps(60):
        noise, rate = mpf(float(noise)), mpf(float(rate))
        terms = (
            mpmath.binomial(power, k)
            * rate**k
            * (1 - rate) ** (power - k)
            * mpmath.exp(k * (k - 1) / (2 * noise**2))
            for k in range(power + 1)
        )
        return float(mpmath.log(mpmath.fsum(terms)))


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.25, 8.5, -0.25, -4.0, -20.0])
def test_log_ratio_moment_against_forty_digits(power):
    noises, rates = (np.array(axis) for axis in zip(*POINTS, strict=True))
    expected = [exact(power, *point) for point in POINTS]
    np.testing.assert_allclose(log_ratio_moment(power, noises, rates), expected, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (3.4, 1 - 1e-12), (50.0, 1e-6)])
def test_log_ratio_moment_of_largest_order(noise, rate):
    values = log_ratio_moment(-511.0, np.array([noise]), np.array([rate]))
    assert values[0] == pytest.approx(exact(-511, noise, rate), rel=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("power", [2, 3, 17, 64, 512])
def test_log_ratio_moment_of_whole_powers_against_sixty_digits(power):
    expected = [exact_whole(power, *point) for point in zip(*GRID, strict=True)]
    np.testing.assert_allclose(log_ratio_moment(power, *GRID), expected, rtol=1e-11)


@pytest.mark.parametrize("power", [2.0, 3.0, 17.0, 64.0, 512.0])
def test_log_ratio_moment_integrals_and_sums_agree(power):
    integrals = log_moments._integral(power, *GRID)
    np.testing.assert_allclose(integrals, log_ratio_moment(power, *GRID), rtol=1e-11)


@pytest.mark.parametrize("power", [1.25, 2.0, 31.0, -0.25, -1.0, -30.0])
def test_log_ratio_moment_of_small_rates(power):
    noise, rate = np.array([1.0, 5.0, 50.0]), np.full(3, 1e-9)
    leading = power * (power - 1) / 2 * rate**2 * np.expm1(noise**-2)
    np.testing.assert_allclose(log_ratio_moment(power, noise, rate), leading, rtol=1e-6)


@pytest.mark.parametrize("power", [1.25, 2.0, 4.5, 512.0, -0.25, -1.0, -511.0])
def test_log_ratio_moment_without_sampling(power):
    noise = np.array([0.01, 0.05, 0.3, 1.0, 50.0])
    expected = power * (power - 1) / (2 * noise**2)
    np.testing.assert_allclose(log_ratio_moment(power, noise, np.ones(5)), expected, rtol=1e-11)


@pytest.mark.parametrize("power", [1.25, 4.5, -0.25, -30.0])
def test_small_noise_bound_meets_the_integral(power):
    noise, rate = np.full(4, 0.05), np.array([1e-6, 0.01, 0.5, 0.99])
    integral = log_moments._integral(power, noise, rate)
    bound = log_moments._small_noise_bound(power, noise, rate)
    np.testing.assert_allclose(bound, integral, rtol=1e-12)


@pytest.mark.parametrize("power", [1.25, 4.5, -0.25, -30.0])
def test_small_noise_bound_is_an_upper_bound(power):
    integral = log_moments._integral(power, *GRID)
    bound = log_moments._small_noise_bound(power, *GRID)
    assert np.all(integral <= bound * (1 + 1e-11))


def test_log_ratio_moment_of_extreme_noise():
    noise = np.array([1e-200, 1e-3, 1e200])
    for power in (1.25, 2.0, 512.0):
        values = log_ratio_moment(power, noise, np.full(3, 0.01))
        assert values[0] == math.inf
        assert 1e5 < values[1] < math.inf
        assert 0 <= values[2] < 1e-300


def test_log_ratio_moment_in_chunks(monkeypatch):
    whole = log_ratio_moment(-3.0, *GRID), log_ratio_moment(40.0, *GRID)
    monkeypatch.setattr(log_moments, "_CHUNK", 1)
    np.testing.assert_array_equal(
        whole, (log_ratio_moment(-3.0, *GRID), log_ratio_moment(40.0, *GRID))
    )
