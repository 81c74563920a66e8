"""``explain``: which route each parameter leaf takes to its clipped sum, and why."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dpjax._validation import batch_length
from dpjax.gradients.bookkeeping.program import analyse
from dpjax.gradients.bookkeeping.routes import Route, choose
from dpjax.gradients.inspection import check_loss


class LeafRoute(NamedTuple):
    """One parameter leaf's route.

    Attributes:
      leaf: its path in the tree.
      shape: its shape.
      route: name, reason and cost (see `Route`).
    """

    leaf: str
    shape: tuple[int, ...]
    route: Route


class Explanation(NamedTuple):
    """What `explain` found; ``print`` it for a table.

    Attributes:
      leaves: one `LeafRoute` for each parameter leaf.
      batch_size: examples in the batch.
    """

    leaves: tuple[LeafRoute, ...]
    batch_size: int

    def __str__(self) -> str:
        rows = [("leaf", "shape", "route", "floats held", "why")]
        for leaf, shape, route in self.leaves:
            held = f"{route.floats * self.batch_size:,}"
            rows.append((leaf, str(shape), route.name, held, route.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def explain(loss_fn: Callable[[Any, Any], jax.Array], params: Any, batch: Any) -> Explanation:
    """Tells how `clipped_grad` gets each leaf's norms and clipped sum.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``.
      params: tree of float arrays.
      batch: tree of arrays with a leading example axis; only shapes are used.

    Returns:
      For each leaf its route, the reason, and how many numbers the route holds for the batch beside
      activations. ``"factors"`` forms no gradient, ``"materialise"`` forms each example's from its
      input and signal, ``"vmap"`` by ``vmap(grad)``. All are exact.

    Raises:
      ValueError: as `clipped_grad` does for losses it refuses.

    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"] + p["b"]))
    >>> params = {"w": jnp.ones((784, 256)), "b": jnp.zeros(256)}
    >>> print(explain(loss, params, jnp.ones((32, 784))))
    leaf   shape       route        floats held  why
    ['b']  (256,)      materialise  8,192        add
    ['w']  (784, 256)  factors      64           dot_general, one outer product
    """
    check_loss(loss_fn, params, batch)
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    program = analyse(loss_fn, params, example)
    leaves = tuple(
        LeafRoute(jax.tree_util.keystr(path), leaf.shape, choose(program, number, leaf.size))
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params))
    )
    return Explanation(leaves, batch_length(batch))
