"""The base class of trade-off functions, defined by their privacy profiles in both directions.

Write f = T(P, Q), the least type II error of a test of P against Q at each level alpha. A pair, and
so f, is known by two profiles on epsilon >= 0: the hockey-stick divergences of Q from P and of P
from Q. Every curve gives them in a form that keeps its accuracy where delta is tiny; what else is
asked of a curve follows from them.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, check, check_type

if TYPE_CHECKING:
    from dpjax.accounting.tradeoff.discrete import Discrete

Array = npt.NDArray[np.float64]

# Beyond it exp(-x) is zero in double precision.
LARGEST_LOSS = 745.0
_GOLDEN = (math.sqrt(5) - 1) / 2
_GOLDEN_STEPS = 75
_BISECTIONS = 64
_DOUBLINGS = 60


@dataclass(frozen=True)
class TradeOff(abc.ABC):
    """A trade-off function f = T(P, Q): convex, non-increasing, at most 1 - alpha.

    A mechanism is f-DP if T(M(S), M(S')) >= f for all neighbours in that order: what is said of
    ``f`` is about Q, the output on S', against P, the output on S. ``inverse()`` is T(Q, P), and
    ``symmetrized()`` holds in both orders.

    Source: Dong, Roth, Su 2022, Section 2.
    """

    def __call__(self, alpha: npt.ArrayLike) -> Any:
        """Returns the least type II error at type I error ``alpha``, elementwise in float64.

        Raises:
          ValueError: an ``alpha`` is not in [0, 1].
        """
        levels = _unit_interval("alpha", alpha)
        return scalar(np.clip(self._errors(levels)[0], 0.0, 1.0 - levels))

    def true_positive_rate(self, alpha: npt.ArrayLike) -> Any:
        """Returns 1 - f(alpha), with full relative accuracy where it is tiny.

        Args:
          alpha: false positive rates in [0, 1].

        Raises:
          ValueError: an ``alpha`` is not in [0, 1].
        """
        levels = _unit_interval("alpha", alpha)
        return scalar(np.clip(self._errors(levels)[1], levels, 1.0))

    def delta(self, epsilon: npt.ArrayLike) -> Any:
        """Returns 1 + f*(-e^epsilon), the least delta of f at any real ``epsilon``.

        It is sup over events E of Q(E) - e^epsilon P(E). For a symmetric f it is the delta of
        (epsilon, delta)-DP; for others that of the one order, and ``symmetrized().delta`` is it.

        Source: Dong, Roth, Su 2022, Proposition 2.12 in the preprint's numbering.

        Raises:
          ValueError: an ``epsilon`` is not a number.
        """
        losses = as_float64(epsilon, "epsilon")
        check(not np.isnan(losses).any(), "epsilon", epsilon, "real")
        away = np.abs(losses)
        with np.errstate(all="ignore"):
            negative = np.minimum(losses, 0.0)
            below = np.exp(negative) * self._delta_qp(away) - np.expm1(negative)
            return scalar(np.clip(np.where(losses >= 0, self._delta_pq(away), below), 0.0, 1.0))

    def epsilon(self, delta: npt.ArrayLike) -> Any:
        """Returns the least epsilon >= 0 with ``self.delta(epsilon) <= delta``, elementwise.

        It is rounded up; infinity where no epsilon reaches ``delta``. For an asymmetric f see
        ``delta`` on the order.

        Raises:
          ValueError: a ``delta`` is not in [0, 1].
        """
        with np.errstate(all="ignore"):
            return scalar(bisect_decreasing(self._delta_pq, _unit_interval("delta", delta)))

    @property
    def is_symmetric(self) -> bool:
        """Whether f is known to be its own inverse."""
        return False

    def inverse(self) -> "TradeOff":
        """Returns T(Q, P), the inverse inf{t : f(t) <= alpha}."""
        return Inverse(self)

    def symmetrized(self) -> "TradeOff":
        """Returns min{f, f^-1}**, the greatest symmetric trade-off function below f."""
        return self if self.is_symmetric else Symmetrized(self)

    def as_discrete(self) -> "Discrete | None":
        """Returns the same curve as a pair of discrete distributions, ``None`` if it is none."""
        return None

    @abc.abstractmethod
    def _delta_pq(self, epsilon: Array) -> Array:
        """The hockey-stick divergence of Q from P at epsilon >= 0."""

    @abc.abstractmethod
    def _delta_qp(self, epsilon: Array) -> Array:
        """The hockey-stick divergence of P from Q at epsilon >= 0."""

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        """The least type II error and the largest true positive rate at each level.

        Two numbers, because either loses its digits where the other is near 1. Here they are found
        from the profiles: 1 - f is the least of the lines delta + e^epsilon alpha, and f the
        greatest of the lines e^-epsilon (1 - delta - alpha).
        """
        zero = np.zeros_like(alpha)
        with np.errstate(all="ignore"):
            steep = -golden_section_max(
                lambda loss: (
                    -(self._delta_pq(loss) + np.where(alpha > 0, np.exp(loss) * alpha, 0.0))
                ),
                zero,
                np.minimum(1.0 - np.log(alpha), LARGEST_LOSS),
            )
            flat = golden_section_max(
                lambda loss: np.exp(-loss) * ((1.0 - alpha) - self._delta_qp(loss)),
                zero,
                np.full_like(alpha, LARGEST_LOSS),
            )
        return np.maximum(1.0 - steep, flat), np.minimum(steep, 1.0 - flat)


@dataclass(frozen=True)
class Symmetric(TradeOff):
    """A trade-off function that is its own inverse, so that one profile defines it."""

    @property
    def is_symmetric(self) -> bool:
        """Whether the curve equals its inverse: always."""
        return True

    def inverse(self) -> TradeOff:
        """Returns the inverse: a symmetric curve is its own."""
        return self

    def _delta_qp(self, epsilon: Array) -> Array:
        return self._delta_pq(epsilon)


@dataclass(frozen=True)
class Inverse(TradeOff):
    """The inverse of a curve that has no closed form for it: the two profiles are exchanged.

    Attributes:
      curve: whose inverse it is.
    """

    curve: TradeOff

    def inverse(self) -> TradeOff:
        """Returns the curve whose inverse this is."""
        return self.curve

    def as_discrete(self) -> "Discrete | None":
        """Returns the exchanged pair where the curve is discrete."""
        pair = self.curve.as_discrete()
        return pair and pair.inverse()

    def _delta_pq(self, epsilon: Array) -> Array:
        return self.curve._delta_qp(epsilon)

    def _delta_qp(self, epsilon: Array) -> Array:
        return self.curve._delta_pq(epsilon)


@dataclass(frozen=True)
class Symmetrized(Symmetric):
    """The greatest symmetric curve below another: its profile is the larger of the two.

    Attributes:
      curve: the other curve.
    """

    curve: TradeOff

    def as_discrete(self) -> "Discrete | None":
        """Returns the symmetric pair where the curve is discrete."""
        pair = self.curve.as_discrete()
        return pair and pair.symmetrized()

    def _delta_pq(self, epsilon: Array) -> Array:
        return np.maximum(self.curve._delta_pq(epsilon), self.curve._delta_qp(epsilon))


def golden_section_max(
    function: Callable[[Array], Array], low: Array, high: Array, *, steps: int = _GOLDEN_STEPS
) -> Array:
    """Returns the largest value of a quasi-concave function between ``low`` and ``high``.

    Golden section, elementwise. What is returned was attained, so it is never above the maximum.
    Where rounding makes the function flat the search goes up, so the flat part must lie below.
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    best = np.maximum(np.maximum(function(low), function(high)), np.maximum(at_left, at_right))
    for _ in range(steps):
        rises = at_right >= at_left
        low, high = np.where(rises, left, low), np.where(rises, high, right)
        kept, at_kept = np.where(rises, right, left), np.where(rises, at_right, at_left)
        new = np.where(rises, low + _GOLDEN * (high - low), high - _GOLDEN * (high - low))
        at_new = function(new)
        left, right = np.where(rises, kept, new), np.where(rises, new, kept)
        at_left, at_right = np.where(rises, at_kept, at_new), np.where(rises, at_new, at_kept)
        best = np.maximum(best, at_new)
    return best


def bisect_decreasing(decreasing: Callable[[Array], Array], target: Array) -> Array:
    """Returns the least x >= 0 at which a decreasing function is at most ``target``.

    Rounded up, so that it is; infinity where there is no such x below 2^60.
    """
    high = np.zeros_like(target)
    for _ in range(_DOUBLINGS):
        high = np.where(decreasing(high) <= target, high, np.maximum(2 * high, 1.0))
    low = np.where(high > 1, high / 2, 0.0)
    found = decreasing(high) <= target
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = decreasing(middle) <= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(found, high, np.inf)


def scalar(values: Array) -> Any:
    """Returns a float for an array without axes, else the array."""
    return values.item() if values.ndim == 0 else values


def check_curve(name: str, curve: object) -> None:
    """Raises TypeError unless ``curve`` is a `TradeOff`."""
    check_type(name, curve, TradeOff, "a trade-off function, a TradeOff")


def _unit_interval(name: str, values: npt.ArrayLike) -> Array:
    numbers = as_float64(values, name)
    check(bool(np.all((numbers >= 0) & (numbers <= 1))), name, values, "in [0, 1]")
    return numbers
