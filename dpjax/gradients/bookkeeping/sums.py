"""The clipped sum by book-keeping: one backward pass, norms, clip factors, then weighted sums."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._jaxprs import is_slow_in_loops, primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn, PyTree
from dpjax.gradients.bookkeeping.backward import Recomputed, Trace, trace_batch
from dpjax.gradients.bookkeeping.norms import (
    BlockNorms,
    PerExampleGradients,
    SquaredNorm,
    accurate_gradient,
    accurate_norms,
    dot_factors,
    for_each,
    gradient_and_square,
    gradients_of_entry,
    may_cancel,
    norms_of_blocks,
    norms_of_entry,
    recorded_values,
    terms_cancel,
)
from dpjax.gradients.bookkeeping.program import LinearOp, Operands, transpose
from dpjax.gradients.bookkeeping.routes import Plan, RoutedBlock, plan_routes
from dpjax.gradients.clipping import (
    EXACT,
    PART_SIZE,
    ClippedGradInfo,
    ClippedSum,
    Clipping,
    accumulator,
    clip_factors,
    clipped_grad_info,
    squared_norms,
    sum_in_parts,
    zero_nonfinite,
)
from dpjax.gradients.microbatching import (
    isolate_nonfinite,
    scan_microbatches,
    sum_over_microbatches,
)
from dpjax.gradients.shard_map import as_varying, one_example, varying_axes


def clipped_sum(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    max_batch_size: int | None = None,
) -> ClippedSum:
    """Clipped gradient sum over the unmasked examples of one physical batch, by book-keeping.

    Norms follow from layer inputs and output gradients, and the clipped sum is the transposed
    equation applied to output gradients scaled by clip factors. Within `jax.lax.scan` the terms of
    all iterations are concatenated, or, where it iterates over a stacked leaf, norms and sums are
    computed entry by entry. With layers under `jax.checkpoint` this is done for micro-batches that
    take no more memory than the plain step. Where not one example fits, these layers record
    nothing: the backward pass computes their norms, then, run once more, their sums.

    Source: Goodfellow (2015), arXiv:1510.01799, for dense layers; Bu, Wang, Zha, Karypis (2022) for
    book-keeping; Bu, Mao, Xu (2022) for the choice between ghost norms and instantiation.
    """
    # How the loss is read, and the route of each block of its parameters.
    params, batch = jax.tree.map(jnp.asarray, (params, batch))  # numbers and NumPy arrays too
    example = jax.tree.map(one_example, batch)
    plan = plan_routes(loss_fn, params, example, len(mask))
    num_terms, size = max_batch_size or len(mask), plan.microbatch_size

    # The sums of all blocks, over the whole batch or one micro-batch after another.
    def compute(params: ArrayTree, batch: ArrayTree, mask: jax.Array) -> ClippedSum:
        leaves, treedef = jax.tree.flatten(params)
        add = partial(_add_clipped_sums, plan, l2_clip, num_terms, params)
        axes, sums = varying_axes((params, batch)), {}
        for number, block in enumerate(plan.blocks):
            stack = (math.prod(block.block.stack),) if block.block.stack else ()
            zeros = jnp.zeros((*stack, *block.entry.shape), accumulator(block.entry))
            sums[number] = as_varying(zeros, axes)
        if size is None or size >= len(mask):
            sums, info = add(sums, batch, mask)
        else:
            unroll = is_slow_in_loops(loss_fn, params, example)
            sums, info = scan_microbatches(add, sums, size, batch, mask, unroll=unroll)
        blocks = [each.block for each in plan.blocks]
        entries = {n: blocks[n].to_leaf(leaves[blocks[n].leaf], total) for n, total in sums.items()}
        of_leaves = _sum_of_blocks(plan, entries)
        return jax.tree.unflatten(treedef, [of_leaves[n] for n in range(len(leaves))]), info

    # Micro-batches are added up with compensation in so many examples.
    if size is not None and len(mask) > PART_SIZE:
        compute = partial(sum_over_microbatches, compute, PART_SIZE)

    # Convolutions that book-keeping leaves to XLA may mix examples.
    tracked = sum(op.primitive == "conv_general_dilated" for op in plan.program.ops)
    names = Counter(primitive_names(plan.program.jaxpr.jaxpr))
    by_vmap = any(block.route.name == "vmap" for block in plan.blocks)
    if names["conv_general_dilated"] > (0 if by_vmap else tracked):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)


def _add_clipped_sums(
    plan: Plan,
    l2_clip: ClipBound,
    num_terms: int,
    params: ArrayTree,
    sums: dict[int, jax.Array],
    batch: ArrayTree,
    mask: jax.Array,
) -> tuple[dict[int, jax.Array], ClippedGradInfo]:
    """Adds the clipped sums of some examples to ``sums``, which are those of each block."""
    leaves, treedef = jax.tree.flatten(params)
    recomputed = {b.numbers[0]: _in_backward_pass(b) for b in plan.blocks if b.recomputed}

    # Clip factors of some examples, from the squared norms of their blocks.
    def clip(squares: dict[int, jax.Array], usable: jax.Array) -> Clipping:
        of_leaf = _sum_of_blocks(plan, squares)
        zero = jnp.zeros(usable.shape)
        of_leaves = jax.tree.unflatten(treedef, [of_leaf.get(n, zero) for n in range(len(leaves))])
        return clip_factors(of_leaves, l2_clip, usable, num_terms)

    def factors_of_recomputed(trace: Trace) -> dict[int, jax.Array]:
        squares = {n: each.squares for n, each in norms_of_blocks(plan, trace).items()}
        factors = jax.tree.leaves(clip(squares, mask & jnp.isfinite(trace.losses)).factors)
        return {
            n: jnp.stack(
                [factors[plan.program.ops[n].block.leaf], trace.squares[n][:, 1]], axis=1
            ).astype(accumulator(each.entry))
            for n, each in recomputed.items()
        }

    # Trace, and the norms of all blocks but the last.
    trace = trace_batch(plan.program, leaves, recomputed, batch, factors_of_recomputed)
    usable = mask & jnp.isfinite(trace.losses)
    norms = norms_of_blocks(plan, trace)
    squares = {n: each.squares for n, each in norms.items()}

    # The norms of the last block, and its clipped sum.
    added, last = {}, plan.last
    if last is not None:
        of_last = plan.blocks[last]
        values = recorded_values(of_last, trace)

        def factor_of(
            square: jax.Array, others: tuple[dict[int, jax.Array], jax.Array]
        ) -> jax.Array:
            squares, usable = others
            of_one = jax.tree.map(lambda x: x[None], squares | {last: square})
            factors = jax.tree.leaves(clip(of_one, usable[None]).factors)
            factor: jax.Array = factors[of_last.block.leaf][0]
            return factor

        norms[last], total = _norms_and_sum(of_last, *values, factor_of, (squares, usable))
        squares[last] = norms[last].squares
        added[last] = sums[last] + total

    # Clip factors and weighted sums.
    clipping = clip(squares, usable)
    factors = jax.tree.leaves(clipping.factors)
    for number, block in enumerate(plan.blocks):
        factor, of_block = factors[block.block.leaf], norms.get(number)
        if isinstance(of_block, PerExampleGradients):
            added[number] = sums[number] + of_block.clipped_sum(factor)
            continue
        cancelling = of_block.cancelling if of_block else None
        if number == last:
            added[number] = _add_cancelling(block, factor, cancelling, added[number], *values)
        else:
            weights = factor, clipping.finite, cancelling
            added[number] = _add_block_sum(block, trace, *weights, sums[number])
    return added, clipped_grad_info(clipping.norms, trace.losses, mask, clipping.finite)


def _in_backward_pass(block: RoutedBlock) -> Recomputed:
    """Norms and sums of a block that the backward pass computes, of one entry at a time."""
    instantiates = block.route.name == "instantiate"

    def squares(operands: Operands, output_grad: jax.Array) -> jax.Array:
        values = [operands], [output_grad]
        if instantiates:
            norms = BlockNorms(squared_norms(gradients_of_entry(block, *values)))
        else:
            norms = norms_of_entry(block, *values)
        cancelling = 0 if norms.cancelling is None else norms.cancelling
        return jnp.stack(jnp.broadcast_arrays(norms.squares, cancelling), axis=1)

    # Factors are positive for the examples that are finite, and whose terms cancel.
    def clipped_sum(factors: jax.Array, operands: Operands, output_grad: jax.Array) -> jax.Array:
        factor = factors[:, 0]
        cancelling = None if instantiates or not may_cancel(block) else factors[:, 1] > 0
        return _sum_of_entry(block, factor, factor > 0, cancelling, [operands], [output_grad])

    return Recomputed(squares, clipped_sum, block.entry)


def _sum_of_blocks(plan: Plan, values: dict[int, jax.Array]) -> dict[int, jax.Array]:
    """For each leaf the sum of the values of its blocks, which are given by number."""
    sums: dict[int, jax.Array] = {}
    for number, value in values.items():
        leaf = plan.blocks[number].block.leaf
        sums[leaf] = sums[leaf] + value if leaf in sums else value
    return sums


def _add_block_sum(
    block: RoutedBlock,
    trace: Trace,
    factor: jax.Array,
    finite: jax.Array,
    cancelling: jax.Array | None,
    summed: jax.Array,
) -> jax.Array:
    """Adds the clipped sum of one block to ``summed``, one entry of its stack after another.

    So the sum over micro-batches needs no second array of the size of the parameters. The examples
    that are ``cancelling`` (see `BlockNorms`) are added one by one.
    """
    stack = block.block.stack
    if block.recomputed:
        total = trace.sums[block.numbers[0]]
        return summed + (total if stack else total[0])

    # A block without a stack.
    values = recorded_values(block, trace)
    of_entry = partial(_sum_of_entry, block, factor, finite, cancelling)
    if not stack:
        return summed + of_entry(*values)
    if not len(summed):
        return summed

    # The entries of a stack.
    def add_entry(summed: jax.Array, scanned: PyTree) -> tuple[jax.Array, None]:
        index, arrays = scanned
        entry = jax.lax.dynamic_index_in_dim(summed, index, keepdims=False) + of_entry(*arrays)
        return jax.lax.dynamic_update_index_in_dim(summed, entry, index, 0), None

    return jax.lax.scan(add_entry, summed, (jnp.arange(len(summed)), values))[0]


def _sum_of_entry(
    block: RoutedBlock,
    factor: jax.Array,
    finite: jax.Array,
    cancelling: jax.Array | None,
    operands: list[Operands],
    output_grads: list[jax.Array],
) -> jax.Array:
    """The clipped sum of one entry of a block's stack, or of a block without one."""
    entry = block.entry

    def weighted_sum(factor: jax.Array, arrays: PyTree) -> jax.Array:
        finite, cancelling, *recorded = arrays
        from_batch = factor if cancelling is None else jnp.where(cancelling, 0, factor)
        total = jnp.zeros(entry.shape, accumulator(entry))

        # Each operation: finite values, scaled by the clip factors, transposed.
        for op, inputs, output_grads in zip(block.ops, *recorded, strict=True):
            operands = [
                zero_nonfinite(finite, value)
                if value is not None and jnp.issubdtype(value.dtype, jnp.floating)
                else value
                for value in inputs
            ]
            output_grad = zero_nonfinite(finite, output_grads).astype(total.dtype)
            values = _apply_clip_factors(op, from_batch, operands, output_grad)
            if op.repeats is not None:  # (batch, repeats, ...) to (batch * repeats, ...)
                values = jax.tree.map(
                    lambda x: x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), values
                )
            total += _batch_transpose(op, entry, *values)
        return _add_cancelling(block, factor, cancelling, total, *recorded)

    return sum_in_parts(weighted_sum, factor, (finite, cancelling, operands, output_grads))


def _add_cancelling(
    block: RoutedBlock,
    factor: jax.Array,
    cancelling: jax.Array | None,
    total: jax.Array,
    operands: list[Operands],
    output_grads: list[jax.Array],
) -> jax.Array:
    """Adds to ``total`` the examples whose terms cancel, one by one.

    With terms far above the clip bound, a sum of their output gradients over the batch would be
    rounded by more than the bound.
    """
    if cancelling is None:
        return total

    def add(total: jax.Array, index: jax.Array) -> jax.Array:
        return total + factor[index] * accurate_gradient(block, index, operands, output_grads)

    return for_each(cancelling & (factor > 0), add, total)


def _norms_and_sum(
    block: RoutedBlock,
    operands: list[Operands],
    output_grads: list[jax.Array],
    factor_of: Callable[[jax.Array, PyTree], jax.Array],
    others: PyTree,
) -> tuple[BlockNorms, jax.Array]:
    """Squared norms and clipped sum of a dense block, in one pass over the examples.

    Each gradient is instantiated, its norm taken, and added with its clip factor; those whose terms
    cancel are left out of the sum.

    Args:
      block: the last block, all other norms being known.
      operands: recorded inputs.
      output_grads: recorded output gradients.
      factor_of: ``factor_of(square, others)``, an example's clip factor.
      others: what it takes of each example, arrays ``(batch, ...)``.
    """
    (op,) = block.ops

    # One example: its gradient, its norm and of it the clip factor.
    def add(total: jax.Array, example: PyTree) -> tuple[jax.Array, SquaredNorm]:
        (inputs, output_grad), others = example
        gradient, bound = gradient_and_square(op, inputs, output_grad)
        factor = factor_of(bound.value, others)
        if may_cancel(block):
            factor = jnp.where(terms_cancel(bound), 0, factor)
        scaled = factor.astype(gradient.dtype) * gradient[0]
        return total + jnp.where(factor > 0, scaled, 0), bound

    # The sum over all examples, as a matrix, and in the shape of the block.
    shape = op.outer_products()
    assert shape is not None
    zero = jnp.zeros((shape.rows, shape.columns), accumulator(block.entry))
    zero = as_varying(zero, varying_axes((operands, output_grads)))
    matrix, bound = jax.lax.scan(add, zero, ((operands[0], output_grads[0]), others))
    total = transpose(op.view, block.entry, _matrix_to_operand(op, matrix))
    return accurate_norms(block, bound, operands, output_grads), total


def _apply_clip_factors(
    op: LinearOp, factor: jax.Array, operands: Operands, output_grad: jax.Array
) -> tuple[Operands, jax.Array]:
    """Scales the output gradient, or the input of a product where that is smaller."""
    other = 1 - op.operand
    if op.primitive != "dot_general" or operands[other].size >= output_grad.size:
        return operands, _scale_examples(factor, output_grad)
    scaled = _scale_examples(factor, operands[other].astype(output_grad.dtype))
    return [scaled if position == other else None for position in (0, 1)], output_grad


def _scale_examples(factor: jax.Array, array: jax.Array) -> jax.Array:
    return array * factor.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)


def _batch_transpose(
    op: LinearOp, entry: jax.ShapeDtypeStruct, operands: Operands, output_grads: jax.Array
) -> jax.Array:
    """The gradient of the entry at one operation, summed over the batch."""
    if op.is_dense():
        matrix = _dense_gradient(op, operands, output_grads)
        return transpose(op.view, entry, matrix)

    def outputs(x: jax.Array) -> jax.Array:
        each = partial(op.apply, entries=x)
        return jax.vmap(each, axis_size=len(output_grads))(operands)

    return transpose(outputs, entry, output_grads)


def _dense_gradient(op: LinearOp, operands: Operands, output_grads: jax.Array) -> jax.Array:
    """The gradient of a dense operation's operand, summed over the batch: one matrix product.

    Written with separate axes for examples and terms, XLA's CPU backend forms the transposed matrix
    first and copies it, which for large vocabularies takes as long as the product.
    """
    # Rows and columns of all terms of all examples.
    left, right = jax.vmap(partial(dot_factors, op))(operands[1 - op.operand], output_grads)
    rows, columns = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (left, right))

    # The product, in the order of the operand's first axis.
    contracting = op.equation.params["dimension_numbers"][0][op.operand]
    if 0 in contracting:
        return _matrix_to_operand(op, jnp.einsum("tr,tc->rc", rows, columns, precision=EXACT))
    return _matrix_to_operand(op, jnp.einsum("tc,tr->cr", columns, rows, precision=EXACT).T)


def _matrix_to_operand(op: LinearOp, matrix: jax.Array) -> jax.Array:
    """Reshapes ``(rows, columns)`` of outer products to the operand of a dense operation."""
    contracting = list(op.equation.params["dimension_numbers"][0][op.operand])
    shape = op.input_shape(op.operand)
    order = [*contracting, *(axis for axis in range(len(shape)) if axis not in contracting)]
    return matrix.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
