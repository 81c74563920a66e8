"""Log moments of the likelihood ratio of a Poisson-sampled Gaussian, without cancellation.

Without the record a release is Q = N(0, s^2), with it P = (1 - q) N(0, s^2) + q N(1, s^2). At
x = s z the likelihood ratio P / Q is L = 1 - q + q exp(z / s - 1 / (2 s^2)), and its mean under Q
is 1. So E_Q[L^p] - 1 is the mean of L^p - 1 - p (L - 1), which is nowhere negative for p > 1 or
p < 0: it is what is computed, and a moment that exceeds 1 by 1e-15 keeps all its digits.

At whole p > 1 the mean is a finite sum (Mironov, Talwar, Zhang 2019, Section 3.3). Elsewhere it is
the trapezoid rule's. The integrand is analytic in a strip around the real line, where the rule's
error falls exponentially with the number of nodes (Trefethen, Weideman 2014, Theorem 5.1): L has
its zeros pi s off the line, and powers p < 0 grow on the way there, as does the Gaussian density.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit, gammaln, logit, xlog1py

from dpjax.accounting.loss_distribution import Array

# Below it the zeros of L need too fine a grid, and the bounds that replace it are as exact.
_LEAST_NOISE = 0.05
_WIDEST_SPACING = 0.45
# A Gaussian density at nine deviations is 1e-18 of its peak.
_MARGIN = 9.0
# As many numbers at a time as stay in a core's cache.
_CHUNK = 2**15
_SERIES = 1 / np.array([math.factorial(k) for k in range(2, 16)])
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
# Infinities are meant: the log of a vanishing term, the moment of next to no noise.
_LIMITS = np.errstate(over="ignore", divide="ignore")


def log_moment(power: float, noise: Array, rate: Array) -> Array:
    """Returns log E_Q[L^power] for a ``power`` above 1 or below 0.

    Below a noise of 1/20 it is, at powers that are not whole, an upper bound; it exceeds the moment
    by less than a rounding error unless the rate is below 1e-6 or the power below 5/4.

    Args:
      power: of the likelihood ratio.
      noise: standard deviations s, of shape (n,).
      rate: sampling rates q, of shape (n,).
    """
    if power > 1 and float(power).is_integer():
        return _in_chunks(_whole_power, power, int(power), noise, rate)
    values = _small_noise_bound(power, noise, rate)
    able = (noise >= _LEAST_NOISE) & (rate < 1)
    if able.any():
        values[able] = _integral(power, noise[able], rate[able])
    return values


@_LIMITS
def _whole_power(power: float, noise: Array, rate: Array) -> Array:
    """Sums the binomial terms; those of k = 0 and 1 have no excess over the binomial itself."""
    k = np.arange(2.0, power + 1)
    terms = log_binomial(np.asarray(power), k, rate)
    return np.logaddexp(0, log_sum(terms + log_expm1(k * (k - 1) / 2 * noise**-2.0)))


@_LIMITS
def _integral(power: float, noise: Array, rate: Array) -> Array:
    low, high = _window(power, noise, rate)
    spacing = np.minimum(_WIDEST_SPACING, noise / math.sqrt(8 + max(0.0, -power)))
    count = math.ceil(np.max((high - low) / spacing))

    def trapezoid(power: float, noise: Array, rate: Array, low: Array, high: Array) -> Array:
        step = (high - low) / count
        z = low + step * np.arange(count + 1)
        log_values = log_excess(power, log_ratio(z, noise, rate)) - z**2 / 2
        return np.logaddexp(0, log_sum(log_values) + np.log(step[:, 0]) - _LOG_SQRT_2_PI)

    return _in_chunks(trapezoid, power, count, noise, rate, low, high)


def _window(power: float, noise: Array, rate: Array) -> tuple[Array, Array]:
    """Returns where the integrand is, in z.

    For small excesses it is that of (L - 1)^2, around z = 0 to 2 / s. Powers above 1 have another
    mode near power / s, powers below 0 one at or below z = 0: they are log-concave.
    """
    low = np.zeros_like(noise) if power > 0 else _mode_of_negative_power(power, noise, rate)
    return low - _MARGIN, max(power, 2.0) / noise + _MARGIN


def _mode_of_negative_power(power: float, noise: Array, rate: Array) -> Array:
    """Returns where -z^2 / 2 + power log L is largest: bisection of its derivative."""
    low, high = power / noise, np.zeros_like(noise)
    for _ in range(40):
        middle = (low + high) / 2
        weight = expit(logit(rate) + (middle - 0.5 / noise) / noise)
        rises = -middle + power * weight / noise > 0
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    return low


def log_ratio(z: Array, noise: Array, rate: Array) -> Array:
    """Returns log L, accurate near L = 1 and wherever one of its two terms vanishes."""
    exponent = (z - 0.5 / noise) / noise
    excess = rate * np.expm1(exponent)
    near = np.log1p(np.where(np.abs(excess) < 0.5, excess, 0.0))
    far = np.logaddexp(np.log1p(-rate), np.log(rate) + exponent)
    return np.where(np.abs(excess) < 0.5, near, far)


def log_excess(power: float, w: Array) -> Array:
    """Returns log(L^p - 1 - p (L - 1)).

    With h(y) = (exp(y) - 1 - y) / y^2 and w = log L it is w^2 (p^2 h(p w) - p h(w)).
    """
    powered = 2 * math.log(abs(power)) + log_h(power * w)
    linear = math.log(abs(power)) + log_h(w)
    if power > 0:
        both = powered + np.log1p(-np.exp(linear - powered))
    else:
        both = np.logaddexp(powered, linear)
    return both + 2 * np.log(np.abs(w))


def log_h(y: Array) -> Array:
    """Returns log((exp(y) - 1 - y) / y^2), which is log(1 / 2) at zero."""
    values = np.empty_like(y)
    near, large = np.abs(y) < 0.5, y > 500
    values[near] = np.log(np.polynomial.polynomial.polyval(y[near], _SERIES))
    values[large] = y[large] - 2 * np.log(y[large])
    rest = y[middle := ~(near | large)]
    values[middle] = np.log((np.expm1(rest) - rest) / rest**2)
    return values


@_LIMITS
def _small_noise_bound(power: float, noise: Array, rate: Array) -> Array:
    """Returns an upper bound that is sharp where the two Gaussians are far apart, or q is 1.

    For powers above 1 it is Minkowski's inequality for the two terms of L; below 0 it is the lesser
    of L >= 1 - q and the moment of the release on the whole data.
    """
    whole = (power - 1) / 2 * noise**-2.0
    if power > 0:
        return power * np.logaddexp(np.log1p(-rate), np.log(rate) + whole)
    return np.minimum(power * np.log1p(-rate), power * whole)


def log_expm1(y: Array) -> Array:
    """Returns log(exp(y) - 1) without overflow."""
    return y + np.log(-np.expm1(-y))


@_LIMITS
def log_binomial(n: Array, k: Array, rate: float | Array) -> Array:
    """Returns the log probabilities of k of n, minus infinity for k > n."""
    rest = np.maximum(n - k, 0)
    log_choices = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
    return np.where(k <= n, log_choices + k * np.log(rate) + xlog1py(rest, -rate), -np.inf)


def log_sum(terms: Array) -> Array:
    """Returns the log of the sum of the exponentials along the last axis."""
    largest = np.max(terms, axis=-1)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    return np.asarray(shift + np.log(np.sum(np.exp(terms - shift[..., None]), axis=-1)))


def _in_chunks(function: Callable[..., Array], power: float, width: int, *settings: Array) -> Array:
    """Calls ``function`` with columns of settings, few enough for ``width`` numbers of each."""
    rows = max(1, _CHUNK // width)
    columns = [column[:, None] for column in settings]
    starts = range(0, max(1, len(settings[0])), rows)  # no settings are one chunk too
    return np.concatenate(
        [function(power, *(column[i : i + rows] for column in columns)) for i in starts]
    )
