"""Sets of records as bits, 32 to a word: small to count, and quick to read in order.

A running count over every record costs a CPU three times as much as drawing them does; over words
it costs next to nothing, and the record of a rank is found by bisection inside its word.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_BITS = 32
_HALVES = (16, 8, 4, 2, 1)


class PackedSet(NamedTuple):
    """Records ``32 i + k`` for the bits ``k`` of word ``i``, the lowest first.

    Attributes:
      words: uint32, ``ceil(num_records / 32)`` of them.
      counts: ``counts[i]`` is how many records are in words ``0..i``.
    """

    words: jax.Array
    counts: jax.Array

    @property
    def size(self) -> jax.Array:
        """How many records are in the set."""
        return self.counts[-1]

    def records_at(self, ranks: jax.Array) -> jax.Array:
        """Returns the records of these ranks, in order; for ranks past the last some position.

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


def pack(chosen: jax.Array) -> PackedSet:
    """Returns the set of the records where ``chosen``, bool ``(num_records,)``, is true."""
    rows = jnp.pad(chosen, (0, -len(chosen) % _BITS)).reshape(-1, _BITS)
    bits = rows.astype(jnp.uint32) << jnp.arange(_BITS, dtype=jnp.uint32)
    words = jnp.sum(bits, axis=1, dtype=jnp.uint32)
    return PackedSet(words, jnp.cumsum(_num_bits(words), dtype=jnp.int32))


def _num_bits(words: jax.Array) -> jax.Array:
    return jax.lax.population_count(words).astype(jnp.int32)
