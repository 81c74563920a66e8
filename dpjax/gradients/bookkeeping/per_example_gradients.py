"""Per-example gradients of one parameter leaf, from layer inputs and output gradients.

Where a leaf is small beside its inputs, instantiating its per-example gradients costs less than
ghost norms, and the clipped sum is one product with the clip factors.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping.ghost_norms import (
    factors,
    is_unfoldable,
    matrix_to_kernel,
    shape_of,
)
from dpjax.gradients.bookkeeping.sites import Site, apply_site, apply_views, transpose
from dpjax.gradients.clipping import EXACT, accumulator, squared_norms, zero_nonfinite
from dpjax.gradients.summation import sum_in_parts

# 1 MB: larger unfolded inputs do not stay in the CPU cache, and a batch of them takes more memory
# than all activations of a small network.
_CACHED_FLOATS = 2**18


class PerExampleGradients(NamedTuple):
    """Per-example gradients of one leaf and their squared norms.

    Attributes:
      gradients: ``(batch, ...)``, in the leaf's shape or a reordering of it; zero for an example
        whose squared norm is not finite.
      squares: squared norms, ``(batch,)``.
      to_leaf: maps a sum of gradients to the leaf's shape.
    """

    gradients: jax.Array
    squares: jax.Array
    to_leaf: Callable[[jax.Array], jax.Array]

    def clipped_sum(self, factor: jax.Array) -> jax.Array:
        """``sum_b factor_b gradient_b``, as a dot: faster than a sum of scaled copies."""
        factor = factor.astype(self.gradients.dtype)
        dot = partial(jnp.tensordot, axes=1, precision=EXACT)
        return self.to_leaf(sum_in_parts(dot, factor, self.gradients))


def from_leaf_gradients(gradients: jax.Array) -> PerExampleGradients:
    """From gradients ``(batch, *leaf.shape)``."""
    kept, squares = _zero_nonfinite_examples(gradients.astype(accumulator(gradients)))
    return PerExampleGradients(kept, squares, lambda total: total)


def instantiate_gradients(
    sites: list[Site], leaf: Any, operands: list[Any], output_grads: list[Any]
) -> PerExampleGradients:
    """Per-example gradients of one block, summed over its sites.

    Args:
      sites: the sites of the block.
      leaf: one entry of the block's stack, or all of the block.
      operands: for each site the equation's other inputs, as recorded (see `Trace`).
      output_grads: for each site the gradient at its output.
    """
    if sites[0].block.stack:  # (stack, batch, ...) to (batch, stack, ...)
        each = jax.vmap(partial(gradients_of_entry, sites, leaf), out_axes=1)
        return from_leaf_gradients(each(operands, output_grads))
    if len(sites) == 1 and _is_unfoldable_convolution(sites[0]):
        kept, squares = _map_parts(sites[0], _zero_nonfinite_examples, operands[0], output_grads[0])
        return PerExampleGradients(kept, squares, partial(_kernel_to_leaf, sites[0], leaf))
    return from_leaf_gradients(gradients_of_entry(sites, leaf, operands, output_grads))


def gradients_of_entry(
    sites: list[Site], leaf: Any, operands: list[Any], output_grads: list[Any]
) -> jax.Array:
    """Each example's gradient, ``(batch, *leaf.shape)``."""
    values = zip(sites, operands, output_grads, strict=True)
    first, *others = [gradients_at_site(site, leaf, inputs, grad) for site, inputs, grad in values]
    return sum(others, start=first)


def _zero_nonfinite_examples(gradients: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients with zeros for examples that are not finite (0 * NaN is NaN), and squared norms."""
    squares = squared_norms(gradients)
    return zero_nonfinite(jnp.isfinite(squares), gradients), squares


def _is_unfoldable_convolution(site: Site) -> bool:
    return site.equation.primitive.name == "conv_general_dilated" and is_unfoldable(site)


def _map_parts(
    site: Site, function: Callable[[jax.Array], Any], operands: list[Any], output_grads: jax.Array
) -> Any:
    """Applies ``function`` to kernel gradients ``(part, channels, rows)`` of parts of the batch."""

    def matrix(operands: list[Any], output_grad: jax.Array) -> jax.Array:
        left, right = factors(site, operands, output_grad)
        return jnp.matmul(right[0].T, left[0], precision=EXACT)

    batch, size = len(output_grads), _part_size(site, len(output_grads))
    parts = jax.tree.map(
        lambda x: x.reshape(batch // size, size, *x.shape[1:]), (operands, output_grads)
    )
    results = jax.lax.map(lambda part: function(jax.vmap(matrix)(*part)), parts)
    return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), results)


def _part_size(site: Site, batch: int) -> int:
    """Number of examples unfolded at once: on a CPU what its cache holds."""
    shape = shape_of(site)
    if jax.default_backend() != "cpu" or shape is None:
        return batch
    at_most = max(1, _CACHED_FLOATS // (shape.terms * shape.rows))
    return math.gcd(batch, 2 ** (at_most.bit_length() - 1))


def _kernel_to_leaf(site: Site, leaf: Any, total: jax.Array) -> jax.Array:
    return transpose(partial(apply_views, site), leaf, matrix_to_kernel(site, total))


def gradients_at_site(
    site: Site, leaf: Any, operands: list[Any], output_grads: jax.Array
) -> jax.Array:
    """Each example's gradient at one site, in the leaf's shape."""
    if _is_unfoldable_convolution(site):
        to_leaf = jax.vmap(partial(_kernel_to_leaf, site, leaf))
        return _map_parts(site, to_leaf, operands, output_grads)

    def gradient(operands: list[Any], output_grad: jax.Array) -> jax.Array:
        return transpose(lambda x: _outputs(site, operands, x), leaf, output_grad)

    if site.equation.primitive.name != "conv_general_dilated":
        return jax.vmap(gradient)(operands, output_grads)
    # XLA may merge all examples' convolutions into one with zeros in between, where 0 * NaN of one
    # example would reach the others: values that are not finite are zeroed first.
    inputs = [output_grads, *(value for value in operands if value is not None)]
    each_finite = [jnp.isfinite(v).all(axis=tuple(range(1, v.ndim))) for v in inputs]
    finite = jnp.all(jnp.stack(each_finite), axis=0)
    zeroed = [None if value is None else zero_nonfinite(finite, value) for value in operands]
    grads = jax.vmap(gradient)(zeroed, zero_nonfinite(finite, output_grads))
    return jnp.where(finite.reshape(-1, *[1] * (grads.ndim - 1)), grads, jnp.nan)


def _outputs(site: Site, operands: list[Any], leaf: Any) -> Any:
    """The site's outputs for one example, of all iterations where it is repeated in a loop."""
    if site.repeats is None:
        return apply_site(site, operands, leaf)
    each = partial(apply_site, site, leaf=leaf)
    return jax.vmap(each, axis_size=site.repeats)(operands)
