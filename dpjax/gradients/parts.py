"""One batch in several parts: for memory, or to keep what is not finite to itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.clipping import ClippedGradInfo
from dpjax.gradients.varying import as_varying, varying_axes

# (params, batch, mask) -> (clipped sum, info)
ClippedSumFn = Callable[..., tuple[Any, ClippedGradInfo]]


def isolated(
    compute: ClippedSumFn, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """``compute``, but with every example by itself where one of them was not finite.

    Convolutions with a kernel or a kernel gradient for each example are run by XLA as *one*
    convolution with zeros between the examples, and NaN times zero is NaN: one bad example would
    empty the whole batch, and so move the sum by more than a clip bound.
    """
    summed, info = compute(params, batch, mask)
    if len(mask) < 2:
        return summed, info
    return jax.lax.cond(
        info.num_nonfinite == 0,
        lambda: (summed, info),
        lambda: in_parts(compute, 1, params, batch, mask),
    )


def in_parts(
    compute: ClippedSumFn, part_size: int, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """Scans ``compute`` over equal parts; the last one is filled up with masked-out examples."""
    size = mask.shape[0]
    num_parts = -(-size // part_size)
    slots = jnp.arange(num_parts * part_size).reshape(num_parts, part_size)
    source = jnp.minimum(slots, size - 1)

    def part(summed: Any, part_slots: tuple[jax.Array, jax.Array]) -> tuple[Any, ClippedGradInfo]:
        index, counts = part_slots
        examples = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], batch)
        more, info = compute(params, examples, mask[index] & counts)
        return jax.tree.map(jnp.add, summed, more), info

    zeros = _zeros_like_sum(compute, params, batch, mask)
    summed, info = jax.lax.scan(part, zeros, (source, slots < size))
    norms, losses = jax.tree.map(lambda leaf: leaf.reshape(-1)[:size], (info.norms, info.losses))
    return summed, ClippedGradInfo(norms, losses, info.num_nonfinite.sum())


def _zeros_like_sum(compute: ClippedSumFn, params: Any, batch: Any, mask: jax.Array) -> Any:
    summed, _ = jax.eval_shape(compute, params, batch, mask)
    return jax.tree.map(
        lambda leaf: as_varying(jnp.zeros(leaf.shape, leaf.dtype), varying_axes(leaf)), summed
    )
