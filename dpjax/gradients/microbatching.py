"""Clipped sums over micro-batches, to save memory or to isolate examples that are not finite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import ArrayTree
from dpjax.gradients.clipping import ClippedGradInfo
from dpjax.gradients.summation import CompensatedSum

# (params, batch, mask) -> (clipped sum, info)
ClippedSumFn = Callable[..., tuple[Any, ClippedGradInfo]]


def isolate_nonfinite(
    compute: ClippedSumFn, params: ArrayTree, batch: ArrayTree, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """``compute``, repeated with micro-batches of one where an example was not finite.

    XLA runs convolutions with a kernel (or kernel gradient) for each example as *one* convolution
    with zeros between the examples, and 0 * NaN is NaN: one example could zero out the whole batch,
    which moves the sum by more than a clip bound.
    """
    summed, info = compute(params, batch, mask)
    if len(mask) < 2:
        return summed, info
    return jax.lax.cond(
        info.num_nonfinite == 0,
        lambda: (summed, info),
        lambda: sum_over_microbatches(compute, 1, params, batch, mask),
    )


def sum_over_microbatches(
    compute: ClippedSumFn, part_size: int, params: ArrayTree, batch: ArrayTree, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """Scans ``compute`` over micro-batches of equal size, the last ones padded and masked.

    Micro-batch i has the examples i, i + k, i + 2k, ... of k micro-batches. So a batch that is
    split over devices in contiguous parts has a part of each micro-batch on every device.
    """
    size = mask.shape[0]
    num_parts = -(-size // part_size)
    padding = num_parts * part_size - size

    def in_columns(leaf: jax.Array) -> jax.Array:
        padded = leaf if padding == 0 else jnp.concatenate([leaf, leaf[jnp.full(padding, -1)]])
        return padded.reshape(part_size, num_parts, *leaf.shape[1:])

    counts = jnp.arange(num_parts * part_size).reshape(part_size, num_parts) < size
    columns = jax.tree.map(in_columns, (jax.tree.map(jnp.asarray, batch), mask))

    def part(summed: CompensatedSum, index: jax.Array) -> tuple[CompensatedSum, ClippedGradInfo]:
        examples, included, counted = jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 1, keepdims=False),
            (*columns, counts),
        )
        more, info = compute(params, examples, included & counted)
        return summed.add(more), info

    zero = CompensatedSum.zero(jax.eval_shape(compute, params, batch, mask)[0])
    summed, info = jax.lax.scan(part, zero, jnp.arange(num_parts))
    norms, losses = jax.tree.map(
        lambda leaf: leaf.swapaxes(0, 1).reshape(-1)[:size], (info.norms, info.losses)
    )
    return summed.value(), ClippedGradInfo(norms, losses, info.num_nonfinite.sum())
