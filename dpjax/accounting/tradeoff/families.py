"""Trade-off functions of perfect privacy, Gaussian and Laplace noise, (epsilon, delta)-DP, pairs.

``gaussian_type_two`` and ``gaussian_delta`` take JAX arrays and differentiate; they have the
precision of their arguments, so for tails and small deltas call them with float64 arrays under
``jax.enable_x64(True)``. All else is float64 on the host.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.special import expit

from dpjax._checks import (
    as_float64,
    as_floats,
    check,
    check_non_negative,
    check_positive,
    check_share,
)
from dpjax._lazy_imports import jax, jnp
from dpjax.accounting.tradeoff.base import (
    ROUNDING,
    Array,
    Discrete,
    Symmetric,
    as_distribution,
    hull_slopes,
    mirrored,
    tangent_masses,
)

# The largest epsilon of a profile that is given.
_LARGEST_EPSILON = 700.0
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Identity(Symmetric):
    """Perfect privacy: f(alpha) = 1 - alpha.

    >>> Identity()(0.25)
    0.75
    """

    def as_discrete(self) -> Discrete:
        return Discrete(np.ones(1), np.ones(1))

    def _delta_pq(self, epsilon: Array) -> Array:
        return np.zeros_like(epsilon)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        return 1.0 - alpha, alpha


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
        return np.exp(gaussian_log_delta(self.mu, epsilon))

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        quantile = special.ndtri(alpha)
        return special.ndtr(-quantile - self.mu), special.ndtr(quantile + self.mu)


def gaussian_log_delta(mu: float | Array, epsilon: Array) -> Array:
    """Returns log delta of mu-GDP through the Mills ratio R = (1 - Phi) / phi.

    With x = epsilon / mu - mu / 2, delta = phi(x) (R(x) - R(x + mu)) = Phi(-x) - phi(x) R(x + mu),
    whose last term is e^epsilon Phi(-x - mu): so it is computed where the ratio would overflow.
    """
    with np.errstate(all="ignore"):
        x, beyond = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        here, shifted = (
            math.sqrt(math.pi / 2) * special.erfcx(np.divide(at, math.sqrt(2)))
            for at in (x, beyond)
        )
        log_density = -(x**2) / 2 - _LOG_SQRT_2_PI
        tail = log_density + np.log(here - shifted)
        removed = np.where(
            beyond < 0,
            np.exp(np.minimum(epsilon, 0.0)) * special.ndtr(-beyond),
            np.exp(log_density) * shifted,
        )
        body = np.log(special.ndtr(-x) - removed)
        return np.where(mu > 0, np.where(x > 0, tail, body), -np.inf)


@dataclass(frozen=True)
class Laplace(Symmetric):
    """T(Lap(0, 1), Lap(1 / b, 1)): exact for a Laplace release.

    Source: Dong, Roth, Su 2022, Proposition A.6 in the preprint's numbering.

    Attributes:
      noise_multiplier: b, the scale of the noise over the l1 sensitivity; 1 / b is the epsilon.

    >>> curve = Laplace(noise_multiplier=1.0)
    >>> round(curve(0.5), 3), curve.epsilon(0.0)
    (0.184, 1.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)

    def _delta_pq(self, epsilon: Array) -> Array:
        return -np.expm1(np.minimum(epsilon - 1.0 / self.noise_multiplier, 0.0) / 2)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        shift = 1.0 / self.noise_multiplier
        decay = np.exp(-shift)
        with np.errstate(all="ignore"):
            reciprocal = np.exp(-shift - np.log(4 * alpha))
            missed = np.where(alpha < 0.5, reciprocal, decay * (1.0 - alpha))
            steep = 2 * alpha < decay
            return (
                np.where(steep, 1.0 - alpha / decay, missed),
                np.where(steep, alpha / decay, 1.0 - missed),
            )


@dataclass(frozen=True)
class ApproximateDP(Symmetric):
    """f_{epsilon, delta}: exactly what (epsilon, delta)-DP guarantees.

    Source: Wasserman, Zhou 2010; Dong, Roth, Su 2022, Equation 5 in the preprint's numbering.

    Attributes:
      budget: epsilon >= 0.
      slack: delta in [0, 1].

    >>> ApproximateDP(0.0, slack=0.1)(0.25)
    0.65
    """

    budget: float
    _: KW_ONLY
    slack: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative("budget", self.budget)
        check_share("slack", self.slack)

    def _delta_pq(self, epsilon: Array) -> Array:
        # The pair has two finite losses, plus and minus the budget.
        excess = -np.expm1(np.minimum(epsilon - self.budget, 0.0))
        return self.slack + (1.0 - self.slack) * expit(self.budget) * excess

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        # Events of likelihood ratio e^budget or infinity come first.
        with np.errstate(all="ignore"):
            steep = self.slack + np.where(alpha > 0, np.exp(self.budget) * alpha, 0.0)
        flat = np.exp(-self.budget) * ((1.0 - alpha) - self.slack)
        missed = np.maximum(np.maximum(1.0 - steep, flat), 0.0)
        return missed, np.minimum(np.minimum(steep, 1.0 - flat), 1.0)

    def as_discrete(self) -> Discrete:
        """Returns the pair: infinite losses of mass delta, and finite ones at +-epsilon."""
        masses = (1.0 - self.slack) * expit(np.array([-self.budget, self.budget]))
        pair = np.concatenate([[0.0], masses, [self.slack]])
        return Discrete(pair, pair[::-1])


def from_distributions(p: npt.ArrayLike, q: npt.ArrayLike) -> Discrete:
    """Returns the exact trade-off function T(P, Q) of two distributions on the same outcomes.

    Args:
      p: masses under P, shape (outcomes,), which sum to 1 up to 1e-9.
      q: masses under Q of the same outcomes, likewise.

    Returns:
      The curve, its outcomes in order of falling likelihood ratio.

    Raises:
      ValueError: ``p`` or ``q`` is no distribution, or they differ in shape.

    >>> from_distributions([0.5, 0.5], [1.0, 0.0])(0.25)
    0.5
    """
    return Discrete(as_float64(p, "p"), as_float64(q, "q"))


def from_log_likelihood_ratios(losses: npt.ArrayLike, p: npt.ArrayLike) -> Discrete:
    """Returns the curve of P with masses ``p`` against Q with masses e^loss p.

    Args:
      losses: log(Q / P) of each outcome, shape (outcomes,); minus infinity where Q has no mass.
      p: masses under P of the same outcomes, which sum to 1 up to 1e-9.

    Returns:
      The curve. What Q lacks to 1 is an outcome without mass under P, of an infinite loss.

    Raises:
      ValueError: ``p`` is no distribution, or the masses under Q sum to more than 1.

    >>> float(from_log_likelihood_ratios([0.0], [1.0]).delta(0.0))
    0.0
    """
    ratios, masses = as_float64(losses, "losses"), as_distribution("p", p)
    check(not np.isnan(ratios).any() and ratios.shape == masses.shape, "losses", losses, "as p")
    with np.errstate(divide="ignore", over="ignore"):
        q = np.exp(ratios + np.log(masses))
    total = float(np.sum(q))
    check(total <= 1 + ROUNDING, "losses", losses, "such that the sum of e^loss p is at most 1")
    return Discrete(np.append(masses, 0.0), np.append(q, max(1.0 - total, 0.0)))


def piecewise_linear(alphas: npt.ArrayLike, betas: npt.ArrayLike) -> Discrete:
    """Returns the greatest convex curve below the points ``(alphas, betas)`` and (1, 0).

    Between points on a convex curve it is made of chords, so it lies above that curve. Without a
    point at level 0 it starts at (0, 1); a knot there may be below 1.

    Args:
      alphas: levels, strictly increasing in [0, 1].
      betas: type II errors, non-increasing and at most 1 - alpha, up to 1e-9.

    Returns:
      The curve, with its knots among the points.

    Raises:
      ValueError: levels that do not increase or errors out of range.

    >>> piecewise_linear([0.0, 0.5], [0.9, 0.1])(0.25)
    0.5
    """
    x, y = (
        np.atleast_1d(as_float64(alphas, "alphas")),
        np.atleast_1d(as_float64(betas, "betas")),
    )

    # Levels that increase, and errors that fall below the diagonal.
    increasing = x.ndim == 1 and x.size and np.all(np.diff(x) > 0)
    check(bool(increasing and x[0] >= 0 and x[-1] <= 1), "alphas", alphas, "increasing in [0, 1]")
    falling = x.shape == y.shape and np.all(np.diff(y) <= ROUNDING) and np.all(y >= 0)
    below = falling and np.all(y <= 1 - x + ROUNDING)
    check(bool(below), "betas", betas, "one for each alpha, non-increasing in [0, 1 - alpha]")

    # From level zero to one, and below the points as a convex curve is.
    y = np.clip(y, 0.0, 1.0 - x)
    if x[0] > 0:
        x, y = np.append(0.0, x), np.append(1.0, y)
    if x[-1] < 1:
        x, y = np.append(x, 1.0), np.append(y, 0.0)
    p = np.diff(x)
    return Discrete(np.append(p, 0.0), np.append(-hull_slopes(p, np.diff(y)) * p, 1.0 - y[0]))


def from_profile(epsilons: npt.ArrayLike, deltas: npt.ArrayLike) -> Discrete:
    """Returns sup f_{epsilon, delta}, the curve that a list of (epsilon, delta) pairs guarantees.

    It is symmetric, and exact: a mechanism that has all the pairs is f-DP for no greater f.

    Args:
      epsilons: in [0, 700], in any order.
      deltas: one in [0, 1] for each.

    Returns:
      The symmetric curve, the supremum of `ApproximateDP` over the pairs.

    Raises:
      ValueError: an epsilon or a delta out of range, or arrays of different shapes.

    >>> curve = from_profile([0.0, 1.0], [0.3, 0.1])
    >>> round(curve.delta(0.0), 3), round(curve.delta(1.0), 3), curve(0.0)
    (0.3, 0.1, 0.9)
    """
    losses = np.ravel(as_float64(epsilons, "epsilons"))
    slacks = np.ravel(as_float64(deltas, "deltas"))
    fine = losses.size > 0 and np.all((losses >= 0) & (losses <= _LARGEST_EPSILON))
    check(bool(fine), "epsilons", epsilons, "at least one number, each in [0, 700]")
    matched = losses.shape == slacks.shape and np.all((slacks >= 0) & (slacks <= 1))
    check(bool(matched), "deltas", deltas, "one number in [0, 1] for each epsilon")

    # The sum of errors at the fixed point, which no loss up to the largest rounds to zero.
    errors = np.max(2 * (1.0 - slacks) * expit(-losses))
    order = np.lexsort((slacks, losses))
    losses, slacks = np.append(0.0, losses[order]), np.append(1.0 - errors, slacks[order])
    losses, first = np.unique(losses, return_index=True)

    # The first segment of a symmetric curve ends at or before the fixed point.
    small, large = tangent_masses(losses, np.minimum.accumulate(slacks[first]), largest=errors / 2)
    return mirrored(small, large)


def gaussian_type_two(mu: jax.typing.ArrayLike, alpha: jax.typing.ArrayLike) -> jax.Array:
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
    special = jax.scipy.special
    return special.ndtr(-special.ndtri(levels) - as_floats(mu, "mu"))


def gaussian_delta(mu: jax.typing.ArrayLike, epsilon: jax.typing.ArrayLike) -> jax.Array:
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
    log_ndtr = jax.scipy.special.log_ndtr
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return -jnp.exp(first) * jnp.expm1(second - first)
