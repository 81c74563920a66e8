"""The clipped gradient sum by book-keeping: one backward pass, norms, then weighted sums."""

import math
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._jaxprs import primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn
from dpjax.gradients.bookkeeping.ghost_norms import (
    LOOKUPS,
    Factors,
    dense_gradient,
    embedding_squared_norms,
    factors,
    inner_product,
    is_dense,
    map_sequentially,
)
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr, trace_loss
from dpjax.gradients.bookkeeping.per_example_gradients import (
    PerExampleGradients,
    from_leaf_gradients,
    gradients_of_entry,
    instantiate_gradients,
)
from dpjax.gradients.bookkeeping.recomputation import Recomputed
from dpjax.gradients.bookkeeping.routes import Route, choose_route, row_axis
from dpjax.gradients.bookkeeping.sites import Block, Site, apply_site, apply_views, transpose
from dpjax.gradients.bookkeeping.trace import Trace, trace_batch
from dpjax.gradients.clipping import (
    EXACT,
    ClippedGradInfo,
    Clipping,
    accumulator,
    clip_factors,
    clipped_grad_info,
    squared_norms,
    zero_nonfinite,
)
from dpjax.gradients.microbatching import isolate_nonfinite
from dpjax.gradients.shard_map import one_example
from dpjax.gradients.summation import sum_in_parts


def clipped_sum(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    max_batch_size: int | None = None,
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch, by book-keeping.

    Zero is added to the output of each equation that is linear in a parameter; the derivative with
    respect to it is the output gradient. Norms follow from layer inputs and output gradients, and
    the clipped sum is the transposed equation applied to output gradients scaled by clip factors.
    Within `jax.lax.scan` the terms of all iterations are concatenated, or, where it iterates over a
    stacked leaf, norms and sums are computed entry by entry. Layers under `jax.checkpoint` record
    nothing: the backward pass computes their norms, then, run once more, their sums.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``.
      l2_clip: a number, or a prefix of the parameter tree.
      params: a tree of float arrays.
      batch: a tree whose leaves share a leading axis of length B.
      mask: bool ``(B,)``: the examples to include.
      max_batch_size: the most examples in one sum before the noise; B by default.

    Returns:
      The sum, in the structure of ``params``, and the private `ClippedGradInfo`.

    Source: Goodfellow (2015), arXiv:1510.01799, for dense layers; Bu, Wang, Zha, Karypis (2022) for
    book-keeping; Bu, Mao, Xu (2022) for the choice between ghost norms and instantiation.
    """
    params, batch = jax.tree.map(jnp.asarray, (params, batch))  # numbers and NumPy arrays too
    program = trace_loss(loss_fn, params, jax.tree.map(one_example, batch))
    leaves = jax.tree.leaves(params)
    routes = [choose_route(program, b, b.size(leaves[b.leaf])) for b in program.blocks]
    compute = partial(_clipped_sum, program, routes, l2_clip, max_batch_size or len(mask))
    if _has_untracked_convolution(program, routes):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)


def _has_untracked_convolution(program: LossJaxpr, routes: list[Route]) -> bool:
    """Whether the loss has convolutions that book-keeping leaves to XLA, which may mix examples."""
    seen = sum(site.equation.primitive.name == "conv_general_dilated" for site in program.sites)
    names = Counter(primitive_names(program.jaxpr.jaxpr))
    by_vmap = any(route.name == "vmap" for route in routes)
    return names["conv_general_dilated"] > (0 if by_vmap else seen)


def _clipped_sum(
    program: LossJaxpr,
    routes: list[Route],
    l2_clip: ClipBound,
    max_batch_size: int,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
) -> tuple[Any, ClippedGradInfo]:
    leaves, treedef = jax.tree.flatten(params)
    recomputed = {
        program.sites_of(block)[0]: _recomputed(program, block, route, leaves[block.leaf])
        for block, route in zip(program.blocks, routes, strict=True)
        if program.is_recomputed(block)
    }

    def clip(trace: Trace) -> tuple[dict[int, PerExampleGradients], Clipping]:
        usable = mask & jnp.isfinite(trace.losses)
        instantiated = _instantiate(program, routes, leaves, trace)
        of_blocks = {number: each.squares for number, each in instantiated.items()}
        of_blocks |= _squared_norms(program, routes, trace, of_blocks)
        squares = _sum_of_blocks(program, of_blocks)
        zero = jnp.zeros(len(mask), trace.losses.dtype)
        of_leaves = jax.tree.unflatten(treedef, [squares.get(n, zero) for n in range(len(leaves))])
        return instantiated, clip_factors(of_leaves, l2_clip, usable, max_batch_size)

    def factors_of_recomputed(trace: Trace) -> dict[int, jax.Array]:
        factors = jax.tree.leaves(clip(trace)[1].factors)
        return {
            n: factors[program.sites[n].block.leaf].astype(accumulator(r.entry))
            for n, r in recomputed.items()
        }

    trace = trace_batch(program, leaves, recomputed, batch, factors_of_recomputed)
    instantiated, clipping = clip(trace)
    factors_of_leaves = jax.tree.leaves(clipping.factors)
    sums = {}
    for number, block in enumerate(program.blocks):
        leaf, factor = leaves[block.leaf], factors_of_leaves[block.leaf]
        total = (
            instantiated[number].clipped_sum(factor)
            if number in instantiated
            else _bookkeeping_sum(program, block, trace, leaf, factor, clipping.finite)
        )
        sums[number] = block.to_leaf(leaf, total)
    info = clipped_grad_info(clipping.norms, trace.losses, mask, clipping.finite)
    of_leaves = _sum_of_blocks(program, sums)
    return jax.tree.unflatten(treedef, [of_leaves[n] for n in range(len(leaves))]), info


def _sum_of_blocks(program: LossJaxpr, values: dict[int, jax.Array]) -> dict[int, jax.Array]:
    """For each leaf the sum of the values of its blocks, which are given by number."""
    sums: dict[int, jax.Array] = {}
    for number, value in values.items():
        leaf = program.blocks[number].leaf
        sums[leaf] = sums[leaf] + value if leaf in sums else value
    return sums


def _instantiate(
    program: LossJaxpr, routes: list[Route], leaves: list[Any], trace: Trace
) -> dict[int, PerExampleGradients]:
    """Per-example gradients of the blocks whose route instantiates them, by number of the block."""
    instantiated = {}
    for number, (block, route) in enumerate(zip(program.blocks, routes, strict=True)):
        if route.name == "vmap":
            instantiated[number] = from_leaf_gradients(trace.grads[block.leaf])
        if route.name == "instantiate" and not program.is_recomputed(block):
            sites, *values = _site_values(program, trace, block)
            entry = block.entry(leaves[block.leaf])
            instantiated[number] = instantiate_gradients(sites, entry, *values)
    return instantiated


def _recomputed(program: LossJaxpr, block: Block, route: Route, leaf: Any) -> Recomputed:
    """Norms and sums of a block that the backward pass computes, of one entry at a time."""
    sites, entry = [program.sites[n] for n in program.sites_of(block)], block.entry(leaf)

    def squares(operands: list[Any], output_grad: jax.Array) -> jax.Array:
        if route.name == "instantiate":
            return squared_norms(gradients_of_entry(sites, entry, [operands], [output_grad]))
        return _squared_norms_of_entry(route, sites, [operands], [output_grad])

    def clipped_sum(factor: jax.Array, operands: list[Any], output_grad: jax.Array) -> jax.Array:
        return _sum_of_entry(sites, entry, factor, factor > 0, [operands], [output_grad])

    return Recomputed(squares, clipped_sum, entry)


def _site_values(
    program: LossJaxpr, trace: Trace, block: Block
) -> tuple[list[Site], list[Any], list[Any]]:
    """The sites of one block, their other operands and their output gradients."""
    numbers = program.sites_of(block)
    return (
        [program.sites[n] for n in numbers],
        [trace.operands[n] for n in numbers],
        [trace.output_grads[n] for n in numbers],
    )


def _squared_norms(
    program: LossJaxpr, routes: list[Route], trace: Trace, known: Collection[int]
) -> dict[int, jax.Array]:
    """Squared norms of the per-example gradients, ``(batch,)``, of the blocks not ``known``."""
    squares: dict[int, jax.Array] = {}
    stacks: dict[int, dict[int, Any]] = {}  # by length: sites and values of blocks
    for number, (block, route) in enumerate(zip(program.blocks, routes, strict=True)):
        if number in known or route.name == "unused":
            continue
        if program.is_recomputed(block):
            squares[number] = trace.squares[program.sites_of(block)[0]]
        elif block.stack:
            of_length = stacks.setdefault(math.prod(block.stack), {})
            of_length[number] = _site_values(program, trace, block)
        else:
            squares[number] = _squared_norms_of_entry(route, *_site_values(program, trace, block))
    for length, blocks in stacks.items():
        squares |= _squared_norms_of_stacks(routes, length, blocks)
    return squares


def _squared_norms_of_stacks(
    routes: list[Route], length: int, blocks: dict[int, Any]
) -> dict[int, jax.Array]:
    """The norms of blocks that are stacks of one length: their entries have separate gradients.

    In one loop, where XLA computes the Gram matrix of an input that several blocks take once.
    """

    def of_entries(index: jax.Array) -> dict[int, jax.Array]:
        take = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
        return {
            number: _squared_norms_of_entry(routes[number], sites, *jax.tree.map(take, values))
            for number, (sites, *values) in blocks.items()
        }

    each = jax.lax.map(of_entries, jnp.arange(length))
    return {number: jnp.sum(squares, axis=0) for number, squares in each.items()}


def _squared_norms_of_entry(
    route: Route, sites: list[Site], operands: Any, output_grads: Any
) -> jax.Array:
    if route.name == "sequential":
        each = partial(_instantiated_squared_norm, sites[0])
        return map_sequentially(each, (operands, output_grads))
    if len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS:
        return embedding_squared_norms(sites[0], operands[0], output_grads[0])
    return jax.vmap(partial(_ghost_squared_norm, sites))(operands, output_grads)


def _instantiated_squared_norm(site: Site, operands: Any, output_grads: Any) -> jax.Array:
    left, right = factors(site, operands[0], output_grads[0])
    gradient = jnp.einsum("gtr,gtc->grc", left, right, precision=EXACT)
    terms = jnp.sum(left**2, axis=-1) * jnp.sum(right**2, axis=-1)  # may cancel
    rounding = 4 * jnp.finfo(gradient.dtype).eps * jnp.sum(terms)
    return jnp.vdot(gradient, gradient, precision=EXACT) + rounding


def _ghost_squared_norm(sites: list[Site], operands: Any, output_grads: Any) -> jax.Array:
    each = [factors(*triple) for triple in zip(sites, operands, output_grads, strict=True)]
    if len(each) > 1:  # the rows of every left index the leaf's first axis
        each = [
            Factors(f.right, f.left) if row_axis(site) == 1 else f
            for site, f in zip(sites, each, strict=True)
        ]
    return sum(  # type: ignore[return-value]
        (1 if i == j else 2) * inner_product(each[i], each[j])
        for i in range(len(each))
        for j in range(i + 1)
    )


def _bookkeeping_sum(
    program: LossJaxpr,
    block: Block,
    trace: Trace,
    leaf: Any,
    factor: jax.Array,
    finite: jax.Array,
) -> jax.Array:
    """The clipped sum of one block: its transposed equations on scaled output gradients."""
    if program.is_recomputed(block):
        total = trace.sums[program.sites_of(block)[0]]
        return total if block.stack else total[0]
    sites, *values = _site_values(program, trace, block)
    of_entry = partial(_sum_of_entry, sites, block.entry(leaf), factor, finite)
    return (
        jax.lax.map(lambda arrays: of_entry(*arrays), values) if block.stack else of_entry(*values)
    )


def _sum_of_entry(
    sites: list[Site],
    entry: Any,
    factor: jax.Array,
    finite: jax.Array,
    operands: list[Any],
    output_grads: list[Any],
) -> jax.Array:
    """The clipped sum of one entry of a block's stack, or of a block without one."""

    def weighted_sum(factor: jax.Array, arrays: Any) -> jax.Array:
        finite, all_operands, all_grads = arrays
        total = jnp.zeros(entry.shape, accumulator(entry))
        for site, inputs, output_grads in zip(sites, all_operands, all_grads, strict=True):
            operands = [
                zero_nonfinite(finite, value)
                if value is not None and jnp.issubdtype(value.dtype, jnp.floating)
                else value
                for value in inputs
            ]
            output_grad = zero_nonfinite(finite, output_grads).astype(total.dtype)
            values = _apply_clip_factors(site, factor, operands, output_grad)
            if site.repeats is not None:  # (batch, repeats, ...) to (batch * repeats, ...)
                values = jax.tree.map(
                    lambda x: x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), values
                )
            total += _batch_transpose(site, entry, *values)
        return total

    return sum_in_parts(weighted_sum, factor, (finite, operands, output_grads))


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
