"""Wishart noise on a second moment.

Let N be Wishart with k degrees of freedom and scale matrix s I in d dimensions, and a record be a
row v of squared norm c s. Its presence moves N to N + v v^T. The ratio of the two densities at M is
a function of v^T M^-1 v alone, whose reciprocal over |v|^2 / s is chi-square with k - d + 1 degrees
of freedom for M = N, and that shifted by c for M = N + v v^T (Muirhead 1982, Theorem 3.2.12). So in
every dimension a test of the two releases is a test of a chi-square variable against the same
variable shifted. A longer row shifts it farther, so that the test has a smaller error: the worst
row has the largest norm.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, gammaln

from dpjax._checks import check, check_positive
from dpjax.accounting.events import (
    AtomicEvent,
    GridBuilder,
    UnsupportedEventError,
)
from dpjax.accounting.loss_distribution import (
    Array,
    Coordinate,
    Direction,
    LossDistribution,
    Segment,
    grid_from_profiles,
)
from dpjax.accounting.tradeoff.base import Symmetric, TradeOff, golden_section_max
from dpjax.adjacency import Adjacency

# Beyond it exp overflows.
LARGEST_EPSILON = 700.0
# The error of a minimum is of second order.
_SEARCH_STEPS = 40
# Larger finite losses have this probability.
_RAREST = 1e-18
# With noise so small that a row is seen with a larger probability, only the rest has finite losses.
_MOST_REVEALED = 0.5
# What rounding leaves of an outcome that is hardly above the shift.
_LEAST = 2.0**-52


@dataclass(frozen=True)
class WishartDpEvent(DpEvent):
    """Wishart noise on the sum of v v^T over rows of bounded norm, stated for neighbours.

    Attributes:
      degrees_of_freedom: k - d + 1 of Wishart noise with k in d dimensions; above two.
      scale_over_square: the scale s over the square of the bound on a row's norm.
    """

    degrees_of_freedom: int
    scale_over_square: float

    @property
    def add_remove_tradeoff(self) -> "ChiSquare":
        """T(without, with): exact for a row of the largest norm, and the worst of all rows."""
        return ChiSquare(self.degrees_of_freedom, 1 / self.scale_over_square)


class WishartNoise(AtomicEvent):
    """Wishart noise on a second moment of all records."""

    event_types = (WishartDpEvent,)
    is_stated_for_neighbors = True
    is_asymmetric = True

    def grid_builder(self) -> GridBuilder:
        curve = self.event.add_remove_tradeoff
        revealed = curve.inverse().delta(LARGEST_EPSILON)
        if revealed > _MOST_REVEALED:
            raise UnsupportedEventError(
                f"Wishart noise reveals the row with probability {revealed:g}"
            )
        losses = curve.losses(_RAREST)
        if self.sensitivity_factor == 1:
            profiles = curve.delta, curve.inverse().delta
            return functools.partial(grid_from_profiles, *profiles, losses)
        profile = wishart_curve(self.event, self.adjacency).delta
        return functools.partial(grid_from_profiles, profile, None, (2 * losses[0], -2 * losses[0]))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact under add/remove; under replace-one the row may be exchanged for zeros.

        With x the logarithm of the outcome less the shift, the coordinate is x where the row is
        present, so that e^x is chi-square, and -x where it is absent, so that e^x + shift is.
        """
        curve = self.event.add_remove_tradeoff
        shape, shift = curve.degrees_of_freedom / 2, curve.shift
        revealed = float(gammainc(shape, shift / 2))
        # Whether the coordinate has the shift, its sign, and the mass that has an infinite loss.
        own_shift, sign, hidden = (0.0, 1, 0.0) if direction == "remove" else (shift, -1, revealed)

        def half(z: Array) -> Array:
            return (np.exp(sign * z) + own_shift) / 2

        def density(z: Array) -> Array:
            logs = (shape - 1) * np.log(half(z)) - half(z) - gammaln(shape)
            return np.exp(logs + sign * z) / 2

        def loss(z: Array) -> Array:
            return sign * (shift / 2 - (shape - 1) * np.log1p(shift * np.exp(-sign * z)))

        def inverse(y: Array) -> Array:
            gap = np.maximum(shift / 2 - sign * y, 0.0)
            with np.errstate(divide="ignore"):
                return -sign * np.log(np.expm1(gap / (shape - 1)) / shift)

        # The range of the coordinate, but for the tails.
        first, second = (gammainc, gammaincc)[::sign]
        coordinate = Coordinate(
            below=lambda z: np.asarray(first(shape, half(z)), np.float64),
            above=lambda z: np.asarray(second(shape, half(z)), np.float64),
            density=density,
        )
        outcomes = 2 * gammaincinv(shape, hidden + tail), 2 * gammainccinv(shape, tail)
        low, high = sorted(
            sign * math.log(max(m - own_shift, _LEAST * m)) for m in map(float, outcomes)
        )
        segment = Segment(coordinate, loss, inverse, low, high, min(1.0, shape**-0.5))
        if direction == "remove":
            return LossDistribution((segment,))
        # An infinite loss counts as the largest finite one, which is less.
        return LossDistribution((segment,), ((float(loss(np.array(high))), revealed),))

    def tradeoff(self) -> TradeOff | None:
        return wishart_curve(self.event, self.adjacency) if self.sensitivity_factor == 1 else None


def wishart_curve(event: WishartDpEvent, adjacency: Adjacency) -> TradeOff:
    """Returns the trade-off function that ``event`` guarantees for neighbours in both orders.

    Under add/remove and zero-out it is exact. Under replace-one it is a bound, through the data
    without either row; a row of zeros adds nothing, so the curve of the other two lies above it.

    Args:
      event: the noise, over the square of the bound on a row's norm.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      A symmetric curve.

    >>> event = WishartDpEvent(degrees_of_freedom=100, scale_over_square=1.0)
    >>> round(wishart_curve(event, "add_remove").epsilon(1e-5), 3)
    0.349
    >>> round(wishart_curve(event, "replace_one").epsilon(1e-5), 3)
    0.555
    """
    if adjacency == "replace_one":
        return ReplaceOneChiSquare(event.add_remove_tradeoff)
    return event.add_remove_tradeoff.symmetrized()


@dataclass(frozen=True)
class ChiSquare(TradeOff):
    """T(X, X + shift) of a chi-square X, in closed form: the best tests are thresholds.

    P is X and Q is X moved up. Their supports differ: the loss of P to Q is infinite where X is
    below ``shift``, so that ``delta`` stays bounded by half the shift in epsilon, but that of
    ``inverse()`` never falls below the mass that X has there.

    Attributes:
      degrees_of_freedom: of X, above two.
      shift: above zero.

    Raises:
      ValueError: a number out of range.

    >>> curve = ChiSquare(degrees_of_freedom=100.0, shift=1.0)
    >>> round(curve.delta(0.1), 4), curve.delta(0.5), round(curve.inverse().delta(0.1), 4)
    (0.0014, 0.0, 0.0044)
    """

    degrees_of_freedom: float
    shift: float

    def __post_init__(self) -> None:
        check_positive("degrees_of_freedom", self.degrees_of_freedom)
        degrees = self.degrees_of_freedom
        check(degrees > 2, "degrees_of_freedom", degrees, "a finite number > 2")
        check_positive("shift", self.shift)

    def losses(self, tail: float) -> tuple[float, float]:
        """Returns the least and the largest loss of Q to P, each but for a mass of ``tail``.

        The tails are those of P, with its outcomes below ``shift`` left out.
        """
        shape = self.degrees_of_freedom / 2
        revealed = float(gammainc(shape, self.shift / 2))
        outcomes = 2 * np.array([gammaincinv(shape, revealed + tail), gammainccinv(shape, tail)])
        # Where rounding loses the tail the outcome is hardly above the shift.
        ratios = np.maximum(1 - self.shift / outcomes, np.finfo(float).eps)
        low, high = ((shape - 1) * np.log(ratios) + self.shift / 2).tolist()
        return low, high

    def _delta_pq(self, epsilon: Array) -> Array:
        # The loss of an outcome m is power log(1 - shift / m) + shift / 2, below half the shift.
        threshold = self._outcome(np.maximum(self.shift / 2 - epsilon, 0.0))
        shifted, still = self._above(threshold - self.shift), self._above(threshold)
        return np.where(epsilon < self.shift / 2, shifted - np.exp(epsilon) * still, 0.0)

    def _delta_qp(self, epsilon: Array) -> Array:
        threshold = self._outcome(epsilon + self.shift / 2)
        # Larger factors only meet smaller masses.
        factor = np.exp(np.minimum(epsilon, LARGEST_EPSILON))
        return self._below(threshold) - factor * self._below(threshold - self.shift)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        quantile = 2 * np.asarray(gammainccinv(self.degrees_of_freedom / 2, alpha), np.float64)
        return self._below(quantile - self.shift), self._above(quantile - self.shift)

    def _outcome(self, gap: Array) -> Array:
        """The outcome m at which -log(1 - shift / m) times the power is ``gap``."""
        power = self.degrees_of_freedom / 2 - 1
        with np.errstate(divide="ignore"):
            return np.asarray(-self.shift / np.expm1(-gap / power))

    def _below(self, outcome: Array) -> Array:
        half = np.maximum(outcome, 0.0) / 2
        return np.asarray(gammainc(self.degrees_of_freedom / 2, half), np.float64)

    def _above(self, outcome: Array) -> Array:
        half = np.maximum(outcome, 0.0) / 2
        return np.asarray(gammaincc(self.degrees_of_freedom / 2, half), np.float64)


@dataclass(frozen=True)
class ReplaceOneChiSquare(Symmetric):
    """The trade-off function of replacing a record: removing one, then adding another.

    With f = T(third, either) it is f(1 - f^-1(alpha)): to replace a record is to take one out and
    to put another in. It holds whatever the two records are, in both orders; two that are far from
    opposite may be harder to distinguish.

    Attributes:
      curve: f.

    >>> curve = ReplaceOneChiSquare(ChiSquare(degrees_of_freedom=100.0, shift=1.0))
    >>> round(curve.delta(0.1), 4)
    0.0215
    """

    curve: ChiSquare

    def _delta_pq(self, epsilon: Array) -> Array:
        def bound(first: Array) -> Array:
            # Any way to part epsilon in two gives a bound, so that the search need not be exact.
            return self.curve._delta_pq(first) + np.exp(first) * self.curve._delta_qp(
                epsilon - first
            )

        shift = self.curve.shift
        ends = np.full_like(epsilon, -shift - 1.0), np.full_like(epsilon, shift / 2)
        best = golden_section_max(lambda first: -bound(first), *ends, steps=_SEARCH_STEPS)
        return np.minimum(-best, 1.0)
