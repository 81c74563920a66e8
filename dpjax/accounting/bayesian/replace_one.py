"""Log moments of a Poisson-sampled Gaussian release when one record replaces another.

Both records stand behind the same coin. In units of the noise the releases are P = (1 - q) N(0, I)
+ q N(u, I) and Q = (1 - q) N(0, I) + q N(v, I), for clipped gradients u and v, and all that matters
happens in the plane of the two. There m_u = 1 - q + q exp(u x - |u|^2 / 2) is the density of P over
that of N(0, I), m_v that of Q, and r = m_u / m_v their ratio, with mean 1 under Q.

Let p = lambda + 1. As in ``moment_integrals``, E_Q[r^p] - 1 is computed as the mean of r^p - 1 -
p (r - 1), which is nowhere negative. Along v the plane has a coordinate y, and m_v depends on it
alone. Across it r^p is a sum of p + 1 exponentials, whose mean is known: with s the mean of r at y,
that of r^p - 1 - p (r - 1) is

    s^p - 1 - p (s - 1) + sum_{k >= 2} B(k) h(y)^k / m_v(y)^p (exp(k (k - 1) w^2 / 2) - 1),

where B is the binomial distribution of p draws at the rate q, h(y) the part of exp(u x - |u|^2 / 2)
along v, and w the length of u across v. No term is negative. What is left is one integral over y,
of functions that are analytic around the real line: the trapezoid rule's.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, gammaln, logit, xlog1py

from dpjax._validation import check, check_rate
from dpjax.accounting.bayesian.divergences import (
    check_finite,
    check_lengths,
    check_orders,
    check_scales,
)
from dpjax.accounting.moment_integrals import log_excess, log_expm1, log_ratio

Array = npt.NDArray[np.float64]

_WIDEST_SPACING = 0.45
# A Gaussian density at nine deviations is 1e-18 of its peak.
_MARGIN = 9.0
# As many numbers at a time as stay in a core's cache.
_CHUNK = 2**16
_ROUNDING = 1e-6
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
# Infinities are meant: the log of a vanishing term, the inverse of a norm that is zero.
_LIMITS = np.errstate(over="ignore", divide="ignore", invalid="ignore")


def replaced_sampled_gaussian(
    orders: Sequence[int],
    norms: npt.ArrayLike,
    other_norms: npt.ArrayLike,
    cosines: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of a Poisson-sampled Gaussian release with either of two records.

    Replace-one, and one coin for both records: the number of others is known. It is the larger of
    both directions, of the two mixtures themselves, to a relative error of about 1e-12. The
    source's formula, ``sampled_gaussian`` at the distance of the two gradients, is not an upper
    bound of it.

    On every grid that was tried the moments grow with the angle, and between opposite gradients
    with the norms: without angles a ``cosines`` of -1 was the worst case. That is no theorem.

    A pair of norms as large as the noise takes about 0.1 ms an order, smaller ones half of it.

    Args:
      orders: whole numbers lambda >= 1.
      norms: finite numbers >= 0, clipped norms of the first record's gradients.
      other_norms: of the second's.
      cosines: of their angles, in [-1, 1]; what rounding adds is cut off.
      sampling_rate: q, in (0, 1].
      noise_std: the noise's standard deviation in the unit of the norms; all four arrays broadcast.

    Returns:
      Numbers >= 0, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    >>> values = replaced_sampled_gaussian(
    ...     (1,), 1.0, 1.0, [0.5, -1.0], sampling_rate=0.01, noise_std=0.7
    ... )
    >>> np.round(values * 1e4, 2)
    array([[ 8.3 ],
           [13.38]])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    noise = check_scales("noise_std", noise_std)
    first, second = check_lengths("norms", norms), check_lengths("other_norms", other_norms)
    u, v, c = np.broadcast_arrays(first / noise, second / noise, _cosines(cosines))
    pairs = u.ravel(), v.ravel(), c.ravel()
    rate = np.asarray(sampling_rate, float)
    values = [_larger(order + 1, *pairs, rate) for order in numbers]
    return np.stack(values, axis=-1).reshape(*u.shape, len(numbers))


def _cosines(value: npt.ArrayLike) -> Array:
    values = check_finite("cosines", value)
    check(bool(np.all(np.abs(values) <= 1 + _ROUNDING)), "cosines", value, "in [-1, 1]")
    return np.clip(values, -1.0, 1.0)


def _larger(power: float, u: Array, v: Array, cosine: Array, rate: Array) -> Array:
    """Returns the larger of both directions at norms ``u`` and ``v``, all of shape (n,)."""
    return np.maximum(_directed(power, u, v, cosine, rate), _directed(power, v, u, cosine, rate))


@_LIMITS
def _directed(power: float, u: Array, v: Array, cosine: Array, rate: Array) -> Array:
    """Returns log E_Q[(P / Q)^power], chunk by chunk."""
    along, across = u * cosine, u * np.sqrt((1 - cosine) * (1 + cosine))
    low, high = _window(power, along, v, rate)
    spacing = np.minimum(_WIDEST_SPACING, _feature(power, along, v))
    counts = np.ceil((high - low) / spacing)
    values = np.empty(u.shape)
    for rows in _batches(counts * power):
        node = np.arange(counts[rows].max() + 1)
        step = ((high - low)[rows] / (len(node) - 1))[:, None]
        y = low[rows, None] + step * node
        logs = _log_integrand(power, y, along[rows, None], across[rows, None], v[rows, None], rate)
        values[rows] = np.logaddexp(0, _log_sum(logs) + np.log(step[:, 0]) - _LOG_SQRT_2_PI)
    return values


def _window(power: float, along: Array, v: Array, rate: Array) -> tuple[Array, Array]:
    """Returns where the integrand is, in y.

    It is a sum of exponentials that tilt the normal density by up to ``power * along``, or by 2 v
    where the excess is small, times 1 / m_v^lambda, which moves a mode at t to t - lambda v w, with
    w no more than its value at t.
    """
    tilt = np.minimum(0, power * along)
    weight = expit(logit(rate) + v * tilt - v**2 / 2)
    high = np.maximum(np.maximum(0, power * along), 2 * v)
    return tilt - (power - 1) * v * weight - _MARGIN, high + _MARGIN


def _feature(power: float, along: Array, v: Array) -> Array:
    """Returns a spacing that is fine beside the zeros of m_v and s, pi / v and pi / along away."""
    return 1 / (np.maximum(v, np.abs(along)) * math.sqrt(7 + power))


def _batches(sizes: Array) -> list[npt.NDArray[np.intp]]:
    """Returns groups of rows of like size, each about as large as the cache."""
    rows = np.argsort(sizes)
    group = np.floor(np.cumsum(sizes[rows]) / _CHUNK)
    return np.split(rows, np.flatnonzero(np.diff(group)) + 1) if rows.size else []


def _log_integrand(
    power: float, y: Array, along: Array, across: Array, v: Array, rate: Array
) -> Array:
    log_other = log_ratio(y, 1 / v, rate)
    log_mean = log_ratio(y, 1 / along, rate) - log_other
    excess = log_other + log_excess(power, log_mean)
    spread = _log_spread(power, along * (y - along / 2), across, rate) - (power - 1) * log_other
    return np.logaddexp(excess, spread) - y**2 / 2


def _log_spread(power: float, exponent: Array, across: Array, rate: Array) -> Array:
    """Returns log sum_{k >= 2} B(k) exp(k exponent) (exp(k (k - 1) across^2 / 2) - 1)."""
    k = np.arange(2, power + 1)
    log_choices = gammaln(power + 1) - gammaln(k + 1) - gammaln(power - k + 1)
    log_weights = log_choices + k * np.log(rate) + xlog1py(power - k, -rate)
    log_weights = log_weights + log_expm1(k * (k - 1) / 2 * across**2)
    return _log_sum(log_weights[:, None, :] + exponent[..., None] * k)


def _log_sum(terms: Array) -> Any:
    """Returns the log of the sum of the exponentials along the last axis."""
    largest = np.max(terms, axis=-1)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    return shift + np.log(np.sum(np.exp(terms - shift[..., None]), axis=-1))
