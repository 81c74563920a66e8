"""The distribution of the privacy loss: exact, rounded up to a grid, and of a composition.

The loss of an outcome is log dP/dQ, and its distribution is the one under P.

For lower bounds, a `LossDistribution` has atoms and continuous segments. On a segment the loss
increases with a coordinate whose two tails have closed forms, so that the mass of an interval of
losses is a difference of tails, with full relative accuracy in both.

For upper bounds, `GridLosses` are on the multiples of an interval and have the privacy profile
whose dots are connected (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, Algorithm 1): it is
exact at the multiples, and above the true one, which is convex in e^epsilon, between them.

Both are composed by one Fourier transform on a circle that is as long as Chernoff bounds allow
(`chernoff_ends`, `convolve`). Against dp-accounting, whose constructors and compositions handle
one mass at a time, all are array operations, and a window is up to ten times shorter.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.special import ndtr, ndtri

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
# Which of two neighbours has the record: the second ("add") or the first ("remove").
Direction = Literal["add", "remove"]
DIRECTIONS: tuple[Direction, ...] = ("add", "remove")
# Losses, their weights and how many times they are summed, for each release.
Releases = Sequence[tuple[Array, Array, int]]

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)
# Those of one cell of a lattice, and how many cells a panel has at least.
_CELL_NODES, _CELL_WEIGHTS = np.polynomial.legendre.leggauss(4)
_CELL_PANELS = 8
# Larger losses count as this in sums weighted by e^-loss.
_LARGEST = 700.0
_LEAST_WEIGHT = math.exp(-_LARGEST)
# Beyond this, 1 - rate + rate e^x is rate e^x to the last bit, unless the rate is below e^-60.
_LARGE = 100.0
# What rounding may do to a profile that falls.
_ROUNDING = 1e-12
# What a Fourier transform rounds, for each composition.
TRANSFORM_ROUNDING = 2.0**-50
# What a composition on a grid may leave out.
_TRUNCATED = 1e-15
# The least and largest slope at which the tails of a sum are bounded, over the natural one, and how
# many are tried at a time.
_SLOPES, _NUM_SLOPES = (1e-4, 20.0), 12
# A loss that is all but certain has hardly any; a bound at any slope holds.
_LEAST_DEVIATION = 1e-15


class Coordinate(NamedTuple):
    """The distribution under P of a real number that the privacy loss is a function of.

    Its tails need to be right up to a constant only, which cancels in differences.

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
        pairs = tuple(zip(weights, means, strict=True))
        return lambda z: sum((w * component(z - mean) for w, mean in pairs), start=np.zeros(()))

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

    def cells(self, interval: float) -> tuple[int, Array, Array]:
        """Returns the cells of losses nearest to each multiple of ``interval``, from the first on.

        Beside the first multiple, in intervals, these are the mass of each cell and the integral
        over it of e^(multiple - loss) - 1.
        """
        # The coordinates at which the nearest multiple changes.
        ends = self.loss(np.array([self.low, self.high]))
        first, last = (round(end / interval) for end in ends.tolist())
        edges = (np.arange(first, last + 2) - 0.5) * interval
        z = np.clip(self.inverse(edges), self.low, self.high)
        z[0], z[-1] = self.low, self.high

        # Each mass is a difference of the tail that it lies in.
        middle = int(np.searchsorted(z, (self.low + self.high) / 2)) or 1
        left = np.diff(self.coordinate.below(z[:middle]))
        right = -np.diff(self.coordinate.above(z[middle - 1 :]))
        masses = np.maximum(np.concatenate([left, right]), 0.0)

        # The integrals by quadrature, on parts of cells where these are wide.
        count = max(1, math.ceil(_CELL_PANELS * (self.high - self.low) / self.panel))
        cuts = np.union1d(z, np.linspace(self.low, self.high, count + 1))
        half = np.diff(cuts)[:, None] / 2
        points = cuts[:-1, None] + half * (1 + _CELL_NODES)
        cell = np.minimum(np.searchsorted(z, cuts[:-1], side="right"), masses.size) - 1
        rounding = (first + cell)[:, None] * interval - self.loss(points)
        values = self.coordinate.density(points) * np.expm1(rounding)
        integrals = np.bincount(cell, half[:, 0] * (values @ _CELL_WEIGHTS), masses.size)
        return first, masses, np.asarray(integrals, np.float64)


@dataclass(frozen=True)
class LossDistribution:
    """One release's loss under P: continuous ``segments``, and ``atoms`` as (loss, mass).

    By ``margin`` its masses may be too much, in total.
    """

    segments: tuple[Segment, ...] = ()
    atoms: tuple[tuple[float, float], ...] = ()
    margin: float = 0.0

    def merged(self, interval: float) -> tuple[int, Array, Array]:
        """Returns the distribution after all outcomes of about one loss are made one outcome.

        The outcomes whose losses are nearest to one multiple of ``interval`` become one, of loss
        -log E[e^-loss]: this is post-processing, so delta is nowhere larger.

        Returns:
          The first multiple, in intervals; from it on, the mass of each outcome, and its loss less
          the multiple, of at most half an interval.
        """
        parts = [segment.cells(interval) for segment in self.segments]
        if self.atoms:
            losses, weights = np.array(self.atoms).T
            multiples = np.rint(losses / interval)
            weighted = weights * np.expm1(multiples * interval - losses)
            lowest = int(np.min(multiples))
            cell = multiples.astype(np.int64) - lowest
            mass, integral = (
                np.asarray(np.bincount(cell, each), np.float64) for each in (weights, weighted)
            )
            parts.append((lowest, mass, integral))

        # All parts on one lattice.
        first = min(start for start, *_ in parts)
        masses, integrals = np.zeros((2, max(start + m.size for start, m, _ in parts) - first))
        for start, mass, integral in parts:
            place = slice(start - first, start - first + mass.size)
            masses[place] += mass
            integrals[place] += integral

        # Where there is next to no mass, rounding must not exceed what is possible.
        means = np.divide(integrals, masses, out=np.zeros_like(masses), where=masses > 0)
        means = np.clip(means, math.expm1(-interval / 2), math.expm1(interval / 2))
        return first, masses, -np.log1p(means)

    @functools.cached_property
    def nodes(self) -> tuple[Array, Array]:
        """Privacy losses and their weights, by which expectations are computed (Gauss-Legendre)."""
        losses, weights = [], []
        for segment in self.segments:
            # Gauss-Legendre nodes on panels over which loss and density are smooth.
            count = max(1, math.ceil((segment.high - segment.low) / segment.panel))
            cuts = np.linspace(segment.low, segment.high, count + 1)
            half = np.diff(cuts)[:, None] / 2
            z = (cuts[:-1, None] + half * (1 + _NODES)).ravel()
            losses.append(segment.loss(z))
            weights.append((half * _NODE_WEIGHTS).ravel() * segment.coordinate.density(z))
        atoms = np.reshape(self.atoms, (-1, 2))
        return np.concatenate([*losses, atoms[:, 0]]), np.concatenate([*weights, atoms[:, 1]])


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


def unsampled_removal(epsilon: Array, rate: float) -> Array:
    """Returns log(1 + (e^epsilon - 1) / rate), the epsilon >= 0 without sampling, for removal.

    With P after Poisson sampling and Q without the record, delta at ``epsilon`` is the rate times
    that of the unsampled release at this.
    """
    small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
    large = epsilon - np.log(rate) + np.log1p((rate - 1.0) * np.exp(-epsilon))
    return np.where(epsilon < 1.0, small, large)


def unsampled_addition(epsilon: Array, rate: float) -> tuple[Array, Array]:
    """Returns 1 - (1 - rate) e^epsilon, and the epsilon without sampling, in the order of addition.

    With P without the record and Q after Poisson sampling, delta at ``epsilon`` >= 0 is the first
    times that of the unsampled release at the second. It is zero where the first is not positive.
    """
    left = rate - (1 - rate) * np.expm1(np.minimum(epsilon, _LARGEST))
    loss = np.log(rate) + epsilon - np.log(np.where(left > 0, left, 1.0))
    return np.maximum(left, 0.0), np.where(left > 0, np.maximum(loss, 0.0), 0.0)


@dataclass(frozen=True)
class GridMasses:
    """The masses of a loss on a grid, in one direction.

    Attributes:
      interval: the spacing of the losses.
      first: the least loss, in intervals.
      masses: the mass at each loss, from the least on.
      infinite: the mass of infinite losses.
    """

    interval: float
    first: int
    masses: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The losses, increasing."""
        return np.arange(self.first, self.first + self.masses.size, dtype=float) * self.interval


@dataclass(frozen=True)
class GridLosses:
    """The losses of both directions on one grid, with a profile above the true one.

    Attributes:
      remove: the direction in which P has the record.
      add: that in which Q has it; ``None`` if the two are equal.
    """

    remove: GridMasses
    add: GridMasses | None = None

    def directions(self, direction: Direction | None = None) -> list[GridMasses]:
        """Returns the masses of one direction, or by default those that differ of both."""
        both = {"remove": self.remove, "add": self.add or self.remove}
        if direction is not None:
            return [both[direction]]
        return [self.remove] if self.add is None else [self.remove, self.add]

    def delta(self, epsilons: npt.ArrayLike, direction: Direction | None) -> Array:
        """Returns delta at any real ``epsilons``, by default the larger of the two directions."""
        deltas = [
            one.infinite + hockey_stick(one.losses, one.masses, np.asarray(epsilons))
            for one in self.directions(direction)
        ]
        return np.max(deltas, axis=0)

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon >= 0 at ``delta`` in both directions; infinity if none is."""
        least = 0.0
        for one in self.directions():
            if one.infinite >= delta:
                return math.inf
            loss, excess, weight = crossing(one.losses, one.masses, delta - one.infinite)
            # Where the weight of a loss vanishes, the loss itself is an upper bound.
            if excess > 0:
                least = max(least, loss if weight <= _LEAST_WEIGHT else math.log(excess / weight))
        return least


def grid_from_profiles(
    removal: Function,
    addition: Function | None,
    losses: tuple[float, float],
    interval: float,
) -> GridLosses:
    """Returns the losses on a grid of a pair with the given privacy profiles.

    Args:
      removal: delta at an array of epsilons >= 0, of P with the record.
      addition: the same of the other direction; ``None`` if the two are equal.
      losses: the least and the largest loss of removal; beyond them there is next to no mass.
      interval: the spacing of the losses.
    """
    above = np.arange(math.ceil(losses[1] / interval) + 1, dtype=np.float64) * interval
    below = np.arange(math.ceil(-losses[0] / interval) + 1, dtype=np.float64) * interval
    removed = removal(above)
    added = removed if addition is None else addition(below)

    def masses(own: Array, epsilons: Array, other: Array) -> GridMasses:
        # Delta at -epsilons follows from that of the other direction at epsilons.
        below_zero = np.exp(-epsilons) * other - np.expm1(-epsilons)
        deltas = np.concatenate([below_zero[:0:-1], own])
        # No delta rises, so that an upper bound is one at larger epsilons, too.
        return connect_dots(interval, 1 - epsilons.size, np.minimum.accumulate(deltas))

    remove = masses(removed, below, added)
    return GridLosses(remove, None if addition is None else masses(added, above, removed))


def connect_dots(interval: float, first: int, deltas: Array) -> GridMasses:
    """Returns the masses at multiples of ``interval`` from ``first`` on that have these deltas.

    Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi (2022), Algorithm 1.

    Raises:
      ValueError: deltas that are not in [0, 1] or rise.
    """
    rises = np.diff(deltas)
    inside = (deltas >= -_ROUNDING) & (deltas <= 1 + _ROUNDING)
    if not (np.all(inside) and np.all(rises <= _ROUNDING)):
        raise ValueError("deltas must fall within [0, 1]")
    deltas = np.clip(np.minimum.accumulate(deltas), 0.0, 1.0)
    if deltas.size == 1:
        return GridMasses(interval, first, 1 - deltas, float(deltas[0]))

    # The slopes of the profile in e^epsilon change at the losses by their masses over e^loss.
    falls = np.diff(deltas)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + falls[0] / math.expm1(interval)
    masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(interval)) / math.expm1(interval)
    masses[-1] = falls[-1] / math.expm1(-interval)
    return GridMasses(interval, first, np.maximum(masses, 0.0), float(deltas[-1]))


def compose_grids(grids: Sequence[tuple[GridLosses, int]], interval: float) -> GridLosses:
    """Returns the losses of all ``grids`` together, each on the same grid and with a count.

    In each direction a mass of 1e-15 is left out, and counts as infinite.
    """
    is_symmetric = all(grid.add is None for grid, _ in grids)
    composed: dict[Direction, GridMasses] = {}
    for direction in DIRECTIONS[1:] if is_symmetric else DIRECTIONS:
        factors = [(grid.directions(direction)[0], count) for grid, count in grids]
        if sum(count for _, count in factors) <= 1:
            nothing = GridMasses(interval, 0, np.ones(1), 0.0)
            composed[direction] = factors[0][0] if factors else nothing
            continue

        # The window: what lies outside wraps around, and its mass counts as infinite besides.
        low = sum(one.first * count for one, count in factors)
        high = low + sum((one.masses.size - 1) * count for one, count in factors)
        cells = [(np.arange(float(one.masses.size)), one.masses, count) for one, count in factors]
        ends = chernoff_ends(cells, math.log(2 / _TRUNCATED), least_deviation=1.0)
        first, last = max(low, low + math.floor(ends[0])), min(high, low + math.ceil(ends[1]))

        finite = sum(count * math.log1p(-one.infinite) for one, count in factors)
        total = convolve([(one.first, one.masses, count) for one, count in factors], first, last)
        composed[direction] = GridMasses(interval, first, total, _TRUNCATED - math.expm1(finite))
    return GridLosses(**composed)


def sum_deviation(releases: Releases) -> float:
    """Returns the standard deviation of a sum of losses.

    Args:
      releases: losses, their weights and how many times they are summed.
    """
    variance = 0.0
    for losses, weights, count in releases:
        mean = weights @ losses / np.sum(weights)
        variance += count * float(weights @ (losses - mean) ** 2)
    return math.sqrt(variance)


def chernoff_ends(
    releases: Releases,
    log_mass: float,
    least_deviation: float = _LEAST_DEVIATION,
) -> tuple[float, float]:
    """Returns ends that a sum of losses passes with probability at most e^-``log_mass`` each.

    Args:
      releases: losses, their weights and how many times they are summed.
      log_mass: of the probability, negated.
      least_deviation: a standard deviation that the sum's is taken to have at least.
    """
    mirrored = [(-losses, weights, count) for losses, weights, count in releases]
    low = -chernoff_upper_end(mirrored, log_mass, least_deviation)
    return low, chernoff_upper_end(releases, log_mass, least_deviation)


def chernoff_upper_end(
    releases: Releases, log_mass: float, least_deviation: float = _LEAST_DEVIATION
) -> float:
    """Returns the upper of the two `chernoff_ends`."""
    # Losses of no mass count nowhere.
    logged = []
    for losses, weights, count in releases:
        some = weights > 0
        logged.append((losses[some], np.log(weights[some]), count))

    def ends(slopes: Array) -> Array:
        log_mgf = np.zeros(slopes.size)
        for losses, logs, count in logged:
            for place, slope in enumerate(slopes):
                exponents = slope * losses + logs
                largest = np.max(exponents)
                exponents -= largest
                log_mgf[place] += count * (largest + math.log(np.sum(np.exp(exponents))))
        return (log_mgf + log_mass) / slopes

    # Any slope gives a bound. Of a normal sum this one is the best; search around it.
    natural = math.sqrt(2 * log_mass) / max(sum_deviation(releases), least_deviation)
    slopes = natural * np.geomspace(*_SLOPES, _NUM_SLOPES)
    first = ends(slopes)
    best = int(np.argmin(first))
    around = slopes[max(best - 1, 0)], slopes[min(best + 1, _NUM_SLOPES - 1)]
    second = ends(np.geomspace(*around, _NUM_SLOPES)[1:-1])
    return float(min(np.min(first), np.min(second)))


def convolve(releases: Iterable[tuple[int, Array, int]], first: int, last: int) -> Array:
    """Returns the masses of a sum of losses at the grid's points from ``first`` to ``last``.

    Mass outside them is wrapped around. What a Fourier transform rounds is below
    `TRANSFORM_ROUNDING` for each loss of the sum.

    Args:
      releases: the least loss, the masses from it on, and how many times they are summed.
      first, last: of the window.
    """
    length = scipy.fft.next_fast_len(last - first + 1, real=True)
    spectrum = np.ones(length // 2 + 1, complex)
    for start, masses, count in releases:
        before = start % length
        turns = np.pad(masses, (before, -(before + masses.size) % length)).reshape(-1, length)
        transform = scipy.fft.rfft(turns.sum(axis=0))
        spectrum *= transform if count == 1 else transform**count
    return np.roll(scipy.fft.irfft(spectrum, length), -first % length)[: last - first + 1]


def tail_sums(losses: Array, masses: Array) -> tuple[Array, Array]:
    """Returns the mass of losses from each on, and that weighted by e^-loss; zero at the end."""
    weights = masses * np.exp(-np.maximum(losses, -_LARGEST))
    above, weighted = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (masses, weights))
    return above, weighted


def hockey_stick(losses: Array, masses: Array, epsilons: Array) -> Array:
    """Returns delta at any real ``epsilons`` of a loss with ``masses`` at increasing ``losses``.

    It is the mass of losses above each epsilon less e^epsilon times that under Q.
    """
    above, weighted = tail_sums(losses, masses)
    place = np.searchsorted(losses, epsilons, side="right")
    return np.asarray(above[place] - np.exp(np.minimum(epsilons, _LARGEST)) * weighted[place])


def crossing(losses: Array, masses: Array, delta: float) -> tuple[float, float, float]:
    """Returns where a profile passes ``delta``: the next loss, and two masses of those from it on.

    The first mass is that beyond ``delta``, not positive if the whole profile is below it; the
    second that under Q. The logarithm of their ratio is the epsilon.
    """
    above, weighted = tail_sums(losses, masses)
    at_losses = above[1:] - np.exp(np.minimum(losses, _LARGEST)) * weighted[1:]
    place = int(np.count_nonzero(at_losses > delta))
    loss = losses[min(place, losses.size - 1)]
    return float(loss), float(above[place] - delta), float(weighted[place])
