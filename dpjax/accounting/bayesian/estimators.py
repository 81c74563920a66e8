"""Estimates of a mean that are too large with a stated probability, from draws.

A Bayesian account averages z = exp(T lambda D) over the data's distribution, of which it has
draws only, and a mean that is estimated too small promises too much. Each estimate here exceeds the
mean with probability 1 - gamma or more, *under an assumption* that its docstring names. The z are
far beyond a float's range, so draws and estimates are logarithms.

All take the draws for independent ones of the distribution that the account speaks of. What that
asks of them:

- Records of one Poisson batch are such draws, of the data's distribution, for a model that has not
  seen them. Steps reuse records: a model that fits its own better than others of the same
  distribution has shorter gradients for them, and estimates are too small by as much. The noise
  that makes training private limits it; no estimate here accounts for it.
- Estimates of several steps may depend on each other: their gammas add up whatever they share.
- A random part of the draws are draws too. Fewer cost a larger estimate.
- Pairs of records need to have no record in common. All pairs of one sample do not qualify.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, stdtrit

from dpjax._validation import check, check_delta

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_ROUNDING = 1e-9
# Meant: logs of nothing, and of draws that no float or no step has.
_LIMITS = np.errstate(divide="ignore", invalid="ignore", over="ignore")


class _Summary(NamedTuple):
    """The largest log z; of z / exp(largest) mean and (1 / N) standard deviation; the number N."""

    largest: Array
    mean: Array
    deviation: Array
    number: Array


@_LIMITS
def student(
    log_values: npt.ArrayLike, failure_probability: float, mask: npt.ArrayLike | None = None
) -> Array:
    """Returns the log of M + t S / sqrt(N - 1), the upper end of Student's interval for the mean.

    M is the mean of z, S its standard deviation (with 1 / N), and t the quantile at 1 - gamma of
    Student's distribution with N - 1 degrees of freedom. It exceeds the mean of z with probability
    1 - gamma *if the z are normal*, which the source assumes as the distribution of most entropy
    among those of their mean and variance. Nothing holds without it: where one record in 1,000
    carries the mean, most batches show none, and their estimate is too small. In an account z is an
    exponential, whose mean the largest draws carry at high orders whatever the norms: there the
    estimate falls short, and an account that takes its best order afterwards is led there. For
    norms drawn from N(0.3, 0.1), in 1,000 steps of 256 draws, epsilon comes out a third too small.

    Args:
      log_values: log z, draws on the last axis but one: ``(..., N, L)``.
      failure_probability: gamma, in (0, 1/2].
      mask: of shape ``(..., N)``; draws where it is False count for nothing.

    Returns:
      Of shape ``(..., L)``; infinite where fewer than two draws are left.

    Raises:
      ValueError: an argument is out of range.

    Source: Theorem 4 of Triastcyn, Faltings 2020.

    >>> student(np.log([[1.0], [3.0]]), failure_probability=0.25)  # 2 + tan(pi / 4)
    array([1.0986])
    """
    gamma = failure_probability
    check_delta(gamma, "failure_probability")
    check(gamma <= 0.5, "failure_probability", gamma, "in (0, 1/2]")
    largest, mean, deviation, count = _summary(log_values, mask)
    # The inverse of the distribution function at gamma keeps its digits; at 1 - gamma it has none.
    quantile = -stdtrit(np.maximum(count - 1, 1), gamma)
    estimate = largest + np.log(mean + quantile * deviation / np.sqrt(count - 1))
    return np.where((count < 2) | (largest == np.inf), np.inf, estimate)


@_LIMITS
def empirical_bernstein(
    log_values: npt.ArrayLike,
    failure_probability: float,
    log_bound: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
) -> Array:
    """Returns the log of an upper bound on the mean, whatever the distribution on [0, B].

    With l = log(2 / gamma) and V the sample variance it is M + sqrt(2 V l / N) + 7 B l / (3 (N -
    1)), or B itself where that is less. B is what clipping leaves of the worst record, so the bound
    is as often B unless draws are many: it needs 7 l / 3 draws, 80 for a gamma of 1e-15, to be
    below B at all, and the mean of z shows only where it is not far below B.

    Args:
      log_values: log z, draws on the last axis but one: ``(..., N, L)``.
      failure_probability: gamma, in (0, 1).
      log_bound: log B, no draw's z exceeds B; it broadcasts to ``(..., L)``.
      mask: of shape ``(..., N)``; draws where it is False count for nothing.

    Returns:
      Of shape ``(..., L)``; ``log_bound`` where fewer than two draws are left.

    Raises:
      ValueError: an argument is out of range, or a draw exceeds the bound.

    Source: Maurer, Pontil 2009, Theorem 4.

    >>> values = np.log(np.linspace(1.0, 2.0, 1_001)[:, None])
    >>> np.exp(empirical_bernstein(values, failure_probability=0.01, log_bound=np.log(2)))
    array([1.5545])
    """
    check_delta(failure_probability, "failure_probability")
    largest, mean, deviation, count = _summary(log_values, mask)
    bound = np.asarray(log_bound, float)
    allowed = bound + _ROUNDING * np.maximum(1, np.abs(bound))
    check(bool(np.all(largest <= allowed)), "log_bound", log_bound, "at least every draw's log")
    level = np.log(2 / failure_probability)
    # The sample variance over N is the (1 / N) one over N - 1.
    near = largest + np.log(mean + deviation * np.sqrt(2 * level / (count - 1)))
    far = bound + np.log(7 * level / (3 * (count - 1)))
    estimate = np.minimum(np.logaddexp(near, far), bound)
    return np.where((count < 2) | (largest == np.inf), bound, estimate)


def binary(ones: npt.ArrayLike, zeros: npt.ArrayLike, failure_probability: npt.ArrayLike) -> Any:
    """Returns a number that exceeds the mean of zeros and ones with probability 1 - gamma.

    With all means equally likely beforehand, that of ``ones`` and ``zeros`` is afterwards
    distributed as Beta(ones + 1, zeros + 1), and this is its quantile. So the probability is that
    of the mean, and the draws are fixed. A hundred zeros never give 0 (unless gamma is 1): the mean
    exceeds p with probability (1 - p)^101, that of 101 zeros in a row.

    Args:
      ones: how many, a whole number >= 0.
      zeros: how many; all three broadcast.
      failure_probability: gamma, in [0, 1].

    Raises:
      ValueError: an argument is out of range.

    Source: Section 4.3.1 of Triastcyn, Faltings 2020.

    >>> round(float(binary(ones=0, zeros=100, failure_probability=0.99**101)), 6)
    0.01
    """
    gamma = np.asarray(failure_probability, float)
    within = bool(np.all((gamma >= 0) & (gamma <= 1)))
    check(within, "failure_probability", failure_probability, "in [0, 1]")
    return betainccinv(_counts("ones", ones) + 1, _counts("zeros", zeros) + 1, gamma)


def _counts(name: str, value: npt.ArrayLike) -> Array:
    values = np.asarray(value)
    whole = values.dtype.kind in "iuf" and np.all((values >= 0) & (values == np.floor(values)))
    check(bool(whole), name, value, "whole numbers >= 0")
    return values.astype(float)


def _summary(log_values: npt.ArrayLike, mask: npt.ArrayLike | None) -> _Summary:
    """Returns the statistics of each column's draws, batch by batch: one stays in the cache."""
    values = np.asarray(log_values, float)
    check(values.ndim >= 2, "log_values", log_values, "of shape (..., draws, orders)")
    check(not np.any(np.isnan(values)), "log_values", log_values, "numbers")
    used = _used(values.shape[:-1], mask)
    *batches, draws, columns = values.shape
    count = math.prod(batches)
    summaries = np.empty((count, 3, columns))
    flat, flags = values.reshape(count, draws, columns), used.reshape(count, draws)
    for summary, batch, some in zip(summaries, flat, flags, strict=True):
        summary[:] = _of_draws(batch if mask is None else batch[some])
    parts = summaries.reshape(*batches, 3, columns)
    number = used.sum(axis=-1)[..., None].astype(float)
    return _Summary(parts[..., 0, :], parts[..., 1, :], parts[..., 2, :], number)


def _of_draws(logs: Array) -> tuple[Array, Array, Array]:
    """Returns largest logarithm, mean and standard deviation of each column of one batch."""
    largest, number = np.max(logs, axis=0, initial=-np.inf), max(1, len(logs))
    scaled = np.exp(logs - np.where(largest == -np.inf, 0.0, largest))
    mean = scaled.sum(axis=0) / number
    scaled -= mean
    return largest, mean, np.sqrt(np.einsum("nl,nl->l", scaled, scaled) / number)


def _used(shape: tuple[int, ...], mask: npt.ArrayLike | None) -> Mask:
    """Returns which draws count."""
    if mask is None:
        return np.ones(shape, bool)
    used = np.asarray(mask)
    check(used.dtype == bool, "mask", mask, "an array of booleans")
    check(used.shape == shape, "mask", used.shape, f"of shape {shape}")
    return used
