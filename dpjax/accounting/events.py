"""Events, decomposed once into the atomic events that accountants, bounds and curves are given.

Every kind of event is a subclass of `AtomicEvent` in a file of `dpjax.accounting.kinds`, with its
privacy loss distribution, Rényi divergence, trade-off function and lower bound together. A subclass
registers itself by being defined; the accountants loop over atomic events without a case for each
kind.

An event's noise multiplier is the noise's standard deviation over *one clip bound*, whatever the
adjacency. Accountants need the noise over the *sensitivity*: two clip bounds where a record is
replaced, else one. dp-accounting's accountants differ in who doubles: its privacy loss
distributions of subsampled Gaussians double by themselves under replace-one, its Rényi accountant
never does. So an atomic event has both, ``event`` and ``unit_sensitivity_event``, and no other
module multiplies or divides by the sensitivity.

Under zero-out a sample of fixed size is bounded as under replace-one, of which zeroing is a case:
without the record another one takes its place in the batch, and the two batch sums, each of norm up
to one clip bound, are up to two apart. If the sample is all of the data, none takes its place.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from absl import logging
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax._checks import check
from dpjax.accounting.loss_distribution import Array, Direction, GridLosses, LossDistribution
from dpjax.accounting.tradeoff.base import TradeOff
from dpjax.adjacency import (
    Adjacency,
    check_adjacency,
    neighboring_relation,
    sensitivity_factor,
)

# From a discretisation interval to the losses on its multiples.
GridBuilder = Callable[[float], GridLosses]

# Losses of a smaller probability do not set the scale of a grid.
TAIL = 1e-12
# Every different noise multiplier costs about as much as a composition of equal ones.
MOST_NOISES = 128
# A smaller noise multiplier counts as none, a larger one as this: their squares are near the ends
# of the range of floats, and epsilon is beyond 1e100 in the one case and zero in the other.
_LEAST_NOISE, _LARGEST_NOISE = 1e-100, 1e100
# A deviation below the first number, relative to the largest loss, is taken to be the second.
_CONSTANT, _LEAST_DEVIATION = 1e-6, 1e-3
_KINDS: list["type[AtomicEvent]"] = []


class UnsupportedEventError(ValueError):
    """An accountant does not support an event under an adjacency; the message gives the reason."""


class TooLittleNoiseError(UnsupportedEventError):
    """An accountant supports the event, but not with so little noise."""


@dataclass(frozen=True)
class AtomicEvent:
    """One event that composes no others, under one adjacency.

    This base class serves events of which dp-accounting has a Rényi divergence at most. A subclass
    names the events of its kind and overrides what more is known of them.

    Attributes:
      event: what is released, its noise stated over one clip bound.
      adjacency: the neighbouring relation.
    """

    event: DpEvent
    adjacency: Adjacency

    event_types: ClassVar[tuple[type[DpEvent], ...]] = ()
    inner_type: ClassVar[type[DpEvent]] = DpEvent  # of what a sampled event samples
    is_sampled: ClassVar[bool] = False
    # Whether adding and removing a record have losses of different distributions.
    is_asymmetric: ClassVar[bool] = False
    # Whether the event's parameters are stated for neighbours, so that nothing is doubled.
    is_stated_for_neighbors: ClassVar[bool] = False
    # What ``noise`` is of events without a noise multiplier.
    constant_noise: ClassVar[float] = 1.0

    def __init_subclass__(cls) -> None:
        _KINDS.append(cls)

    @classmethod
    def noise(cls, event: DpEvent) -> float:
        """Returns the noise multiplier of ``event``, or one where it has none.

        It is zero where something is released without noise, infinity where no record matters.
        """
        return float(getattr(event, "noise_multiplier", cls.constant_noise))

    @property
    def rdp_may_be_tighter(self) -> bool:
        """Whether the Rényi bound may be below that of the privacy loss distribution."""
        return False

    @property
    def accounting_adjacency(self) -> Adjacency:
        """The adjacency under which it is accounted for: its own, or one that includes its own."""
        return self.adjacency

    @property
    def sensitivity_factor(self) -> int:
        """Sensitivity of the sum over the clip bound: 2 under replace-one, else 1."""
        return sensitivity_factor(self.accounting_adjacency)

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        """The event with its noise stated over the sensitivity.

        Raises:
          UnsupportedEventError: the sensitivity under the adjacency is not known.
        """
        if self.sensitivity_factor == 1 or self.is_stated_for_neighbors:
            return self.event
        if isinstance(self.event, GaussianDpEvent | LaplaceDpEvent):
            return type(self.event)(self.event.noise_multiplier / self.sensitivity_factor)
        raise UnsupportedEventError(f"the sensitivity of {event_name(self.event)} is not known")

    @property
    def aligned_loss(self) -> float | None:
        """A loss that must be on the distribution's grid, such as the largest; None: none."""
        return None

    def grid_builder(self) -> GridBuilder:
        """Returns the constructor of the losses on a grid, which is pessimistic.

        Raises:
          UnsupportedEventError: there is none, or its grid would be too large.
        """
        raise UnsupportedEventError(
            f"no privacy loss distribution of {event_name(self.event)} is known under this"
            " adjacency: its kind has no grid_builder"
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Returns the distribution of the loss between two neighbours.

        Lower bounds are composed of it; of upper bounds it sets spacing and range of the grid.

        Args:
          direction: ``"add"`` where the first of the two lacks the record, ``"remove"`` where it
            has it; the pairs of replace-one are symmetric.
          tail: a mass of at most twice this is left out.

        Raises:
          UnsupportedEventError: no pair of neighbours whose loss has a known distribution.
        """
        raise UnsupportedEventError(
            f"no distribution of the loss of {event_name(self.event)} is known under this"
            " adjacency, which upper and lower bounds need: its kind has no loss_distribution"
        )

    def neighbor_losses(self, direction: Direction, tail: float) -> tuple[LossDistribution, ...]:
        """Returns the ``loss_distribution`` of each pair of neighbours, where none is the worst."""
        return (self.loss_distribution(direction, tail),)

    def loss_range(self) -> float:
        """Returns the width of the losses that a grid must cover, but for rare ones."""
        return float(np.ptp(self.loss_distribution("remove", TAIL).nodes[0]))

    def tradeoff(self) -> TradeOff | None:
        """Returns the trade-off function, where it is exact and in closed form."""
        return None

    def rdp(self, orders: Sequence[float]) -> Array:
        """Returns upper bounds on the Rényi divergences at ``orders``, by dp-accounting.

        Raises:
          UnsupportedEventError: dp-accounting has none for the event.
        """
        accountant = RdpAccountant(orders, neighboring_relation(self.accounting_adjacency))
        if not accountant.supports(self.unit_sensitivity_event):
            name = event_name(self.event)
            raise UnsupportedEventError(
                f"dp-accounting has no Rényi divergence for {name} under this adjacency"
            )
        # dp-accounting warns that it leaves out an order, which is safe.
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            accountant.compose(self.unit_sensitivity_event)
        finally:
            logging.set_verbosity(verbosity)
        return np.asarray(accountant.rdp, float)

    def log_moments(self, orders: Sequence[float]) -> Array:
        """Returns the log moments of the privacy loss: (order - 1) times the Rényi divergence."""
        return (np.asarray(orders, float) - 1) * self.rdp(orders)

    def squared_mu(self) -> float:
        """Returns mu squared of mu-Gaussian differential privacy, exact or by the central limit.

        Raises:
          UnsupportedEventError: neither is known.
        """
        name = event_name(self.event)
        raise UnsupportedEventError(f"no central limit for {name} under this adjacency")


# The atomic events of a composition, each with the number of times it occurs.
AtomicEvents = tuple[tuple[AtomicEvent, int], ...]


def decompose(event: DpEvent, adjacency: Adjacency) -> AtomicEvents:
    """Returns the atomic events that ``event`` is composed of, equal ones counted together.

    Nested compositions are flattened, and what depends on no record is left out. All Gaussian
    releases on the whole data become the one Gaussian release they are equivalent to, and so do
    several Gaussian releases on one sample.

    Args:
      event: what is released; noise multipliers are over one clip bound.
      adjacency: the neighbouring relation of every atomic event.

    Raises:
      UnsupportedEventError: an event whose sensitivity under ``adjacency`` is not known.
    """
    check_adjacency(adjacency)

    # Flatten, with the Gaussian releases on all records apart from everything else.
    gaussians: list[tuple[DpEvent, int]] = []
    others: dict[str, tuple[DpEvent, int]] = {}
    for leaf, count in _flatten(event):
        fixed_size = isinstance(leaf, dp_event.SampledWithoutReplacementDpEvent)
        if adjacency == "zero_out" and fixed_size and leaf.sample_size == leaf.source_dataset_size:
            leaf = leaf.event  # a sample that holds every record
        if isinstance(leaf, GaussianDpEvent):
            gaussians.append((leaf, count))
        else:
            name = repr(leaf)
            others[name] = leaf, others.get(name, (leaf, 0))[1] + count

    # Count what is equal.
    leaves = [(_joint_gaussian(gaussians), 1)] if gaussians else []
    atoms = tuple(
        (atomic_event(leaf, adjacency), count) for leaf, count in [*leaves, *others.values()]
    )

    # Refuse an unknown sensitivity, unless no accountant is asked.
    if not is_nonprivate(atoms):
        for atom, _ in atoms:
            atom.unit_sensitivity_event  # noqa: B018 - raises where the sensitivity is unknown
    return atoms


def is_nonprivate(atoms: AtomicEvents) -> bool:
    """Whether some event has no noise, so that no finite epsilon holds at delta 0.

    A noise multiplier below 1e-100 counts as no noise.
    """
    return any(atom.noise(atom.event) < _LEAST_NOISE for atom, _ in atoms)


def loss_deviation(atoms: AtomicEvents) -> float:
    """Returns the root mean square, over releases, of the standard deviation of the loss."""
    if not atoms:
        return 1.0
    variances = []
    for atom, _ in atoms:
        losses, weights = atom.loss_distribution("remove", TAIL).nodes
        variance = float(weights @ losses**2 - (weights @ losses) ** 2)
        # A loss next to constant, of hardly any noise, needs an interval above zero too.
        largest = float(np.max(np.abs(losses)))
        if variance < (_CONSTANT * largest) ** 2:
            variance = (_LEAST_DEVIATION * largest) ** 2
        variances.append(variance)
    return math.sqrt(np.average(variances, weights=[count for _, count in atoms]))


def coarsen_noise_schedule(atoms: AtomicEvents, side: Literal["upper", "lower"]) -> AtomicEvents:
    """Replaces a long noise schedule by one with at most 128 different noise multipliers.

    The range of noise multipliers is cut evenly in ratios. Those of one interval become the least
    of them for an ``"upper"`` bound, the largest for a ``"lower"`` one: adding noise to a release
    is post-processing, so less noise is never more private. Only Poisson-sampled Gaussian releases
    are merged.
    """
    # Group them by sampling rate.
    by_rate: dict[float, list[tuple[float, AtomicEvent, int]]] = {}
    coarse = []
    for atom, count in atoms:
        match atom.event:
            case dp_event.PoissonSampledDpEvent(
                sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=noise)
            ) if noise > 0:
                by_rate.setdefault(rate, []).append((float(noise), atom, count))
            case _:
                coarse.append((atom, count))

    # Cut the range of each large group, and count what is between two cuts as its extreme.
    for group in by_rate.values():
        if len(group) <= MOST_NOISES:
            coarse += [(atom, count) for _, atom, count in group]
            continue
        group.sort(key=lambda row: row[0])
        logs = np.log([noise for noise, _, _ in group])
        cuts = np.searchsorted(logs, np.linspace(logs[0], logs[-1], MOST_NOISES + 1)[1:-1])
        for start, end in zip([0, *cuts], [*cuts, len(group)], strict=True):
            if start < end:
                extreme = group[start if side == "upper" else end - 1][1]
                coarse.append((extreme, sum(count for _, _, count in group[start:end])))
    return tuple(coarse)


def atomic_event(event: DpEvent, adjacency: Adjacency) -> AtomicEvent:
    """Returns the `AtomicEvent` of an event, of the subclass that is registered for its type."""
    return _kind_of(event)(event, adjacency)


def event_name(event: DpEvent) -> str:
    """Returns the type of ``event``, and after "of" the type of what it samples or repeats."""
    inner = getattr(event, "event", None)
    return type(event).__name__ + ("" if inner is None else f" of {event_name(inner)}")


def event_values(event: DpEvent) -> dict[str, Any]:
    """Returns an event as JSON-ready values: its type, its parameters and the events inside it.

    >>> event_values(dp_event.PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0)))
    {'type': 'PoissonSampled', 'sampling_probability': 0.5,
     'event': {'type': 'Gaussian', 'noise_multiplier': 2.0}}
    """
    # dp-accounting's events are classes of attrs, dpjax's are dataclasses.
    is_own = dataclasses.is_dataclass(event)
    fields = dataclasses.fields(event) if is_own else type(event).__attrs_attrs__
    values: dict[str, Any] = {"type": type(event).__name__.removesuffix("DpEvent")}
    for field in fields:
        value = getattr(event, field.name)
        if isinstance(value, DpEvent):
            value = event_values(value)
        elif isinstance(value, list | tuple):
            value = [event_values(inner) for inner in value]
        elif isinstance(value, np.generic):
            value = value.item()
        values[field.name] = value
    return values


def with_inner(event: DpEvent, inner: DpEvent) -> DpEvent:
    """Returns a sampled, repeated or selected event with ``inner`` in place of what it holds.

    Raises:
      UnsupportedEventError: an event of another type.
    """
    match event:
        case dp_event.PoissonSampledDpEvent():
            return type(event)(event.sampling_probability, inner)
        case dp_event.SampledWithoutReplacementDpEvent():
            return type(event)(event.source_dataset_size, event.sample_size, inner)
        case dp_event.SelfComposedDpEvent():
            return type(event)(inner, event.count)
        case dp_event.RepeatAndSelectDpEvent():
            return type(event)(inner, event.mean, event.shape)
        case _:
            raise UnsupportedEventError(f"the sensitivity of {event_name(event)} is not known")


def _kind_of(event: DpEvent) -> type[AtomicEvent]:
    """Returns the class of the last registered kind that ``event`` is of."""
    for kind in reversed(_KINDS):
        if isinstance(event, kind.event_types) and (
            kind.inner_type is DpEvent or isinstance(event.event, kind.inner_type)
        ):
            return kind
    return AtomicEvent


def _flatten(event: DpEvent, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yields the uncomposed releases of ``event`` that depend on the data, with their counts."""
    check(isinstance(event, DpEvent), "event", event, "a dp_accounting.DpEvent")
    match event:
        # Compositions, at any depth.
        case dp_event.SelfComposedDpEvent():
            yield from _flatten(event.event, event.count * count)
        case dp_event.ComposedDpEvent():
            for inner in event.events:
                yield from _flatten(inner, count)

        # What no record has an influence on.
        case _ if count == 0 or _kind_of(event).noise(event) == math.inf:
            return

        # Samples, their Gaussian releases joined; a sample of all records is none.
        case dp_event.PoissonSampledDpEvent(sampling_probability=1):
            yield from _flatten(event.event, count)
        case dp_event.PoissonSampledDpEvent() | dp_event.SampledWithoutReplacementDpEvent():
            leaves = list(_flatten(event.event))
            if leaves and all(isinstance(leaf, GaussianDpEvent) for leaf, _ in leaves):
                event = with_inner(event, _joint_gaussian(leaves))
            if leaves:
                yield event, count
        case _:
            yield event, count


def _joint_gaussian(gaussians: list[tuple[DpEvent, int]]) -> DpEvent:
    """Returns the Gaussian release equivalent to all of ``gaussians`` together."""
    noises = [min(float(leaf.noise_multiplier), _LARGEST_NOISE) for leaf, _ in gaussians]
    least = min(noises)
    if least < _LEAST_NOISE or (len(noises) == 1 and gaussians[0][1] == 1):
        return GaussianDpEvent(least)
    precision = sum(count / noise**2 for noise, (_, count) in zip(noises, gaussians, strict=True))
    return GaussianDpEvent(precision**-0.5)


class NonPrivate(AtomicEvent):
    """The records themselves, or anything else without a guarantee."""

    event_types = (dp_event.NonPrivateDpEvent,)
    is_stated_for_neighbors = True
    constant_noise = 0.0


class NoOp(AtomicEvent):
    """The release of nothing, which depends on no record."""

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
        """Replace-one if any event is accounted for under it, else the event's own."""
        inner = (atomic_event(event, self.adjacency) for event in self.event.events)
        replaced = "replace_one" in {event.accounting_adjacency for event in inner}
        return "replace_one" if replaced else self.adjacency

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        inner = (atomic_event(event, self.accounting_adjacency) for event in self.event.events)
        return type(self.event)([event.unit_sensitivity_event for event in inner])


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
        """Replace-one for a sample of fixed size under zero-out, else as the inner event."""
        fixed_size = isinstance(self.event, dp_event.SampledWithoutReplacementDpEvent)
        if fixed_size and self.adjacency == "zero_out":
            return "replace_one"
        return atomic_event(self.event.event, self.adjacency).accounting_adjacency

    @property
    def unit_sensitivity_event(self) -> DpEvent:
        inner = atomic_event(self.event.event, self.accounting_adjacency)
        return with_inner(self.event, inner.unit_sensitivity_event)

    @classmethod
    def noise(cls, event: DpEvent) -> float:
        """Returns infinity where no record is ever sampled, zero where the inner event is zero."""
        if getattr(event, "sampling_probability", 1) == 0:
            return math.inf
        inner = (_kind_of(leaf).noise(leaf) for leaf, _ in _flatten(event.event))
        least = min(inner, default=math.inf)
        return least if math.isinf(least) else 0.0 if least < _LEAST_NOISE else 1.0
