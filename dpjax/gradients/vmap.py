"""The reference: form every example's gradient by ``vmap``, then clip and sum."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._jaxprs import primitive_names
from dpjax.gradients.clipping import (
    ClippedGradInfo,
    clip_factors,
    info_of,
    squared_norms,
    weighted_sum,
)
from dpjax.gradients.parts import isolated
from dpjax.gradients.varying import one_example


def clipped_sum(
    loss_fn: Callable[[Any, Any], jax.Array], l2_clip: Any, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch.

    Memory: ``batch`` times the parameters.
    """
    compute = partial(_clipped_sum, loss_fn, l2_clip)
    program = jax.make_jaxpr(loss_fn)(params, jax.tree.map(one_example, batch))
    if "conv_general_dilated" in primitive_names(program.jaxpr):
        return isolated(compute, params, batch, mask)
    return compute(params, batch, mask)


def _clipped_sum(
    loss_fn: Callable[[Any, Any], jax.Array], l2_clip: Any, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    value_and_grad = jax.value_and_grad(loss_fn)
    losses, grads = jax.vmap(value_and_grad, in_axes=(None, 0))(params, batch)
    usable = mask & jnp.isfinite(losses)
    squares = jax.tree.map(squared_norms, grads)
    factors, norms, finite = clip_factors(squares, l2_clip, usable)
    summed = jax.tree.map(lambda f, g: weighted_sum(f, finite, g), factors, grads)
    return summed, info_of(norms, losses, mask, finite)
