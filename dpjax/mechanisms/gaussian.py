"""The Gaussian mechanism with analytic calibration, and the discrete Gaussian mechanism."""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from scipy.special import ndtri

from dpjax._checks import check, check_delta, check_non_negative, check_positive
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import exact_sampling
from dpjax.mechanisms.additive import AdditiveNoise, DiscreteNoise, Sampler
from dpjax.mechanisms.base import check_level
from dpjax.sensitivity.base import Norm, Sensitivity, check_sensitivity


@dataclass(frozen=True)
class Gaussian(AdditiveNoise):
    """A statistic plus Gaussian noise, for L2 sensitivity.

    Attributes:
      sensitivity: of the statistic, in L2.
      scale: the noise's standard deviation, in the units of the statistic.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency. It is Gaussian
      differentially private with ``mu``, the sensitivity over the scale.
    Source: Balle and Wang 2018, Theorem 8; it holds at every epsilon, unlike the classical rule.

    >>> from dpjax import sensitivity
    >>> moments = sensitivity.of_second_moment(1.0, num_features=3, adjacency="add_remove")
    >>> mechanism = Gaussian.from_epsilon(moments, epsilon=1.0, delta=1e-5)
    >>> round(mechanism.scale, 2), round(mechanism.certificate(1e-5).epsilon, 2)
    (3.73, 1.0)
    """

    norm: ClassVar[Norm] = "l2"
    sampler: ClassVar[Sampler] = staticmethod(exact_sampling.discrete_gaussian)

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, delta: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is (epsilon, delta)-private.

        Source: Balle and Wang 2018, Algorithm 1.

        Args:
          sensitivity: of the statistic, in L2.
          epsilon: any finite number above zero.
          delta: in (0, 1).
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: a number out of range, or a sensitivity in another norm.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        check_sensitivity(sensitivity, cls.norm)
        return cls(sensitivity, sensitivity.value / _largest_mu(epsilon, delta), unit)

    @property
    def mu(self) -> float:
        """Parameter mu of Gaussian DP: the sensitivity over the standard deviation."""
        return self.sensitivity.value / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dp_accounting import GaussianDpEvent

        return self._guarantee(
            GaussianDpEvent(self.scale / self.sensitivity.clip_bound),
            statistic=f"one release, of {self._sensitivity_in_words()}",
            noise=f"Gaussian of standard deviation {self.scale:.4g} on every entry",
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry."""
        return self.scale

    def delta(self, epsilon: float) -> float:
        """Returns the exact delta at ``epsilon >= 0``, in closed form (Balle and Wang 2018)."""
        check_non_negative("epsilon", epsilon)
        from dpjax.accounting import gdp

        return gdp.delta(self.mu, epsilon)

    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``."""
        check_level(level)
        return -self.scale * float(ndtri((1 - level) / 2))


@dataclass(frozen=True)
class DiscreteGaussian(DiscreteNoise):
    """Integers plus discrete Gaussian noise, sampled exactly, for L2 sensitivity.

    The noise on each entry is k with a probability in proportion to exp(-k^2 / (2 scale^2)).

    Attributes:
      sensitivity: of the statistic, in L2.
      scale: of the noise; a float or a `Fraction`. The standard deviation is at most this.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency. The certificate's
      epsilon is that of the exact loss, for the worst integer vector within the sensitivity and any
      number of entries, where the scale is below ten and the squared sensitivity at most 30, else
      that of a Gaussian release that is hardly less private
      (`dpjax.accounting.kinds.discrete_gaussian`). It is for the numbers drawn, without rounding
      error. The release is also rho-zero-concentrated, with rho half the square of the sensitivity
      over the scale.

    Source: Canonne, Kamath & Steinke 2020, Theorem 14 (concentration); Karney 2016, Algorithm D
    (sampler).

    >>> from dpjax import sensitivity
    >>> bins = sensitivity.of_histogram(2, norm="l2", adjacency="add_remove")
    >>> mechanism = DiscreteGaussian(bins, scale=2.0)
    >>> import jax, numpy as np
    >>> mechanism.rho, mechanism.release(jax.random.key(1), np.array([3, 0])).shape
    (0.125, (2,))
    """

    scale: float | Fraction  # type: ignore[assignment]
    norm: ClassVar[Norm] = "l2"
    sampler: ClassVar[Sampler] = staticmethod(exact_sampling.discrete_gaussian)

    def __post_init__(self) -> None:
        super().__post_init__()
        moves = self.sensitivity.value
        check(moves >= 1, "sensitivity", moves, "at least 1: two sums of integers differ by that")

    @property
    def rho(self) -> float:
        """Parameter rho of zero-concentrated DP."""
        return float(self.sensitivity.value / self.scale) ** 2 / 2

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dpjax.accounting.kinds.discrete_gaussian import DiscreteGaussianDpEvent

        scale = float(self.scale)
        return self._guarantee_of(
            DiscreteGaussianDpEvent(scale / self.sensitivity.clip_bound, scale),
            "discrete Gaussian",
            f"zero-concentrated differential privacy, rho = {self.rho:.4g}",
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry: at most ``scale``."""
        scale = float(self.scale)
        if scale > 2:  # the difference is below 1e-30
            return scale
        sizes = range(1, 80)
        weights = [math.exp(-(k**2) / (2 * scale**2)) for k in sizes]
        moment = sum(k**2 * weight for k, weight in zip(sizes, weights, strict=True))
        return math.sqrt(2 * moment / (1 + 2 * sum(weights)))

    def half_width(self, level: float) -> float:
        """Returns an integer that absolute noise exceeds with probability at most 1 - ``level``.

        The tail beyond m is at most that of the normal distribution beyond m - 1.
        """
        check_level(level)
        return float(math.ceil(-float(self.scale) * float(ndtri((1 - level) / 2))))


def _largest_mu(epsilon: float, delta: float) -> float:
    """Returns the largest mu, up to rounding, with delta at ``epsilon`` at most ``delta``."""
    from scipy.optimize import brentq

    from dpjax.accounting import gdp

    def excess(log_mu: float) -> float:
        return gdp.delta(math.exp(log_mu), epsilon) / delta - 1

    high = 0.0  # the increasing excess is zero between high - 1 and high
    while excess(high) < 0:
        high += 1.0
    while excess(high - 1.0) >= 0:
        high -= 1.0
    root = float(brentq(excess, high - 1.0, high, xtol=1e-15, rtol=1e-15))
    while excess(root) > 0:
        root -= 1e-15 * max(1.0, abs(root))
    return math.exp(root)
