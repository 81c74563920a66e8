"""Samplers of fixed batch size: sampling without replacement, and shuffled epochs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dpjax._checks import as_count, as_key, check, check_non_negative
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.sampling.base import (
    Batch,
    NoiseRuns,
    Participation,
    Sampling,
    check_noise_runs,
    check_size_is_public,
    compose,
    repeated,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class _FixedSize(Sampling):
    """Base of samplers with public n and batch size, for neighbours of equal size."""

    batch_size: int
    has_public_batch_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("num_examples", "batch_size"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        check(self.num_examples < 2**31, "num_examples", self.num_examples, "below 2^31")
        check(
            self.batch_size <= self.num_examples,
            "batch_size",
            self.batch_size,
            f"at most num_examples = {self.num_examples}",
        )

    @property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        """Number of records in every batch: ``batch_size``."""
        return self.batch_size

    @property
    def expected_batch_size(self) -> float:  # type: ignore[override]
        """Number of records in every batch: ``batch_size``."""
        return float(self.batch_size)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Rejects add/remove: batches and their number depend on n, which is then public."""
        check_size_is_public(self, adjacency)


@dataclass(frozen=True)
class FixedSizeSampling(_FixedSize):
    """A fresh uniformly random subset of ``batch_size`` records each step, without replacement.

    Attributes:
      num_examples: number of records n (public).
      batch_size: records in every batch.

    Privacy:
      Amplification by subsampling without replacement, by the curve of one step (Dong, Roth, Su
      2022, Section 4), under replace-one. Under zero-out, a case of replacing, the same bound holds
      (and that of a Gaussian release where ``batch_size`` is ``num_examples``). Not under
      add/remove.

    >>> sampling = FixedSizeSampling(num_examples=10, batch_size=4)
    >>> draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    >>> len(set(sampling.batch(draw, 0).indices.tolist()))
    4
    """

    num_examples: int
    batch_size: int

    def draw(self, state: jax.Array) -> tuple[Batch, jax.Array]:
        from dpjax._random import random_subset

        next_key, key = jax.random.split(state)
        chosen = random_subset(key, self.num_examples, self.batch_size, self.num_examples)
        return Batch(chosen, jnp.ones(self.batch_size, bool)), next_key

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns a Gaussian on a sample without replacement."""
        check_non_negative("noise_multiplier", noise_multiplier)
        from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent

        return SampledWithoutReplacementDpEvent(
            self.num_examples, self.batch_size, GaussianDpEvent(noise_multiplier)
        )

    def describe(self, adjacency: Adjacency) -> str:
        check_adjacency(adjacency)
        return (
            f"fixed size: a fresh random {self.batch_size:,} of {self.num_examples:,} records each"
            " step, without replacement"
        )


class ShuffledState(NamedTuple):
    """State of `ShuffledEpochs`: the key, the epoch's order, and the step within the epoch."""

    key: PRNGKey
    order: jax.Array
    step: jax.Array


@dataclass(frozen=True)
class ShuffledEpochs(_FixedSize):
    """Shuffled epochs: each pass has a new random order; its last batch may be smaller.

    Attributes:
      num_examples: number of records n (public).
      batch_size: records in every batch but possibly the last of an epoch.

    Privacy:
      **No amplification is claimed**: a record is in one batch of each epoch, so an epoch costs
      as much as one Gaussian release of all records (with the smallest noise of its steps). An
      epoch that was begun counts in full. Under replace-one the sensitivity is two clip bounds,
      under zero-out one; not under add/remove.

    >>> sampling = ShuffledEpochs(num_examples=5, batch_size=2)
    >>> sampling.steps_per_epoch
    3
    >>> sampling.event([(1.0, 7)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.0), count=3)
    """

    num_examples: int
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """``ceil(num_examples / batch_size)``."""
        return -(-self.num_examples // self.batch_size)

    def init(self, key: PRNGKey) -> ShuffledState:
        """Returns the first state; the first draw shuffles."""
        order = jnp.arange(self.num_examples, dtype=jnp.int32)
        return ShuffledState(as_key(key), order, jnp.zeros((), jnp.int32))

    def draw(self, state: ShuffledState) -> tuple[Batch, ShuffledState]:
        """Returns the next records of the epoch's order, reshuffled when an epoch begins."""
        key, order = jax.lax.cond(state.step == 0, self._shuffle, lambda s: s[:2], state)
        slots = state.step * self.batch_size + jnp.arange(self.batch_size, dtype=jnp.int32)
        batch = Batch(order[jnp.minimum(slots, self.num_examples - 1)], slots < self.num_examples)
        return batch, ShuffledState(key, order, (state.step + 1) % self.steps_per_epoch)

    def participation(self, num_steps: int) -> Participation:
        """Returns one step of the first epoch; of several epochs consecutive ones are possible."""
        is_once = as_count("num_steps", num_steps) <= self.steps_per_epoch
        return Participation(num_steps if is_once else 1, is_fixed=is_once)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns the event of one step alone: a Gaussian release on all records."""
        check_non_negative("noise_multiplier", noise_multiplier)
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(noise_multiplier)

    def event(self, noise_runs: NoiseRuns) -> DpEvent:
        """Returns one Gaussian release for each epoch begun, with the least noise of its steps."""
        check_noise_runs(noise_runs)
        steps = [sigma for sigma, count in noise_runs for _ in range(count)]
        starts = range(0, len(steps), self.steps_per_epoch)
        least = itertools.groupby(min(steps[i : i + self.steps_per_epoch]) for i in starts)
        return compose([repeated(self.step_event(s), len(list(group))) for s, group in least])

    def describe(self, adjacency: Adjacency) -> str:
        check_adjacency(adjacency)
        return (
            f"shuffled epochs: each of {self.num_examples:,} records in one batch of"
            f" {self.batch_size:,} per epoch; no amplification is claimed"
        )

    def _shuffle(self, state: ShuffledState) -> tuple[jax.Array, jax.Array]:
        next_key, key = jax.random.split(state.key)
        return next_key, jax.random.permutation(key, state.order)
