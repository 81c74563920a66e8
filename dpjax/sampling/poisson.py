"""Poisson sampling: every record is in the batch with one probability, independently."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)

from dpjax._random import bits
from dpjax._validation import as_key, check, check_count, check_rate
from dpjax.accounting.adjacency import Adjacency, check_adjacency
from dpjax.sampling.base import Batch, Sampling
from dpjax.sampling.packed import PackedSet, pack
from dpjax.sampling.subset import random_subset

_WORDS = 2**32


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each of ``num_examples`` records is drawn with probability ``sampling_rate``.

    Batches have a fixed padded shape and a mask, so nothing recompiles. A draw larger than
    ``physical_batch_size`` fills further physical batches: no record is ever dropped.

    Attributes:
      num_examples: number of records n.
      sampling_rate: probability q in (0, 1]. The draw compares 32 random bits with q rounded
        *down* to a multiple of 2^-32, so the event's q is never below the real one.
      physical_batch_size: the padded shape; by default the mean plus three standard deviations
        (one draw in about 700 then takes a second physical batch), rounded up to a multiple of 8.
        Smaller means less memory, which on a CPU can also be faster.

    Privacy:
      Amplification by Poisson subsampling, under add/remove and (through PLD) replace one.

    >>> sampling = PoissonSampling(num_examples=1000, sampling_rate=0.1)
    >>> sampling.expected_batch_size, sampling.physical_batch_size
    (100.0, 136)
    >>> draw, state = sampling.draw(sampling.init(jax.random.key(0)))
    >>> batch = sampling.batch(draw, 0)
    >>> batch.indices.shape, int(batch.mask.sum()) == int(draw.size)
    ((136,), True)
    """

    num_examples: int
    sampling_rate: float
    physical_batch_size: int = 0

    def __post_init__(self) -> None:
        check_count("num_examples", self.num_examples)
        check_rate("sampling_rate", self.sampling_rate)
        if self.physical_batch_size == 0:
            object.__setattr__(self, "physical_batch_size", self._usual_size())
        check_count("physical_batch_size", self.physical_batch_size)

    @property
    def expected_batch_size(self) -> float:
        """``sampling_rate * num_examples``."""
        return self.sampling_rate * self.num_examples

    @property
    def usual_batches(self) -> int:
        """Enough for the mean plus three standard deviations."""
        return -(-self._usual_size() // self.physical_batch_size)

    def init(self, key: jax.Array) -> jax.Array:
        """The state is the key of the next draw."""
        return as_key(key)

    def draw(self, state: jax.Array) -> tuple[PackedSet, jax.Array]:
        """Decides on every record afresh: ``num_examples`` independent coins."""
        next_key, key = jax.random.split(state)
        return pack(self._coins(key)), next_key

    def num_batches(self, draw: PackedSet) -> jax.Array:
        """``ceil(size / physical_batch_size)``."""
        return -(-draw.size // self.physical_batch_size)

    def batch(self, draw: PackedSet, part: Any) -> Batch:
        """The drawn records in the order of the data set, ``physical_batch_size`` at a time."""
        size = self.physical_batch_size
        ranks = part * size + jnp.arange(size, dtype=jnp.int32)
        return Batch(self._records_at(draw, ranks), ranks < draw.size)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """A Poisson-sampled Gaussian."""
        return PoissonSampledDpEvent(self.sampling_rate, GaussianDpEvent(noise_multiplier))

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Both adjacencies have a meaning here."""
        check_adjacency(adjacency)

    def describe(self) -> str:
        """One sentence for the certificate."""
        return (
            f"Poisson: each of {self.num_examples:,} records in a batch independently with"
            f" probability {self.sampling_rate:.6g}"
        )

    def _coins(self, key: jax.Array) -> jax.Array:
        threshold = math.floor(self.sampling_rate * _WORDS)
        if threshold >= _WORDS:
            return jnp.ones(self.num_examples, bool)
        return bits(key, (self.num_examples,)) < jnp.uint32(threshold)

    def _records_at(self, draw: PackedSet, ranks: jax.Array) -> jax.Array:
        """Positions of the drawn records of ``ranks``; some valid position past the last."""
        return jnp.minimum(draw.records_at(ranks), self.num_examples - 1)

    def _usual_size(self) -> int:
        mean = self.expected_batch_size
        wanted = mean + 3 * math.sqrt(mean * (1 - self.sampling_rate))
        return min(8 * math.ceil(wanted / 8), self.num_examples)


class TruncatedDraw(NamedTuple):
    """The records that are left after the cut, and how many of the slots count."""

    indices: jax.Array
    size: jax.Array


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling, cut to a random ``truncated_batch_size`` of the drawn records.

    One physical batch a step, always. The cut costs privacy (whether a record stays depends on the
    others), which the event counts and the certificate shows; `PoissonSampling` needs no cut.

    Attributes:
      num_examples: number of records n.
      sampling_rate: probability q in (0, 1], before the cut.
      truncated_batch_size: the most records a batch holds; which of the drawn ones stay is
        uniformly random.

    Privacy:
      dp-accounting's truncated subsampled Gaussian (arXiv:2508.15089), PLD only.

    >>> sampling = TruncatedPoissonSampling(1000, 0.1, truncated_batch_size=100)
    >>> draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    >>> int(draw.size) <= 100
    True
    """

    num_examples: int
    sampling_rate: float
    truncated_batch_size: int

    def __post_init__(self) -> None:
        check_count("truncated_batch_size", self.truncated_batch_size)
        check(
            self.truncated_batch_size <= self.num_examples,
            "truncated_batch_size",
            self.truncated_batch_size,
            f"at most num_examples = {self.num_examples}",
        )
        self._poisson()

    @property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        """The cut is the shape."""
        return self.truncated_batch_size

    @property
    def expected_batch_size(self) -> float:
        """The mean before the cut: a public constant."""
        return self.sampling_rate * self.num_examples

    def init(self, key: jax.Array) -> jax.Array:
        """The state is the key of the next draw."""
        return as_key(key)

    def draw(self, state: jax.Array) -> tuple[TruncatedDraw, jax.Array]:
        """Draws as `PoissonSampling` does; a draw too large is cut to a random subset."""
        next_key, coin_key, cut_key = jax.random.split(state, 3)
        poisson, limit = self._poisson(), self.truncated_batch_size
        drawn, _ = poisson.draw(coin_key)
        size = drawn.size
        ranks = jax.lax.cond(
            size > limit,
            lambda: random_subset(cut_key, size, limit, self.num_examples),
            lambda: jnp.arange(limit, dtype=jnp.int32),
        )
        indices = poisson._records_at(drawn, ranks)
        return TruncatedDraw(indices, jnp.minimum(size, limit)), next_key

    def num_batches(self, draw: TruncatedDraw) -> int:
        """Always one."""
        return 1

    def batch(self, draw: TruncatedDraw, part: Any) -> Batch:
        """The drawn records, cut to the truncated size."""
        size = self.truncated_batch_size
        slots = part * size + jnp.arange(size, dtype=jnp.int32)
        return Batch(draw.indices, slots < draw.size)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """A truncated Poisson-subsampled Gaussian."""
        return TruncatedSubsampledGaussianDpEvent(
            self.num_examples, self.sampling_rate, self.truncated_batch_size, noise_multiplier
        )

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Both adjacencies have a meaning here."""
        check_adjacency(adjacency)

    def describe(self) -> str:
        """One sentence for the certificate."""
        return (
            f"{self._poisson().describe()}; draws of more than {self.truncated_batch_size:,} cut to"
            " a random subset of that size, and the cut counted"
        )

    def _poisson(self) -> PoissonSampling:
        return PoissonSampling(self.num_examples, self.sampling_rate, self.truncated_batch_size)
