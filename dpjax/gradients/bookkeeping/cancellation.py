"""Gradients of single examples whose terms cancel, for norms and clipped sums.

Where the terms of ``sum_t left_t right_t^T`` cancel, as in ``w @ a - w @ b`` with nearly equal a
and b, the bound on rounding that a ghost norm includes may exceed the squared norm itself. The
gradient of such an example is instantiated in about twice the precision, once for its norm and once
for its clipped contribution. Whether this is done for an example follows from that example alone,
so no example changes what another one contributes.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping.ghost_norms import LOOKUPS, SquaredNorm, shape_of
from dpjax.gradients.bookkeeping.per_example_gradients import gradients_at_site
from dpjax.gradients.bookkeeping.sites import Site
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.shard_map import abstract, varying_axes
from dpjax.gradients.summation import CompensatedSum

T = TypeVar("T")

# The largest share of a squared norm that its bound on rounding may be. The error is at most the
# bound, so the squared norm is at most 1 / (1 - 2 * 2^-7) and the norm at most 1 % too large.
_SHARE = 2**-7


class BlockNorms(NamedTuple):
    """Squared norms of one block's per-example gradients.

    Attributes:
      squares: ``(batch,)``.
      cancelling: bool ``(batch,)``: the examples whose clipped contribution is computed from their
        instantiated gradient; ``None`` if no terms of the block can cancel.
    """

    squares: jax.Array
    cancelling: jax.Array | None = None


def norms_without_cancellation(
    bound: SquaredNorm, sites: list[Site], entry: Any, operands: Any, output_grads: Any
) -> BlockNorms:
    """``bound``, with instantiated norms for the examples where it is too large by its rounding.

    Args:
      bound: upper bounds of the squared norms, ``(batch,)``.
      sites: the sites of the block.
      entry: shape and dtype of one entry of its stack, or of all of it.
      operands: for each site the equation's other inputs, as recorded (see `Trace`).
      output_grads: for each site the gradient at its output.
    """
    if not may_cancel(sites):
        return BlockNorms(bound.value)
    cancelling = jnp.isfinite(bound.value) & (bound.rounding > _SHARE * bound.value)
    # The error of the gradient is far smaller; two programs may round it differently.
    margin = bound.rounding * (jnp.finfo(bound.value.dtype).eps / 2**12)

    def instantiate(squares: jax.Array, index: jax.Array) -> jax.Array:
        gradient = _gradient(sites, entry, operands, output_grads, index)
        square = jnp.vdot(gradient, gradient, precision=EXACT)
        return squares.at[index].set(square + margin[index])

    return BlockNorms(_for_each(cancelling, instantiate, bound.value), cancelling)


def add_cancelling(
    summed: jax.Array,
    sites: list[Site],
    entry: Any,
    factor: jax.Array,
    cancelling: jax.Array,
    operands: Any,
    output_grads: Any,
) -> jax.Array:
    """Adds the clipped gradients of the examples that are ``cancelling`` to ``summed``.

    As a sum of output gradients over the batch, with terms far above the clip bound, it would be
    rounded by more than the bound.
    """

    def add(total: jax.Array, index: jax.Array) -> jax.Array:
        return total + factor[index] * _gradient(sites, entry, operands, output_grads, index)

    return _for_each(cancelling & (factor > 0), add, summed)


def may_cancel(sites: list[Site]) -> bool:
    """Whether the gradient has several terms (those of a sum of rows looked up are equal)."""
    (first, *others) = sites
    shape = shape_of(first)
    several = shape is not None and shape.terms > 1 and first.row_sum is None
    return several or len(others) > 0


def _for_each(chosen: jax.Array, function: Callable[[T, jax.Array], T], start: T) -> T:
    """``function(result, index)`` applied for each example chosen; a loop of no iterations if none.

    One at a time, so that no more than one gradient is in memory.
    """
    if not len(chosen):
        return start

    def step(carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        remaining, result = carry
        index = jnp.argmax(remaining)
        return remaining.at[index].set(False), function(result, index)

    return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), step, (chosen, start))[1]


def _gradient(
    sites: list[Site], entry: Any, operands: Any, output_grads: Any, index: jax.Array
) -> jax.Array:
    """One example's gradient in the shape of ``entry``, accurate where its terms cancel.

    Each factor is cut into slices of so few bits that sums of products of two slices are exact, and
    these are added with compensation. What is left over is smaller than the factors by the number
    of bits of two slices: its rounding is about the square of the machine epsilon.

    Source: Ozaki, Ogita, Oishi, Rump (2012), Error-free transformations of matrix multiplication.
    """
    summed = _zero(entry)
    for site, *values in zip(sites, operands, output_grads, strict=True):
        inputs, output_grad = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, index, 1), tuple(values)
        )

        summed = _add_gradient_at_site(summed, site, entry, inputs, output_grad)
    return summed.value()


def _add_gradient_at_site(
    summed: CompensatedSum, site: Site, entry: Any, inputs: list[Any], output_grad: jax.Array
) -> CompensatedSum:
    """Adds the products of all slices of a site's input with all of its output gradient."""
    shape, other = shape_of(site), 1 - site.operand
    assert shape is not None
    bits = (jnp.finfo(accumulator(output_grad)).nmant + 1 - math.ceil(math.log2(shape.terms))) // 2
    rights = _slices(output_grad, bits, accumulator(output_grad))

    def add_products(summed: CompensatedSum, left: list[Any]) -> tuple[CompensatedSum, None]:
        def add(summed: CompensatedSum, right: jax.Array) -> tuple[CompensatedSum, None]:
            return summed.add(gradients_at_site(site, entry, left, right)[0]), None

        return jax.lax.scan(add, summed, rights)

    if site.equation.primitive.name in LOOKUPS:  # the input is the indices
        return add_products(summed, inputs)[0]
    lefts: list[jax.Array | None] = [None, None]
    lefts[other] = _slices(inputs[other], bits, accumulator(output_grad))
    return jax.lax.scan(add_products, summed, lefts)[0]


def _slices(array: jax.Array, bits: int, dtype: Any) -> jax.Array:
    """Two arrays of multiples, by at most ``2**bits``, of a power of two, and the exact rest."""
    info, array = jnp.finfo(dtype), array.astype(dtype)
    # Rounded to no bits of mantissa: a power of two, at least two thirds of the largest entry.
    unit = 2 * jax.lax.reduce_precision(jnp.max(jnp.abs(array)), info.nexp, 0)
    slices = []
    for _ in range(2):
        unit = unit * 2**-bits
        slices.append(jnp.round(array / unit) * unit)
        array = array - slices[-1]
    return jnp.stack([*slices, array])


def _zero(entry: Any) -> CompensatedSum:
    return CompensatedSum.zero(abstract(entry.shape, accumulator(entry), varying_axes(entry)))
