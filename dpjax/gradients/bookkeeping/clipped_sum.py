"""The clipped gradient sum by book-keeping: one backward pass, norms, then weighted sums."""

import math
from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._jaxprs import is_slow_in_loops, primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn
from dpjax.gradients.bookkeeping.block_norms import squared_norms_of_blocks, squared_norms_of_entry
from dpjax.gradients.bookkeeping.block_sums import add_block_sum, sum_of_entry
from dpjax.gradients.bookkeeping.cancellation import BlockNorms, may_cancel
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr, trace_loss
from dpjax.gradients.bookkeeping.per_example_gradients import (
    PerExampleGradients,
    from_leaf_gradients,
    gradients_of_entry,
    instantiate_gradients,
)
from dpjax.gradients.bookkeeping.recomputation import Recomputed
from dpjax.gradients.bookkeeping.routes import Route, choose_route
from dpjax.gradients.bookkeeping.sites import Block
from dpjax.gradients.bookkeeping.trace import Trace, site_values, trace_batch
from dpjax.gradients.clipping import (
    ClippedGradInfo,
    Clipping,
    accumulator,
    clip_factors,
    clipped_grad_info,
    squared_norms,
)
from dpjax.gradients.microbatching import (
    isolate_nonfinite,
    scan_microbatches,
    sum_over_microbatches,
)
from dpjax.gradients.shard_map import as_varying, one_example, varying_axes
from dpjax.gradients.summation import PART_SIZE


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
    stacked leaf, norms and sums are computed entry by entry. With layers under `jax.checkpoint`
    this is done for micro-batches that take no more memory than the plain step. Where not one
    example fits, these layers record nothing: the backward pass computes their norms, then, run
    once more, their sums.

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
    example = jax.tree.map(one_example, batch)
    program = trace_loss(loss_fn, params, example, len(mask))
    leaves, treedef = jax.tree.flatten(params)
    routes = [choose_route(program, b, b.size(leaves[b.leaf])) for b in program.blocks]
    most, part_size = max_batch_size or len(mask), program.part_size

    def compute(params: ArrayTree, batch: ArrayTree, mask: jax.Array) -> Any:
        add = partial(_add_clipped_sum, program, routes, l2_clip, most, params)
        sums = _zero_sums(program, leaves, varying_axes((params, batch)))
        if part_size is None or part_size >= len(mask):
            sums, info = add(sums, batch, mask)
        else:
            unroll = is_slow_in_loops(loss_fn, params, example)
            sums, info = scan_microbatches(add, sums, part_size, batch, mask, unroll=unroll)
        blocks = program.blocks
        entries = {n: blocks[n].to_leaf(leaves[blocks[n].leaf], total) for n, total in sums.items()}
        of_leaves = _sum_of_blocks(program, entries)
        return jax.tree.unflatten(treedef, [of_leaves[n] for n in range(len(leaves))]), info

    if part_size is not None and len(mask) > PART_SIZE:
        compute = partial(sum_over_microbatches, compute, PART_SIZE)
    if _has_untracked_convolution(program, routes):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)


def _has_untracked_convolution(program: LossJaxpr, routes: list[Route]) -> bool:
    """Whether the loss has convolutions that book-keeping leaves to XLA, which may mix examples."""
    seen = sum(site.equation.primitive.name == "conv_general_dilated" for site in program.sites)
    names = Counter(primitive_names(program.jaxpr.jaxpr))
    by_vmap = any(route.name == "vmap" for route in routes)
    return names["conv_general_dilated"] > (0 if by_vmap else seen)


def _zero_sums(program: LossJaxpr, leaves: list[Any], axes: frozenset[str]) -> dict[int, jax.Array]:
    """Zeros like the sum of each block, by number of the block."""
    sums = {}
    for number, block in enumerate(program.blocks):
        leaf = leaves[block.leaf]
        stack = (math.prod(block.stack),) if block.stack else ()
        shape = (*stack, *block.entry(leaf).shape)
        sums[number] = as_varying(jnp.zeros(shape, accumulator(leaf)), axes)
    return sums


def _add_clipped_sum(
    program: LossJaxpr,
    routes: list[Route],
    l2_clip: ClipBound,
    max_batch_size: int,
    params: ArrayTree,
    sums: dict[int, jax.Array],
    batch: ArrayTree,
    mask: jax.Array,
) -> tuple[dict[int, jax.Array], ClippedGradInfo]:
    """Adds the clipped sum of some examples to ``sums``, which are those of each block."""
    leaves, treedef = jax.tree.flatten(params)
    recomputed = {
        program.sites_of(block)[0]: _recomputed(program, block, route, leaves[block.leaf])
        for block, route in zip(program.blocks, routes, strict=True)
        if program.is_recomputed(block)
    }

    def clip(trace: Trace) -> tuple[dict[int, PerExampleGradients | BlockNorms], Clipping]:
        usable = mask & jnp.isfinite(trace.losses)
        instantiated = _instantiate(program, routes, leaves, trace)
        norms = squared_norms_of_blocks(program, routes, leaves, trace, instantiated)
        of_blocks: dict[int, PerExampleGradients | BlockNorms] = {**instantiated, **norms}
        squares = _sum_of_blocks(program, {n: each.squares for n, each in of_blocks.items()})
        zero = jnp.zeros(len(mask), trace.losses.dtype)
        of_leaves = jax.tree.unflatten(treedef, [squares.get(n, zero) for n in range(len(leaves))])
        return of_blocks, clip_factors(of_leaves, l2_clip, usable, max_batch_size)

    def factors_of_recomputed(trace: Trace) -> dict[int, jax.Array]:
        factors = jax.tree.leaves(clip(trace)[1].factors)
        return {
            n: jnp.stack(
                [factors[program.sites[n].block.leaf], trace.squares[n][:, 1]], axis=1
            ).astype(accumulator(r.entry))
            for n, r in recomputed.items()
        }

    trace = trace_batch(program, leaves, recomputed, batch, factors_of_recomputed)
    of_blocks, clipping = clip(trace)
    factors = jax.tree.leaves(clipping.factors)
    added = {}
    for number, block in enumerate(program.blocks):
        leaf, factor = leaves[block.leaf], factors[block.leaf]
        norms = of_blocks.get(number)
        if isinstance(norms, PerExampleGradients):
            added[number] = sums[number] + norms.clipped_sum(factor)
        else:
            cancelling = norms.cancelling if norms else None
            added[number] = add_block_sum(
                program, block, trace, leaf, factor, clipping.finite, cancelling, sums[number]
            )
    return added, clipped_grad_info(clipping.norms, trace.losses, mask, clipping.finite)


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
            sites, *values = site_values(program, trace, block)
            entry = block.entry(leaves[block.leaf])
            instantiated[number] = instantiate_gradients(sites, entry, *values)
    return instantiated


def _recomputed(program: LossJaxpr, block: Block, route: Route, leaf: Any) -> Recomputed:
    """Norms and sums of a block that the backward pass computes, of one entry at a time."""
    sites, entry = [program.sites[n] for n in program.sites_of(block)], block.entry(leaf)

    instantiates = route.name == "instantiate"

    def squares(operands: list[Any], output_grad: jax.Array) -> jax.Array:
        values = sites, entry, [operands], [output_grad]
        if instantiates:
            norms = BlockNorms(squared_norms(gradients_of_entry(*values)))
        else:
            norms = squared_norms_of_entry(route, *values)
        cancelling = 0 if norms.cancelling is None else norms.cancelling
        return jnp.stack(jnp.broadcast_arrays(norms.squares, cancelling), axis=1)

    def clipped_sum(factors: jax.Array, operands: list[Any], output_grad: jax.Array) -> jax.Array:
        factor = factors[:, 0]
        cancelling = None if instantiates or not may_cancel(sites) else factors[:, 1] > 0
        return sum_of_entry(sites, entry, factor, factor > 0, cancelling, [operands], [output_grad])

    return Recomputed(squares, clipped_sum, entry)
