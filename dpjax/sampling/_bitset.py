"""Sets of record indices on the device: packed bit sets, and uniformly random subsets."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import PRNGKey

_BITS = 32
_HALVES = (16, 8, 4, 2, 1)


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
        """Returns the members of these ranks in increasing order; past the last, some position.

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

    def split_randomly(self, key: PRNGKey, most: int) -> tuple["BitSet", "BitSet"]:
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
            moved = jnp.where(taken == 1, second, first)
            bit = jnp.uint32(1) << (moved % _BITS).astype(jnp.uint32)
            return others.at[moved // _BITS].set(others[moved // _BITS] | bit)

        excess = jnp.maximum(self.size - most, 0)
        others = jax.lax.fori_loop(0, excess, move, jnp.zeros_like(self.words))
        return _from_words(self.words & ~others), _from_words(others)


def pack(chosen: jax.Array) -> BitSet:
    """Returns the set of the indices where ``chosen``, bool ``(num_examples,)``, is true."""
    rows = jnp.pad(chosen, (0, -len(chosen) % _BITS)).reshape(-1, _BITS)
    bits = rows.astype(jnp.uint32) << jnp.arange(_BITS, dtype=jnp.uint32)[None, :]
    return _from_words(jnp.sum(bits, axis=1, dtype=jnp.uint32))


def random_subset(key: PRNGKey, population: jax.Array | int, size: int, limit: int) -> jax.Array:
    """Returns ``size`` different integers of ``range(population)``, every subset equally likely.

    Args:
      key: a JAX key.
      population: how many there are to choose from, at least ``size``; may be traced.
      size: how many to choose.
      limit: a static upper bound on ``population``.

    Returns:
      int32 ``(size,)``, in no particular order. Floyd's algorithm draws ``size`` random numbers
      instead of sorting the population (60,000 records: 0.7 ms against 23 ms on a CPU).

    >>> sorted(random_subset(jax.random.key(0), 4, 4, limit=10).tolist())
    [0, 1, 2, 3]
    """
    newcomers = population - size + jnp.arange(size, dtype=jnp.int32)
    guesses = jax.random.randint(key, (size,), 0, newcomers + 1, jnp.int32)

    def choose(taken: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        guess, newcomer = pair
        chosen = jnp.where(taken[guess], newcomer, guess)
        return taken.at[chosen].set(True), chosen

    return jax.lax.scan(choose, jnp.zeros(limit, bool), (guesses, newcomers))[1]


def _from_words(words: jax.Array) -> BitSet:
    return BitSet(words, jnp.cumsum(_num_bits(words), dtype=jnp.int32))


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)
