r"""Discrete Gaussian noise on integers, between exact losses and two Gaussian releases.

Let N_Z(V) be discrete Gaussian noise with P(k) proportional to exp(-k^2 / (2 V)), in one unit of
the integers, D the squared sensitivity in these units, and v the integer vector, of any length, by
which a record moves the value: |v|^2 <= D, so only the whole part of D counts.

- The exact loss. The ratio of both densities at noise z depends on s = <z, v> alone: the loss is
  (2 s + |v|^2) / (2 V), and the distribution of s is a convolution of those of the entries. It does
  not depend on signs and order. As log P is concave, a larger entry is easier to distinguish
  (Karlin & Rubin 1956: monotone likelihood ratios), so that the worst v are the partitions of the
  whole part of D into squares: 19 for D = 25. The largest delta over them at every epsilon is the
  profile of any adaptive choice of v. All losses are multiples of 1 / (2 V), which the grid holds.
- Upper bound by a Gaussian release, for any v. Let q(k) = Phi^-1(P(Z < k)) for Z ~ N_Z(V), and
  mu = max over k of q(k + 1) - q(k). The trade-off function of Z against Z + s, s > 0 an integer,
  is piecewise linear with knots at alpha = P(Z >= k), where it is Phi(q(k - s)) >= Phi(q(k) - s mu)
  = G_(s mu)(alpha). A convex function below another one at the knots of that one, which is linear
  between them, is below it everywhere. So Z is a post-processing of Gaussian noise that a shift by
  s moves by s mu deviations, entries are independent, and the release is sqrt(D) mu-Gaussian
  differentially private. mu^2 is that of variance V - 1/12 for V above some 4.
- Both bounds for fine noise, by random rounding. With w > 0, by Poisson summation, for every real x

    sum over k of exp(-(k - x)^2 / (2 w)) = sqrt(2 pi w) (1 + r(x)),  |r| <= 2.1 exp(-2 pi^2 w),

  which is below 2e-34 for w = 4 = `_SMOOTHING`. Round a real x at random to k with probability
  proportional to exp(-(k - x)^2 / (2 w)). This maps x ~ N(s, V - w), for an integer s, to k with
  probability proportional to exp(-(k - s)^2 / (2 V)), up to a factor within 1 +- 5e-34. So noise
  N_Z(V) is a post-processing of Gaussian noise of variance V - w, whatever the shift. Conversely,
  let v = (1, ..., 1), add N(0, w) to s = <z, v>, and let t go to infinity in noise N(0, t) across
  v: the density is that of N(0, D V + w) up to a factor within 1 +- 5 D exp(-2 pi^2 h), with h the
  smaller of V (D - 1) / D and of V w / (V + w / D). So Gaussian noise of variance V + w / D, moved
  by sqrt(D), is a post-processing of discrete Gaussian noise, moved by v.

The factors hold in each coordinate by itself, so in any dimension and for any integer shift, and
the channels commute with it. Only the coordinates that the record moves count, at most as many as
its squared distance: with m of them, delta is off by less than 4 m 5e-34, below the 2^-50 that the
accountant takes from delta for rounding unless m > 4e17.

A composition of Rényi bounds uses V itself (Canonne, Kamath & Steinke 2020, Theorem 14). It may be
the smaller one where V is below one and the exact loss is not computed.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent
from scipy.special import ndtri_exp

from dpjax.accounting.events import AtomicEvent, GridBuilder, UnsupportedEventError
from dpjax.accounting.kinds.gaussian import (
    check_noise,
    gaussian_grid_builder,
    gaussian_loss_distribution,
)
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    LossDistribution,
    grid_from_profiles,
    hockey_stick,
)

# The variance of the random rounding, in squared units.
_SMOOTHING = 4.0
# From this variance on the noise is fine: its Gaussian bounds are 0.05 % apart.
_FINE_VARIANCE = 1e4
# The exact loss is composed up to this variance, beyond which the Gaussian upper bound is as good,
# and up to this squared sensitivity, which has 27 partitions.
_EXACT_VARIANCE, _EXACT_SQUARE = 100.0, 30
# From this variance on the shifts with the fewest and with the most entries are as good as all.
_ALIKE_VARIANCE = 4.0
# Below this variance the lower bound of many coordinates does not hold.
_LEAST_SMOOTH_VARIANCE = 5.0
# Less noise hides nothing, and its square may vanish.
_LEAST_VARIANCE = 1e-300
# Rounding of a squared sensitivity, relative.
_SQUARE_ROUNDING = 1e-12
# Outcomes of probability below e^-140, 1e-61, are left out, and knots of less than e^-460.
_LOG_TAIL, _LOG_KNOT = 140.0, 460.0
# Where the grid of losses ends, in standard deviations of the Gaussian bound.
_FARTHEST_NORMAL = 10.0
# The rounding of masses and quantiles, relative.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class DiscreteGaussianDpEvent(DpEvent):
    """Discrete Gaussian noise on integers whose change is bounded in L2.

    Attributes:
      noise_multiplier: the noise's scale over one clip bound.
      scale: the noise's scale, in units of the integers.
    """

    noise_multiplier: float
    scale: float


class DiscreteGaussianNoise(AtomicEvent):
    """Discrete Gaussian noise on integer functions of all records."""

    event_types: ClassVar[tuple[type[DpEvent], ...]] = (DiscreteGaussianDpEvent,)

    @property
    def unit_sensitivity_event(self) -> DiscreteGaussianDpEvent:
        """The event with its noise multiplier over the sensitivity."""
        noise = self.event.noise_multiplier / self.sensitivity_factor
        return dataclasses.replace(self.event, noise_multiplier=noise)

    @property
    def rdp_may_be_tighter(self) -> bool:
        """Whether the noise is so coarse, and moved so far, that the Rényi bound may be smaller."""
        return self._variance < 1 and not self._has_exact_loss

    @property
    def aligned_loss(self) -> float | None:
        return 1 / (2 * self._variance) if self._has_exact_loss else None

    def grid_builder(self) -> GridBuilder:
        """The largest profile of all integer shifts, or that of the Gaussian release above it."""
        noise = check_noise(1 / self._mu)
        if not self._has_exact_loss:
            return gaussian_grid_builder(noise)
        exact = [shifted_loss(self._variance, shift) for shift in self._shifts]

        def profile(epsilons: Array) -> Array:
            return np.max([hockey_stick(*each, epsilons) for each in exact], axis=0)

        largest = (1 / noise) * (1 / (2 * noise) + _FARTHEST_NORMAL)
        return functools.partial(grid_from_profiles, profile, None, (-largest, largest))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact for one integer shift, or that of a Gaussian release which is a function of it.

        A sensitivity whose square is a whole number is taken as attained by integer vectors of some
        length, and of another one its whole part.
        """
        return self.neighbor_losses(direction, tail)[0]

    def neighbor_losses(self, direction: Direction, tail: float) -> tuple[LossDistribution, ...]:
        """Those of the worst integer shifts, all of them where the noise is coarse."""
        self._check_distance()
        if self._squared <= _EXACT_SQUARE and self._variance < _FINE_VARIANCE:
            shifts = self._shifts
            if self._variance >= _ALIKE_VARIANCE:
                shifts = (shifts[0], shifts[-1]) if self._has_exact_loss else shifts[:1]
        elif self._variance < _LEAST_SMOOTH_VARIANCE:
            shifts = ((math.isqrt(int(self._squared)),),)
        else:
            mu = self._sensitivity / math.sqrt(1 + _SMOOTHING / self._squared / self._variance)
            noise = check_noise(1 / mu)
            return (gaussian_loss_distribution(1 / noise, 1.0, tail, direction),)
        return tuple(_atoms(*shifted_loss(self._variance, shift), tail) for shift in shifts)

    def rdp(self, orders: Sequence[float]) -> Array:
        """Returns order / (2 noise^2), that of zero-concentrated differential privacy."""
        noise = float(self.unit_sensitivity_event.noise_multiplier)
        with np.errstate(over="ignore"):
            return np.asarray(orders, float) / (2 * np.square(noise))

    def squared_mu(self) -> float:
        """mu^2 of Gaussian DP: that of the Gaussian release of which this is a function."""
        return self._mu**2

    @property
    def _variance(self) -> float:
        scale = float(self.event.scale)
        return max(scale * scale, _LEAST_VARIANCE)

    @property
    def _squared(self) -> float:
        """The squared sensitivity in units, its whole part."""
        distance = float(self.event.scale) / float(self.unit_sensitivity_event.noise_multiplier)
        return float(np.floor(distance * distance * (1 + _SQUARE_ROUNDING)))

    @property
    def _sensitivity(self) -> float:
        """The sensitivity over the scale."""
        if math.isinf(self._squared):
            return 1 / float(self.unit_sensitivity_event.noise_multiplier)
        return math.sqrt(self._squared) / float(self.event.scale)

    @property
    def _has_exact_loss(self) -> bool:
        return self._variance < _EXACT_VARIANCE and self._squared <= _EXACT_SQUARE

    @property
    def _shifts(self) -> tuple[tuple[int, ...], ...]:
        """The worst integer shifts."""
        whole = int(self._squared)
        return tuple(_partitions_into_squares(whole, math.isqrt(whole)))

    @property
    def _mu(self) -> float:
        """That of a Gaussian release of which this is a function."""
        self._check_distance()
        if self._variance >= _FINE_VARIANCE:
            return self._sensitivity / math.sqrt(1 - _SMOOTHING / self._variance)
        return math.sqrt(self._squared) * unit_mu(self._variance)

    def _check_distance(self) -> None:
        if self._squared < 1:
            raise UnsupportedEventError("no two integers are as close as the sensitivity")


@functools.lru_cache(maxsize=256)
def unit_mu(variance: float) -> float:
    """Returns the mu for which discrete Gaussian noise is mu-Gaussian private for a shift of one.

    Args:
      variance: V, in squared units.

    >>> round(unit_mu(0.25), 3), round(unit_mu(25.0) * 5, 4)
    (2.488, 1.0017)
    """
    last = math.ceil(math.sqrt(2 * variance * _LOG_KNOT)) + 1
    weights = _weights(variance, last + math.ceil(math.sqrt(2 * variance * _LOG_TAIL)) + 1)
    tails = np.cumsum(weights[::-1])[::-1]
    # q(k) from k = 1 on, up to those of tails that a float holds; q(1 - k) = -q(k).
    probabilities = tails[1 : last + 1] / (2 * tails[0] - weights[0])
    quantiles = -ndtri_exp(np.log(probabilities[probabilities > math.exp(-_LOG_KNOT)]))

    # Where hardly a knot is left, the noise hides nothing.
    least = 0.0 if quantiles.size else math.inf
    increments = np.diff(quantiles, prepend=-quantiles[:1])
    return float(np.max(increments, initial=least)) * (1 + _ROUNDING)


@functools.lru_cache(maxsize=256)
def shifted_loss(variance: float, shift: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the losses of discrete Gaussian noise moved by ``shift``, and their masses.

    Args:
      variance: V, in squared units.
      shift: the integers, each at least 1, by which the entries are moved.

    Returns:
      The losses in increasing order, and their probabilities; a mass below 1e-60 is left out.
    """
    reach = math.ceil(math.sqrt(2 * variance * _LOG_TAIL)) + 1
    half = _weights(variance, reach)
    weights = np.concatenate([half[:0:-1], half])
    # Of s over the largest common divisor: a single entry far away takes no longer than one near.
    unit, masses = math.gcd(*shift), np.ones(1)
    for entry in shift:
        spread = np.zeros(2 * reach * (entry // unit) + 1)
        spread[:: entry // unit] = weights / np.sum(weights)
        masses = np.convolve(masses, spread)
    products = unit * (np.arange(masses.size) - masses.size // 2)
    squared = sum(entry**2 for entry in shift)
    return (2 * products + squared) / (2 * variance), masses


def _weights(variance: float, reach: int) -> Array:
    """Returns exp(-k^2 / (2 V)) for k from 0 to ``reach``."""
    return np.exp(-(np.arange(reach + 1.0) ** 2) / (2 * variance))


def _partitions_into_squares(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yields falling tuples of integers <= ``largest`` whose squares sum to ``total``."""
    if total == 0:
        yield ()
    for first in range(min(largest, math.isqrt(total)), 0, -1):
        for rest in _partitions_into_squares(total - first**2, first):
            yield first, *rest


def _atoms(losses: Array, masses: Array, tail: float) -> LossDistribution:
    """Returns the atoms of ``losses``, without a mass of up to ``tail`` on either side."""
    inside = (np.cumsum(masses) > tail) & (np.cumsum(masses[::-1])[::-1] > tail) & (masses > 0)
    return LossDistribution(
        atoms=tuple(zip(losses[inside].tolist(), masses[inside].tolist(), strict=True))
    )
