"""Random allocation: each record in k uniformly random steps of an epoch, one in each block."""

from __future__ import annotations

import collections
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NamedTuple

from dpjax._checks import as_count, check, check_non_negative
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.sampling.base import (
    Batch,
    NoiseRuns,
    Sampling,
    check_noise_runs,
    compose,
    repeated,
)
from dpjax.sampling.poisson import PoissonDraw, PoissonSampling, _is_zero, pack

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# Remainders of products of two numbers below it fit in 32 bits.
_MOST_STEPS = 2**16


class AllocatedState(NamedTuple):
    """State of `AllocatedSampling`: the key of the draw, that of all epochs, and the step."""

    key: PRNGKey
    allocation_key: PRNGKey
    step: jax.Array


@dataclass(frozen=True)
class AllocatedSampling(Sampling):
    """Random allocation: each record in ``participations`` of the steps of every epoch.

    The ``steps_per_epoch`` steps are cut in ``participations`` blocks of nearly equal length, the
    longer ones first, and each record is in one uniformly random step of each block, independently
    of other records, blocks and epochs. With one participation it is balls in bins. Batches vary in
    size, padded and masked like those of `PoissonSampling`; none is truncated. A step's number is
    found from two 32-bit words, within 2^-48 of uniform.

    Attributes:
      num_examples: number of records n.
      steps_per_epoch: number of steps t of an epoch, at most 65,536.
      participations: number of steps k of an epoch that a record is in, at most t.
      physical_batch_size: the padded shape; by default as of `PoissonSampling` at the rate of the
        shortest block.
      expected_batch_size: public constant that noisy sums are divided by, above zero; by default
        ``num_examples * participations / steps_per_epoch``. Under add/remove give a constant chosen
        without n, else the certificate says that n is public.

    Privacy:
      Amplification by random allocation in every block, under add/remove and zero-out (Feldman &
      Shenfeld 2025; `dpjax.accounting.kinds.random_allocation`). A block that was begun counts in
      full, with the least noise of its steps: the steps that were made are post-processing of all.
      No theorem is known under replace-one, which is refused.

    Raises:
      ValueError: a number out of range.

    >>> sampling = AllocatedSampling(num_examples=1000, steps_per_epoch=10)
    >>> sampling.expected_batch_size, sampling.physical_batch_size
    (100.0, 136)
    >>> sampling.event([(1.0, 20)])
    SelfComposedDpEvent(event=RandomAllocationDpEvent(num_steps=10, noise_multiplier=1.0), count=2)
    """

    num_examples: int
    _: KW_ONLY
    steps_per_epoch: int
    participations: int = 1
    physical_batch_size: int = 0
    expected_batch_size: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_examples", "steps_per_epoch", "participations"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        steps, times = self.steps_per_epoch, self.participations
        check(steps <= _MOST_STEPS, "steps_per_epoch", steps, f"at most {_MOST_STEPS}")
        check(times <= steps, "participations", times, f"at most steps_per_epoch = {steps}")
        if _is_zero(self.expected_batch_size):
            object.__setattr__(self, "expected_batch_size", self.num_examples * times / steps)
        # Sizes and their checks are those of Poisson sampling.
        for name in ("physical_batch_size", "expected_batch_size"):
            object.__setattr__(self, name, getattr(self._poisson, name))

    @property
    def num_static_batches(self) -> int:
        """Physical batches for the mean plus three standard deviations."""
        return self._poisson.num_static_batches

    @property
    def size_constants(self) -> tuple[str, ...]:
        """The divisor, unless it is another constant than the mean size of a batch."""
        mean = self.num_examples * self.participations / self.steps_per_epoch
        close = abs(self.expected_batch_size - mean) <= 1e-9 * mean
        return ("the divisor num_examples * participations / steps_per_epoch",) if close else ()

    @property
    def block_lengths(self) -> tuple[int, ...]:
        """Number of steps of each block of an epoch."""
        length, longer = divmod(self.steps_per_epoch, self.participations)
        return (length + 1,) * longer + (length,) * (self.participations - longer)

    def init(self, key: PRNGKey) -> AllocatedState:
        """Returns the first state, at the beginning of an epoch."""
        key, allocation_key = jax.random.split(super().init(key))
        return AllocatedState(key, allocation_key, jnp.zeros((), jnp.int32))

    def draw(self, state: AllocatedState) -> tuple[PoissonDraw, AllocatedState]:
        """Returns the records that are allocated to the step of ``state``, and the next state."""
        next_key, split_key = jax.random.split(state.key)
        most = self.num_static_batches * self.physical_batch_size
        drawn = pack(self.members_at(state, self._poisson._positions))
        following = AllocatedState(next_key, state.allocation_key, state.step + 1)
        return PoissonDraw(*drawn.split_randomly(split_key, most)), following

    def members_at(self, state: AllocatedState, positions: jax.Array) -> jax.Array:
        """Returns, for each of ``positions``, whether that record is in the batch of ``state``."""
        from dpjax._random import bits_at

        # The epoch, the block, its length, and the step within it.
        epoch, step = jnp.divmod(state.step, self.steps_per_epoch)
        length, num_longer = divmod(self.steps_per_epoch, self.participations)
        in_longer = step < num_longer * (length + 1)
        rest = step - num_longer * (length + 1)
        block = jnp.where(in_longer, step // (length + 1), num_longer + rest // length)
        place = jnp.where(in_longer, step % (length + 1), rest % length)
        size = jnp.where(in_longer, length + 1, length).astype(jnp.uint32)

        # Each record's step of the block: the remainder of 64 random bits.
        key = jax.random.fold_in(jax.random.fold_in(state.allocation_key, epoch), block)
        within = jnp.minimum(positions, self.num_examples - 1)
        high, low = (bits_at(each, within, self.num_examples) for each in jax.random.split(key))
        word = (jnp.uint32(2**32 - 1) % size + 1) % size
        chosen = (high % size * word % size + low % size) % size
        return (positions < self.num_examples) & (chosen == place.astype(jnp.uint32))

    def num_batches(self, draw: PoissonDraw) -> jax.Array:
        """Returns the number of physical batches: ``ceil(size / physical_batch_size)``."""
        return self._poisson.num_batches(draw)

    def batch(self, draw: PoissonDraw, part: jax.Array | int) -> Batch:
        """Returns ``physical_batch_size`` records at a time, each set in the order of the data."""
        return self._poisson.batch(draw, part)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns the event of one step alone: a Poisson sample at the rate of a short block.

        The steps of a block are not independent; `event` has the account of several.
        """
        check_non_negative("noise_multiplier", noise_multiplier)
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

        rate = 1 / self.block_lengths[-1]
        return PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier))

    def event(self, noise_runs: NoiseRuns) -> DpEvent:
        """Returns a random allocation for each block begun, with the least noise of its steps."""
        check_noise_runs(noise_runs)
        steps = [sigma for sigma, count in noise_runs for _ in range(count)]
        blocks: collections.Counter[tuple[int, float]] = collections.Counter()
        start, number = 0, 0
        while start < len(steps):
            length = self.block_lengths[number % self.participations]
            blocks[length, min(steps[start : start + length])] += 1
            start, number = start + length, number + 1
        return compose(
            [repeated(_block_event(*block), count) for block, count in sorted(blocks.items())]
        )

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Rejects replace-one, for which no theorem is known."""
        check_adjacency(adjacency)
        if adjacency == "replace_one":
            raise ValueError(
                "adjacency must be 'add_remove' or 'zero_out' for AllocatedSampling, got"
                " 'replace_one': no theorem bounds random allocation where a record is replaced by"
                " another; PoissonSampling takes it"
            )

    def describe(self, adjacency: Adjacency) -> str:
        """Returns one sentence for the certificate, without n where it is private."""
        public = is_size_public(adjacency) or self.size_constants
        records = f"each of {self.num_examples:,} records" if public else "each record"
        blocks = "" if self.participations == 1 else ", one in each of as many blocks of steps"
        return (
            f"random allocation: {records} in {self.participations:,} of the"
            f" {self.steps_per_epoch:,} steps of an epoch, at random{blocks}"
        )

    @property
    def _poisson(self) -> PoissonSampling:
        """The sampler of the sizes and shapes of batches."""
        return PoissonSampling(
            self.num_examples,
            1 / self.block_lengths[-1],
            physical_batch_size=self.physical_batch_size,
            expected_batch_size=self.expected_batch_size,
        )


def _block_event(num_steps: int, noise_multiplier: float) -> DpEvent:
    """Returns the event of a block: of one step, that of a release of all records."""
    from dp_accounting import GaussianDpEvent

    from dpjax.sampling.allocation_event import RandomAllocationDpEvent

    if num_steps == 1:
        check_non_negative("noise_multiplier", noise_multiplier)
        return GaussianDpEvent(noise_multiplier)
    return RandomAllocationDpEvent(num_steps, noise_multiplier)
