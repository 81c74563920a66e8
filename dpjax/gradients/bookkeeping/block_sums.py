"""Clipped sums of each block: its transposed equations applied to scaled output gradients."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping.cancellation import add_cancelling
from dpjax.gradients.bookkeeping.ghost_norms import dense_gradient, is_dense
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr
from dpjax.gradients.bookkeeping.sites import Block, Site, apply_site, apply_views, transpose
from dpjax.gradients.bookkeeping.trace import Trace, site_values
from dpjax.gradients.clipping import accumulator, zero_nonfinite
from dpjax.gradients.summation import sum_in_parts


def add_block_sum(
    program: LossJaxpr,
    block: Block,
    trace: Trace,
    leaf: Any,
    factor: jax.Array,
    finite: jax.Array,
    cancelling: jax.Array | None,
    summed: jax.Array,
) -> jax.Array:
    """Adds the clipped sum of one block to ``summed``, one entry of its stack after another.

    So the sum over micro-batches needs no second array of the size of the parameters. The examples
    that are ``cancelling`` (see `BlockNorms`) are added one by one.
    """
    if program.is_recomputed(block):
        total = trace.sums[program.sites_of(block)[0]]
        return summed + (total if block.stack else total[0])
    sites, *values = site_values(program, trace, block)
    of_entry = partial(sum_of_entry, sites, block.entry(leaf), factor, finite, cancelling)
    if not block.stack:
        return summed + of_entry(*values)
    if not len(summed):
        return summed

    def add_entry(summed: jax.Array, scanned: Any) -> tuple[jax.Array, None]:
        index, arrays = scanned
        entry = jax.lax.dynamic_index_in_dim(summed, index, keepdims=False) + of_entry(*arrays)
        return jax.lax.dynamic_update_index_in_dim(summed, entry, index, 0), None

    return jax.lax.scan(add_entry, summed, (jnp.arange(len(summed)), values))[0]


def sum_of_entry(
    sites: list[Site],
    entry: Any,
    factor: jax.Array,
    finite: jax.Array,
    cancelling: jax.Array | None,
    operands: list[Any],
    output_grads: list[Any],
) -> jax.Array:
    """The clipped sum of one entry of a block's stack, or of a block without one."""

    def weighted_sum(factor: jax.Array, arrays: Any) -> jax.Array:
        finite, cancelling, *recorded = arrays
        from_batch = factor if cancelling is None else jnp.where(cancelling, 0, factor)
        total = jnp.zeros(entry.shape, accumulator(entry))
        for site, inputs, output_grads in zip(sites, *recorded, strict=True):
            operands = [
                zero_nonfinite(finite, value)
                if value is not None and jnp.issubdtype(value.dtype, jnp.floating)
                else value
                for value in inputs
            ]
            output_grad = zero_nonfinite(finite, output_grads).astype(total.dtype)
            values = _apply_clip_factors(site, from_batch, operands, output_grad)
            if site.repeats is not None:  # (batch, repeats, ...) to (batch * repeats, ...)
                values = jax.tree.map(
                    lambda x: x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), values
                )
            total += _batch_transpose(site, entry, *values)
        if cancelling is None:
            return total
        return add_cancelling(total, sites, entry, factor, cancelling, *recorded)

    return sum_in_parts(weighted_sum, factor, (finite, cancelling, operands, output_grads))


def _apply_clip_factors(
    site: Site, factor: jax.Array, operands: list[Any], output_grad: jax.Array
) -> tuple[list[Any], jax.Array]:
    """Scales the output gradient, or the input of a product where that is smaller."""
    other = 1 - site.operand
    if site.equation.primitive.name != "dot_general" or operands[other].size >= output_grad.size:
        return operands, _scale_examples(factor, output_grad)
    scaled = _scale_examples(factor, operands[other].astype(output_grad.dtype))
    return [scaled if position == other else None for position in (0, 1)], output_grad


def _scale_examples(factor: jax.Array, array: jax.Array) -> jax.Array:
    return array * factor.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)


def _batch_transpose(
    site: Site, leaf: Any, operands: list[Any], output_grads: jax.Array
) -> jax.Array:
    """The gradient of the leaf at one site, summed over the batch."""
    if is_dense(site):
        matrix = dense_gradient(site, operands, output_grads)
        return transpose(partial(apply_views, site), leaf, matrix)

    def outputs(x: Any) -> Any:
        each = partial(apply_site, site, leaf=x)
        return jax.vmap(each, axis_size=len(output_grads))(operands)

    return transpose(outputs, leaf, output_grads)
