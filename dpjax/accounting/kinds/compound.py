"""Events that hold other events, and events stated by a guarantee alone."""

import math
from typing import ClassVar

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dpjax.accounting.events import AtomicEvent, atomic_event, is_nonprivate, with_inner
from dpjax.adjacency import Adjacency


class NonPrivate(AtomicEvent):
    """The records themselves, or anything else without a guarantee."""

    event_types = (dp_event.NonPrivateDpEvent,)
    is_stated_for_neighbors = True
    constant_noise = 0.0


class NoOp(AtomicEvent):
    """Nothing."""

    event_types = (dp_event.NoOpDpEvent,)
    constant_noise = math.inf


class ConcentratedDP(AtomicEvent):
    """A release stated by its zero-concentrated differential privacy (zCDP) alone."""

    event_types = (dp_event.ZCDpEvent,)
    is_stated_for_neighbors = True


class Composed(AtomicEvent):
    """Several releases inside another event, such as a selection between compositions."""

    event_types = (dp_event.ComposedDpEvent,)

    @property
    def accounting_adjacency(self) -> Adjacency:
        """The adjacency of the bounds: replace-one if any part is bounded under replace-one."""
        parts = [
            atomic_event(part, self.adjacency).accounting_adjacency for part in self.event.events
        ]
        return "replace_one" if "replace_one" in parts else self.adjacency

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        """The event, with each release's noise stated over its sensitivity."""
        parts = (atomic_event(part, self.accounting_adjacency) for part in self.event.events)
        return type(self.event)([part.unit_sensitivity_event for part in parts])


class Compound(AtomicEvent):
    """A sampled, repeated or selected release that has no kind of its own."""

    event_types: ClassVar[tuple[type[DpEvent], ...]] = (
        dp_event.PoissonSampledDpEvent,
        dp_event.RepeatAndSelectDpEvent,
        dp_event.SampledWithoutReplacementDpEvent,
        dp_event.SelfComposedDpEvent,
    )
    is_sampled = True

    @property
    def accounting_adjacency(self) -> Adjacency:
        """Replace-one for a sample of fixed size under zero-out, else as the inner release."""
        fixed_size = isinstance(self.event, dp_event.SampledWithoutReplacementDpEvent)
        if fixed_size and self.adjacency == "zero_out":
            return "replace_one"
        return atomic_event(self.event.event, self.adjacency).accounting_adjacency

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        """The event, with the inner release's noise stated over its sensitivity."""
        inner = atomic_event(self.event.event, self.accounting_adjacency)
        return with_inner(self.event, inner.unit_sensitivity_event)

    @classmethod
    def noise(cls, event: DpEvent) -> float:
        """Infinite where no record is ever sampled, zero where the inner release has no noise."""
        if getattr(event, "sampling_probability", 1) == 0:
            return math.inf
        return 0.0 if is_nonprivate(event.event) else 1.0
