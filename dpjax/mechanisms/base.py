"""Base classes of mechanisms: any mechanism, and those that release one statistic."""

import abc
import dataclasses
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import jax

from dpjax._checks import (
    as_numbers,
    check_arrays,
    check_normal,
    check_positive,
    check_text,
)
from dpjax._typing import ArrayTree
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Guarantee
from dpjax.sensitivity import Norm, Sensitivity, check_sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpjax.certificates.certificate import Certificate

_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_NORM_IN_WORDS = {"l1": "L1", "l2": "L2", "linf": "L-infinity"}


class Mechanism(abc.ABC):
    """Base class of mechanisms: parameters from which release, event and certificate are derived.

    A mechanism is a frozen dataclass. The computation (a sampler, an optax transformation, a
    one-shot release) and the guarantee for the accountants are both derived from its fields, so
    they agree. A subclass defines ``guarantee``, as a ``functools.cached_property``.
    """

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """What is released and for which neighbours: event, adjacency, unit and description."""

    @property
    def event(self) -> "DpEvent":
        """The dp-accounting event, with noise multipliers relative to *one clip bound*."""
        return self.guarantee.event

    @property
    def num_releases(self) -> int:
        """Number of noisy values released."""
        return self.guarantee.num_releases

    @abc.abstractmethod
    def with_privacy_factor(self, factor: float) -> "Mechanism":
        """Returns the mechanism, as private as with all of its noise times ``factor``.

        Args:
          factor: a finite number above zero.
        """

    def certificate(self, delta: float) -> "Certificate":
        """Returns the certificate at ``delta``, by every accountant that supports the event.

        Args:
          delta: in (0, 1); customarily well below one over the number of records.

        Returns:
          A `Certificate`: bounds on epsilon at ``delta``, attack risks, and the description of the
          mechanism.

        Raises:
          ValueError: ``delta`` is out of range, or no accountant supports the event.
        """
        from dpjax.certificates.certificate import certify

        return certify(self.guarantee, delta)


class Interval(NamedTuple):
    """Lower and upper ends of confidence intervals, each shaped like the released value.

    Attributes:
      low: lower ends.
      high: upper ends.
    """

    low: Any  # the structure of the released tree, as the caller has it
    high: Any


@dataclass(frozen=True)
class OneStatistic(Mechanism):
    """One release of a statistic of stated sensitivity, with noise of one scale.

    Attributes:
      sensitivity: of the statistic, in the mechanism's own norm. Its adjacency is the mechanism's,
        and nothing of another shape than it states is released.
      scale: of the noise, in the units of the statistic.
      unit: the unit of privacy, for example ``"one record"``.

    Raises:
      TypeError: ``sensitivity`` is not a `Sensitivity`.
      ValueError: it is stated in another norm, or ``scale`` is not a finite number above zero.
    """

    sensitivity: Sensitivity
    scale: float
    unit: str = "one record"
    norm: ClassVar[Norm]

    def __post_init__(self) -> None:
        check_sensitivity(self.sensitivity, self.norm)
        check_normal("scale", self.scale)
        check_text("unit", self.unit)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the sensitivity."""
        return self.sensitivity.adjacency

    def _guarantee(self, event: "DpEvent", **description: str) -> Guarantee:
        """One release, whose noise is exact: on a public grid, by integer arithmetic."""
        return Guarantee(
            event=event,
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=1,
            description=description,
            exact_noise=True,
        )

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the same mechanism with ``scale`` times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    def _sensitivity_in_words(self) -> str:
        return f"sensitivity {float(self.sensitivity.value):.4g} in {_NORM_IN_WORDS[self.norm]}"


class NoisyStatistic(OneStatistic):
    """A statistic plus independent, identically distributed noise on every entry."""

    @property
    @abc.abstractmethod
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry (drawn up to 1e-9 larger, relatively)."""

    @abc.abstractmethod
    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``.

        Args:
          level: in (0, 1).

        Raises:
          ValueError: ``level`` is out of range.
        """

    def confidence_interval(self, released: ArrayTree, level: float) -> Interval:
        """Returns confidence intervals for the statistic without noise, entry by entry.

        Post-processing, at no privacy cost. Sampling error of the statistic is not included.

        Args:
          released: what ``release`` returned.
          level: the probability, in (0, 1), with which each interval covers; not all together.

        Returns:
          Both ends, shaped like ``released``.

        Raises:
          ValueError: ``level`` is out of range.
        """
        check_arrays("released", released)
        for leaf in jax.tree.leaves(released):
            as_numbers(leaf, "released")
        width = self.half_width(level)
        low = jax.tree.map(lambda leaf: leaf - width, released)
        return Interval(low, jax.tree.map(lambda leaf: leaf + width, released))


def format_pure_dp(epsilon: float) -> str:
    """Returns a sentence on a pure guarantee, to four digits rounded up."""
    shown = float(_FOUR_DIGITS_UP.create_decimal(str(float(epsilon))))
    return f"pure differential privacy: epsilon at most {shown:.4g} at any delta, zero included"
