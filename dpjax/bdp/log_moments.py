"""Log moments of the privacy loss of Gaussian, subsampled Gaussian and Laplace noise.

The log moment of two distributions P and Q at the order lambda is log E_P[(P / Q)^lambda], which is
lambda times their Rényi divergence of order lambda + 1. The BDP accountant averages it over
records, so each function here is vectorised over the distances between the two releases' means.
All arithmetic is float64 on the host: in single precision a log-sum-exp of terms that sum to
1 + 1e-8 has no correct digit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_finite, check, check_rate
from dpjax.accounting.log_moments import log_binomial, log_h
from dpjax.accounting.loss_distribution import Array

# Numbers processed at a time, to stay in a core's cache.
_CHUNK = 2**16
# Terms exp(y) of larger y are scaled. Below it, a weight that underflows is negligible.
_LARGEST_EXPONENT = 500.0
_SERIES = np.array([(-1.0) ** k / k for k in range(2, 20)])
# Intended infinities: the log of zero, the moment of vanishing noise.
_LIMITS = np.errstate(over="ignore", divide="ignore")


def subsampled_gaussian_log_moments(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of a Poisson-subsampled Gaussian release under add/remove.

    With q the sampling rate and s the noise, P = (1 - q) N(0, s^2) + q N(d, s^2) is the release
    with a record of clipped norm d, and Q = N(0, s^2) the release without it. The other direction,
    log E_Q[(Q / P)^lambda], is smaller (Mironov, Talwar & Zhang 2019, Theorem 5). Under
    replace-one, with d the distance of two records' gradients, it is *not* an upper bound; see
    `replace_one_log_moments`.

    The relative error is about 1e-12, also of small moments.

    Args:
      orders: whole numbers lambda >= 1.
      distances: finite numbers >= 0, clipped norms of single records.
      sampling_rate: q, in (0, 1].
      noise_std: standard deviation s of the noise, in the units of the distances; broadcasts.

    Returns:
      Numbers >= 0, orders on a last axis behind those of ``distances``.

    Raises:
      ValueError: an argument is out of range.

    Source: Triastcyn & Faltings (2020), Theorem 3 (c^L); Mironov, Talwar & Zhang (2019),
    Section 3.3.

    >>> subsampled_gaussian_log_moments((1, 2), [0.0, 1.0], sampling_rate=1.0, noise_std=1.0)
    array([[0., 0.],
           [1., 3.]])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    k = np.arange(2, numbers.max() + 2)
    log_weights = log_binomial(numbers[:, None] + 1, k, sampling_rate)
    return _log_means(log_weights, _squares(distances, noise_std))


def published_reverse_log_moments(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the published upper bound c^R on the log moments of the other direction.

    It follows from convexity and is loose: at q = 0.01, lambda = s = d = 1 it is 0.0170, and the
    moment that it bounds is 0.00016. The accountant does not use it; it is here for comparison.

    Result and errors are those of `subsampled_gaussian_log_moments`.

    Args:
      orders: whole numbers lambda >= 1.
      distances: between the two values, of any shape.
      sampling_rate: q, the probability with which a record is drawn.
      noise_std: standard deviation of the noise, of a shape that broadcasts.

    Source: Triastcyn & Faltings (2020), Theorem 3 (c^R).

    >>> published_reverse_log_moments((1,), 1.0, sampling_rate=0.01, noise_std=1.0)
    array([0.0170])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    k = np.arange(1, numbers.max() + 1)  # exponents k (k + 1) / 2 are those of the next k above
    log_weights = log_binomial(numbers[:, None], k, sampling_rate)
    return _log_means(log_weights, _squares(distances, noise_std))


def gaussian_log_moments(
    orders: Sequence[int], distances: npt.ArrayLike, *, noise_std: npt.ArrayLike
) -> Array:
    """Returns the log moments of Gaussian noise on two values ``distances`` apart (symmetric).

    It holds under any adjacency: the distance is that of the two statistics before noise.

    Args:
      orders: whole numbers lambda >= 1.
      distances: finite numbers >= 0.
      noise_std: standard deviation of the noise, in the units of the distances; broadcasts.

    Returns:
      Numbers >= 0, orders on a last axis behind those of ``distances``.

    Raises:
      ValueError: an argument is out of range.

    >>> gaussian_log_moments((1, 2), 2.0, noise_std=4.0)
    array([0.25, 0.75])
    """
    numbers = check_orders(orders)
    return _squares(distances, noise_std)[..., None] * (numbers * (numbers + 1) / 2)


@_LIMITS
def laplace_log_moments(
    orders: Sequence[int], distances: npt.ArrayLike, *, scale: npt.ArrayLike
) -> Array:
    """Returns the log moments of Laplace noise on two values ``distances`` apart (symmetric).

    It is for one number with Laplace noise of the given ``scale``; those of independent numbers
    add up.

    Args:
      orders: whole numbers lambda >= 1.
      distances: finite numbers >= 0.
      scale: scale of the noise, in the units of the distances; broadcasts.

    Returns:
      Numbers >= 0, orders on a last axis behind those of ``distances``.

    Raises:
      ValueError: an argument is out of range.

    Source: Mironov (2017), Table II.

    >>> laplace_log_moments((1, 2), [0.0, 1.0], scale=1.0)
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


def diagonal_gaussian_log_moments(
    orders: Sequence[int],
    mean: npt.ArrayLike,
    std: npt.ArrayLike,
    other_mean: npt.ArrayLike,
    other_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of two normal distributions with diagonal covariances.

    P is the first distribution, Q the second. Where P has the larger variance, the log moments of
    high orders are infinite.

    Args:
      orders: whole numbers lambda >= 1.
      mean: finite means, coordinates on the last axis.
      std: standard deviations > 0; all four arrays broadcast.
      other_mean: finite means of the second distribution.
      other_std: standard deviations > 0 of the second distribution.

    Returns:
      Numbers >= 0 or infinity, of shape ``(..., orders)``, summed over the coordinates.

    Raises:
      ValueError: an argument is out of range.

    Source: Gil, Alajaji & Linder (2013), Table 2.

    >>> diagonal_gaussian_log_moments((1, 2, 5), [0.0, 0.0], 2.0, [1.0, 1.0], [2.0, 1.8])
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
    allowed = "whole numbers >= 1"
    values = as_finite(orders, "orders", allowed, lambda n: (n >= 1) & (n == np.round(n)))
    check(values.ndim == 1 and values.size > 0, "orders", orders, allowed)
    return values


def check_finite(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers."""
    return as_finite(value, name)


def check_lengths(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers >= 0."""
    return as_finite(value, name, "finite numbers >= 0", lambda values: values >= 0)


def check_scales(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers > 0."""
    return as_finite(value, name, "finite numbers > 0", lambda values: values > 0)


@_LIMITS
def _squares(distances: npt.ArrayLike, noise_std: npt.ArrayLike) -> Array:
    ratio = check_lengths("distances", distances) / check_scales("noise_std", noise_std)
    return np.asarray(np.square(ratio))


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
    """Returns slices of ``count`` rows of ``width`` numbers, each as large as the cache."""
    step = max(1, _CHUNK // width)
    return [slice(start, start + step) for start in range(0, count, step)]


def _groups(squares: Array, spacing: float) -> list[npt.NDArray[np.intp]]:
    """Returns indices of the squares above ``spacing``, in groups of width at most ``spacing``."""
    large = np.flatnonzero((squares > spacing) & np.isfinite(squares))
    large = large[np.argsort(squares[large])]
    starts = np.flatnonzero(np.diff(np.floor(squares[large] / spacing))) + 1
    return np.split(large, starts) if large.size else []


def _exp_excesses(squares: Array, count: int) -> Array:
    """Returns E_k = exp(k (k - 1) u / 2) - 1 of k = 2, 3, ..., or exp(600) where that is less.

    E_{k+1} is E_k exp(k u) + (exp(k u) - 1), and the powers exp(k u) - 1 follow a similar
    recursion. No term is negative, so nothing cancels, and one exponential suffices.
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
    """Returns ``_log_means`` at squares that are near each other, without overflow.

    The exponentials at the smallest square are moved into the logs of the weights; the remaining
    factors are in the range of a float.
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
    """Returns the log moment of each coordinate; ``excess`` is the ratio of variances minus 1."""
    variance = 1 - order * excess  # of the tilted normal, relative to the second distribution
    positive = np.where(variance > 0, variance, np.nan)
    spread = order * _log1p_gap(excess) + _log1p_gap(positive - 1)
    values = (spread + order * (order + 1) * shift / positive) / 2
    return np.where(variance > 0, values, np.inf)


def _log1p_gap(x: Array) -> Array:
    """Returns x - log(1 + x) >= 0 without cancellation."""
    near = np.abs(x) < 0.1
    series = np.square(x) * np.polynomial.polynomial.polyval(np.where(near, x, 0.0), _SERIES)
    return np.where(near, series, x - np.log1p(x))
