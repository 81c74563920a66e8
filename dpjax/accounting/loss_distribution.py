"""The distribution of one release's privacy loss between two neighbours, for lower bounds.

The loss of an outcome is log dP/dQ, and its distribution is the one under P. A `LossDistribution`
has atoms and continuous segments. On a segment the loss increases with a coordinate whose two
tails have closed forms, so that the mass of an interval of losses is a difference of tails, with
full relative accuracy in both.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
# Which of two neighbours has the record: the second ("add") or the first ("remove").
Direction = Literal["add", "remove"]
DIRECTIONS: tuple[Direction, ...] = ("add", "remove")

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)
# Beyond this, 1 - rate + rate e^x is rate e^x to the last bit, unless the rate is below e^-60.
_LARGE = 100.0


class Coordinate(Protocol):
    """The distribution of a coordinate under P, up to constants that cancel in differences."""

    def below(self, z: Array) -> Array:
        """The mass below ``z``."""

    def above(self, z: Array) -> Array:
        """The mass above ``z``."""

    def density(self, z: Array) -> Array:
        """The density at ``z``."""


@dataclass(frozen=True)
class NormalMixture:
    """A mixture of normal distributions of variance one: ``weights`` at ``means``."""

    weights: tuple[float, ...]
    means: tuple[float, ...]

    def below(self, z: Array) -> Array:
        """The mass below ``z``."""
        return self._sum(lambda mean: ndtr(z - mean))

    def above(self, z: Array) -> Array:
        """The mass above ``z``."""
        return self._sum(lambda mean: ndtr(mean - z))

    def density(self, z: Array) -> Array:
        """The density at ``z``."""
        return self._sum(lambda mean: np.exp(-((z - mean) ** 2) / 2)) / math.sqrt(2 * math.pi)

    def reach(self, tail: float) -> tuple[float, float]:
        """Coordinates outside which there is at most ``tail`` on either side."""
        beyond = -float(ndtri(tail))
        return min(self.means) - beyond, max(self.means) + beyond

    def _sum(self, component: Callable[[float], Array]) -> Array:
        parts = zip(self.weights, self.means, strict=True)
        return sum((w * component(mean) for w, mean in parts), start=np.zeros(()))


@dataclass(frozen=True)
class Segment:
    """A continuous part of a loss distribution.

    Attributes:
      coordinate: the distribution of the coordinate under P.
      loss: the loss, increasing in the coordinate.
      inverse: the coordinate of a loss; minus or plus infinity outside the range.
      low: the least coordinate counted; what lies below is left out.
      high: the largest coordinate counted.
      panel: a width over which loss and density are smooth.
    """

    coordinate: Coordinate
    loss: Function
    inverse: Function
    low: float
    high: float
    panel: float

    def masses(self, interval: float) -> tuple[int, Array]:
        """Returns the mass that rounds to each multiple of ``interval``, from the first on."""
        ends = self.loss(np.array([self.low, self.high]))
        first, last = (round(end / interval) for end in ends.tolist())
        edges = (np.arange(first, last + 2) - 0.5) * interval
        z = np.clip(self.inverse(edges), self.low, self.high)
        z[0], z[-1] = self.low, self.high
        # Each mass is a difference of the tail that it lies in.
        middle = int(np.searchsorted(z, (self.low + self.high) / 2)) or 1
        left = np.diff(self.coordinate.below(z[:middle]))
        right = -np.diff(self.coordinate.above(z[middle - 1 :]))
        return first, np.concatenate([left, right])

    def nodes(self) -> tuple[Array, Array]:
        """Returns losses and weights that turn expectations into sums, by Gauss and Legendre."""
        count = max(1, math.ceil((self.high - self.low) / self.panel))
        cuts = np.linspace(self.low, self.high, count + 1)
        half = np.diff(cuts)[:, None] / 2
        z = (cuts[:-1, None] + half * (1 + _NODES)).ravel()
        return self.loss(z), (half * _NODE_WEIGHTS).ravel() * self.coordinate.density(z)


@dataclass(frozen=True)
class LossDistribution:
    """One release's loss under P: continuous ``segments``, and ``atoms`` as (loss, mass)."""

    segments: tuple[Segment, ...] = ()
    atoms: tuple[tuple[float, float], ...] = ()

    def masses(self, interval: float) -> tuple[int, Array]:
        """Returns the mass that rounds to each multiple of ``interval``, from the first on."""
        parts = [segment.masses(interval) for segment in self.segments]
        parts += [(round(loss / interval), np.array([mass])) for loss, mass in self.atoms]
        first = min(start for start, _ in parts)
        total = np.zeros(max(start + mass.size for start, mass in parts) - first)
        for start, mass in parts:
            total[start - first : start - first + mass.size] += mass
        return first, total

    @functools.cached_property
    def nodes(self) -> tuple[Array, Array]:
        """Losses and weights: sums over them are expectations over the distribution."""
        parts = [segment.nodes() for segment in self.segments]
        parts += [(np.array([loss]), np.array([mass])) for loss, mass in self.atoms]
        losses, weights = zip(*parts, strict=True)
        return np.concatenate(losses), np.concatenate(weights)


def negate_both(function: Function) -> Function:
    """Returns the function x -> -function(-x)."""
    return lambda values: -function(-values)


def subsampled_loss(x: Array, rate: float) -> Array:
    """Returns log(1 - rate + rate e^x), the loss of removal after Poisson sampling at ``rate``."""
    if rate == 1:
        return x
    near = np.log1p(rate * np.expm1(np.clip(x, -1.0, _LARGE)))
    below = np.log(1 - rate + rate * np.exp(np.minimum(x, -1.0)))
    return np.select([x < -1, x <= _LARGE], [below, near], x + math.log(rate))


def unsampled_loss(y: Array, rate: float) -> Array:
    """Returns the x whose ``subsampled_loss`` is ``y``; -inf below log(1 - rate)."""
    if rate == 1:
        return y
    with np.errstate(divide="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.clip(y, -1.0, _LARGE)) / rate, -1.0))
        below = np.log(np.maximum(np.exp(np.minimum(y, -1.0)) - (1 - rate), 0.0) / rate)
    return np.select([y < -1, y <= _LARGE], [below, near], y - math.log(rate))
