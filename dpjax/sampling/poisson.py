"""Poisson sampling, plain and truncated to a maximal batch size."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpjax._checks import as_count, check, check_non_negative, check_positive, check_rate
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, is_size_public
from dpjax.sampling.base import Batch, Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_BITS = 32
_HALVES = (16, 8, 4, 2, 1)
_WORDS = 2**32
# The probability with which a draw reaches the default size of truncated batches, at most.
_RARELY = 1e-14
_DIVISOR = "the divisor sampling_rate * num_examples"


class BitSet(NamedTuple):
    """A set of indices as a bit set of 32-bit words, with running counts for look-up by rank.

    Index ``32 i + k`` is bit ``k`` of word ``i``, the lowest first. Running counts over words
    are cheap; over every index they would cost three times as much as drawing the indices.

    Attributes:
      words: uint32, ``ceil(num_examples / 32)`` of them.
      counts: int32, ``counts[i]`` is how many members words ``0..i`` have.
    """

    words: jax.Array
    counts: jax.Array

    @property
    def size(self) -> jax.Array:
        """Number of members, int32."""
        return self.counts[-1]

    def records_at(self, ranks: jax.Array) -> jax.Array:
        """Returns the indices of the members with these ranks; past the last member, any index.

        >>> chosen = pack(jnp.array([False, True, False, True, True]))
        >>> int(chosen.size), chosen.records_at(jnp.arange(3)).tolist()
        (3, [1, 3, 4])
        """
        block = jnp.searchsorted(self.counts, ranks + 1, side="left")
        block = jnp.minimum(block, len(self.words) - 1).astype(jnp.int32)
        word = self.words[block]
        rank, place = ranks - (self.counts[block] - _num_bits(word)), jnp.zeros_like(ranks)
        for width in _HALVES:
            low = _num_bits((word >> place.astype(jnp.uint32)) & jnp.uint32((1 << width) - 1))
            beyond = rank >= low
            rank, place = (
                jnp.where(beyond, rank - low, rank),
                jnp.where(beyond, place + width, place),
            )
        return block * _BITS + place

    def split_randomly(self, key: PRNGKey, most: int) -> tuple[BitSet, BitSet]:
        """Returns a uniformly random subset of at most ``most`` members, and the other members.

        Floyd's algorithm selects the other members, in as many rounds: none if the set has at most
        ``most`` members.

        Args:
          key: a JAX key.
          most: at least 1.

        >>> chosen = pack(jnp.ones(40, bool))
        >>> few, others = chosen.split_randomly(jax.random.key(0), 30)
        >>> int(few.size), int(others.size), bool((few.words & others.words).any())
        (30, 10, False)
        """

        def move(i: jax.Array, others: jax.Array) -> jax.Array:
            newcomer = most + i
            guess = jax.random.randint(jax.random.fold_in(key, i), (), 0, newcomer + 1, jnp.int32)
            first, second = self.records_at(jnp.stack([guess, newcomer]))
            taken = (others[first // _BITS] >> (first % _BITS).astype(jnp.uint32)) & 1
            member = jnp.where(taken == 1, second, first)
            bit = jnp.uint32(1) << (member % _BITS).astype(jnp.uint32)
            return others.at[member // _BITS].set(others[member // _BITS] | bit)

        excess = jnp.maximum(self.size - most, 0)
        others = jax.lax.fori_loop(0, excess, move, jnp.zeros_like(self.words))
        return _from_words(self.words & ~others), _from_words(others)


def pack(chosen: jax.Array) -> BitSet:
    """Returns the indices at which a mask is true, as a `BitSet`: ``chosen`` is bool ``(n,)``."""
    rows = jnp.pad(chosen, (0, -len(chosen) % _BITS)).reshape(-1, _BITS)
    bits = rows.astype(jnp.uint32) << jnp.arange(_BITS, dtype=jnp.uint32)[None, :]
    return _from_words(jnp.sum(bits, axis=1, dtype=jnp.uint32))


def _from_words(words: jax.Array) -> BitSet:
    return BitSet(words, jnp.cumsum(_num_bits(words), dtype=jnp.int32))


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)


class PoissonDraw(NamedTuple):
    """The drawn records in two sets, so that the first physical batches are a uniform subset.

    Attributes:
      usual: all of them, or a uniformly random subset that fills the sampler's usual batches.
      further: the other records; nearly always none.
    """

    usual: BitSet
    further: BitSet

    @property
    def size(self) -> jax.Array:
        """Number of drawn records, int32."""
        return self.usual.size + self.further.size


def rarely_reached_size(num_examples: int, sampling_rate: float) -> int:
    """Returns the least batch size that a Poisson draw reaches with probability at most 1e-14.

    It is rounded up to a multiple of 8, and at most ``num_examples``. A bisection of the binomial
    tail, ``P(Bin(n, q) >= B) = I_q(B, n - B + 1)`` with the regularised incomplete beta function.

    >>> rarely_reached_size(60_000, 256 / 60_000)
    392
    """
    from scipy.special import betainc

    # The tail is above the threshold at `few`, and at or below it at `many`.
    few, many = 0, num_examples + 1
    while many - few > 1:
        middle = (few + many) // 2
        tail = betainc(middle, num_examples - middle + 1, sampling_rate)
        few, many = (few, middle) if tail <= _RARELY else (middle, many)
    return min(8 * math.ceil(many / 8), num_examples)


def _check_sampling_rate(rate: object, num_examples: int) -> None:
    """Raises ValueError unless ``rate`` is in (0, 1]; explains how to state a batch size."""
    try:
        check_rate("sampling_rate", rate)
    except ValueError as error:
        if not isinstance(rate, int | float | np.integer | np.floating):
            raise
        if not 1 < rate <= num_examples:
            raise
        raise ValueError(
            f"{error}: it is the probability with which a record is drawn. For batches of {rate:g}"
            f" records on average give sampling_rate={rate:g} / {num_examples}, or use"
            f" dpjax.dpsgd(num_examples={num_examples}, batch_size={rate:g}, ...)"
        ) from None


def _is_zero(size: object) -> bool:
    """Whether a size is left at its default."""
    return isinstance(size, int | float | np.number) and size == 0


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Poisson sampling: each of ``num_examples`` records is drawn with ``sampling_rate``.

    Batches have a fixed padded shape and a mask, so nothing recompiles. A draw larger than
    ``physical_batch_size`` fills further physical batches: no record is dropped. Where a draw is
    larger than the ``num_static_batches`` hold, these have a uniformly random subset of it, so that
    statistics of these batches (the norms in `StepInfo`) are not biased by the order of records.

    Attributes:
      num_examples: number of records n.
      sampling_rate: probability q in (0, 1]. The draw compares 32 random bits with q rounded
        *down* to a multiple of 2^-32, so the event's q is never below the real one.
      physical_batch_size: the padded shape; by default the mean plus three standard deviations
        (one draw in about 700 then takes a second physical batch), rounded up to a multiple of 8.
        Smaller means less memory, which on a CPU can also be faster.
      expected_batch_size: public constant that noisy sums are divided by, above zero; by default
        ``sampling_rate * num_examples``. Under add/remove give a constant that was chosen without
        n, and such a rate too: the default, like a rate of B / n, makes n public, and the
        certificate then says that its guarantee is that of adjacency ``"zero_out"``.

    Privacy:
      Amplification by Poisson subsampling, under add/remove and zero-out (equal) and, through
      privacy loss distributions, replace-one.

    Raises:
      ValueError: a number out of range.

    >>> sampling = PoissonSampling(num_examples=1000, sampling_rate=0.1)
    >>> sampling.expected_batch_size, sampling.physical_batch_size
    (100.0, 136)
    >>> draw, state = sampling.draw(sampling.init(jax.random.key(0)))
    >>> batch = sampling.batch(draw, 0)
    >>> batch.indices.shape, int(batch.mask.sum()) == int(draw.size)
    ((136,), True)
    >>> PoissonSampling(1003, 0.1, expected_batch_size=100).describe("add_remove")
    'Poisson: each record in a batch independently with probability 0.1'
    """

    num_examples: int
    sampling_rate: float
    _: KW_ONLY
    physical_batch_size: int = 0
    expected_batch_size: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", as_count("num_examples", self.num_examples))
        check(self.num_examples < 2**31, "num_examples", self.num_examples, "below 2^31")
        _check_sampling_rate(self.sampling_rate, self.num_examples)
        if _is_zero(self.physical_batch_size):
            object.__setattr__(self, "physical_batch_size", self._usual_size())
        size = as_count("physical_batch_size", self.physical_batch_size)
        object.__setattr__(self, "physical_batch_size", size)
        if _is_zero(self.expected_batch_size):
            object.__setattr__(self, "expected_batch_size", self.sampling_rate * self.num_examples)
        check_positive("expected_batch_size", self.expected_batch_size)

    @property
    def num_static_batches(self) -> int:
        """Physical batches for the mean plus three standard deviations."""
        return -(-self._usual_size() // self.physical_batch_size)

    @property
    def size_constants(self) -> tuple[str, ...]:
        """The divisor, unless it is another constant than ``sampling_rate * num_examples``."""
        mean = self.sampling_rate * self.num_examples
        # A rate of B / n times n is B up to rounding only.
        return (_DIVISOR,) if math.isclose(self.expected_batch_size, mean) else ()

    def draw(self, state: jax.Array) -> tuple[PoissonDraw, jax.Array]:
        """Returns a draw of ``num_examples`` Bernoulli variables, and the next state."""
        next_key, bernoulli_key, split_key = jax.random.split(state, 3)
        most = self.num_static_batches * self.physical_batch_size
        drawn = pack(self._is_drawn(bernoulli_key, self._positions))
        return PoissonDraw(*drawn.split_randomly(split_key, most)), next_key

    def members_at(self, state: jax.Array, positions: jax.Array) -> jax.Array:
        """Returns, for each of ``positions``, whether that record is in the batch of ``state``."""
        _, key, _ = jax.random.split(state, 3)
        return self._is_drawn(key, positions)

    def num_batches(self, draw: PoissonDraw) -> jax.Array:
        """Returns the number of physical batches: ``ceil(size / physical_batch_size)``."""
        return -(-draw.size // self.physical_batch_size)

    def batch(self, draw: PoissonDraw, part: jax.Array | int) -> Batch:
        """Returns ``physical_batch_size`` records at a time, each set in the order of the data."""
        from dpjax.sampling.marks import batch_of_draw

        size = self.physical_batch_size
        ranks = part * size + jnp.arange(size, dtype=jnp.int32)
        usual = draw.usual.records_at(ranks)
        further = draw.further.records_at(ranks - draw.usual.size)
        records = jnp.where(ranks < draw.usual.size, usual, further)
        indices = jnp.clip(records, 0, self.num_examples - 1)
        return Batch(*batch_of_draw(indices, ranks < draw.size))

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns a Poisson-sampled Gaussian."""
        check_non_negative("noise_multiplier", noise_multiplier)
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

        return PoissonSampledDpEvent(self.sampling_rate, GaussianDpEvent(noise_multiplier))

    def describe(self, adjacency: Adjacency) -> str:
        """Returns one sentence for the certificate, without n where it is private."""
        public = is_size_public(adjacency) or self.size_constants
        records = f"each of {self.num_examples:,} records" if public else "each record"
        return (
            f"Poisson: {records} in a batch independently with probability {self.sampling_rate:.6g}"
        )

    def _is_drawn(self, key: PRNGKey, positions: jax.Array) -> jax.Array:
        """Whether the records at ``positions`` are drawn; not past the last."""
        from dpjax._random import bits_at

        is_record = positions < self.num_examples
        # Rate 1 has no threshold of 32 bits.
        if self._threshold >= _WORDS:
            return is_record
        within = jnp.minimum(positions, self.num_examples - 1)
        return is_record & (bits_at(key, within, self.num_examples) < jnp.uint32(self._threshold))

    @property
    def _positions(self) -> jax.Array:
        """Those of all records, and further ones that fill the last word of a `BitSet`.

        Padding what is computed from random bits would keep XLA from vectorising them on a CPU,
        which takes nine times as long.
        """
        return jnp.arange(-(-self.num_examples // _BITS) * _BITS, dtype=jnp.int32)

    @property
    def _threshold(self) -> int:
        """A record is drawn where its 32 random bits are below this number."""
        return math.floor(self.sampling_rate * _WORDS)

    def _usual_size(self) -> int:
        mean = self.sampling_rate * self.num_examples
        wanted = mean + 3 * math.sqrt(mean * (1 - self.sampling_rate))
        return min(8 * math.ceil(wanted / 8), self.num_examples)


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling, truncated to a random ``truncated_batch_size`` of the drawn records.

    One physical batch a step, always. Truncation costs privacy (whether a record stays depends on
    the others), which the event includes; `PoissonSampling` does not truncate.

    Attributes:
      num_examples: number of records n.
      sampling_rate: probability q in (0, 1], before truncation.
      truncated_batch_size: the most records a batch holds; the ones kept are a
        uniformly random subset. By default the least size that a draw reaches with a probability of
        at most 1e-14, rounded up to a multiple of 8: about 7.6 standard deviations above the mean.
        Of any practical number of steps and delta it costs less than 0.1 % of the noise.
      expected_batch_size: public constant that noisy sums are divided by, above zero; by default
        ``sampling_rate * num_examples``, the mean before truncation.

    Privacy:
      An upper bound by privacy loss distributions only (after Ganesh 2025), under every adjacency.
      It depends on n: under add/remove, where it covers neighbours of n - 1 and n + 1 records,
      publishing epsilon makes n public, and the certificate states so. Where batches are truncated
      now and then the bound is loose, by a factor of up to 3.6 for batches of a few records and 8
      for larger ones (`dpjax.accounting.kinds.truncated_poisson`), and a size of three standard
      deviations above the mean can take 25 % more noise than no truncation. The default costs none.

    Raises:
      ValueError: a number out of range.

    >>> TruncatedPoissonSampling(1000, 0.1).truncated_batch_size
    184
    >>> sampling = TruncatedPoissonSampling(1000, 0.1, truncated_batch_size=100)
    >>> draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    >>> int(draw.mask.sum()) <= 100
    True
    """

    num_examples: int
    sampling_rate: float
    _: KW_ONLY
    truncated_batch_size: int = 0
    expected_batch_size: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", as_count("num_examples", self.num_examples))
        _check_sampling_rate(self.sampling_rate, self.num_examples)
        if _is_zero(self.truncated_batch_size):
            size = rarely_reached_size(self.num_examples, self.sampling_rate)
        else:
            size = as_count("truncated_batch_size", self.truncated_batch_size)
        allowed = f"at most num_examples = {self.num_examples}"
        check(size <= self.num_examples, "truncated_batch_size", size, allowed)
        object.__setattr__(self, "truncated_batch_size", size)
        divisor = self._untruncated.expected_batch_size
        object.__setattr__(self, "expected_batch_size", divisor)

    @property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        """Largest number of records in a batch: ``truncated_batch_size``."""
        return self.truncated_batch_size

    @property
    def size_constants(self) -> tuple[str, ...]:
        """Published values computed from n: epsilon, and the divisor if none was given."""
        return (*self._untruncated.size_constants, "the epsilon of truncated sampling")

    def draw(self, state: jax.Array) -> tuple[Batch, jax.Array]:
        """Returns a Poisson draw, or a uniformly random subset of it if it is too large."""
        from dpjax._random import random_subset

        next_key, bernoulli_key, subset_key = jax.random.split(state, 3)
        limit = self.truncated_batch_size
        untruncated = self._untruncated
        draw_key = jax.random.split(bernoulli_key)[1]
        drawn = pack(untruncated._is_drawn(draw_key, untruncated._positions))
        ranks = jax.lax.cond(
            drawn.size > limit,
            lambda: random_subset(subset_key, drawn.size, limit, self.num_examples),
            lambda: jnp.arange(limit, dtype=jnp.int32),
        )
        indices = jnp.minimum(drawn.records_at(ranks), self.num_examples - 1)
        return Batch(indices, jnp.arange(limit, dtype=jnp.int32) < drawn.size), next_key

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns a truncated Poisson-subsampled Gaussian on ``num_examples`` records."""
        check_non_negative("noise_multiplier", noise_multiplier)
        from dp_accounting import TruncatedSubsampledGaussianDpEvent

        return TruncatedSubsampledGaussianDpEvent(
            self.num_examples, self.sampling_rate, self.truncated_batch_size, noise_multiplier
        )

    def describe(self, adjacency: Adjacency) -> str:
        return (
            f"{self._untruncated.describe(adjacency)}; draws of more than"
            f" {self.truncated_batch_size:,} truncated to a random subset of that size, which is"
            " counted"
        )

    @property
    def _untruncated(self) -> PoissonSampling:
        return PoissonSampling(
            self.num_examples,
            self.sampling_rate,
            physical_batch_size=self.truncated_batch_size,
            expected_batch_size=self.expected_batch_size,
        )
