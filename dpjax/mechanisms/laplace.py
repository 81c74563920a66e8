"""The Laplace mechanism and the discrete Laplace mechanism."""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from dpjax._checks import check, check_positive
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import exact_sampling
from dpjax.mechanisms.additive import AdditiveNoise, DiscreteNoise, Sampler
from dpjax.mechanisms.base import check_level, pure_in_words
from dpjax.mechanisms.host import exact
from dpjax.mechanisms.statistic_events import discrete_laplace_event
from dpjax.sensitivity.base import Norm, Sensitivity, check_sensitivity


@dataclass(frozen=True)
class Laplace(AdditiveNoise):
    """A statistic plus Laplace noise: pure differential privacy, for L1 sensitivity.

    The noise on each entry has density exp(-|x| / scale) / (2 scale), mean size ``scale`` and
    standard deviation sqrt(2) ``scale``.

    Attributes:
      sensitivity: of the statistic, in L1.
      scale: of the noise, in the units of the statistic; epsilon is the sensitivity over it.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency.

    Source: Dwork, McSherry, Nissim, Smith 2006, Proposition 1.

    >>> from dpjax import sensitivity
    >>> weight = sensitivity.of_mean((30, 60), 25, norm="l1", adjacency="replace_one")
    >>> mechanism = Laplace.from_epsilon(weight, epsilon=1.0)
    >>> import jax
    >>> mechanism.scale, mechanism.release(jax.random.key(0), 45.0).shape
    (1.2, ())
    """

    norm: ClassVar[Norm] = "l1"
    sampler: ClassVar[Sampler] = staticmethod(exact_sampling.discrete_laplace)

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is ``epsilon``-differentially private.

        Args:
          sensitivity: of the statistic, in L1.
          epsilon: any finite number above zero.
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: ``epsilon`` is out of range, or the sensitivity is in another norm.
        """
        check_positive("epsilon", epsilon)
        check_sensitivity(sensitivity, cls.norm)
        return cls(sensitivity, sensitivity.value / epsilon, unit)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero: the sensitivity over the scale."""
        return self.sensitivity.value / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dp_accounting import LaplaceDpEvent

        return self._guarantee(
            LaplaceDpEvent(self.scale / self.sensitivity.clip_bound),
            statistic=f"one release, of {self._sensitivity_in_words()}",
            noise=f"Laplace of scale {self.scale:.4g} on every entry",
            guarantee=pure_in_words(self.pure_epsilon),
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry: sqrt(2) ``scale``."""
        return math.sqrt(2) * self.scale

    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``."""
        check_level(level)
        return -self.scale * math.log1p(-level)


@dataclass(frozen=True)
class DiscreteLaplace(DiscreteNoise):
    """Integers plus discrete Laplace noise, sampled exactly: pure differential privacy.

    The noise on each entry is k with a probability in proportion to exp(-|k| / scale): the
    difference of two geometric variables. It is the geometric mechanism.

    Attributes:
      sensitivity: of the statistic, in L1; a whole number.
      scale: of the noise; a float or a `Fraction`. Epsilon is the sensitivity over it.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency; without
      rounding error. The time of a draw depends on the noise.

    Source: Ghosh, Roughgarden, Sundararajan 2012 (mechanism); Canonne, Kamath, Steinke 2020,
    Algorithm 2 (sampler).

    >>> from dpjax import sensitivity
    >>> count = sensitivity.of_count(norm="l1", adjacency="add_remove")
    >>> mechanism = DiscreteLaplace.from_epsilon(count, epsilon=0.5)
    >>> import jax
    >>> mechanism.release(jax.random.key(3), 120).dtype
    dtype('int64')
    """

    scale: float | Fraction  # type: ignore[assignment]
    norm: ClassVar[Norm] = "l1"
    sampler: ClassVar[Sampler] = staticmethod(exact_sampling.discrete_laplace)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = float(self.sensitivity.value).is_integer()
        check(whole, "sensitivity", self.sensitivity, "a whole number")

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is ``epsilon``-differentially private.

        Its scale is a `Fraction`, so that epsilon is exact.

        Args:
          sensitivity: of the statistic, in L1; a whole number.
          epsilon: any finite number above zero.
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: ``epsilon`` is out of range, or the sensitivity is in another norm or no whole
            number.
        """
        check_positive("epsilon", epsilon)
        check_sensitivity(sensitivity, cls.norm)
        return cls(sensitivity, exact(sensitivity.value) / exact(epsilon), unit)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero: the sensitivity over the scale."""
        return float(self.sensitivity.value / self.scale)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        event = discrete_laplace_event(self.sensitivity, float(self.scale))
        return self._guarantee_of(event, "discrete Laplace", pure_in_words(self.pure_epsilon))

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry."""
        rate = 1 / float(self.scale)
        return math.sqrt(2) * math.exp(-rate / 2) / -math.expm1(-rate)

    def half_width(self, level: float) -> float:
        """Returns the least integer that noise exceeds with probability at most 1 - ``level``."""
        check_level(level)
        ratio = math.exp(-1 / float(self.scale))
        beyond = float(self.scale) * math.log(2 / ((1 - level) * (1 + ratio)))
        return float(max(0, math.ceil(beyond - 1)))
