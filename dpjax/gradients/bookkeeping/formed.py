"""Gradients formed for every example, from what each equation saw and what comes back to it.

Where one parameter leaf is small beside its inputs, forming its gradient for each example costs
less than the norm without it, and the clipped sum is then one product with the clip factors.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping import patches
from dpjax.gradients.bookkeeping.factors import factors, shape_of
from dpjax.gradients.bookkeeping.program import Site
from dpjax.gradients.bookkeeping.transposed import apply_to, through_views, transpose
from dpjax.gradients.clipping import EXACT, accumulator, silence, squared_norms

# 1 MB: patches of more are written to memory and read back, and a batch's take more room than all
# activations of a small network.
_CACHED_FLOATS = 2**18


class Formed(NamedTuple):
    """Each example's gradient of one leaf, in some order of its entries, and the way back.

    Attributes:
      gradients: ``(batch, ...)``; zero for an example whose square is not finite.
      squares: squared norms, ``(batch,)``.
      to_leaf: from one sum of gradients to the leaf's own shape.
    """

    gradients: jax.Array
    squares: jax.Array
    to_leaf: Callable[[jax.Array], jax.Array]

    def clipped_sum(self, factor: jax.Array) -> jax.Array:
        """``sum_b factor_b gradient_b``: a dot, several times faster than a sum of copies."""
        factor = factor.astype(self.gradients.dtype)
        return self.to_leaf(jnp.tensordot(factor, self.gradients, axes=1, precision=EXACT))


def settle(gradients: jax.Array) -> Formed:
    """Formed gradients in the leaf's own shape."""
    kept, squares = _settled(gradients.astype(accumulator(gradients)))
    return Formed(kept, squares, lambda total: total)


def form(sites: list[Site], leaf: Any, operands: list[Any], signals: list[Any]) -> Formed:
    """The gradients of one leaf, summed over the sites where it enters.

    Args:
      sites: where the leaf enters.
      leaf: the parameter.
      operands: for each site the equation's other inputs, with a batch axis.
      signals: for each site what comes back, with a batch axis.
    """
    if len(sites) == 1 and _on_patches(sites[0]):
        kept, squares = _by_parts(sites[0], _settled, operands[0], signals[0])
        return Formed(kept, squares, partial(_kernel_to_leaf, sites[0], leaf))
    each = zip(sites, operands, signals, strict=True)
    first, *others = [_gradients(site, leaf, inputs, signal) for site, inputs, signal in each]
    return settle(sum(others, start=first))


def _settled(gradients: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients without what is not finite (which zero clip factors would turn into NaN)."""
    squares = squared_norms(gradients)
    return silence(jnp.isfinite(squares), gradients), squares


def _on_patches(site: Site) -> bool:
    return site.equation.primitive.name == "conv_general_dilated" and patches.is_plain(site)


def _by_parts(
    site: Site, after: Callable[[jax.Array], Any], operands: list[Any], signals: jax.Array
) -> Any:
    """``after`` of the kernel's gradients ``(part, channels, rows)``, for parts of the batch."""

    def matrix(operands: list[Any], signal: jax.Array) -> jax.Array:
        left, right = factors(site, operands, signal)
        return jnp.matmul(right[0].T, left[0], precision=EXACT)

    batch, size = len(signals), _part_size(site, len(signals))
    in_parts = jax.tree.map(
        lambda x: x.reshape(batch // size, size, *x.shape[1:]), (operands, signals)
    )
    results = jax.lax.map(lambda part: after(jax.vmap(matrix)(*part)), in_parts)
    return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), results)


def _part_size(site: Site, batch: int) -> int:
    """For how many examples patches are held at once: on a CPU for what its cache holds."""
    shape = shape_of(site)
    if jax.default_backend() != "cpu" or shape is None:
        return batch
    at_most = max(1, _CACHED_FLOATS // (shape.terms * shape.rows))
    return math.gcd(batch, 2 ** (at_most.bit_length() - 1))


def _kernel_to_leaf(site: Site, leaf: Any, total: jax.Array) -> jax.Array:
    return transpose(partial(through_views, site), leaf, patches.to_kernel(site, total))


def _gradients(site: Site, leaf: Any, operands: list[Any], signals: jax.Array) -> jax.Array:
    """Each example's gradient at one site, in the leaf's shape."""
    if _on_patches(site):
        to_leaf = jax.vmap(partial(_kernel_to_leaf, site, leaf))
        return _by_parts(site, to_leaf, operands, signals)

    def gradient(operands: list[Any], signal: jax.Array) -> jax.Array:
        return transpose(partial(apply_to, site, operands), leaf, signal)

    if site.equation.primitive.name != "conv_general_dilated":
        return jax.vmap(gradient)(operands, signals)
    # Of all examples' convolutions XLA may make one, with zeros in between, and NaN times zero
    # would reach from one example to the others: what is not finite stays out of it.
    inputs = [signals, *(value for value in operands if value is not None)]
    each_finite = [jnp.isfinite(v).all(axis=tuple(range(1, v.ndim))) for v in inputs]
    finite = jnp.all(jnp.stack(each_finite), axis=0)
    silenced = [None if value is None else silence(finite, value) for value in operands]
    grads = jax.vmap(gradient)(silenced, silence(finite, signals))
    return jnp.where(finite.reshape(-1, *[1] * (grads.ndim - 1)), grads, jnp.nan)
