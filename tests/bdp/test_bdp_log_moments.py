import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import logsumexp
from scipy.stats import norm

from dpjax.accounting import log_moments
from dpjax.bdp import (
    diagonal_gaussian_log_moments,
    gaussian_log_moments,
    laplace_log_moments,
    subsampled_gaussian_log_moments,
)
from experiments.published.bdp import published_reverse_log_moments

ORDERS = tuple(range(1, 33))
NOISES = (0.1, 0.5, 1.0, 4.0, 60.0)
RATES = (1e-6, 1e-3, 0.02, 0.4, 1.0)
# log E_P[(P / Q)^order] in both directions is checked at each of these.
GRID = [
    (order, rate, noise, distance)
    for order in (1, 2, 5, 16, 32)
    for rate in (1e-3, 0.05, 0.5, 1.0)
    for noise, distance in ((0.6, 0.5), (1.0, 1.0), (1.5, 0.3), (4.0, 4.0))
]

noises = st.floats(math.log(0.05), math.log(50)).map(math.exp)
rates = st.floats(math.log(1e-6), 0).map(math.exp)
distances = st.floats(math.log(1e-4), math.log(10)).map(math.exp)


def integrated(order, rate, noise, distance, *, reverse=False):
    """The log moment by the trapezoid rule over the densities themselves."""
    reach = 12 + order * distance / noise
    x = np.linspace(-reach * noise, reach * noise, 20_001)
    without = norm.logpdf(x, 0, noise)
    moved = norm.logpdf(x, distance, noise)
    with np.errstate(divide="ignore"):
        record = np.logaddexp(np.log1p(-rate) + without, math.log(rate) + moved)
    first, second = (without, record) if reverse else (record, without)
    return float(logsumexp(first + order * (first - second)) + math.log(x[1] - x[0]))


def binomial_sum(order, rate, noise, distance):
    with mp.workdps(60):
        rate, ratio = mpf(rate), mpf(distance) / mpf(noise)
        terms = (
            mpmath.binomial(order + 1, k)
            * rate**k
            * (1 - rate) ** (order + 1 - k)
            * mpmath.exp(k * (k - 1) * ratio**2 / 2)
            for k in range(order + 2)
        )
        return float(mpmath.log(mpmath.fsum(terms)))


@pytest.mark.parametrize("rate", RATES)
def test_subsampled_gaussian_at_the_clip_bound_is_the_moments_accountant(rate):
    for clip in (0.1, 1.0, 7.0):
        values = subsampled_gaussian_log_moments(
            ORDERS, np.full(5, clip), sampling_rate=rate, noise_std=np.array(NOISES) * clip
        )
        expected = [log_moments.compute_log_moment(order + 1, NOISES, rate) for order in ORDERS]
        np.testing.assert_allclose(values.T, expected, rtol=1e-11)


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.3, 1.0])
def test_subsampled_gaussian_of_high_orders_does_not_overflow(rate):
    """At order 511 terms span exp(-7000) to exp(10^9), the scaled and the plain sum alike."""
    high, ratios = (100, 255, 511), np.geomspace(1e-4, 100, 40)
    values = subsampled_gaussian_log_moments(high, ratios, sampling_rate=rate, noise_std=1.0)
    expected = [log_moments.compute_log_moment(order + 1, 1 / ratios, rate) for order in high]
    np.testing.assert_allclose(values.T, expected, rtol=1e-11)


@pytest.mark.parametrize("order", [1, 7, 32])
@pytest.mark.parametrize(("rate", "noise", "distance"), [(1e-6, 50.0, 1e-3), (1e-3, 0.2, 0.7)])
def test_subsampled_gaussian_keeps_the_digits_of_small_moments(order, rate, noise, distance):
    value = subsampled_gaussian_log_moments([order], distance, sampling_rate=rate, noise_std=noise)
    assert value == pytest.approx(binomial_sum(order, rate, noise, distance), rel=1e-11, abs=0)


@pytest.mark.parametrize(("order", "rate", "noise", "distance"), GRID)
def test_subsampled_gaussian_bounds_both_directions(order, rate, noise, distance):
    settings = {"sampling_rate": rate, "noise_std": noise}
    forward = integrated(order, rate, noise, distance)
    backward = integrated(order, rate, noise, distance, reverse=True)
    value = float(subsampled_gaussian_log_moments((order,), distance, **settings)[0])
    assert value == pytest.approx(forward, rel=1e-9, abs=1e-11)  # of sums near 1
    assert backward <= value * (1 + 1e-9) + 1e-11  # the exact other direction is never above
    printed = float(published_reverse_log_moments((order,), distance, **settings)[0])
    assert backward <= printed * (1 + 1e-9) + 1e-11


def test_published_reverse_log_moments_are_loose():
    printed = published_reverse_log_moments((1,), 1.0, sampling_rate=0.01, noise_std=1.0)[0]
    value = subsampled_gaussian_log_moments((1,), 1.0, sampling_rate=0.01, noise_std=1.0)[0]
    backward = integrated(1, 0.01, 1.0, 1.0, reverse=True)
    assert printed == pytest.approx(math.log1p(0.01 * math.expm1(1)), rel=1e-12)
    assert (round(printed, 4), round(backward, 5), round(value, 5)) == (0.0170, 0.00016, 0.00017)
    # Without subsampling there is nothing to lose, and it is the moment itself.
    np.testing.assert_allclose(
        published_reverse_log_moments(ORDERS, 0.4, sampling_rate=1.0, noise_std=2.0),
        gaussian_log_moments(ORDERS, 0.4, noise_std=2.0),
        rtol=1e-12,
    )


@given(st.integers(1, 64), noises, rates, distances, st.floats(1.0, 2.0))
def test_subsampled_gaussian_grows_with_the_distance(order, noise, rate, distance, factor):
    settings = {"sampling_rate": rate, "noise_std": noise}
    nothing, less, more = subsampled_gaussian_log_moments(
        (order,), [0.0, distance, distance * factor], **settings
    )[:, 0]
    assert nothing == 0
    assert 0 < less <= more * (1 + 1e-11)


@given(st.integers(1, 64), st.floats(0, 30), rates)
def test_subsampled_gaussian_is_continuous_where_its_sum_is_scaled(order, distance, rate):
    """The plain sum and the scaled one meet where the largest exponent is 500."""
    settings = {"sampling_rate": rate, "noise_std": 1.0}
    edge = math.sqrt(1000 / ((order + 1) * order))
    below, above = subsampled_gaussian_log_moments(
        (order,), [edge * (1 - 1e-9), edge * (1 + 1e-9)], **settings
    )
    assert below == pytest.approx(above, rel=1e-5)
    assert np.all(np.isfinite(subsampled_gaussian_log_moments((order,), distance, **settings)))


def test_subsampled_gaussian_broadcasts():
    lengths = np.random.default_rng(0).exponential(1.0, (7, 1_500)).astype(np.float32)
    noise = np.array([0.05, 0.1, 0.3, 0.6, 1.0, 2.0, 9.0])[:, None]
    together = subsampled_gaussian_log_moments(ORDERS, lengths, sampling_rate=0.01, noise_std=noise)
    assert together.shape == (7, 1_500, 32)
    assert together.dtype == np.float64
    for row, column in ((0, 0), (1, 700), (2, 1_499), (4, 3), (6, 1_000)):
        alone = subsampled_gaussian_log_moments(
            ORDERS, lengths[row, column], sampling_rate=0.01, noise_std=noise[row]
        )
        np.testing.assert_allclose(together[row, column], alone[0], rtol=1e-11)
    empty = subsampled_gaussian_log_moments((1, 2), np.zeros((3, 0)), sampling_rate=1, noise_std=1)
    assert empty.shape == (3, 0, 2)
    far = subsampled_gaussian_log_moments((1,), 1e200, sampling_rate=0.1, noise_std=1e-200)
    assert far == np.inf


@pytest.mark.parametrize("order", [1, 2, 9, 40])
@pytest.mark.parametrize("ratio", [1e-6, 0.03, 1.0, 30.0])
def test_laplace_is_the_exact_integral(order, ratio):
    """Over x < 0, 0 < x < r and x > r the integrand is an exponential each."""
    with mp.workdps(60):
        r = mpf(ratio)
        inside = (mpmath.exp(order * r) - mpmath.exp(-(order + 1) * r)) / (2 * (2 * order + 1))
        total = mpmath.exp(order * r) / 2 + inside + mpmath.exp(-(order + 1) * r) / 2
        expected = float(mpmath.log(total))
    value = laplace_log_moments((order,), 3.0 * ratio, scale=3.0)
    assert value == pytest.approx(expected, rel=1e-12, abs=0)


def test_diagonal_gaussian_is_the_integral_of_the_densities():
    mean, std, other_mean, other_std = [0.3, -1.0], [1.1, 0.7], [0.0, 0.2], [1.2, 0.9]
    expected = 0.0
    x = np.linspace(-40, 40, 40_001)
    for m, s, n, t in zip(mean, std, other_mean, other_std, strict=True):
        first, second = norm.logpdf(x, m, s), norm.logpdf(x, n, t)
        expected += logsumexp(first + 3 * (first - second)) + math.log(x[1] - x[0])
    value = diagonal_gaussian_log_moments((3,), mean, std, other_mean, other_std)
    assert value == pytest.approx(expected, rel=1e-9)


def test_diagonal_gaussian_keeps_the_digits_of_small_moments():
    with mp.workdps(60):
        bell = 1 - 4 * ((1 + mpf(1e-9)) ** 2 - 1)
        expected = float(-4 * mpmath.log(1 + mpf(1e-9)) - mpmath.log(bell) / 2)
    std = 1.0 + 1e-9
    value = diagonal_gaussian_log_moments((4,), [0.0], std, [0.0], 1.0)
    assert value == pytest.approx(expected, rel=1e-6, abs=0)  # 1 + 1e-9 itself is rounded
    assert diagonal_gaussian_log_moments((4,), [0.0], 1.0, [0.0], 1.0) == 0


def test_diagonal_gaussian_of_one_spread_is_that_of_the_distance():
    shifts = np.array([[0.3, 0.4, 0.0], [1.0, 2.0, 2.0]])
    values = diagonal_gaussian_log_moments(ORDERS, shifts, 0.7, 0.0, 0.7)
    expected = gaussian_log_moments(ORDERS, np.linalg.norm(shifts, axis=-1), noise_std=0.7)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_diagonal_gaussian_is_infinite_at_orders_without_a_moment():
    # 1 - order (std^2 / other_std^2 - 1) is 1/4 at the order 3, and 0 at 4.
    values = diagonal_gaussian_log_moments((3, 4, 5), [0.0], math.sqrt(1.25), [0.0], 1.0)
    assert np.isfinite(values).tolist() == [True, False, False]
    assert np.all(np.isfinite(diagonal_gaussian_log_moments(ORDERS, [0.0], 1.0, [0.0], 5.0)))


GOOD = {"orders": (1, 2), "distances": [0.5, 1.0], "sampling_rate": 0.1, "noise_std": 1.0}
REFUSALS = [
    *[
        (lambda changes=changes: call_subsampled(**{**GOOD, **changes}), next(iter(changes)))
        for changes in [
            *[{"orders": orders} for orders in ((), (0, 1), (1.5, 2), (1, math.inf))],
            {"distances": [True]},
            *[{"sampling_rate": rate} for rate in (0.0, 1.5)],
            *[{"noise_std": std} for std in (0.0, [1.0, math.inf])],
        ]
    ],
    (lambda: laplace_log_moments((1,), 1.0, scale=0), "scale must be finite numbers > 0, got 0"),
    (
        lambda: diagonal_gaussian_log_moments((1,), [0.0], 1.0, [0.0], -1.0),
        r"other_std must be finite numbers > 0, got -1\.0",
    ),
    (
        lambda: diagonal_gaussian_log_moments((1,), 0.0, 1.0, 0.0, 1.0),
        r"mean must be an array of coordinates, got 0\.0",
    ),
]


def call_subsampled(orders, distances, **settings):
    return subsampled_gaussian_log_moments(orders, distances, **settings)


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_settings_of_log_moments_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
