"""What a sampler is: how batches are drawn on the device, and what that is worth to privacy."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from dpjax._validation import batch_length
from dpjax.accounting.adjacency import Adjacency

NoiseRuns = Sequence[tuple[float, int]]


class Batch(NamedTuple):
    """One physical batch: a fixed shape, some of whose slots may not count.

    Attributes:
      indices: positions in the data set, int32 ``(physical_batch_size,)``; valid everywhere.
      mask: bool ``(physical_batch_size,)``, False in the slots that are only padding.
    """

    indices: jax.Array
    mask: jax.Array


class Sampling(abc.ABC):
    """How one step's batch is drawn from ``num_examples`` records, and the event that makes.

    A sampler is a frozen dataclass used as ``init``, ``draw`` and ``batch``, all jittable. One draw
    may need several physical batches of one fixed shape: ``num_batches(draw)`` of them count. The
    sampler's state holds a key: which records were drawn is a secret.
    """

    num_examples: int
    physical_batch_size: int
    has_public_batch_size: ClassVar[bool] = False  # whether every draw has the same size

    @property
    @abc.abstractmethod
    def expected_batch_size(self) -> float:
        """Mean number of records in a draw: a public constant to divide noisy sums by."""

    @property
    def usual_batches(self) -> int:
        """How many physical batches hold nearly every draw: worth laying out ahead, unlooped."""
        return 1

    @abc.abstractmethod
    def init(self, key: jax.Array) -> Any:
        """Returns the sampler's first state."""

    @abc.abstractmethod
    def draw(self, state: Any) -> tuple[Any, Any]:
        """Returns one draw and the next state."""

    @abc.abstractmethod
    def num_batches(self, draw: Any) -> Any:
        """How many physical batches the draw fills, int32 (at least 0)."""

    @abc.abstractmethod
    def batch(self, draw: Any, part: Any) -> Batch:
        """Returns physical batch number ``part`` of the draw; past the last one all is masked."""

    @abc.abstractmethod
    def step_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one step's noisy sum over the draw."""

    @abc.abstractmethod
    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Refuses an adjacency under which the sampler's event says nothing."""

    @abc.abstractmethod
    def describe(self) -> str:
        """One sentence for the certificate."""

    def event(self, noise: NoiseRuns) -> DpEvent:
        """The event of all steps: ``noise`` lists (noise multiplier, number of steps with it)."""
        return compose([repeated(self.step_event(sigma), count) for sigma, count in noise])


def repeated(event: DpEvent, count: int) -> DpEvent:
    """``count`` independent applications of ``event``."""
    return event if count == 1 else SelfComposedDpEvent(event, count)


def compose(events: Sequence[DpEvent]) -> DpEvent:
    """All of ``events`` on the same records."""
    return events[0] if len(events) == 1 else ComposedDpEvent(list(events))


def gather(data: Any, indices: jax.Array) -> Any:
    """Returns the records of ``data`` (leading example axis on every leaf) at ``indices``."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], data)


def check_data(sampling: Sampling, data: Any) -> None:
    """Refuses a data set of another size than the sampler draws from."""
    found = batch_length(data, "data")
    if found != sampling.num_examples:
        raise ValueError(
            f"data must have the {sampling.num_examples} records that the sampler draws from,"
            f" got {found}"
        )
