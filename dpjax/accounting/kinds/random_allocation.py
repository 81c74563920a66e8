"""Random allocation: Gaussian releases, with each record in one uniformly random step of t.

On the worst pair the ratio of the two densities is S / t, with S = w_1 + ... + w_t and, without the
record, independent lognormal w of mean one: log w is normal of mean -mu^2 / 2 and deviation mu, the
inverse of the noise multiplier (Feldman & Shenfeld 2025, who show that this pair bounds adaptive
steps too). So delta is E(S / t - e^eps)_+ where P has the record ("remove"), and
E(1 - e^eps S / t)_+ where Q has it ("add"). The first rises with the convex function E(w - x)_+ of
x, the second with E(x - w)_+, and such orders survive sums and products of independent terms. Hence

- upper: each w is spread onto a lattice, with its mean kept. On the lattice E(w - x)_+ is exact,
  and between its points a chord, which is above.
- lower: E(w - x)_+ (or E(x - w)_+) is lowered at each point by as much as a chord may be above it,
  at most a quarter of the spacing times the mass of the cell, and its convex minorant is taken,
  whose second differences are the masses.

Both errors are of second order in the spacing. A sum is a power of the lattice's Fourier transform.
The values of w span many orders of magnitude, so the outcomes are cut by their largest w: those
with it in a given range are the power of all w up to the range's end less that of all w up to its
beginning. Each has a lattice of its own, fine against its sums. The result goes onto a grid of
losses: spread in the same way (upper), or with near outcomes made one (lower).

What is left out (large w, and what wraps around) counts as an infinite loss in upper bounds and as
nothing in lower ones, and so does what the transforms may round, 2^-50 for each term of each sum.
"""

import functools
import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.fft
from dp_accounting import DpEvent
from scipy.optimize import isotonic_regression
from scipy.special import ndtr, ndtri

from dpjax.accounting.events import (
    AtomicEvent,
    GridBuilder,
    TooLittleNoiseError,
    UnsupportedEventError,
)
from dpjax.accounting.kinds.gaussian import check_noise
from dpjax.accounting.loss_distribution import (
    TRANSFORM_ROUNDING,
    Array,
    Direction,
    GridLosses,
    GridMasses,
    LossDistribution,
    chernoff_upper_end,
)
from dpjax.sampling.allocation_event import RandomAllocationDpEvent

# What is left out at each cut.
_RAREST = 1e-15
# The ratio of the largest terms that one lattice covers, and the most points of a lattice.
_RATIO, _MOST_POINTS = 4, 2**22
# The deviation of S that lattices may add or take away, over that of the loss; of rare large sums
# in absolute terms; and the width of the lower bound's outcomes.
_UPPER, _LOWER, _COARSEST, _LOWER_CELL = 1 / 64, 1 / 96, 0.02, 1 / 256
# The spacing of a contraction, unless its range would then have more points.
_FINE, _FINE_POINTS = 0.05, 2**17
# Sums beyond this share of the mean hardly count where Q has the record.
_LARGE_SUM = 32.0
# The least number of cells of a lattice, and the most values that bound its sums.
_BLOCKS, _MOST_BLOCKS = 128, 1024
# Masses of neighbouring cells in a larger ratio are steep.
_STEEP = 4.0
# What rounding changes of a second difference.
_ROUNDING = 2.0**-44
# The weight of a last slope that goes on for ever.
_RAY = 1e12

Side = Literal["upper", "remove", "add"]


class RandomAllocation(AtomicEvent):
    """Gaussian releases of which a record is in one at random."""

    event_types = (RandomAllocationDpEvent,)
    is_sampled = True
    is_asymmetric = True

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        if self.adjacency == "replace_one":
            raise UnsupportedEventError(
                "no theorem bounds random allocation where a record is replaced by another; it has"
                " a guarantee under 'add_remove' and 'zero_out'"
            )
        return self.event

    def grid_builder(self) -> GridBuilder:
        check_noise(self.event.noise_multiplier)
        return functools.partial(
            upper_losses, self.event.num_steps, 1 / float(self.event.noise_multiplier)
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Below the exact loss, in both orders; made of atoms."""
        mu = 1 / check_noise(self.event.noise_multiplier)
        return lower_losses(self.event.num_steps, mu, direction)

    def loss_range(self) -> float:
        return float(np.ptp(self.loss_distribution("remove", _RAREST).nodes[0]))


class _Sums(NamedTuple):
    """Outcomes of S on a lattice: values above zero, masses under P and Q, and what is left out."""

    values: Array
    present: Array
    without: Array
    left_out: float


def allocation_deviation(num_steps: int, mu: float) -> float:
    """Returns the scale of the loss: the deviation of log S, were S lognormal."""
    log_variance_of_term = mu**2 + math.log(-math.expm1(-(mu**2)))
    return math.sqrt(float(np.logaddexp(0.0, log_variance_of_term - math.log(num_steps))))


def upper_losses(num_steps: int, mu: float, interval: float) -> GridLosses:
    """Returns losses on a grid whose profile is above the true one, in both orders.

    Args:
      num_steps: t.
      mu: the inverse of the noise multiplier.
      interval: the spacing of the losses.
    """
    sums = _sums(num_steps, mu, "upper")
    ratios = np.concatenate([one.values for one in sums]) / num_steps
    present = np.concatenate([one.present for one in sums])
    without = np.concatenate([one.without for one in sums])
    left_out = sum(one.left_out for one in sums)

    # Each ratio is spread onto the two next to it on the grid, with its mean under Q kept.
    places = np.floor(np.log(ratios) / interval).astype(np.int64)
    first, size = int(places.min()), int(np.ptp(places)) + 2
    low = np.exp(places * interval)
    above = np.clip((ratios - low) / (low * math.expm1(interval)), 0.0, 1.0)
    below = present * (1 - above) * low / ratios
    cells = places - first

    def spread(lower: Array, higher: Array) -> Array:
        masses = np.bincount(cells, lower, size) + np.bincount(cells + 1, higher, size)
        return np.asarray(masses, np.float64)

    removed = spread(below, present - below)
    added = spread(without * (1 - above), without * above)[::-1]

    # Large terms, and sums of zero, are missing; they count as infinite losses.
    infinite = (left_out + max(0.0, 1 - float(np.sum(masses))) for masses in (removed, added))
    return GridLosses(
        GridMasses(interval, first, removed, min(next(infinite), 1.0)),
        GridMasses(interval, 1 - first - size, added, min(next(infinite), 1.0)),
    )


@functools.lru_cache(maxsize=32)
def lower_losses(num_steps: int, mu: float, direction: Direction) -> LossDistribution:
    """Returns losses whose profile is below the true one but for their margin.

    Args:
      num_steps: t.
      mu: the inverse of the noise multiplier.
      direction: of the two orders.
    """
    deviation = allocation_deviation(num_steps, mu)
    sums = _sums(num_steps, mu, direction)
    ratios = np.concatenate([one.values for one in sums]) / num_steps
    if direction == "remove":
        present = np.concatenate([one.present for one in sums])
        without = present / ratios
    else:
        without = np.concatenate([one.without for one in sums])
        present = without * ratios

    # Outcomes of nearly equal losses become one, which is post-processing.
    places = np.floor(np.log(ratios) / (deviation * _LOWER_CELL)).astype(np.int64)
    places -= places.min()
    present, without = (
        np.asarray(np.bincount(places, each), np.float64) for each in (present, without)
    )
    some = (present > 0) & (without > 0)
    losses = np.log(present[some] / without[some])
    masses = (present if direction == "remove" else without)[some]
    signed = losses if direction == "remove" else -losses
    atoms = tuple(zip(signed.tolist(), masses.tolist(), strict=True))
    return LossDistribution((), atoms, sum(one.left_out for one in sums))


@functools.lru_cache(maxsize=8)
def _sums(num_steps: int, mu: float, side: Side) -> list[_Sums]:
    """Returns the outcomes of S, those with the largest term in each range on a lattice of its own.

    Args:
      num_steps: t.
      mu: the inverse of the noise multiplier.
      side: ``"upper"`` to spread the terms, or the direction for which to contract them.
    """
    spacing = allocation_deviation(num_steps, mu) * (_UPPER if side == "upper" else _LOWER)
    sums = []

    # From terms that are hardly ever all smaller to those that hardly any term exceeds under P.
    far = -float(ndtri(_RAREST))
    log_least = mu * max(float(ndtri(_RAREST ** (1 / num_steps))), -far) - mu**2 / 2
    log_most = mu**2 / 2 + mu * far
    # A lower bound may leave out the least losses, those of large sums where Q has the record.
    is_added = side == "add"
    if is_added:
        log_most = min(log_most - mu**2, math.log(_LARGE_SUM * num_steps))
    num_ranges = 1 + max(0, math.ceil((log_most - log_least) / math.log(_RATIO)))

    for number in range(num_ranges):
        end = math.exp(log_most) / float(_RATIO) ** (num_ranges - 1 - number)

        # Sums are about as large as the largest term, or as the mean of the others together.
        under_p = ndtr((math.log(end) - mu**2 / 2) / mu)
        under_q = ndtr((math.log(end) + mu**2 / 2) / mu)
        typical = max(end / _RATIO, num_steps * float(under_p / under_q))
        rare = max(typical / num_steps, 1.0)
        share = min(spacing * rare, max(spacing, _COARSEST))
        step = min(2 * share * typical / math.sqrt(num_steps), end / _BLOCKS)
        if side != "upper":
            # A contraction moves the mean of terms that are all in its first cell.
            step = min(step, max(_FINE, end / _FINE_POINTS))
        num_cells = _BLOCKS * math.ceil(end / (step * _BLOCKS))
        step = end / num_cells

        # The terms on the lattice, those of earlier ranges first.
        cut = num_cells // _RATIO if number else 0
        small, large = _terms(mu, step, num_cells, cut, side)
        every = small + large
        values = step * np.arange(num_cells + 1)

        # The least circle that the sums hardly ever leave, each term rounded up to one of a few.
        tops = np.unique(np.rint(np.geomspace(1, num_cells, _MOST_BLOCKS)).astype(np.int64))
        coarse = np.add.reduceat(every[1:], np.append(0, tops[:-1]))
        biased = np.add.reduceat((every * values)[1:], np.append(0, tops[:-1]))
        others = np.append(0.0, values[tops]), np.append(every[0], coarse)
        terms = [(*others, num_steps - 1), (values[tops], biased, 1)]
        if is_added:
            terms = [(*others, num_steps)]
        largest = chernoff_upper_end(terms, -math.log(_RAREST))
        last = min(math.ceil(largest / step), num_steps * num_cells)
        if last > _MOST_POINTS:
            raise TooLittleNoiseError(
                f"noise_multiplier {1 / mu:g} is too small for {num_steps} steps: its lattice would"
                f" have {last} points"
            )
        length = scipy.fft.next_fast_len(max(last, num_cells) + 1, real=True)

        # All sums less those of earlier ranges, without the record and with it in one term.
        spectra = np.zeros((2, length // 2 + 1), complex)
        for sign, masses in ((1, every), (-1, small))[: 2 if cut else 1]:
            transform = scipy.fft.rfft(masses, length)
            rest = sign * _power(transform, num_steps - 1)
            spectra += rest * np.stack([scipy.fft.rfft(masses * values, length), transform])
        present, without = np.maximum(scipy.fft.irfft(spectra, length)[:, 1:], 0.0)
        left_out = _RAREST * (2 + num_steps / end) + 2 * TRANSFORM_ROUNDING * num_steps
        sums_at = np.asarray(step * np.arange(1, length), np.float64)
        sums.append(_Sums(sums_at, present, without, left_out))
    return sums


def _power(base: npt.NDArray[np.complexfloating], exponent: int) -> npt.NDArray[np.complexfloating]:
    """Returns the power, by repeated squaring: several times faster than of complex numbers."""
    power = np.ones_like(base)
    for digit in f"{exponent:b}":
        power *= power
        if digit == "1":
            power *= base
    return power


def _terms(mu: float, step: float, num_cells: int, cut: int, side: Side) -> tuple[Array, Array]:
    """Returns the masses under Q of w on the multiples of ``step``, before ``cut`` and after."""
    # The masses of the cells under Q and P, each a difference of the smaller tail.
    with np.errstate(divide="ignore"):
        logs = np.log(step * np.arange(num_cells + 1)) / mu
    mass, moment = (_differences(logs + shift) for shift in (mu / 2, -mu / 2))

    # Each cell's mass goes to its two ends, with the mean kept.
    up = np.clip(moment / step - np.arange(num_cells) * mass, 0.0, mass)
    parts = []
    for part in (slice(0, cut), slice(cut, num_cells)):
        masses, upward = np.zeros((2, num_cells))
        masses[part], upward[part] = mass[part], up[part]
        if side == "upper":
            parts.append(np.append(masses - upward, 0.0) + np.append(0.0, upward))
        elif side == "add":
            parts.append(_contract(masses, masses - upward))
        else:
            parts.append(_contract(masses[::-1], upward[::-1])[::-1])
    return parts[0], parts[1]


def _differences(z: Array) -> Array:
    """Returns the normal masses between increasing ``z``."""
    middle = int(np.searchsorted(z, 0.0)) or 1
    return np.append(np.diff(ndtr(z[:middle])), -np.diff(ndtr(-z[middle - 1 :])))


def _contract(mass: Array, down: Array) -> Array:
    """Returns masses on a lattice with E(x - w)_+ at most that of w, for every x.

    Args:
      mass: of each cell of w.
      down: the part of it that a spread moves to the lower end.
    """
    total = float(np.sum(mass))
    if total == 0:
        return np.zeros(mass.size + 1)
    # E(x - w)_+ over the spacing at the points. In a cell from a to b its chord is too high by at
    # most the mean of (w - a) (b - w), over the squared spacing, which both ends are lowered by; or
    # one end alone by the mean distance of the cell's mass to the other, at steep masses.
    chords = np.append(0.0, np.cumsum(np.cumsum(mass) - mass + down))
    before, after = np.append(0.0, mass[:-1]), np.append(mass[1:], 0.0)
    rises, falls = mass > _STEEP * before, mass > _STEEP * after
    both = np.minimum(mass / 4, np.minimum(down, mass - down))
    left = np.select([rises, falls], [0.0, mass - down], both)
    right = np.select([rises, falls], [down, 0.0], both)

    # Nothing is lowered below zero: there the right end is lowered enough for the cell.
    while True:
        sag = np.maximum(np.append(left, 0.0), np.append(0.0, right))
        raised = (chords < sag)[:-1] & (right < down)
        if not np.any(raised):
            break
        right = np.where(raised, down, right)
    lowered = np.maximum(chords - sag, 0.0)

    # The greatest convex function below, with a last slope of all the mass.
    slopes = np.append(np.diff(lowered), total)
    weights = np.append(np.ones(mass.size), _RAY)
    convex = np.minimum(isotonic_regression(slopes, weights=weights).x, total)
    convex[-1] = total
    masses = np.diff(np.append(0.0, convex))

    # Where that is the lowered function itself, from the masses, which rounding leaves small.
    padded = np.concatenate([sag[:1], sag, sag[-1:]])
    direct = np.append(down, 0.0) + np.append(0.0, mass - down) - np.diff(padded, 2)
    masses = np.where(np.abs(masses - direct) <= _ROUNDING * total, direct, masses)
    return np.maximum(masses, 0.0)
