"""Precomputed draws of a sampler: only the drawn records have to be on the device."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.sampling.base import Batch, NoiseRuns, Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class LocatedDraw(NamedTuple):
    """The positions of a draw's records in the data set, and the sampler's next state.

    Attributes:
      indices: of the slots of all physical batches, int32 ``(slots,)``; valid everywhere.
      mask: which slots hold a drawn record, bool ``(slots,)``.
      num_batches: physical batches that the draw fills, int32, possibly more than were asked for;
        ``None`` for a sampler that always fills one.
      sampler: the sampler's next state.
    """

    indices: jax.Array
    mask: jax.Array
    num_batches: jax.Array | None
    sampler: Any


def locate_draw(sampling: Sampling, state: Any, num_batches: int) -> LocatedDraw:
    """Draws once, and returns the positions of the first ``num_batches`` physical batches.

    Args:
      sampling: the sampler.
      state: of the sampler; the same state gives the same draw.
      num_batches: physical batches to return, static under jit.

    >>> from dpjax.sampling import FixedSizeSampling
    >>> sampling = FixedSizeSampling(num_examples=10, batch_size=10)
    >>> located = locate_draw(sampling, sampling.init(jax.random.key(0)), 1)
    >>> sorted(located.indices.tolist()) == list(range(10)), located.num_batches
    (True, None)
    """
    draw, following = sampling.draw(state)
    filled = sampling.num_batches(draw)
    parts = jnp.arange(num_batches, dtype=jnp.int32)
    indices, mask = map(jnp.ravel, jax.vmap(partial(sampling.batch, draw))(parts))
    return LocatedDraw(indices, mask, None if isinstance(filled, int) else filled, following)


class StagedDraw(NamedTuple):
    """A draw of records in a buffer, or in one buffer for each part of a physical batch's rows.

    Attributes:
      rows: of the slot's buffer, for each slot of all physical batches, int32 ``(slots,)``; on the
        host until the step.
      mask: which slots hold a drawn record, bool ``(slots,)``.
      num_batches: as in `LocatedDraw`.
    """

    rows: jax.Array | np.ndarray
    mask: jax.Array | np.ndarray
    num_batches: jax.Array | np.ndarray | None


@dataclass(frozen=True)
class StagedSampling(Sampling):
    """A sampler that returns precomputed draws, of records in a buffer.

    ``draw`` returns the `StagedDraw` that it is given as the state; all else, the event included,
    is that of the sampler whose draws these are. ``init`` returns the first state of that sampler.

    Attributes:
      sampling: the sampler that drew.
    """

    sampling: Sampling

    @property
    def num_examples(self) -> int:  # type: ignore[override]
        """Number of records in the data set, of which the buffer holds the drawn ones."""
        return self.sampling.num_examples

    @property
    def num_rows(self) -> None:
        """``None``: a buffer has as many rows as it needs."""
        return None

    @property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        """Slots of a physical batch."""
        return self.sampling.physical_batch_size

    @property
    def expected_batch_size(self) -> float:  # type: ignore[override]
        """Public constant that noisy sums are divided by."""
        return self.sampling.expected_batch_size

    @property
    def has_public_batch_size(self) -> bool:  # type: ignore[override]
        """Whether every draw has the same, public number of records."""
        return self.sampling.has_public_batch_size

    @property
    def usual_batches(self) -> int:
        """Number of physical batches that hold nearly every draw."""
        return self.sampling.usual_batches

    @property
    def constants_from_size(self) -> tuple[str, ...]:
        """Names of published constants computed from n."""
        return self.sampling.constants_from_size

    def init(self, key: PRNGKey) -> Any:
        """Returns the first state of the sampler that draws."""
        return self.sampling.init(key)

    def draw(self, state: StagedDraw) -> tuple[StagedDraw, StagedDraw]:
        """Returns the draw that is the state, twice."""
        return state, state

    def num_batches(self, draw: StagedDraw) -> jax.Array | int:
        """Returns the number of physical batches that the draw fills."""
        return 1 if draw.num_batches is None else jnp.asarray(draw.num_batches)

    def batch(self, draw: StagedDraw, part: jax.Array | int) -> Batch:
        """Returns physical batch ``part``, whose indices are rows of the buffer."""
        size = self.physical_batch_size
        rows, mask = (
            jax.lax.dynamic_slice_in_dim(slots, part * size, size)
            for slots in (draw.rows, draw.mask)
        )
        return Batch(rows, mask)

    def step_event(self, noise_multiplier: float) -> "DpEvent":
        """Returns the privacy event of one step, that of the underlying sampler."""
        return self.sampling.step_event(noise_multiplier)

    def event(self, noise_runs: NoiseRuns) -> "DpEvent":
        """Returns the privacy event of ``noise_runs``, that of the original sampler."""
        return self.sampling.event(noise_runs)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Raises ValueError for an adjacency that the sampler has no guarantee under."""
        self.sampling.check_adjacency(adjacency)

    def describe(self, adjacency: Adjacency) -> str:
        """Returns the sampler's sentence for the certificate."""
        return self.sampling.describe(adjacency)
