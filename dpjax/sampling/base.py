"""The interface of a sampler: draws batches on the device, and returns their privacy event."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from dpjax._checks import as_count, as_key, as_numbers, batch_length, check, check_type
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import ArrayTree, PRNGKey, PyTree
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public

if TYPE_CHECKING:
    from dp_accounting import DpEvent

T = TypeVar("T", bound=ArrayTree)

NoiseRuns = Sequence[tuple[float, int]]
# Far from the counters that keys of draws are split off with.
_SUBSET_STREAM = 0x73756273


class Batch(NamedTuple):
    """One physical batch of fixed shape, padded and masked.

    Attributes:
      indices: positions in the data set, int32 ``(physical_batch_size,)``; valid everywhere.
      mask: bool ``(physical_batch_size,)``, False for padding.
    """

    indices: jax.Array
    mask: jax.Array


class Participation(NamedTuple):
    """In which steps one record can take part.

    Attributes:
      separation: the least number of steps from one to the next.
      is_fixed: whether they are without chance, ``separation`` apart.
    """

    separation: int
    is_fixed: bool


class Sampling(abc.ABC):
    """A batch sampler over ``num_examples`` records, with the privacy event of its batches.

    A sampler is a frozen dataclass; ``init``, ``draw`` and ``batch`` work under jit. One draw may
    need several physical batches of one fixed shape: the first ``num_batches(draw)`` hold it. The
    sampler's state holds a key: which records were drawn is a secret.

    Attributes:
      num_examples: number of records n.
      physical_batch_size: slots of a physical batch.
      expected_batch_size: public constant that noisy sums are divided by.
      has_public_batch_size: whether every draw has the same, public number of records.
    """

    num_examples: int
    physical_batch_size: int
    expected_batch_size: float
    has_public_batch_size: ClassVar[bool] = False

    @property
    def num_rows(self) -> int | None:
        """Length of the data that a batch's indices refer to; ``None`` if any will do."""
        return self.num_examples

    @property
    def num_static_batches(self) -> int:
        """Number of physical batches that hold nearly every draw, and are always computed."""
        return 1

    @property
    def size_constants(self) -> tuple[str, ...]:
        """Names of published constants computed from n: under add/remove they make n public."""
        return ()

    def init(self, key: PRNGKey) -> PyTree:
        """Returns the sampler's first state: by default ``key``, that of the first draw."""
        return as_key(key)

    @abc.abstractmethod
    def draw(self, state: PyTree) -> tuple[PyTree, PyTree]:
        """Returns one draw and the next state; the same state gives the same draw.

        Args:
          state: from ``init`` or the previous draw.
        """

    def members_at(self, state: PyTree, positions: jax.Array) -> jax.Array:
        """Returns which records at ``positions`` the draw from ``state`` holds.

        For records that are split over devices: each asks for its own.

        Args:
          state: from ``init`` or the previous draw.
          positions: in the data set, int32; ``num_examples`` for places without a record.

        Returns:
          bool, shaped like ``positions``; False for places without a record.
        """
        batch = self.batch(self.draw(state)[0], 0)
        places = jnp.where(batch.mask, batch.indices, self.num_examples + 1)
        drawn = jnp.zeros(self.num_examples + 1, bool).at[places].set(True, mode="drop")
        return drawn[positions]

    def subset_key(self, state: PyTree) -> PRNGKey:
        """Returns a key that is independent of all draws, to choose a subset of one.

        Args:
          state: from ``init`` or the previous draw; its first leaf is a key.
        """
        return jax.random.fold_in(jax.tree.leaves(state)[0], _SUBSET_STREAM)

    def num_batches(self, draw: PyTree) -> jax.Array | int:
        """Returns how many physical batches ``draw`` needs: int32 >= 0, or the int 1."""
        return 1

    def batch(self, draw: PyTree, part: jax.Array | int) -> Batch:
        """Returns physical batch number ``part`` of the draw, all masked past the last one.

        By default the draw itself is batch 0.

        Args:
          draw: from ``draw``.
          part: number of the physical batch, from 0.
        """
        from dpjax.sampling.marks import batch_of_draw

        return Batch(*batch_of_draw(draw.indices, draw.mask & (part == 0)))

    @abc.abstractmethod
    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns the event of one step's noisy sum, with the noise over one clip bound.

        Args:
          noise_multiplier: noise standard deviation over one clip bound.
        """

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raises ValueError for an adjacency under which the sampler has no guarantee.

        Args:
          adjacency: the neighbouring relation.
        """
        check_adjacency(adjacency)

    def participation(self, num_steps: int) -> Participation:
        """Returns in which of the first ``num_steps`` steps a record can take part: by default any.

        Args:
          num_steps: number of steps.
        """
        as_count("num_steps", num_steps)
        return Participation(1, is_fixed=False)

    @abc.abstractmethod
    def describe(self, adjacency: Adjacency) -> str:
        """Returns a description of the sampling for the certificate, without n if n is private.

        Args:
          adjacency: the neighbouring relation.
        """

    def event(self, noise_runs: NoiseRuns) -> DpEvent:
        """Returns the event of ``noise_runs``: pairs of noise multiplier and number of steps."""
        check_noise_runs(noise_runs)
        return compose([repeated(self.step_event(sigma), count) for sigma, count in noise_runs])


def check_size_is_public(sampling: Sampling, adjacency: Adjacency) -> None:
    """Raises ValueError for add/remove, for samplers whose batches follow from the records."""
    check_adjacency(adjacency)
    if not is_size_public(adjacency):
        raise ValueError(
            f"adjacency must be 'replace_one' or 'zero_out' for {type(sampling).__name__}, got"
            f" {adjacency!r}: its batches and their number follow from the number of records,"
            " which adding or removing one would change; PoissonSampling takes 'add_remove'"
        )


def check_noise_runs(noise_runs: NoiseRuns) -> None:
    """Raises an error unless ``noise_runs`` are pairs of noise multiplier and number of steps."""
    expected = "pairs of noise multiplier and number of steps"
    check_type("noise_runs", noise_runs, list | tuple, expected)
    pairs = bool(noise_runs) and all(isinstance(run, tuple) and len(run) == 2 for run in noise_runs)
    check(pairs, "noise_runs", noise_runs, expected)


def repeated(event: DpEvent, count: int) -> DpEvent:
    """Returns ``count`` independent applications of ``event``."""
    from dp_accounting import SelfComposedDpEvent

    return event if count == 1 else SelfComposedDpEvent(event, count)


def compose(events: Sequence[DpEvent]) -> DpEvent:
    """Returns the composition of ``events`` on the same records."""
    from dp_accounting import ComposedDpEvent

    return events[0] if len(events) == 1 else ComposedDpEvent(list(events))


def gather(data: T, indices: jax.Array) -> T:
    """Returns the records of ``data`` (leading example axis on every leaf) at ``indices``.

    Args:
      data: a tree whose leaves share a leading axis of records.
      indices: of the records, ``(size,)``.

    >>> gather({"x": jnp.array([3, 4, 5])}, jnp.array([2, 0]))["x"].tolist()
    [5, 3]
    """
    batch_length(data, "data")
    numbers = as_numbers(indices, "indices")
    check(jnp.issubdtype(numbers.dtype, jnp.integer), "indices", numbers.dtype, "of integers")
    records: T = jax.tree.map(lambda leaf: jnp.asarray(leaf)[numbers], data)
    return records


def check_data(sampling: Sampling, data: ArrayTree) -> None:
    """Raises ValueError unless ``data`` has as many records as the sampler draws from, unmasked."""
    num_rows = batch_length(data, "data")
    if sampling.num_rows not in (num_rows, None):
        raise ValueError(
            f"data must have the {sampling.num_examples} records that the sampler draws from,"
            f" got {num_rows}"
        )
