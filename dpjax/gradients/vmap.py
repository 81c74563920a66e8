"""The reference: form every example's gradient by ``vmap``, then clip and sum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.clipping import (
    ClippedGradInfo,
    clip_factors,
    info_of,
    squared_norms,
    weighted_sum,
)


def clipped_sum(
    loss_fn: Callable[[Any, Any], jax.Array], l2_clip: Any, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch.

    Memory: ``batch`` times the parameters.
    """
    value_and_grad = jax.value_and_grad(loss_fn)
    losses, grads = jax.vmap(value_and_grad, in_axes=(None, 0))(params, batch)
    usable = mask & jnp.isfinite(losses)
    squares = jax.tree.map(squared_norms, grads)
    factors, norms, finite = clip_factors(squares, l2_clip, usable)
    summed = jax.tree.map(lambda f, g: weighted_sum(f, finite, g), factors, grads)
    return summed, info_of(norms, losses, mask, finite)
