"""Random bits, Gaussian noise and subsets, in less time than by `jax.random`.

Noise takes as long as the rest of a private step of a dense model, and on a CPU most of that is
memory traffic: XLA runs `jax.random.bits` as a loop over the rounds that reads and writes
the whole array in each. Written out, the twenty rounds fuse with the operations after them into
one pass. The bits are identical.
"""

from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike

from dpjax._typing import PRNGKey

# Threefry-2x32, 20 rounds: Salmon, Moraes, Dror, Shaw (2011), table 2 and section 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
Words = TypeVar("Words", jax.Array, npt.NDArray[np.uint32])


@partial(jax.jit, static_argnums=(1, 2))
def normal(key: PRNGKey, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Standard normal noise: the values of `jax.random.normal`, up to the rounding of its formula.

    Args:
      key: a JAX key. For other generators than Threefry `jax.random.normal` is called.
      shape: of the result.
      dtype: a float dtype; for other than float32 `jax.random.normal` is called.

    >>> key = jax.random.key(0)
    >>> bool(jnp.allclose(normal(key, (5,)), jax.random.normal(key, (5,))))
    True
    """
    if dtype != jnp.float32 or not _has_plain_random_bits(key, shape):
        return jax.random.normal(key, shape, dtype)
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    mantissa = (bits(key, shape) >> 9) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - jnp.float32(1)  # in [0, 1)
    uniform = jnp.maximum(lowest, unit * (np.float32(1) - lowest) + lowest)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)


def bits(key: PRNGKey, shape: tuple[int, ...]) -> jax.Array:
    """The bits of `jax.random.bits(key, shape)`: uint32, from counters ``0 .. size - 1``.

    >>> key = jax.random.key(0)
    >>> bool((bits(key, (5,)) == jax.random.bits(key, (5,))).all())
    True
    """
    if not _has_plain_random_bits(key, shape):
        return jax.random.bits(key, shape, jnp.uint32)

    # The position of each entry in the flat array, computed in its own shape.
    strides = np.cumprod([1, *shape[:0:-1]])[::-1][: len(shape)]
    position = jnp.zeros(shape, jnp.uint32)
    for axis, stride in enumerate(strides):
        position += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    return _random_bits(key, position)


def bits_at(key: PRNGKey, positions: jax.Array, size: int) -> jax.Array:
    """The entries at ``positions`` of ``bits(key, (size,))``, without computing the others.

    Other generators than Threefry compute all ``size``.

    >>> key, positions = jax.random.key(0), jnp.array([4, 1])
    >>> bool((bits_at(key, positions, 5) == bits(key, (5,))[positions]).all())
    True
    """
    if not _has_plain_random_bits(key, (size,)):
        return bits(key, (size,))[positions]
    return _random_bits(key, positions.astype(jnp.uint32))


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


def threefry(
    first_key: Words, second_key: Words, first: Words, second: Words
) -> tuple[Words, Words]:
    """Threefry-2x32 of the counters ``(first, second)``: two uint32 arrays, of numpy or JAX.

    Args:
      first_key: first word of the key, as `jax.random.key_data` has it.
      second_key: its second word.
      first: first word of each counter, uint32; broadcast with the key.
      second: second word of each counter.
    """
    schedule = (first_key, second_key, first_key ^ second_key ^ _PARITY)
    high, low = first + schedule[0], second + schedule[1]
    for group in range(5):
        # Four rounds, and a word of the key.
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation))) ^ high
        high = high + schedule[(group + 1) % 3]
        low = low + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def _random_bits(key: PRNGKey, counters: jax.Array) -> jax.Array:
    """The 32 random bits of each counter."""
    first, second = jax.random.key_data(key)
    high, low = threefry(first, second, jnp.zeros_like(counters), counters)
    return high ^ low


def _has_plain_random_bits(key: PRNGKey, shape: tuple[int, ...]) -> bool:
    """Whether JAX uses one 32-bit counter for each entry."""
    return (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and getattr(jax.config, "jax_threefry_partitionable")  # noqa: B009 (no stub has it)
        and 0 < int(np.prod(shape, dtype=np.int64)) < 2**32
    )
