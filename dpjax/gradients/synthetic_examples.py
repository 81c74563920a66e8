"""Synthetic examples on which a program is tested for dependence between the examples of a batch.

They come from fixed keys, and of the data only shapes and dtypes are used, so that a refusal is no
function of the data.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._checks import is_traced

# Float entries inside (0, 1), close together, heavy-tailed, and whole numbers: most functions of
# an example are finite on one of these at least. Integers: from the first number up to the second.
_FLOATS: tuple[Callable[..., jax.Array], ...] = (
    lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, 0.05, 0.95),
    lambda key, shape, dtype: 0.5 + 0.01 * jax.random.normal(key, shape, dtype),
    lambda key, shape, dtype: jax.random.t(key, 1.0, shape, dtype),
    lambda key, shape, dtype: jax.random.randint(key, shape, 0, 4).astype(dtype),
)
_INTEGERS = ((0, 2), (1, 4), (0, 100), (0, 10))


def synthetic_batches(
    batch: Any, count: int
) -> Iterator[tuple[Any, Any, Callable[[jax.Array, jax.Array], jax.Array]]]:
    """Two batches of ``count`` examples of each kind, and ``half(first, second)`` of two arrays.

    ``half`` takes the rows of a random half of the examples from its first argument, and the others
    from its second.
    """
    leaves, treedef = jax.tree.flatten(batch)
    for kind in range(len(_FLOATS)):
        first, second = (
            jax.tree.unflatten(treedef, _draw(leaves, count, kind, number)) for number in range(2)
        )
        order = jax.random.permutation(jax.random.key(kind), count)

        def half(first: jax.Array, second: jax.Array, order: jax.Array = order) -> jax.Array:
            is_first = (order < count // 2).reshape(-1, *[1] * (first.ndim - 1))
            return jnp.where(is_first, first, second)

        yield first, second, half


def _draw(leaves: Sequence[Any], count: int, kind: int, number: int) -> list[jax.Array]:
    """``count`` examples with the dtypes and shapes of one example, drawn from fixed keys."""
    drawn = []
    for position, leaf in enumerate(leaves):
        shape, dtype = (count, *leaf.shape[1:]), leaf.dtype
        key = jax.random.fold_in(jax.random.key(2 * kind + number), position)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            drawn.append(jax.random.split(key, shape))
        elif jnp.issubdtype(dtype, jnp.bool_):
            drawn.append(jax.random.bernoulli(key, 0.5, shape))
        elif jnp.issubdtype(dtype, jnp.floating):
            drawn.append(_FLOATS[kind](key, shape, dtype))
        else:
            drawn.append(jax.random.randint(key, shape, *_INTEGERS[kind]).astype(dtype))
    return drawn


def is_unchanged(before: jax.Array, after: jax.Array) -> bool:
    """Whether equal up to the rounding of devices without a fixed order of summation.

    True too where a traced value leaves it unknown.
    """
    return _holds(partial(jnp.allclose, rtol=1e-6, atol=0, equal_nan=True), before, after)


def is_close(a: jax.Array, b: jax.Array) -> bool:
    """Whether equal up to rounding in a computation of another shape, where both are finite.

    True too where a traced value leaves it unknown.
    """
    return _holds(_is_close, a, b)


def _is_close(a: jax.Array, b: jax.Array) -> jax.Array:
    finite = jnp.isfinite(a) & jnp.isfinite(b)
    count = jnp.maximum(1, jnp.sum(finite, dtype=a.dtype))
    size = jnp.abs(a) + jnp.sum(jnp.where(finite, jnp.abs(a), 0)) / count
    return jnp.all(~finite | (jnp.abs(a - b) <= 0.01 * size))


def _holds(
    condition: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array
) -> bool:
    if a.shape != b.shape:
        return False
    result = condition(a, b)
    return is_traced(result) or bool(result)
