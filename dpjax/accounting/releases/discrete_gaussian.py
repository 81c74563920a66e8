"""Discrete Gaussian noise on integers, between two Gaussian releases.

Let N_Z(V) be discrete Gaussian noise with P(k) proportional to exp(-k^2 / (2 V)), in one unit of
the integers, and w = `_SMOOTHING` = 4. By Poisson summation, for every real x,

    sum over k of exp(-(k - x)^2 / (2 w)) = sqrt(2 pi w) (1 + r(x)),  |r| <= 2.1 exp(-2 pi^2 w),

which is below 2e-34 for w = 4.

- Upper bound on epsilon. Round a real x at random to k with probability proportional to
  exp(-(k - x)^2 / (2 w)). This maps x ~ N(s, V - w), for an integer s, to k with probability
  proportional to exp(-(k - s)^2 / (2 V)), up to a factor within 1 +- 5e-34: the density of the sum
  of N(s, V - w) and N(0, w) at k, over the normaliser above. So discrete Gaussian noise is a
  post-processing of Gaussian noise of variance V - w, whatever the shift.
- Lower bound. Adding N(0, w) to N_Z(V) gives a density that is that of N(0, V + w) up to a factor
  within 1 +- 5 exp(-2 pi^2 V w / (V + w)), which is 1e-18 for V = 5. So Gaussian noise of variance
  V + w is a post-processing of discrete Gaussian noise.

Both hold in each coordinate by itself, so in any dimension and for any integer shift, and both are
channels that commute with it, so also where the shift is sampled. Only the coordinates that the
record moves count, at most as many as its squared distance: with m of them, delta is off by less
than 4 m 5e-34, below the 2^-50 that the accountant takes from delta for rounding unless m > 4e17.

A composition of Rényi bounds uses V itself (Canonne, Kamath & Steinke 2020, Theorem 14). It is
smaller than that of V - w where V is below some 30, so both are computed there.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import privacy_loss_distribution as pld

from dpjax.accounting.loss_distribution import Array, Direction, LossDistribution
from dpjax.accounting.releases.base import PLDBuilder, Release, UnsupportedEventError
from dpjax.accounting.releases.gaussian import check_noise, gaussian_loss_distribution

# The variance of the random rounding, in squared units.
_SMOOTHING = 4.0
# Below this variance the Gaussian release that bounds the noise has hardly any, and the Rényi bound
# is the smaller one by far.
_LEAST_VARIANCE = 5.0
# From this variance on the Rényi bound is the larger one.
_FINE_VARIANCE = 128.0


@dataclass(frozen=True)
class DiscreteGaussianDpEvent(DpEvent):
    """Discrete Gaussian noise on integers whose change is bounded in L2.

    Attributes:
      noise_multiplier: the noise's scale over one clip bound.
      scale: the noise's scale, in units of the integers.
    """

    noise_multiplier: float
    scale: float


class DiscreteGaussianRelease(Release):
    """Discrete Gaussian noise on integer functions of all records."""

    event_types: ClassVar[tuple[type[DpEvent], ...]] = (DiscreteGaussianDpEvent,)

    @property
    def over_sensitivity(self) -> DiscreteGaussianDpEvent:
        """The event with its noise multiplier over the sensitivity."""
        noise = self.event.noise_multiplier / self.clips
        return dataclasses.replace(self.event, noise_multiplier=noise)

    @property
    def has_loose_pld(self) -> bool:
        """Whether the integers are so coarse that the Rényi bound may be the smaller one."""
        return bool(self.event.scale**2 < _FINE_VARIANCE)

    def pld_builder(self) -> PLDBuilder:
        """Builds that of the Gaussian release of variance V - 4, of which this is a function."""
        noise = check_noise(self._gaussian_noise(-_SMOOTHING))
        return lambda interval: pld.from_gaussian_mechanism(
            noise, value_discretization_interval=interval
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """That of the Gaussian release of variance V + 4, which is a function of this one.

        A sensitivity whose square is a whole number is taken as attained; of another one, only its
        whole part, by one entry alone, is certain to be.
        """
        noise = check_noise(self._gaussian_noise(_SMOOTHING))
        squared = (self.event.scale / self.over_sensitivity.noise_multiplier) ** 2
        whole = round(squared)
        is_whole = abs(squared - whole) <= 1e-12 * squared
        attained = whole if is_whole else math.isqrt(math.floor(squared)) ** 2
        if attained == 0:
            raise UnsupportedEventError("no two integers are as close as the sensitivity")
        mu = math.sqrt(min(attained / squared, 1.0)) / noise
        return gaussian_loss_distribution(mu, 1.0, tail, direction)

    def rdp(self, orders: Sequence[float]) -> Array:
        """Returns order / (2 noise^2), that of zero-concentrated differential privacy."""
        noise = float(self.over_sensitivity.noise_multiplier)
        with np.errstate(over="ignore"):
            return np.asarray(orders, float) / (2 * np.square(noise))

    def squared_mu(self) -> float:
        """mu^2 of Gaussian DP: that of the Gaussian release of variance V - 4."""
        return self._gaussian_noise(-_SMOOTHING) ** -2

    def _gaussian_noise(self, added_variance: float) -> float:
        """The noise over the sensitivity of the Gaussian release with this much more variance.

        Raises:
          UnsupportedEventError: the variance is so small that it gives no useful bound.
        """
        variance = float(self.event.scale) ** 2
        if variance < _LEAST_VARIANCE:
            raise UnsupportedEventError(
                f"discrete Gaussian noise of variance {variance:.3g} is too coarse for a Gaussian"
                f" bound, which needs at least {_LEAST_VARIANCE:g}"
            )
        noise = float(self.over_sensitivity.noise_multiplier)
        return noise * math.sqrt(1 + added_variance / variance)
