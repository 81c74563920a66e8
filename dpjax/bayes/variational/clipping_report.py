"""What clipping does to a gradient: how many records it touches, and where it leads instead."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._validation import batch_length
from dpjax.gradients.clipped_grad import clipped_grad

_NO_BOUND = 1e30
_PART = 1024  # records whose gradients are in memory at once


class ClippingReport(NamedTuple):
    """Clipping over all records at one point. **Private values**: for looking, not for release.

    Attributes:
      share_clipped: of the records, those whose gradient is longer than its bound.
      clipped: mean of the clipped gradients, a tree like the unconstrained parameters.
      unclipped: mean of the gradients as they are.
    """

    share_clipped: jax.Array
    clipped: Any
    unclipped: Any

    @property
    def bias(self) -> Any:
        """What clipping adds to the mean gradient, a tree."""
        return jax.tree.map(jnp.subtract, self.clipped, self.unclipped)

    @property
    def cosine(self) -> jax.Array:
        """Of the angle between clipped and unclipped mean: 1 if clipping only shortens the step."""
        clipped, unclipped = ravel_pytree(self.clipped)[0], ravel_pytree(self.unclipped)[0]
        lengths = jnp.linalg.norm(clipped) * jnp.linalg.norm(unclipped)
        return clipped @ unclipped / lengths

    @property
    def relative_bias(self) -> jax.Array:
        """Length of the bias over the length of the unclipped mean."""
        lengths = [jnp.linalg.norm(ravel_pytree(g)[0]) for g in (self.bias, self.unclipped)]
        return lengths[0] / lengths[1]


def report_clipping(
    loss: Callable[[Any, Any], jax.Array], l2_clip: Any, params: Any, data: Any
) -> ClippingReport:
    """Clips all of ``data`` to ``l2_clip``, and to nothing.

    >>> loss = lambda w, x: -jnp.sum(w * x)
    >>> data = jnp.array([[3.0, 0.0], [0.0, 1.0]])
    >>> report = report_clipping(loss, 1.0, jnp.zeros(2), data)
    >>> float(report.share_clipped), report.clipped.tolist(), report.bias.tolist()
    (0.5, [-0.5, -0.5], [1.0, 0.0])
    """
    no_bound = jax.tree.map(lambda _: _NO_BOUND, l2_clip)
    (clipped, info), (unclipped, _) = (
        clipped_grad(loss, bound, microbatch_size=_PART)(params, data)
        for bound in (l2_clip, no_bound)
    )
    over = jax.tree.leaves(jax.tree.map(jnp.greater, info.norms, l2_clip))
    share = jnp.stack(over).any(0).mean()
    count = batch_length(data)
    means = [jax.tree.map(lambda total: total / count, g) for g in (clipped, unclipped)]
    return ClippingReport(share, *means)
