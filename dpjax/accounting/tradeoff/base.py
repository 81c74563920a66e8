"""The base class of trade-off functions, and the piecewise linear ones, which many others are.

Write f = T(P, Q), the least type II error of a test of P against Q at each level alpha. A pair, and
so f, is known by two profiles on epsilon >= 0: the hockey-stick divergences of Q from P and of P
from Q. Every curve gives them in a form that keeps its accuracy where delta is tiny; what else is
asked of a curve follows from them.

A piecewise linear curve is a pair of discrete distributions. Each segment is an outcome: its width
is the mass under P, its drop the mass under Q. So a list of masses in order of the likelihood ratio
is convex, non-increasing and below 1 - alpha by itself, and the masses keep the tails that
differences of knots would lose.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from dpjax._checks import as_float64, check, check_type

Array = npt.NDArray[np.float64]

# Beyond it exp(-x) is zero in double precision.
LARGEST_LOSS = 745.0
# What rounding may do to sums, levels and order in what a caller gives.
ROUNDING = 1e-9
# What rounding may do to our own sums of masses, relative.
_SUM_ROUNDING = 1e-15
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
        levels = unit_interval("alpha", alpha)
        return scalar(np.clip(self._errors(levels)[0], 0.0, 1.0 - levels))

    def true_positive_rate(self, alpha: npt.ArrayLike) -> Any:
        """Returns 1 - f(alpha), with full relative accuracy where it is tiny.

        Args:
          alpha: false positive rates in [0, 1].

        Raises:
          ValueError: an ``alpha`` is not in [0, 1].
        """
        levels = unit_interval("alpha", alpha)
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
            return scalar(bisect_decreasing(self._delta_pq, unit_interval("delta", delta)))

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
            # The best line at slopes beyond -1, from above.
            steep = -golden_section_max(
                lambda loss: (
                    -(self._delta_pq(loss) + np.where(alpha > 0, np.exp(loss) * alpha, 0.0))
                ),
                zero,
                np.minimum(1.0 - np.log(alpha), LARGEST_LOSS),
            )

            # The best line at slopes above -1, from below.
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
        return True

    def inverse(self) -> TradeOff:
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
        return self.curve

    def as_discrete(self) -> "Discrete | None":
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
        pair = self.curve.as_discrete()
        return pair and pair.symmetrized()

    def _delta_pq(self, epsilon: Array) -> Array:
        return np.maximum(self.curve._delta_pq(epsilon), self.curve._delta_qp(epsilon))


@dataclass(frozen=True, eq=False)
class Discrete(TradeOff):
    """The exact trade-off function T(P, Q) of two distributions on the same outcomes.

    Attributes:
      p: masses under P, shape (outcomes,), each at least 0; they sum to 1 up to 1e-9 and are
        normalised. Kept in order of falling likelihood ratio, outcomes of mass zero left out.
      q: masses under Q, likewise.

    Raises:
      ValueError: ``p`` or ``q`` is no distribution, or they differ in shape.

    >>> response = Discrete(p=[0.25, 0.75], q=[0.75, 0.25])
    >>> response(0.25), response.delta(0.0)
    (0.25, 0.5)
    """

    p: Array
    q: Array

    def __post_init__(self) -> None:
        p, q = as_distribution("p", self.p), as_distribution("q", self.q)
        check(p.shape == q.shape, "q", self.q, f"of the shape of p, {p.shape}")

        # Without impossible outcomes, in order of falling likelihood ratio.
        p, q = p[p + q > 0], q[p + q > 0]
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(p) - np.log(q), kind="stable")
        object.__setattr__(self, "p", p[order])
        object.__setattr__(self, "q", q[order])

    @property
    def losses(self) -> Array:
        """The privacy losses log(q / p), falling; infinite where one mass is zero."""
        with np.errstate(divide="ignore"):
            return np.log(self.q) - np.log(self.p)

    @property
    def alphas(self) -> Array:
        """The levels of the knots, from 0 to 1."""
        return np.minimum(_sums(self.p), 1.0)

    @property
    def betas(self) -> Array:
        """The values at the knots; the first is below 1 where Q has mass that P has not."""
        return np.minimum(_sums(self.q[::-1])[::-1], 1.0)

    @property
    def is_symmetric(self) -> bool:
        """Whether exchanging P and Q gives the same pair, up to rounding."""
        return bool(np.allclose(self.p, self.q[::-1], rtol=1e-9, atol=0.0))

    def inverse(self) -> "Discrete":
        return Discrete(self.q, self.p)

    def symmetrized(self) -> "Discrete":
        """Returns min{f, f^-1}**: the convex hull of the knots of both."""
        if self.is_symmetric:
            return self
        return mirrored(*_hull_above_one(self, self.inverse()))

    def _delta_pq(self, epsilon: Array) -> Array:
        # How many outcomes have a loss above epsilon: these make the worst event.
        epsilon = np.minimum(epsilon, np.finfo(np.float64).max)
        above = np.searchsorted(-self.losses, -epsilon, side="left")
        with np.errstate(divide="ignore"):
            log_p = np.log(_sums(self.p)[above])
        return np.maximum(_sums(self.q)[above] - np.exp(epsilon + log_p), 0.0)

    def _delta_qp(self, epsilon: Array) -> Array:
        return self.inverse()._delta_pq(epsilon)

    def as_discrete(self) -> "Discrete":
        return self

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        low = np.interp(alpha, *self._knots(self.betas))
        # From the far end, whose widths are not lost beside 1.
        high = np.interp(1.0 - alpha, _sums(self.p[::-1]), _sums(self.q[::-1]))
        detected = np.interp(alpha, *self._knots(np.minimum(_sums(self.q), 1.0)))
        return np.where(alpha < 0.5, low, high), detected

    def _knots(self, values: Array) -> tuple[Array, Array]:
        """The knots, but of several at level 0 the last: such outcomes cost no false positive."""
        first = int(np.sum(self.p == 0))
        return self.alphas[first:], values[first:]


def tangent_masses(losses: Array, deltas: Array, largest: float = 1.0) -> tuple[Array, Array]:
    """Returns the masses at positive losses of the pair whose profile joins the given points.

    Joined are the points (e^loss, delta) of the largest convex profile through or below them.

    Args:
      losses: increasing from 0.
      deltas: non-increasing.
      largest: what the masses under P may sum to, where rounding would make it more.

    Returns:
      The masses under P and under Q at each loss after the first, and last at loss infinity.
    """
    steps = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    slopes = np.minimum(-hull_slopes(steps, np.diff(deltas)), largest)
    small = slopes - np.append(slopes[1:], 0.0)[: slopes.size]
    large = np.exp(losses[1:]) * small
    return np.append(small, 0.0), np.append(large, deltas[-1])


def _hull_above_one(*curves: Discrete) -> tuple[Array, Array]:
    """Returns the masses at positive losses of the convex hull of the least of some curves."""
    # The knots of all curves, in order, and the highest of several at one level.
    knots = [curve._knots(np.minimum(_sums(curve.q), 1.0)) for curve in curves]
    x, detected = (np.concatenate(values) for values in zip(*knots, strict=True))
    order = np.lexsort((-detected, x))
    x, detected = x[order], detected[order]
    first = np.append(True, np.diff(x) > 0)

    # The segments of their hull that are steeper than one. Rounding must not count one of slope one
    # on both sides of the mirror.
    p, rises = np.diff(x[first]), np.diff(detected[first])
    slopes = -hull_slopes(p, -rises)
    steep = p * (slopes - 1) > _SUM_ROUNDING * detected[first][1:]
    p, slopes = p[steep], slopes[steep]

    # Segments of one slope are one outcome, lest rounding order them differently in the mirror.
    starts = np.flatnonzero(np.diff(slopes, prepend=np.inf))
    p, slopes = np.add.reduceat(p, starts) if p.size else p, slopes[starts]
    return np.append(p, 0.0), np.append(slopes * p, detected[first][0])


def mirrored(small: Array, large: Array) -> Discrete:
    """Returns the symmetric pair with these masses at positive losses, the rest at loss zero."""
    centre = max(1.0 - float(np.sum(small) + np.sum(large)), 0.0)
    p = np.concatenate([small, [centre], large])
    return Discrete(p, np.concatenate([large, [centre], small]))


def hull_slopes(widths: Array, rises: Array) -> Array:
    """Returns the slopes of the greatest convex function below a polygon; none is positive."""
    if widths.size == 0:
        return widths
    with np.errstate(over="ignore"):
        slopes = rises / widths
    return np.minimum(isotonic_regression(slopes, weights=widths).x, 0.0)


def _sums(masses: Array) -> Array:
    return np.append(0.0, np.cumsum(masses))


def as_distribution(name: str, masses: npt.ArrayLike) -> Array:
    """Returns the masses of a distribution, made to sum to one; refuses what is none."""
    values = as_float64(masses, name)
    fine = values.ndim == 1 and np.all(values >= 0) and abs(np.sum(values) - 1) <= ROUNDING
    check(bool(fine), name, masses, "one axis of numbers >= 0 that sum to 1")
    return values / np.sum(values)


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

    # One of the two inner points is used again, the other is new.
    for _ in range(steps):
        rises = at_right >= at_left
        low, high = np.where(rises, left, low), np.where(rises, high, right)
        old, at_old = np.where(rises, right, left), np.where(rises, at_right, at_left)
        new = np.where(rises, low + _GOLDEN * (high - low), high - _GOLDEN * (high - low))
        at_new = function(new)
        left, right = np.where(rises, old, new), np.where(rises, new, old)
        at_left, at_right = np.where(rises, at_old, at_new), np.where(rises, at_new, at_old)
        best = np.maximum(best, at_new)
    return best


def bisect_decreasing(decreasing: Callable[[Array], Array], target: Array) -> Array:
    """Returns the least x >= 0 at which a decreasing function is at most ``target``.

    Rounded up, so that it is; infinity where there is no such x below 2^60.
    """
    # Double until the target is met.
    high = np.zeros_like(target)
    for _ in range(_DOUBLINGS):
        high = np.where(decreasing(high) <= target, high, np.maximum(2 * high, 1.0))
    is_met = decreasing(high) <= target

    # Halve the interval that the last doubling passed.
    low = np.where(high > 1, high / 2, 0.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = decreasing(middle) <= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(is_met, high, np.inf)


def scalar(values: Array) -> Any:
    """Returns a float for an array without axes, else the array."""
    return values.item() if values.ndim == 0 else values


def check_curve(name: str, curve: object) -> None:
    """Raises TypeError unless ``curve`` is a `TradeOff`."""
    check_type(name, curve, TradeOff, "a trade-off function, a TradeOff")


def unit_interval(name: str, values: npt.ArrayLike) -> Array:
    """Returns ``values`` in float64; raises ValueError unless all are in [0, 1]."""
    numbers = as_float64(values, name)
    check(bool(np.all((numbers >= 0) & (numbers <= 1))), name, values, "in [0, 1]")
    return numbers
