"""What a zoo entry is: a loss with tiny parameters and a tiny batch.

A builder takes a `Draw` and returns a `Case`. What counts is how a parameter enters, not
its size. Arrays are float64 NumPy; `floats` casts them to the precision under test.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BATCH = 4


class Case(NamedTuple):
    """A loss, its parameters, and a batch of `BATCH` examples."""

    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any


class Draw:
    """Random arrays from a seed: of one shape for parameters, with a batch axis for examples."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> np.ndarray:
        return self._rng.normal(size=shape)

    def examples(self, *shape: int) -> np.ndarray:
        return self._rng.normal(size=(BATCH, *shape))

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        return self._rng.integers(low, high, size=(BATCH, *shape), dtype=np.int32)

    def keys(self) -> jax.Array:
        return jax.random.split(jax.random.key(int(self._rng.integers(1000))), BATCH)


Builder = Callable[[Draw], Case]


def scalar(array: Any) -> Any:
    """A loss that weighs every entry differently and is not symmetric."""
    flat = jnp.ravel(array)
    return jnp.sum(jnp.sin(flat + 0.1 * jnp.arange(flat.size)) + 0.3 * flat**2)


def floats(tree: Any, dtype: Any) -> Any:
    """The tree as JAX arrays, every float in ``dtype``."""
    return jax.tree.map(lambda leaf: _cast(leaf, dtype), tree)


def _cast(leaf: Any, dtype: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jnp.asarray(leaf, dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)


def poisoned(batch: Any, index: int) -> Any:
    """The batch with NaN in every float of one example."""

    def spoil(leaf: Any) -> Any:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.at[index].set(jnp.nan) if is_float else leaf

    return jax.tree.map(spoil, batch)
