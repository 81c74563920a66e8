"""Piecewise linear trade-off functions, which are pairs of discrete distributions.

Each segment is an outcome: its width is the mass under P, its drop the mass under Q. So a list of
masses in order of the likelihood ratio is convex, non-increasing and below 1 - alpha by itself, and
the masses keep the tails that differences of knots would lose.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.special import expit

from dpjax._checks import as_float64, check
from dpjax.accounting.tradeoff.base import Array, TradeOff

# What rounding may do to sums, levels and order in what a caller gives.
_ROUNDING = 1e-9
# What rounding may do to our own sums of masses, relative.
_SUM_ROUNDING = 1e-15
_LARGEST_EPSILON = 700.0


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
        p, q = _distribution("p", self.p), _distribution("q", self.q)
        check(p.shape == q.shape, "q", self.q, f"of the shape of p, {p.shape}")
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
        """Returns the inverse curve, T(Q, P)."""
        return Discrete(self.q, self.p)

    def symmetrized(self) -> "Discrete":
        """Returns min{f, f^-1}**: the convex hull of the knots of both."""
        if self.is_symmetric:
            return self
        return _mirrored(*_hull_above_one(self, self.inverse()))

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
        """Returns the curve as a `Discrete`: itself."""
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
    ratios, masses = as_float64(losses, "losses"), _distribution("p", p)
    check(not np.isnan(ratios).any() and ratios.shape == masses.shape, "losses", losses, "as p")
    with np.errstate(divide="ignore", over="ignore"):
        q = np.exp(ratios + np.log(masses))
    total = float(np.sum(q))
    check(total <= 1 + _ROUNDING, "losses", losses, "such that the sum of e^loss p is at most 1")
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
    increasing = x.ndim == 1 and x.size and np.all(np.diff(x) > 0)
    check(bool(increasing and x[0] >= 0 and x[-1] <= 1), "alphas", alphas, "increasing in [0, 1]")
    falling = x.shape == y.shape and np.all(np.diff(y) <= _ROUNDING) and np.all(y >= 0)
    below = falling and np.all(y <= 1 - x + _ROUNDING)
    check(bool(below), "betas", betas, "one for each alpha, non-increasing in [0, 1 - alpha]")
    y = np.clip(y, 0.0, 1.0 - x)
    if x[0] > 0:
        x, y = np.append(0.0, x), np.append(1.0, y)
    if x[-1] < 1:
        x, y = np.append(x, 1.0), np.append(y, 0.0)
    p = np.diff(x)
    return Discrete(np.append(p, 0.0), np.append(-_hull_slopes(p, np.diff(y)) * p, 1.0 - y[0]))


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
    return _mirrored(small, large)


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
    slopes = np.minimum(-_hull_slopes(steps, np.diff(deltas)), largest)
    small = slopes - np.append(slopes[1:], 0.0)[: slopes.size]
    large = np.exp(losses[1:]) * small
    return np.append(small, 0.0), np.append(large, deltas[-1])


def _hull_above_one(*curves: Discrete) -> tuple[Array, Array]:
    """Returns the masses at positive losses of the convex hull of the least of some curves."""
    knots = [curve._knots(np.minimum(_sums(curve.q), 1.0)) for curve in curves]
    x, detected = (np.concatenate(parts) for parts in zip(*knots, strict=True))
    order = np.lexsort((-detected, x))
    x, detected = x[order], detected[order]
    first = np.append(True, np.diff(x) > 0)
    p, rises = np.diff(x[first]), np.diff(detected[first])
    slopes = -_hull_slopes(p, -rises)
    # Rounding must not count a segment of slope one on both sides of the mirror.
    steep = p * (slopes - 1) > _SUM_ROUNDING * detected[first][1:]
    p, slopes = p[steep], slopes[steep]
    # Segments of one slope are one outcome, lest rounding order them differently in the mirror.
    starts = np.flatnonzero(np.diff(slopes, prepend=np.inf))
    p, slopes = np.add.reduceat(p, starts) if p.size else p, slopes[starts]
    return np.append(p, 0.0), np.append(slopes * p, detected[first][0])


def _mirrored(small: Array, large: Array) -> Discrete:
    """Returns the symmetric pair with these masses at positive losses, the rest at loss zero."""
    centre = max(1.0 - float(np.sum(small) + np.sum(large)), 0.0)
    p = np.concatenate([small, [centre], large])
    return Discrete(p, np.concatenate([large, [centre], small]))


def _hull_slopes(widths: Array, rises: Array) -> Array:
    """Returns the slopes of the greatest convex function below a polygon; none is positive."""
    if widths.size == 0:
        return widths
    with np.errstate(over="ignore"):
        slopes = rises / widths
    return np.minimum(isotonic_regression(slopes, weights=widths).x, 0.0)


def _sums(masses: Array) -> Array:
    return np.append(0.0, np.cumsum(masses))


def _distribution(name: str, masses: npt.ArrayLike) -> Array:
    values = as_float64(masses, name)
    fine = values.ndim == 1 and np.all(values >= 0) and abs(np.sum(values) - 1) <= _ROUNDING
    check(bool(fine), name, masses, "one axis of numbers >= 0 that sum to 1")
    return values / np.sum(values)
