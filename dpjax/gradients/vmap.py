"""The reference method: per-example gradients by ``vmap``, then clip and sum."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._jaxprs import primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn
from dpjax.gradients.clipping import (
    ClippedGradInfo,
    clip_factors,
    clipped_grad_info,
    squared_norms,
    weighted_sum,
)
from dpjax.gradients.microbatching import isolate_nonfinite
from dpjax.gradients.shard_map import one_example


def clipped_sum(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    max_batch_size: int | None = None,
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch.

    Memory: ``batch`` times the parameters.
    """
    compute = partial(_clipped_sum, loss_fn, l2_clip, max_batch_size or len(mask))
    program = jax.make_jaxpr(loss_fn)(params, jax.tree.map(one_example, batch))
    if "conv_general_dilated" in primitive_names(program.jaxpr):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)


def _clipped_sum(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    max_batch_size: int,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
) -> tuple[Any, ClippedGradInfo]:
    value_and_grad = jax.value_and_grad(loss_fn)
    losses, grads = jax.vmap(value_and_grad, in_axes=(None, 0))(params, batch)
    usable = mask & jnp.isfinite(losses)
    squares = jax.tree.map(squared_norms, grads)
    factors, norms, finite = clip_factors(squares, l2_clip, usable, max_batch_size)
    summed = jax.tree.map(lambda f, g: weighted_sum(f, finite, g), factors, grads)
    return summed, clipped_grad_info(norms, losses, mask, finite)
