"""The base class of mechanisms, their adaptive composition, and what one release guarantees."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from dataclasses import KW_ONLY, dataclass
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, NamedTuple, Self, get_args

from dpjax._checks import check, check_choice, check_positive, check_type
from dpjax._html_tables import field_table
from dpjax._typing import PyTree
from dpjax.guarantee import (
    NOT_COUNTED,
    Guarantee,
    Tuning,
    guarantee_caveats,
    guarantee_tables,
    render_guarantee,
)
from dpjax.sampling.base import compose

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpjax.certificates.certificate import Certificate
    from dpjax.sensitivity import Sensitivity

_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_NORM_NAMES = {"l1": "L1", "l2": "L2", "linf": "L-infinity"}


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
    def event(self) -> DpEvent:
        """The dp-accounting event, with noise multipliers relative to *one clip bound*."""
        return self.guarantee.event

    @property
    def num_releases(self) -> int:
        """Number of noisy releases."""
        return self.guarantee.num_releases

    @abc.abstractmethod
    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the mechanism, as private as with all of its noise times ``factor``.

        Args:
          factor: a finite number above zero.
        """

    def certificate(self, delta: float) -> Certificate:
        """Returns the privacy certificate at ``delta``: epsilon by every accountant of the event.

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

    def __str__(self) -> str:
        from dpjax.certificates.render import render_text

        tables = guarantee_tables(self.guarantee)
        return render_text(
            type(self).__name__, tables, "Caveats", guarantee_caveats(self.guarantee)
        )

    def _repr_html_(self) -> str:
        last = [field_table(self)] if dataclasses.is_dataclass(self) else ()
        return render_guarantee(type(self).__name__, self.guarantee, last=last)


@dataclass(frozen=True)
class Composition(Mechanism):
    """Adaptive composition: all ``mechanisms`` run on the same records.

    Attributes:
      mechanisms: at least one, all of one adjacency and one unit of privacy.
      tuning: how the settings of all parts were chosen, as in `SubsampledGaussian`, or
        ``"counted"`` where those of the others follow from a `RepeatedSelection` among them. By
        default what all parts state, if that is the same. A part with a choice that is not counted
        prevails.

    >>> from dpjax.mechanisms import SubsampledGaussian
    >>> from dpjax.sampling import PoissonSampling
    >>> once = SubsampledGaussian(
    ...     PoissonSampling(100, 1.0), l2_clip=1.0, noise_multiplier=2.0, num_steps=1,
    ...     adjacency="add_remove"
    ... )
    >>> both = Composition((once, once))
    >>> both.num_releases, both.certificate(1e-5).epsilon > once.certificate(1e-5).epsilon
    (2, True)
    """

    mechanisms: tuple[Mechanism, ...]
    _: KW_ONLY
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_type("mechanisms", self.mechanisms, tuple | list, "a tuple of mechanisms")
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        for mechanism in self.mechanisms:
            check_type("mechanisms", mechanism, Mechanism, "a tuple of mechanisms")
        check(len(self.mechanisms) > 0, "mechanisms", self.mechanisms, "at least one mechanism")
        for name in ("adjacency", "unit"):
            values = {getattr(mechanism.guarantee, name) for mechanism in self.mechanisms}
            check(len(values) == 1, f"mechanisms' {name}", sorted(values), "the same for all")
        if self.tuning is not None:
            check_choice("tuning", self.tuning, get_args(Tuning))
        selects = any(mechanism.guarantee.tuning == "counted" for mechanism in self.mechanisms)
        if self.tuning == "counted" and not selects:
            raise ValueError(
                "tuning must be another without a RepeatedSelection among the mechanisms, got"
                " 'counted'"
            )

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        guarantees = [mechanism.guarantee for mechanism in self.mechanisms]
        constants = [constant for each in guarantees for constant in each.size_constants]
        sizes = {each.num_examples for each in guarantees} - {None}

        # A choice that is not counted in a part is not counted in the whole.
        tunings = {each.tuning for each in guarantees}
        tuning = self.tuning
        if NOT_COUNTED in tunings:
            tuning = NOT_COUNTED
        elif tuning is None and len(tunings) == 1:
            (tuning,) = tunings

        return Guarantee(
            event=compose([each.event for each in guarantees]),
            adjacency=guarantees[0].adjacency,
            unit=guarantees[0].unit,
            num_releases=sum(each.num_releases for each in guarantees),
            description=self._description(),
            exact_noise=all(each.exact_noise for each in guarantees),
            size_constants=tuple(dict.fromkeys(constants)),
            num_examples=sizes.pop() if len(sizes) == 1 else None,
            tuning=tuning,
        )

    def _description(self) -> dict[str, str]:
        """Returns the descriptions of all parts, those of a run of equal ones once."""
        description: dict[str, str] = {}
        number = 1
        described = (dict(each.guarantee.description) for each in self.mechanisms)
        for equal, parts in itertools.groupby(described):
            last = number + len(list(parts)) - 1
            word = "and" if last == number + 1 else "to"
            name = f"part {number}" if number == last else f"parts {number} {word} {last}, each"
            description |= {f"{name}, {heading}": text for heading, text in equal.items()}
            number = last + 1
        return description

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the composition of the mechanisms with their noise multiplied by ``factor``."""
        check_positive("factor", factor)
        scaled = tuple(mechanism.with_privacy_factor(factor) for mechanism in self.mechanisms)
        return dataclasses.replace(self, mechanisms=scaled)


class Interval(NamedTuple):
    """Lower and upper ends of confidence intervals, each shaped like the released value.

    Attributes:
      low: lower ends.
      high: upper ends.
    """

    low: PyTree
    high: PyTree


def one_release(
    event: DpEvent, sensitivity: Sensitivity, unit: str, **description: str
) -> Guarantee:
    """Returns the guarantee of one release of a statistic with exact noise."""
    return Guarantee(
        event=event,
        adjacency=sensitivity.adjacency,
        unit=unit,
        num_releases=1,
        description=description,
        exact_noise=True,
    )


def format_sensitivity(sensitivity: Sensitivity) -> str:
    """Returns value and norm of a sensitivity as text for certificates."""
    return f"sensitivity {float(sensitivity.value):.4g} in {_NORM_NAMES[sensitivity.norm]}"


def format_pure_dp(epsilon: float) -> str:
    """Returns a sentence on a pure guarantee, to four digits rounded up."""
    shown = float(_FOUR_DIGITS_UP.create_decimal(str(float(epsilon))))
    return f"pure differential privacy: epsilon at most {shown:.4g} at any delta, zero included"
