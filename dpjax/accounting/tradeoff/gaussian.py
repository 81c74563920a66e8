"""The trade-off function G_mu of Gaussian noise, and the delta and epsilon of mu-GDP.

``delta``, ``epsilon`` and the class `Gaussian` are float64 on the host. ``gaussian_type_two`` and
``gaussian_delta`` take JAX arrays and differentiate; they have the precision of their arguments, so
for tails and small deltas call them with float64 arrays under ``jax.enable_x64(True)``.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.special
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.typing import ArrayLike

from dpjax._checks import as_float64, as_floats, check, check_non_negative
from dpjax.accounting.tradeoff.base import Array, Symmetric, scalar

# Of the interval that holds an epsilon: to the last digits of a float.
_HALVINGS = 52
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Gaussian(Symmetric):
    """G_mu = T(N(0, 1), N(mu, 1)): exact for a Gaussian release of noise multiplier 1 / mu.

    Source: Dong, Roth, Su 2022, Definition 2.6 in the preprint's numbering.

    Attributes:
      mu: at least 0; the sensitivity over the standard deviation of the noise.

    >>> curve = Gaussian(mu=1.0)
    >>> round(curve(0.05), 3), round(curve.delta(1.0), 4)
    (0.74, 0.1269)
    """

    mu: float

    def __post_init__(self) -> None:
        check_non_negative("mu", self.mu)

    def _delta_pq(self, epsilon: Array) -> Array:
        return np.asarray(delta(self.mu, epsilon))

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        quantile = scipy.special.ndtri(alpha)
        return scipy.special.ndtr(-quantile - self.mu), scipy.special.ndtr(quantile + self.mu)


def delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Any:
    """Returns the delta at which mu-GDP is (epsilon, delta)-DP; scalars give a scalar.

    It is Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2), without cancellation
    for large ``epsilon``. A ``mu`` of zero gives zero.

    Source: Dong, Roth, Su 2022, Corollary 2.13 in the preprint's numbering.

    Args:
      mu: numbers >= 0, the sensitivity over the standard deviation of the noise.
      epsilon: any real numbers; broadcasts against ``mu``.

    Returns:
      Delta in [0, 1], in float64, of the arguments' common shape.

    >>> round(delta(mu=1.0, epsilon=1.0), 4)
    0.1269
    """
    return scalar(np.exp(_log_delta(mu, epsilon)))


def epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Any:
    """Returns the least epsilon >= 0 at which mu-GDP is (epsilon, ``delta``)-DP, rounded up.

    Args:
      mu: numbers >= 0, the sensitivity over the standard deviation of the noise.
      delta: numbers in (0, 1); broadcasts against ``mu``.

    Returns:
      Epsilon in float64, of the arguments' common shape; scalars give a scalar.

    Raises:
      ValueError: a ``mu`` is negative or a ``delta`` not in (0, 1).

    >>> round(epsilon(mu=1.0, delta=0.1269), 3)
    1.0
    """
    mu, delta = as_float64(mu, "mu"), as_float64(delta, "delta")
    check(bool(np.all(mu >= 0)), "mu", scalar(mu), "numbers >= 0")
    check(bool(np.all((delta > 0) & (delta < 1))), "delta", scalar(delta), "in (0, 1)")
    # At the upper end delta is at most Phi(-sqrt(2 log(1 / delta))), which is below delta / 2.
    upper = np.asarray(mu * (mu / 2 + np.sqrt(-2 * np.log(delta))))
    lower = np.zeros_like(upper)
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2
        within = _log_delta(mu, middle) <= np.log(delta)
        lower, upper = np.where(within, lower, middle), np.where(within, middle, upper)
    return scalar(np.where(_log_delta(mu, 0.0) <= np.log(delta), 0.0, upper))


def gaussian_type_two(mu: ArrayLike, alpha: ArrayLike) -> jax.Array:
    """Returns G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), the type II error of mu-GDP.

    Works under ``jit``, ``vmap`` and ``grad``.

    Source: Dong, Roth, Su 2022, Equation 6 in the preprint's numbering.

    Args:
      mu: numbers >= 0, the sensitivity over the standard deviation of the noise.
      alpha: type I errors in (0, 1); broadcasts against ``mu``.

    Returns:
      The least type II errors, in the arguments' precision.

    >>> round(float(gaussian_type_two(1.0, 0.05)), 3)
    0.74
    """
    # Through the lower quantile: 1 - alpha would round small levels away.
    levels = as_floats(alpha, "alpha").astype(float)
    return ndtr(-ndtri(levels) - as_floats(mu, "mu"))


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Returns the delta at which mu-GDP is (epsilon, delta)-DP, for ``mu`` above zero.

    Works under ``jit``, ``vmap`` and ``grad``.

    Source: Dong, Roth, Su 2022, Corollary 2.13 in the preprint's numbering.

    Args:
      mu: numbers > 0, the sensitivity over the standard deviation of the noise.
      epsilon: any real numbers; broadcasts against ``mu``.

    Returns:
      Delta in [0, 1], in the arguments' precision.

    >>> round(float(gaussian_delta(1.0, 1.0)), 4)
    0.1269
    """
    mu = as_floats(mu, "mu").astype(float)
    epsilon = as_floats(epsilon, "epsilon").astype(float)
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return -jnp.exp(first) * jnp.expm1(second - first)


def _log_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Array:
    """Returns log delta through the Mills ratio R = (1 - Phi) / phi, accurate in the tail.

    With x = epsilon / mu - mu / 2, delta = phi(x) (R(x) - R(x + mu)) = Phi(-x) - phi(x) R(x + mu).
    """
    mu, epsilon = as_float64(mu, "mu"), as_float64(epsilon, "epsilon")
    with np.errstate(all="ignore"):
        x, beyond = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        here, shifted = (
            math.sqrt(math.pi / 2) * scipy.special.erfcx(np.divide(at, math.sqrt(2)))
            for at in (x, beyond)
        )
        log_density = -(x**2) / 2 - _LOG_SQRT_2_PI
        tail = log_density + np.log(here - shifted)
        body = np.log(scipy.special.ndtr(-x) - np.exp(log_density) * shifted)
        return np.where(mu > 0, np.where(x > 0, tail, body), -np.inf)
