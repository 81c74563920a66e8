"""The distribution of one release's privacy loss: exact, and rounded up to a grid.

The loss of an outcome is log dP/dQ, and its distribution is the one under P.

For lower bounds, a `LossDistribution` has atoms and continuous segments. On a segment the loss
increases with a coordinate whose two tails have closed forms, so that the mass of an interval of
losses is a difference of tails, with full relative accuracy in both.

For upper bounds, the distributions on a grid and their composition are dp-accounting's, which
connects the dots (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022). Its constructor of a
subsampled Gaussian finds the dots one by one, and its evaluation of many deltas walks through the
masses one by one; over thousands of steps that takes longer than the composition. Here both are
array operations.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import ndtr, ndtri

from dpjax.accounting.tradeoff.base import TradeOff

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
# Which of two neighbours has the record: the second ("add") or the first ("remove").
Direction = Literal["add", "remove"]
DIRECTIONS: tuple[Direction, ...] = ("add", "remove")

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)
# Larger losses count as this in sums weighted by e^-loss.
_LARGEST = 700.0
# Beyond this, 1 - rate + rate e^x is rate e^x to the last bit, unless the rate is below e^-60.
_LARGE = 100.0


class Coordinate(NamedTuple):
    """The distribution of a coordinate under P, up to constants that cancel in differences.

    Attributes:
      below: the mass below each value.
      above: the mass above each value.
      density: the density at each value.
    """

    below: Function
    above: Function
    density: Function


def normal_mixture(
    weights: tuple[float, ...], means: tuple[float, ...], tail: float
) -> tuple[Coordinate, float, float]:
    """Returns a mixture of normal distributions of variance one, and the ends of its range.

    Outside the two ends there is at most ``tail`` on either side.
    """

    def mix(component: Function) -> Function:
        parts = tuple(zip(weights, means, strict=True))
        return lambda z: sum((w * component(z - mean) for w, mean in parts), start=np.zeros(()))

    peaks = mix(lambda x: np.exp(-(x**2) / 2))

    coordinate = Coordinate(
        below=mix(ndtr),
        above=mix(lambda x: ndtr(-x)),
        density=lambda z: peaks(z) / math.sqrt(2 * math.pi),
    )
    beyond = -float(ndtri(tail))
    return coordinate, min(means) - beyond, max(means) + beyond


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
        """Returns the nodes and weights of Gauss-Legendre quadrature over the privacy losses."""
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
        if self.atoms:
            losses, weights = np.array(self.atoms).T
            cells = np.rint(losses / interval).astype(np.int64)
            lowest = int(np.min(cells))
            parts.append((lowest, np.asarray(np.bincount(cells - lowest, weights), np.float64)))
        first = min(start for start, _ in parts)
        total = np.zeros(max(start + mass.size for start, mass in parts) - first)
        for start, mass in parts:
            total[start - first : start - first + mass.size] += mass
        return first, total

    @functools.cached_property
    def nodes(self) -> tuple[Array, Array]:
        """Nodes and weights of quadrature over the privacy losses, the atoms included."""
        parts = [segment.nodes() for segment in self.segments]
        losses, weights = zip(*parts, np.reshape(self.atoms, (-1, 2)).T, strict=True)
        return np.concatenate(losses), np.concatenate(weights)


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


def pld_from_profiles(
    removal: Function, addition: Function | None, largest: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the pessimistic distributions of a pair with the given privacy profiles.

    Args:
      removal: delta at an array of epsilons >= 0.
      addition: the same of the other direction; ``None`` if the two are equal.
      largest: a loss beyond which there is next to no mass.
      interval: the spacing of the losses.
    """
    last = math.ceil(largest / interval)
    epsilons = np.arange(last + 1, dtype=np.float64) * interval
    removed = removal(epsilons)
    added = removed if addition is None else addition(epsilons)
    orders = [(removed, added), (added, removed)][: 1 if addition is None else 2]
    pmfs = []
    for own, other in orders:
        # Delta at -epsilons follows from that of the other direction at epsilons.
        below_zero = np.exp(-epsilons) * other - np.expm1(-epsilons)
        pmfs.append(_connect_dots(interval, -last, np.concatenate([below_zero[:0:-1], own])))
    return PrivacyLossDistribution(*pmfs)


def pld_from_tradeoff(
    removal: TradeOff, losses: tuple[float, float], interval: float
) -> PrivacyLossDistribution:
    """Returns the pessimistic distributions of both directions of a trade-off function T(P, Q).

    Args:
      removal: T(P, Q), with Q the output on data that have the record.
      losses: the least and the largest loss of Q to P; beyond them there is next to no mass.
      interval: the spacing of the losses.
    """
    first, last = math.floor(losses[0] / interval), math.ceil(losses[1] / interval)
    grid = np.arange(first, last + 1) * interval
    return PrivacyLossDistribution(
        _connect_dots(interval, first, removal.delta(grid)),
        _connect_dots(interval, -last, removal.inverse().delta(-grid[::-1])),
    )


def _connect_dots(interval: float, first: int, deltas: Array) -> pld_pmf.PLDPmf:
    """Returns the pessimistic masses at multiples of ``interval`` from ``first`` on."""
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + deltas.size - 1, deltas
    )


def hockey_stick_divergence(
    total: PrivacyLossDistribution, epsilons: npt.ArrayLike, direction: Direction | None
) -> Array:
    """Returns delta at any real ``epsilons``, by default the larger of the two directions.

    It is the mass of losses above each epsilon less e^epsilon times that under Q.
    """
    points, deltas = np.asarray(epsilons), []
    for name, losses, masses, infinite in _directions(total):
        if total._symmetric or direction in (None, name):
            deltas.append(infinite + hockey_stick(losses, masses, points))
    return np.max(deltas, axis=0)


def least_epsilon(total: PrivacyLossDistribution, delta: float) -> float:
    """Returns the least epsilon >= 0 at ``delta`` in both directions; infinity if there is none."""
    least = 0.0
    for _, losses, masses, infinite in _directions(total):
        if infinite >= delta:
            return math.inf
        above, weighted = tail_sums(losses, masses)
        at_losses = above[1:] - np.exp(np.minimum(losses, _LARGEST)) * weighted[1:]
        place = int(np.count_nonzero(at_losses > delta - infinite))
        excess = above[place] - (delta - infinite)
        if excess > 0:
            # Where the weight of a loss vanishes, the loss itself is an upper bound.
            vanishes = weighted[place] <= math.exp(-_LARGEST)
            found = losses[place] if vanishes else math.log(excess / weighted[place])
            least = max(least, float(found))
    return least


def _directions(
    total: PrivacyLossDistribution,
) -> Iterator[tuple[Direction, Array, Array, float]]:
    """Yields the direction, the losses, their masses and the mass at infinity."""
    pmfs: list[tuple[Direction, pld_pmf.PLDPmf]] = [("remove", total._pmf_remove)]
    pmfs += [] if total._symmetric else [("add", total._pmf_add)]
    for name, sparse_or_dense in pmfs:
        pmf = sparse_or_dense.to_dense_pmf()
        losses = (pmf._lower_loss + np.arange(pmf._probs.size)) * pmf._discretization
        yield name, losses, pmf._probs, pmf._infinity_mass


def tail_sums(losses: Array, masses: Array) -> tuple[Array, Array]:
    """Returns the mass of losses from each on, and that weighted by e^-loss; zero at the end."""
    weights = masses * np.exp(-np.maximum(losses, -_LARGEST))
    above, weighted = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (masses, weights))
    return above, weighted


def hockey_stick(losses: Array, masses: Array, epsilons: Array) -> Array:
    """Returns delta at any real ``epsilons`` of a loss with ``masses`` at increasing ``losses``."""
    above, weighted = tail_sums(losses, masses)
    place = np.searchsorted(losses, epsilons, side="right")
    return np.asarray(above[place] - np.exp(np.minimum(epsilons, _LARGEST)) * weighted[place])
