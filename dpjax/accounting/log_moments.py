"""Log moments of privacy losses, and the moments accountant.

The log moment of two distributions P and Q at the order lambda is log E_P[(P / Q)^lambda], which is
lambda times their Rényi divergence of order lambda + 1. All arithmetic is float64 on the host: in
single precision a log-sum-exp of terms that sum to 1 + 1e-8 has no correct digit.

**Without cancellation.** Without the record a Poisson-sampled Gaussian release is Q = N(0, s^2),
with it P = (1 - q) N(0, s^2) + q N(1, s^2). At x = s z the likelihood ratio P / Q is
L = 1 - q + q exp(z / s - 1 / (2 s^2)), and its mean under Q is 1. So E_Q[L^p] - 1 is the mean of
L^p - 1 - p (L - 1), which is nowhere negative for p > 1 or p < 0: it is what is computed, and a
moment that exceeds 1 by 1e-15 keeps all its digits.

At whole p > 1 the mean is a finite sum (Mironov, Talwar, Zhang 2019, Section 3.3). Elsewhere it is
the trapezoid rule's. The integrand is analytic in a strip around the real line, where the rule's
error falls exponentially with the number of nodes (Trefethen, Weideman 2014, Theorem 5.1): L has
its zeros pi s off the line, and powers p < 0 grow on the way there, as does the Gaussian density.

**The moments accountant** (Abadi et al. 2016) composes Poisson-sampled Gaussian releases. Earlier
reports computed their epsilons with it, and it is here to compare with: an upper bound that holds
under add/remove, and a loose one. Its ORDERS and its conversion of moments into (epsilon, delta)
are those of Bu, Dong, Long, Su 2020; ``method="rdp"`` converts better, and ``method="pld"`` is
tight. Noise multipliers, sampling rates, numbers of steps, deltas and epsilons broadcast against
each other, and scalars give a scalar. Moments are computed once for each pair of noise multiplier
and sampling rate, so numbers of steps on an axis of their own cost next to nothing.

The other log moments are those that Bayesian accounting averages over records
(`dpjax.bdp`), so each function is vectorised over the distances between two releases' means.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, gammaln, logit, xlog1py

from dpjax._checks import as_finite, check, check_choice, check_rate
from dpjax.accounting.loss_distribution import DIRECTIONS, Array, Direction
from dpjax.accounting.tradeoff.base import scalar

# The moments accountant; `dpjax.bdp` exports the other functions that need no underscore.
__all__ = ["ORDERS", "compute_epsilon", "compute_log_moment", "compute_profile"]

ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *map(float, range(5, 65)),
    *(128.0, 256.0, 512.0),
)
_LEAST_PROFILE_DELTA = 1e-15
_PROFILE_POINTS = 4_001

# Below it the zeros of L need too fine a grid, and the bounds that replace it are as exact.
_LEAST_NOISE = 0.05
_WIDEST_SPACING = 0.45
# A Gaussian density at nine deviations is 1e-18 of its peak.
_MARGIN = 9.0
# As many numbers at a time as stay in a core's cache.
_CHUNK = 2**15
# Terms exp(y) of larger y are scaled. Below it, a weight that underflows is negligible.
_LARGEST_EXPONENT = 500.0
# Of exp(y) - 1 - y over y^2, and of x - log(1 + x) over x^2.
_EXP_SERIES = 1 / np.array([math.factorial(k) for k in range(2, 16)])
_LOG_SERIES = np.array([(-1.0) ** k / k for k in range(2, 20)])
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
# Infinities are meant: the log of a vanishing term, the moment of next to no noise.
_LIMITS = np.errstate(over="ignore", divide="ignore")


def compute_log_moment(
    order: float,
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    *,
    direction: Direction = "remove",
) -> Any:
    """Returns the log moment alpha_GM of one release, (order - 1) times its Rényi divergence.

    With P = (1 - q) N(0, sigma^2) + q N(1, sigma^2), the release with the record, and
    Q = N(0, sigma^2), that without: log E_P[(P / Q)^(order - 1)] for ``"remove"``, and
    log E_Q[(Q / P)^(order - 1)] for ``"add"``. The first is the larger (Mironov, Talwar, Zhang
    2019, Theorem 5), and so what an accountant uses. In the sources lambda = ``order`` - 1.

    The relative error is about 1e-12, however small the moment. Where the noise multiplier is below
    1/20 the result is an upper bound, and hardly more than the moment.

    Args:
      order: a finite number above 1.
      noise_multiplier: positive.
      sampling_rate: in (0, 1].
      direction: which of the two is the distribution of the release.

    Returns:
      A number >= 0 for each noise multiplier and sampling rate.

    Raises:
      ValueError: an argument is out of range.

    >>> compute_log_moment(2, noise_multiplier=1.0, sampling_rate=1.0)
    1.0
    >>> round(compute_log_moment(2, noise_multiplier=50.0, sampling_rate=1e-6) / 4.00080e-16, 4)
    1.0
    """
    as_finite(order, "order", "a finite number > 1", lambda value: value > 1)
    check_choice("direction", direction, DIRECTIONS)
    _check_release(noise_multiplier, sampling_rate)
    return scalar(_log_moments((order,), noise_multiplier, sampling_rate, direction)[..., 0])


def compute_epsilon(
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    num_steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    orders: Sequence[float] = ORDERS,
) -> Any:
    """Returns the least epsilon at which the moments guarantee (epsilon, ``delta``)-DP.

    It is the least over the orders a of RDP(a) + log(1 / delta) / (a - 1).

    Args:
      noise_multiplier: positive, the noise's standard deviation over the clip bound.
      sampling_rate: in (0, 1].
      num_steps: the number of releases, at least 1.
      delta: in (0, 1).
      orders: numbers above 1.

    Returns:
      The epsilons, of the arguments' common shape; scalars give a scalar.

    Raises:
      ValueError: an argument is out of range.

    Source: Abadi et al. 2016, Theorem 2.

    >>> round(compute_epsilon(1.3, sampling_rate=256 / 60_000, num_steps=3_515, delta=1e-5), 2)
    1.19
    """
    delta = as_finite(delta, "delta", "in (0, 1)", lambda value: (value > 0) & (value < 1))
    moments = _composed(noise_multiplier, sampling_rate, num_steps, orders)
    return scalar(epsilon_from_moments(moments, np.asarray(orders, float), delta))


def compute_profile(
    noise_multiplier: float,
    sampling_rate: float,
    num_steps: int,
    orders: Sequence[float] = ORDERS,
) -> tuple[Array, Array]:
    """Returns the pairs (epsilon, delta) that the moments guarantee, all of them at once.

    Together they are a trade-off curve: the envelope of the curves f_(epsilon, delta). Any of the
    pairs holds, so the curve is a guarantee however coarse the grid.

    Args:
      noise_multiplier, sampling_rate, num_steps, orders: as for `compute_epsilon`, numbers.

    Returns:
      4,001 epsilons at equal distances, from 0 to where delta is 1e-15, and their deltas.

    Raises:
      ValueError: an argument is out of range.

    >>> epsilons, deltas = compute_profile(1.1, sampling_rate=256 / 60_000, num_steps=14_062)
    >>> round(float(np.max(2 * (1 - deltas) / (1 + np.exp(epsilons)))), 3)  # least sum of errors
    0.369
    """
    settings = noise_multiplier, sampling_rate, num_steps
    names = "noise_multiplier", "sampling_rate", "num_steps"
    for name, value in zip(names, settings, strict=True):
        check(np.ndim(value) == 0, name, value, "one number")
    largest = compute_epsilon(*settings, _LEAST_PROFILE_DELTA, orders)
    epsilons = np.linspace(0.0, largest, _PROFILE_POINTS)

    # The least over the orders a of exp((a - 1) (RDP(a) - epsilon)): Abadi et al. 2016, Theorem 2.
    gaps = _composed(*settings, orders) - (np.asarray(orders, float) - 1) * epsilons[:, None]
    return epsilons, np.exp(np.minimum(0.0, gaps.min(axis=-1)))


def epsilon_from_moments(moments: Array, orders: Array, delta: Array) -> Array:
    """Returns the least epsilon over the orders, by the classical conversion."""
    return np.asarray(np.min((moments - np.log(delta)[..., None]) / (orders - 1), axis=-1))


def log_ratio_moment(power: float, noise: Array, rate: Array) -> Array:
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
    values[near] = np.log(np.polynomial.polynomial.polyval(y[near], _EXP_SERIES))
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
    means, other_means = as_finite(mean, "mean"), as_finite(other_mean, "other_mean")
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


def check_lengths(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers >= 0."""
    return as_finite(value, name, "finite numbers >= 0", lambda values: values >= 0)


def check_scales(name: str, value: npt.ArrayLike) -> Array:
    """Returns ``value`` as an array of floats; refuses what is not finite numbers > 0."""
    return as_finite(value, name, "finite numbers > 0", lambda values: values > 0)


def _composed(
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    num_steps: npt.ArrayLike,
    orders: Sequence[float],
) -> Array:
    """Checks the arguments and returns the log moments of all steps, orders on the last axis."""
    _check_release(noise_multiplier, sampling_rate)
    allowed = "whole numbers >= 1"
    steps = as_finite(num_steps, "num_steps", allowed, lambda n: (n >= 1) & (n == np.round(n)))
    powers = as_finite(orders, "orders", "numbers > 1", lambda value: value > 1)
    check(powers.ndim == 1 and powers.size > 0, "orders", orders, "numbers > 1")
    single = _log_moments(orders, noise_multiplier, sampling_rate)
    return steps[..., None] * single


def _log_moments(
    orders: Sequence[float],
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    direction: Direction = "remove",
) -> Array:
    """Returns the log moments of one release, orders on the last axis."""
    noise, rate = np.broadcast_arrays(
        np.asarray(noise_multiplier, float), np.asarray(sampling_rate, float)
    )
    powers = [float(order) if direction == "remove" else 1.0 - order for order in orders]
    values = [log_ratio_moment(p, noise.ravel(), rate.ravel()) for p in powers]
    return np.stack(values, axis=-1).reshape(*noise.shape, len(powers))


def _check_release(noise_multiplier: npt.ArrayLike, sampling_rate: npt.ArrayLike) -> None:
    as_finite(noise_multiplier, "noise_multiplier", "finite numbers > 0", lambda value: value > 0)
    allowed = "in (0, 1]"
    as_finite(sampling_rate, "sampling_rate", allowed, lambda value: (value > 0) & (value <= 1))


@_LIMITS
def _squares(distances: npt.ArrayLike, noise_std: npt.ArrayLike) -> Array:
    ratio = check_lengths("distances", distances) / check_scales("noise_std", noise_std)
    return np.asarray(np.square(ratio))


@_LIMITS
def _log_means(log_weights: Array, squares: Array) -> Array:
    """Returns log(1 + sum_k w_k (exp(k (k - 1) u / 2) - 1)) over k = 2, 3, ... at each square u."""
    flat, (num_orders, num_terms) = squares.ravel(), log_weights.shape
    values, weights = np.empty((flat.size, num_orders)), np.exp(log_weights).T
    for part in _chunks(flat.size, num_terms):
        np.log1p(_exp_excesses(flat[part], num_terms).T @ weights, out=values[part])
    spacing = _LARGEST_EXPONENT / _exponents(num_terms)[-1]
    for rows in _groups(flat, spacing):
        for part in _chunks(rows.size, num_terms):
            values[rows[part]] = _log_means_of_large(log_weights, flat[rows[part]])
    values[np.isinf(flat)] = np.inf
    return values.reshape(*squares.shape, num_orders)


def _chunks(count: int, width: int) -> list[slice]:
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
    series = np.square(x) * np.polynomial.polynomial.polyval(np.where(near, x, 0.0), _LOG_SERIES)
    return np.where(near, series, x - np.log1p(x))
