"""Log moments of one release, the integrand of a Bayesian account.

The log moment of two distributions P and Q at the order lambda is lambda times their Rényi
divergence of order lambda + 1, that is log E_P[(P / Q)^lambda]. An account averages it over the
data, so it is wanted at many distances at once: of the releases with one record and without it (or
with another in its place). Everything is float64 on the host. In single precision a log-sum-exp of
terms that sum to 1 + 1e-8 keeps no digit that matters, and reports too little.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlog1py

from dpjax._validation import check, check_rate
from dpjax.accounting.moment_integrals import log_h

Array = npt.NDArray[np.float64]

# As many numbers at a time as stay in a core's cache.
_CHUNK = 2**16
# Terms exp(y) of larger y are scaled. Up to it, a term whose weight is too small for a float is
# nothing beside the others.
_LARGEST_EXPONENT = 500.0
_SERIES = np.array([(-1.0) ** k / k for k in range(2, 20)])
# Infinities are meant: the log of a vanishing term, the moment of next to no noise.
_LIMITS = np.errstate(over="ignore", divide="ignore")


def sampled_gaussian(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of a Poisson-sampled Gaussian release, with one record and without.

    With q the rate and s the noise, P = (1 - q) N(0, s^2) + q N(d, s^2) is the release with a
    record that moves the sum by the distance d, its clipped norm, and Q = N(0, s^2) the one without
    (add/remove). The other direction, log E_Q[(Q / P)^lambda], is the smaller (Mironov, Talwar,
    Zhang 2019, Theorem 5). With d the distance of two records of which one replaces the other it
    is *not* an upper bound: ``replaced_sampled_gaussian`` is.

    The relative error is about 1e-12, however small the moment.

    Args:
      orders: whole numbers lambda >= 1.
      distances: finite numbers >= 0, clipped norms of single records.
      sampling_rate: q, in (0, 1].
      noise_std: the noise's standard deviation s, in the unit of the distances; it broadcasts.

    Returns:
      Numbers >= 0, orders on a last axis behind those of ``distances``.

    Raises:
      ValueError: an argument is out of range.

    Source: Theorem 3 of Triastcyn, Faltings 2020 (c^L); Mironov, Talwar, Zhang 2019, Section 3.3.

    >>> sampled_gaussian((1, 2), [0.0, 1.0], sampling_rate=1.0, noise_std=1.0)
    array([[0., 0.],
           [1., 3.]])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    k = np.arange(2, numbers.max() + 2)
    log_weights = _log_binomial(numbers[:, None] + 1, k, sampling_rate)
    return _log_means(log_weights, _squares(distances, noise_std))


def published_reverse(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the published bound c^R on ``sampled_gaussian``'s other direction, for the record.

    It follows from convexity and loses what sampling gains: at q = 0.01, lambda = s = d = 1 it is
    0.0170, and the moment that it bounds is 0.00016. An account has no use for it.

    Arguments, result and errors are those of ``sampled_gaussian``.

    Source: Theorem 3 of Triastcyn, Faltings 2020 (c^R).

    >>> published_reverse((1,), 1.0, sampling_rate=0.01, noise_std=1.0)
    array([0.0170])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    k = np.arange(1, numbers.max() + 1)  # exponents k (k + 1) / 2 are those of the next k above
    log_weights = _log_binomial(numbers[:, None], k, sampling_rate)
    return _log_means(log_weights, _squares(distances, noise_std))


def gaussian(orders: Sequence[int], distances: npt.ArrayLike, *, noise_std: npt.ArrayLike) -> Array:
    """Returns the log moments of two normal distributions ``distances`` apart, the same both ways.

    Any adjacency: the distance is that of the two statistics before noise.

    Raises:
      ValueError: an argument is out of range.

    >>> gaussian((1, 2), 2.0, noise_std=4.0)
    array([0.25, 0.75])
    """
    numbers = check_orders(orders)
    return _squares(distances, noise_std)[..., None] * (numbers * (numbers + 1) / 2)


@_LIMITS
def laplace(orders: Sequence[int], distances: npt.ArrayLike, *, scale: npt.ArrayLike) -> Array:
    """Returns the log moments of two Laplace distributions ``distances`` apart, the same both ways.

    It is for one number with Laplace noise of the given ``scale``; independent numbers add up.

    Raises:
      ValueError: an argument is out of range.

    Source: Mironov 2017, Table II.

    >>> laplace((1, 2), [0.0, 1.0], scale=1.0)
    array([[0.    , 0.    ],
           [0.6191, 1.4937]])
    """
    numbers = check_orders(orders)
    ratio = (check_lengths("distances", distances) / check_scales("scale", scale))[..., None]
    # With h(y) = (exp(y) - 1 - y) / y^2 the mean of (P / Q)^lambda less 1, nothing cancelled.
    terms = np.logaddexp(
        np.log(numbers) + log_h(numbers * ratio),
        np.log(numbers + 1) + log_h(-(numbers + 1) * ratio),
    )
    factor = numbers * (numbers + 1) / (2 * numbers + 1)
    return np.logaddexp(0, np.log(factor) + 2 * np.log(ratio) + terms)


def diagonal_gaussian(
    orders: Sequence[int],
    mean: npt.ArrayLike,
    std: npt.ArrayLike,
    other_mean: npt.ArrayLike,
    other_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of two normal distributions of independent coordinates.

    Draws are those of the first. Where it is the wider one, high orders are infinite.

    Args:
      orders: whole numbers lambda >= 1.
      mean: finite means, coordinates on the last axis.
      std: standard deviations > 0; all four arrays broadcast.
      other_mean: of the second distribution, as is ``other_std``.

    Returns:
      Numbers >= 0 or infinity, orders on the last axis in the place of the coordinates.

    Raises:
      ValueError: an argument is out of range.

    Source: Gil, Alajaji, Linder 2013, Table 2.

    >>> diagonal_gaussian((1, 2, 5), [0.0, 0.0], 2.0, [1.0, 1.0], [2.0, 1.8])
    array([0.68152, 2.60009, inf])
    """
    numbers = check_orders(orders)
    means, other_means = check_finite("mean", mean), check_finite("other_mean", other_mean)
    first, second = check_scales("std", std), check_scales("other_std", other_std)
    shift = np.square((means - other_means) / second)
    excess = (first - second) / second * ((first + second) / second)
    check(np.ndim(shift + excess) > 0, "mean", mean, "an array of coordinates")
    return np.stack([_diagonal(order, shift, excess).sum(axis=-1) for order in numbers], axis=-1)


def check_orders(orders: Sequence[int]) -> Array:
    """Returns ``orders`` as floats; refuses what is not a sequence of whole numbers >= 1."""
    values = np.asarray(orders)
    known = values.dtype.kind in "iuf" and values.ndim == 1 and values.size > 0
    whole = known and np.all(np.isfinite(values) & (values >= 1) & (values == np.round(values)))
    check(bool(whole), "orders", orders, "whole numbers >= 1")
    return values.astype(float)


def check_finite(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers."""
    values = np.asarray(value)
    finite = values.dtype.kind in "iuf" and bool(np.all(np.isfinite(values)))
    check(finite, name, value, "finite numbers")
    return values.astype(float, copy=False)


def check_lengths(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers >= 0."""
    values = check_finite(name, value)
    check(bool(np.all(values >= 0)), name, value, "finite numbers >= 0")
    return values


def check_scales(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers > 0."""
    values = check_finite(name, value)
    check(bool(np.all(values > 0)), name, value, "finite numbers > 0")
    return values


@_LIMITS
def _squares(distances: npt.ArrayLike, noise_std: npt.ArrayLike) -> Array:
    ratio = check_lengths("distances", distances) / check_scales("noise_std", noise_std)
    return np.asarray(np.square(ratio))


@_LIMITS
def _log_binomial(n: Any, k: Array, rate: float) -> Array:
    """Returns the log probabilities of k, those beyond n included, which have none."""
    rest = np.maximum(n - k, 0)
    log_choices = gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1)
    log_values = log_choices + k * np.log(rate) + xlog1py(rest, -rate)
    return np.where(k <= n, log_values, -np.inf)


@_LIMITS
def _log_means(log_weights: Array, squares: Array) -> Array:
    """Returns log(1 + sum_k w_k (exp(k (k - 1) u / 2) - 1)) over k = 2, 3, ... at each square u."""
    flat, (num_orders, num_terms) = squares.ravel(), log_weights.shape
    values, weights = np.empty((flat.size, num_orders)), np.exp(log_weights).T
    for part in _parts(flat.size, num_terms):
        np.log1p(_exp_excesses(flat[part], num_terms).T @ weights, out=values[part])
    spacing = _LARGEST_EXPONENT / _exponents(num_terms)[-1]
    for rows in _groups(flat, spacing):
        for part in _parts(rows.size, num_terms):
            values[rows[part]] = _log_means_of_large(log_weights, flat[rows[part]])
    values[np.isinf(flat)] = np.inf
    return values.reshape(*squares.shape, num_orders)


def _parts(count: int, width: int) -> list[slice]:
    """Returns slices of ``count`` rows that keep ``width`` numbers of each row in the cache."""
    step = max(1, _CHUNK // width)
    return [slice(start, start + step) for start in range(0, count, step)]


def _groups(squares: Array, spacing: float) -> list[npt.NDArray[np.intp]]:
    """Returns where the squares above ``spacing`` are, in groups that differ by at most as much."""
    large = np.flatnonzero((squares > spacing) & np.isfinite(squares))
    large = large[np.argsort(squares[large])]
    starts = np.flatnonzero(np.diff(np.floor(squares[large] / spacing))) + 1
    return np.split(large, starts) if large.size else []


def _exp_excesses(squares: Array, count: int) -> Array:
    """Returns E_k = exp(k (k - 1) u / 2) - 1 of k = 2, 3, ..., or exp(600) where that is less.

    E_{k+1} is E_k exp(k u) + (exp(k u) - 1), and the powers exp(k u) - 1 follow a similar rule: no
    term is negative, so no digit is lost, at the price of one exponential for all.
    """
    values = np.empty((count, squares.size))
    first = np.expm1(squares)
    values[0], power, growth = first, first, 1 + first
    for k in range(1, count):
        power = power * growth + first
        np.multiply(values[k - 1], 1 + power, out=values[k])
        values[k] += power
    return np.minimum(values, np.exp(_LARGEST_EXPONENT + 100), out=values)


def _log_means_of_large(log_weights: Array, squares: Array) -> Array:
    """Returns ``_log_means`` at squares that are near each other, with logs of what overflows.

    The exponentials at the least of the squares go into the weights, which are exact as logs, and
    what a square has beyond the least stays within floats.
    """
    count, least = log_weights.shape[1], squares.min()
    terms = log_weights + _exponents(count) * least
    largest = terms.max(axis=1)
    excesses = _exp_excesses(squares, count)
    beyond = 1 + _exp_excesses(squares - least, count)
    beyond *= excesses / (1 + excesses)
    log_sums = largest + np.log(beyond.T @ np.exp(terms - largest[:, None]).T)
    return np.where(log_sums < 40, np.log1p(np.exp(np.minimum(log_sums, 40))), log_sums)


def _exponents(count: int) -> Array:
    k = np.arange(2.0, count + 2)
    return k * (k - 1) / 2


@_LIMITS
def _diagonal(order: float, shift: Array, excess: Array) -> Array:
    """Returns the log moment of each coordinate; ``excess`` is the ratio of variances less 1."""
    bell = 1 - order * excess  # its variance, in units of the second distribution's
    known = np.where(bell > 0, bell, np.nan)
    spread = order * _log1p_gap(excess) + _log1p_gap(known - 1)
    values = (spread + order * (order + 1) * shift / known) / 2
    return np.where(bell > 0, values, np.inf)


def _log1p_gap(x: Array) -> Array:
    """Returns x - log(1 + x) >= 0 with all its digits."""
    near = np.abs(x) < 0.1
    series = np.square(x) * np.polynomial.polynomial.polyval(np.where(near, x, 0.0), _SERIES)
    return np.where(near, series, x - np.log1p(x))
