"""The moments accountant (Abadi et al. 2016) of Poisson-sampled Gaussian releases.

Earlier reports computed their epsilons with it, and it is here to compare with: an upper bound
that holds under add/remove, and a loose one. Its ORDERS and its conversion of moments into
(epsilon, delta) are those of Bu, Dong, Long, Su 2020; ``method="rdp"`` converts better, and
``method="pld"`` is tight. Everything is float64 on the host and vectorised: noise multipliers,
sampling rates, numbers of steps, deltas and epsilons broadcast against each other, and scalars give
a scalar. Moments are computed once for each pair of noise multiplier and sampling rate, so numbers
of steps on an axis of their own cost next to nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_finite, check, check_choice
from dpjax.accounting import log_moments
from dpjax.accounting.events import RepeatedEvent
from dpjax.accounting.loss_distribution import DIRECTIONS, Array, Direction
from dpjax.accounting.tradeoff.base import scalar

ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *map(float, range(5, 65)),
    *(128.0, 256.0, 512.0),
)
_LEAST_PROFILE_DELTA = 1e-15
_PROFILE_POINTS = 4_001


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


def compute_rdp(
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    num_steps: npt.ArrayLike = 1,
    orders: Sequence[float] = ORDERS,
) -> Array:
    """Returns the Rényi divergences of ``num_steps`` releases, the larger of both directions.

    Args:
      noise_multiplier, sampling_rate, num_steps, orders: as for `compute_epsilon`.

    Returns:
      One for each order, on a last axis behind those of the other arguments.

    Raises:
      ValueError: an argument is out of range.

    >>> compute_rdp(noise_multiplier=2.0, sampling_rate=1.0, num_steps=4, orders=(2, 3))
    array([1. , 1.5])
    """
    moments = _composed(noise_multiplier, sampling_rate, num_steps, orders)
    return moments / (np.asarray(orders, float) - 1)


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
    return scalar(_epsilon(moments, np.asarray(orders, float), delta))


def compute_delta(
    noise_multiplier: npt.ArrayLike,
    sampling_rate: npt.ArrayLike,
    num_steps: npt.ArrayLike,
    epsilon: npt.ArrayLike,
    orders: Sequence[float] = ORDERS,
) -> Any:
    """Returns the least delta at which the moments guarantee (``epsilon``, delta)-DP, at most 1.

    It is the least over the orders a of exp((a - 1) (RDP(a) - epsilon)).

    Args:
      noise_multiplier, sampling_rate, num_steps, orders: as for `compute_epsilon`.
      epsilon: finite numbers >= 0.

    Returns:
      The deltas, of the arguments' common shape; scalars give a scalar.

    Raises:
      ValueError: an argument is out of range.

    Source: Abadi et al. 2016, Theorem 2.

    >>> value = compute_epsilon(1.3, sampling_rate=0.01, num_steps=1_000, delta=1e-5)
    >>> round(compute_delta(1.3, sampling_rate=0.01, num_steps=1_000, epsilon=value) / 1e-5, 6)
    1.0
    """
    epsilon = as_finite(epsilon, "epsilon", "finite numbers >= 0", lambda value: value >= 0)
    moments = _composed(noise_multiplier, sampling_rate, num_steps, orders)
    gaps = moments - (np.asarray(orders, float) - 1) * epsilon[..., None]
    return scalar(np.exp(np.minimum(0.0, gaps.min(axis=-1))))


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
    return epsilons, compute_delta(*settings, epsilons, orders)


def compute_epsilon_of_releases(parts: tuple[RepeatedEvent, ...], delta: float) -> float:
    """Returns epsilon at ``delta`` of all ``parts`` together; looser than ``rdp.compute_epsilon``.

    Gaussian releases, and Poisson-sampled ones under add/remove, have exact moments; other releases
    have those of dp-accounting's Rényi divergences.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence is not known.
    """
    total = np.zeros(len(ORDERS))
    for part in parts:
        total += part.count * part.atom.log_moments(ORDERS)
    return float(_epsilon(total, np.array(ORDERS), np.asarray(delta)))


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
    values = [log_moments.log_moment(p, noise.ravel(), rate.ravel()) for p in powers]
    return np.stack(values, axis=-1).reshape(*noise.shape, len(powers))


def _epsilon(moments: Array, orders: Array, delta: Array) -> Array:
    """Returns the least epsilon over the orders, by the classical conversion."""
    return np.asarray(np.min((moments - np.log(delta)[..., None]) / (orders - 1), axis=-1))


def _check_release(noise_multiplier: npt.ArrayLike, sampling_rate: npt.ArrayLike) -> None:
    as_finite(noise_multiplier, "noise_multiplier", "finite numbers > 0", lambda value: value > 0)
    allowed = "in (0, 1]"
    as_finite(sampling_rate, "sampling_rate", allowed, lambda value: (value > 0) & (value <= 1))
