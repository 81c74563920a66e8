"""Squared norms of per-example gradients, with or without instantiating the gradients.

One example's gradient of a dense layer is ``sum_t left_t right_t^T`` with layer inputs ``left_t``
and output gradients ``right_t`` for each token or pixel t. The inner product of two such gradients
is ``sum_ts <left_t, left_s> <right_t, right_s>``, computed from two Gram matrices without the
gradient: *ghost norms*. A convolution is a dense layer on its unfolded input (im2col); the inputs
of an embedding are one-hot and kept as their indices.

Source: Goodfellow (2015); Li, Tramer, Liang, Hashimoto (2022); Bu, Mao, Xu (2022).
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from dpjax._typing import PyTree
from dpjax.gradients.bookkeeping.backward import Trace
from dpjax.gradients.bookkeeping.program import LOOKUPS, LinearOp, Operands, transpose
from dpjax.gradients.bookkeeping.routes import Plan, RoutedBlock
from dpjax.gradients.clipping import (
    EXACT,
    CompensatedSum,
    accumulator,
    squared_norms,
    sum_in_parts,
    zero_nonfinite,
)
from dpjax.gradients.shard_map import abstract, varying_axes

T = TypeVar("T")

# The largest share of a squared norm that its bound on rounding may be. The error is at most the
# bound, so the squared norm is at most 1 / (1 - 2 * 2^-7) and the norm at most 1 % too large.
_SHARE = 2**-7
# 1 MB: larger unfolded inputs do not stay in the CPU cache, and a batch of them takes more memory
# than all activations of a small network.
_CACHED_FLOATS = 2**18


class Factors(NamedTuple):
    """One example's gradient at one operation: ``sum_t left_t right_t^T``, in float32 or wider.

    Attributes:
      left: ``(groups, terms, rows)``; for one-hot vectors their indices ``(terms,)``, -1 for a zero
        vector.
      right: ``(groups, terms, columns)``; with indices ``(terms, columns)``.
    """

    left: jax.Array
    right: jax.Array

    @property
    def one_hot(self) -> bool:
        """Whether ``left`` holds indices."""
        return self.left.ndim == 1


class SquaredNorm(NamedTuple):
    """An upper bound of a squared norm or an inner product.

    Attributes:
      value: the bound.
      rounding: the part of it that bounds rounding; the error of the rest is at most that.
    """

    value: jax.Array
    rounding: jax.Array


class BlockNorms(NamedTuple):
    """Squared norms of one block's per-example gradients.

    Attributes:
      squares: ``(batch,)``.
      cancelling: bool ``(batch,)``: the examples whose clipped contribution is computed from their
        instantiated gradient; ``None`` if no terms of the block can cancel.
    """

    squares: jax.Array
    cancelling: jax.Array | None = None


class PerExampleGradients(NamedTuple):
    """Per-example gradients of one block and their squared norms.

    Where a leaf is small beside its inputs, instantiating its per-example gradients costs less than
    ghost norms, and the clipped sum is one product with the clip factors.

    Attributes:
      gradients: ``(batch, ...)``, in the block's shape or a reordering of it; zero for an example
        whose squared norm is not finite.
      squares: squared norms, ``(batch,)``.
      to_block: maps a sum of gradients to the block's shape.
    """

    gradients: jax.Array
    squares: jax.Array
    to_block: Callable[[jax.Array], jax.Array]

    def clipped_sum(self, factor: jax.Array) -> jax.Array:
        """``sum_b factor_b gradient_b``, as a dot: faster than a sum of scaled copies."""
        factor = factor.astype(self.gradients.dtype)
        dot = partial(jnp.tensordot, axes=1, precision=EXACT)
        return self.to_block(sum_in_parts(dot, factor, self.gradients))


def recorded_values(block: RoutedBlock, trace: Trace) -> tuple[list[Operands], list[jax.Array]]:
    """The recorded inputs and output gradients of a block's operations."""
    return [trace.operands[n] for n in block.numbers], [
        trace.output_grads[n] for n in block.numbers
    ]


def norms_of_blocks(plan: Plan, trace: Trace) -> dict[int, BlockNorms | PerExampleGradients]:
    """Squared norms of per-example gradients by block, without that of ``plan.last``."""
    # Instantiated gradients.
    gradients: dict[int, PerExampleGradients] = {}
    for number, block in enumerate(plan.blocks):
        if block.route.name == "vmap":
            gradients[number] = _from_gradients(trace.grads[block.block.leaf])
        elif block.route.name == "instantiate" and not block.recomputed:
            gradients[number] = _instantiate(block, *recorded_values(block, trace))

    # Norms alone: from the backward pass, of all entries of stacks (below), or from the record.
    norms: dict[int, BlockNorms] = {}
    stacks: dict[int, list[int]] = {}  # by length: numbers of blocks
    for number, block in enumerate(plan.blocks):
        if number in gradients or number == plan.last or block.route.name == "unused":
            continue
        if block.recomputed:
            squares, cancelling = trace.squares[block.numbers[0]].T
            norms[number] = BlockNorms(squares, cancelling > 0)
        elif block.block.stack:
            stacks.setdefault(math.prod(block.block.stack), []).append(number)
        else:
            norms[number] = norms_of_entry(block, *recorded_values(block, trace))

    for length, numbers in stacks.items():
        norms |= _norms_of_stacks(plan, trace, length, numbers)
    return {**gradients, **norms}


def _norms_of_stacks(
    plan: Plan, trace: Trace, length: int, numbers: Collection[int]
) -> dict[int, BlockNorms]:
    """The norms of blocks that are stacks of one length: their entries have separate gradients.

    In one loop, where XLA computes the Gram matrix of an input that several blocks take once.
    """
    values = {n: recorded_values(plan.blocks[n], trace) for n in numbers}

    def of_entries(index: jax.Array) -> dict[int, BlockNorms]:
        take = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
        return {n: norms_of_entry(plan.blocks[n], *jax.tree.map(take, values[n])) for n in numbers}

    # An example cancels where it does in one entry.
    each = jax.lax.map(of_entries, jnp.arange(length))
    return {
        number: BlockNorms(
            jnp.sum(norms.squares, axis=0),
            None if norms.cancelling is None else jnp.any(norms.cancelling, axis=0),
        )
        for number, norms in each.items()
    }


def norms_of_entry(
    block: RoutedBlock, operands: list[Operands], output_grads: list[jax.Array]
) -> BlockNorms:
    """Squared norms at one entry of a block's stack, or at a block without one.

    At most 1 % above the norms of the gradients at the recorded output gradients, and not below.
    """
    # Upper bounds.
    if block.route.name == "sequential":
        (op,) = block.ops

        def square(operands: list[Operands], output_grads: list[jax.Array]) -> SquaredNorm:
            return gradient_and_square(op, operands[0], output_grads[0])[1]

        bound = map_sequentially(square, (operands, output_grads))
    elif len(block.ops) == 1 and block.ops[0].primitive in LOOKUPS:
        bound = embedding_squared_norms(block.ops[0], operands[0], output_grads[0])
    else:
        bound = jax.vmap(partial(_ghost_squared_norm, block.ops))(operands, output_grads)
    return accurate_norms(block, bound, operands, output_grads)


def accurate_norms(
    block: RoutedBlock,
    bound: SquaredNorm,
    operands: list[Operands],
    output_grads: list[jax.Array],
) -> BlockNorms:
    """Squared norms, computed accurately for the examples whose terms cancel."""
    if not may_cancel(block):
        return BlockNorms(bound.value)

    # Instantiated norms for the examples where these are too large by their rounding. The error of
    # such a gradient is far smaller; two programs may round it differently.
    cancelling = terms_cancel(bound)
    margin = bound.rounding * (jnp.finfo(bound.value.dtype).eps / 2**12)

    def instantiate(squares: jax.Array, index: jax.Array) -> jax.Array:
        gradient = accurate_gradient(block, index, operands, output_grads)
        square = jnp.vdot(gradient, gradient, precision=EXACT)
        return squares.at[index].set(square + margin[index])

    return BlockNorms(for_each(cancelling, instantiate, bound.value), cancelling)


def terms_cancel(bound: SquaredNorm) -> jax.Array:
    """Whether the terms of the gradient cancel: the bound on its norm is mostly one on rounding."""
    return jnp.isfinite(bound.value) & (bound.rounding > _SHARE * bound.value)


# Ghost norms.


def _ghost_squared_norm(
    ops: Sequence[LinearOp], operands: list[Operands], output_grads: list[jax.Array]
) -> SquaredNorm:
    """One example's squared norm, from inner products of all pairs of operations."""
    each = [factors(*triple) for triple in zip(ops, operands, output_grads, strict=True)]
    if len(each) > 1:  # the rows of every left index the leaf's first axis
        each = [
            Factors(f.right, f.left) if op.row_axis() == 1 else f
            for op, f in zip(ops, each, strict=True)
        ]
    products = [
        jax.tree.map(lambda x, i=i, j=j: (1 if i == j else 2) * x, inner_product(each[i], each[j]))
        for i in range(len(each))
        for j in range(i + 1)
    ]
    total: SquaredNorm = jax.tree.map(lambda *each: sum(each), *products)
    return total


def inner_product(one: Factors, other: Factors) -> SquaredNorm:
    """An upper bound, tight to rounding, of ``sum_ts <left_t, left_s> <right_t, right_s>``.

    Terms of opposite sign may cancel, so bounds on rounding (which grows with the length of the
    vectors) and on underflow are added: a norm computed too small would leave an example
    unclipped.
    """
    lefts, rights = _grams(one, other)
    products, info = lefts * rights, jnp.finfo(lefts.dtype)
    length = sum(vectors.shape[-1] for vectors in other if vectors.ndim > 1)
    rounding = (4 + math.sqrt(length)) * info.eps * jnp.sum(jnp.abs(products))
    underflow = length * info.tiny * (jnp.sum(jnp.abs(lefts)) + jnp.sum(jnp.abs(rights)))
    return SquaredNorm(jnp.sum(products) + rounding + underflow, rounding)


_einsum = partial(jnp.einsum, precision=EXACT)


def _grams(one: Factors, other: Factors) -> tuple[jax.Array, jax.Array]:
    """``<left_t, left_s>`` and ``<right_t, right_s>`` for all t of one and s of the other."""
    # Vectors on both sides.
    if not one.one_hot and not other.one_hot:
        pairs = "gtr,gsr->gts"
        return _einsum(pairs, one.left, other.left), _einsum(pairs, one.right, other.right)

    # Indices on one side at least: equal ones, or the entries of the other's vectors.
    if not one.one_hot:
        one, other = other, one
    right = other.right if other.one_hot else other.right[0]
    rights = _einsum("tc,sc->ts", one.right, right)
    if other.one_hot:
        same = (one.left[:, None] == other.left[None]) & (one.left >= 0)[:, None]
        return same.astype(rights.dtype), rights
    return (other.left[0][:, one.left] * (one.left >= 0)).T, rights


def gradient_and_square(
    op: LinearOp, operands: Operands, output_grad: jax.Array
) -> tuple[jax.Array, SquaredNorm]:
    """One example's gradient ``(groups, rows, columns)``, and its squared norm."""
    left, right = factors(op, operands, output_grad)
    gradient = jnp.einsum("gtr,gtc->grc", left, right, precision=EXACT)
    terms = jnp.sum(left**2, axis=-1) * jnp.sum(right**2, axis=-1)  # may cancel
    rounding = 4 * jnp.finfo(gradient.dtype).eps * jnp.sum(terms)
    square = jnp.vdot(gradient, gradient, precision=EXACT) + rounding
    return gradient, SquaredNorm(square, rounding)


def embedding_squared_norms(
    op: LinearOp, operands: Operands, output_grads: jax.Array
) -> SquaredNorm:
    """Squared norms of per-example gradients of an embedding, ``(batch,)``.

    Output gradients of lookups of one row are added up, then squared. Where the loss sums all rows
    looked up, the output gradients are equal, and counting the lookups of each row is enough.
    """
    num_rows = op.input_shape(0)[0]
    index, output_grads = jax.vmap(partial(_lookup_factors, op))(operands[1], output_grads)
    squares = jnp.einsum("btc,btc->b", output_grads, output_grads, precision=EXACT)

    # Equal output gradients: their squared norm times the number of pairs of lookups of one row.
    def num_equal_pairs(row: jax.Array, inside: jax.Array) -> jax.Array:
        counted = inside.astype(jnp.float32)
        counts = jnp.zeros(num_rows).at[row].add(counted, mode="promise_in_bounds")
        return jnp.vdot(counts.at[row].get(mode="promise_in_bounds"), counted, precision=EXACT)

    if op.row_sum is not None:
        pairs = map_sequentially(num_equal_pairs, (jnp.maximum(index, 0), index >= 0))
        return SquaredNorm(pairs.astype(squares.dtype) * squares, jnp.zeros_like(squares))

    # Others: added up by row. Sums are stored at the position of one of the row's lookups, so
    # memory grows with the number of lookups and not with the table.
    def squared_norm_of_row_sums(index: jax.Array, output_grads: jax.Array) -> jax.Array:
        slots = jnp.arange(len(index), dtype=jnp.int32)
        slot_of_row = jnp.zeros(num_rows, jnp.int32).at[index].set(slots)
        sums = jnp.zeros_like(output_grads).at[slot_of_row[index]].add(output_grads)
        return jnp.vdot(sums, sums, precision=EXACT)

    output_grads = jnp.where(index[..., None] >= 0, output_grads, 0)
    rounding = 4 * jnp.finfo(output_grads.dtype).eps * squares
    sums = map_sequentially(squared_norm_of_row_sums, (index, output_grads))
    return SquaredNorm(sums + rounding, rounding)


def map_sequentially(function: Callable[..., T], inputs: PyTree) -> T:
    """Maps over the batch one example at a time on CPU, to stay in its cache, else 32 at a time."""
    batch_size = None if jax.default_backend() == "cpu" else 32
    mapped: T = jax.lax.map(lambda each: function(*each), inputs, batch_size=batch_size)
    return mapped


# The factors of each kind of operation.


def factors(op: LinearOp, operands: Operands, output_grad: jax.Array) -> Factors:
    """One example's factors, from the equation's inputs and the gradient at its output.

    Where the equation is repeated in a loop, both have an axis of its iterations, whose terms are
    concatenated.
    """
    if op.repeats is None:
        return _factors_of_equation(op, operands, output_grad)
    each = jax.vmap(partial(_factors_of_equation, op))(operands, output_grad)
    if each.left.ndim == 2:  # indices
        return Factors(each.left.reshape(-1), each.right.reshape(-1, each.right.shape[-1]))

    def concatenate_terms(vectors: jax.Array) -> jax.Array:
        iterations, groups, terms, columns = vectors.shape
        return vectors.swapaxes(0, 1).reshape(groups, iterations * terms, columns)

    return Factors(*map(concatenate_terms, each))


def _factors_of_equation(op: LinearOp, operands: Operands, output_grad: jax.Array) -> Factors:
    if op.primitive in LOOKUPS:
        index, right = _lookup_factors(op, operands[1], output_grad)
        return Factors(index, jnp.broadcast_to(right, (len(index), right.shape[-1])))
    if op.primitive == "conv_general_dilated":
        # Of each pixel the patch, and the output gradient.
        spec = op.equation.params["dimension_numbers"].out_spec
        right = output_grad.transpose([spec[0], *spec[2:], spec[1]])
        right = right.reshape(-1, right.shape[-1])
        left = _unfold(op, operands[0])
        return Factors(_widen(left, output_grad)[None], _widen(right, output_grad)[None])
    return dot_factors(op, operands[1 - op.operand], output_grad)


def dot_factors(op: LinearOp, other: jax.Array, output_grad: jax.Array) -> Factors:
    """One example's factors of a product with the array ``other``."""
    contracting, batch = op.equation.params["dimension_numbers"]
    shape = op._replace(path=(), stacked=()).outer_products()
    assert shape is not None

    # The other array's axes: groups, terms, rows. The output's: groups, terms, columns, or with the
    # parameter's own axes before the terms.
    mine = 1 - op.operand
    free = [d for d in range(other.ndim) if d not in (*contracting[mine], *batch[mine])]
    left = other.transpose([*batch[mine], *free, *contracting[mine]])
    right = output_grad
    if op.operand == 0:
        right = output_grad.reshape(shape.groups, shape.columns, shape.terms).swapaxes(1, 2)
    return Factors(
        _widen(left.reshape(shape.groups, shape.terms, shape.rows), output_grad),
        _widen(right.reshape(shape.groups, shape.terms, shape.columns), output_grad),
    )


def _lookup_factors(op: LinearOp, indices: jax.Array, output_grad: jax.Array) -> Factors:
    rows, columns = op.input_shape(0)
    index, limits = indices.reshape(-1), jnp.iinfo(indices.dtype)
    index = jnp.clip(index, max(-1, limits.min), min(rows, limits.max)).astype(jnp.int32)
    inside = (index >= 0) & (index < rows)
    clipped = jnp.clip(index, 0, rows - 1)
    # A dynamic slice has no mode: it clips indices that are out of bounds.
    if op.equation.params.get("mode", GatherScatterMode.CLIP) == GatherScatterMode.CLIP:
        index = clipped
    else:
        index = jnp.where(inside, clipped, -1)  # out of bounds reads a constant
    return Factors(index, _widen(output_grad.reshape(-1, columns), output_grad))


def _unfold(op: LinearOp, image: jax.Array) -> jax.Array:
    """The unfolded input (im2col), ``(pixels, rows)``: one patch for each output pixel.

    One gather with constant positions: less than half the time of a slice for each kernel tap.
    """
    parameters = op.equation.params
    numbers = parameters["dimension_numbers"]
    image = image.transpose([numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]])
    image = jnp.pad(image, [(0, 0), *parameters["padding"], (0, 0)])
    positions = _tap_positions(op, image.shape[1:-1])
    flat = image.reshape(image.shape[0], -1, image.shape[-1])
    return jnp.take(flat, positions, axis=1, mode="clip").reshape(
        -1, positions.shape[1] * flat.shape[2]
    )


def _tap_positions(op: LinearOp, spatial: tuple[int, ...]) -> np.ndarray:
    """Positions in the flattened padded image of each kernel tap, ``(pixels, taps)``."""
    # Along each axis.
    params, shape = op.equation.params, op.output.aval.shape  # type: ignore[attr-defined]
    axes = [
        np.arange(pixels)[:, None] * stride + np.arange(taps) * dilation
        for pixels, stride, taps, dilation in zip(
            [shape[d] for d in params["dimension_numbers"].out_spec[2:]],
            params["window_strides"],
            _window_shape(op),
            params["rhs_dilation"],
            strict=True,
        )
    ]

    # Of all axes together.
    positions = np.zeros((1, 1), np.int32)
    for axis, extent in zip(axes, spatial, strict=True):
        positions = positions[:, None, :, None] * extent + axis[None, :, None, :]
        positions = positions.reshape(math.prod(positions.shape[:2]), -1)
    return positions


def _window_shape(op: LinearOp) -> list[int]:
    spec = op.equation.params["dimension_numbers"].rhs_spec
    return [op.input_shape(1)[d] for d in spec[2:]]


def _widen(array: jax.Array, output_grad: jax.Array) -> jax.Array:
    return array.astype(accumulator(output_grad))  # an input may be an integer


# Instantiated gradients.


def _from_gradients(gradients: jax.Array) -> PerExampleGradients:
    """From gradients ``(batch, ...)`` in the block's shape."""
    zeroed, squares = _zero_nonfinite_examples(gradients.astype(accumulator(gradients)))
    return PerExampleGradients(zeroed, squares, lambda total: total)


def _instantiate(
    block: RoutedBlock, operands: list[Operands], output_grads: list[jax.Array]
) -> PerExampleGradients:
    """Per-example gradients of one block, of all entries of its stack."""
    if block.block.stack:  # (stack, batch, ...) to (batch, stack, ...)
        each = jax.vmap(partial(gradients_of_entry, block), out_axes=1)
        return _from_gradients(each(operands, output_grads))
    op = block.ops[0]
    if len(block.ops) == 1 and op.is_unfoldable():
        zeroed, squares = _map_unfolded(op, _zero_nonfinite_examples, operands[0], output_grads[0])
        return PerExampleGradients(zeroed, squares, partial(_kernel_to_block, op, block.entry))
    return _from_gradients(gradients_of_entry(block, operands, output_grads))


def gradients_of_entry(
    block: RoutedBlock, operands: list[Operands], output_grads: list[jax.Array]
) -> jax.Array:
    """Each example's gradient, ``(batch, *entry.shape)``, summed over the block's operations."""
    values = zip(block.ops, operands, output_grads, strict=True)
    first, *others = [
        _gradients_at_op(op, block.entry, inputs, grad) for op, inputs, grad in values
    ]
    return sum(others, start=first)


def _gradients_at_op(
    op: LinearOp, entry: jax.ShapeDtypeStruct, operands: Operands, output_grads: jax.Array
) -> jax.Array:
    """Each example's gradient at one operation, in the shape of ``entry``."""
    # A convolution on its unfolded input.
    if op.is_unfoldable():
        to_block = jax.vmap(partial(_kernel_to_block, op, entry))
        return _map_unfolded(op, to_block, operands, output_grads)

    # Other equations: their transpose.
    def gradient(operands: Operands, output_grad: jax.Array) -> jax.Array:
        return transpose(lambda x: op.apply_repeated(operands, x), entry, output_grad)

    if op.primitive != "conv_general_dilated":
        return jax.vmap(gradient)(operands, output_grads)

    # XLA may merge all examples' convolutions into one with zeros in between, where 0 * NaN of one
    # example would reach the others: values that are not finite are zeroed first.
    inputs = [output_grads, *(value for value in operands if value is not None)]
    each_finite = [jnp.isfinite(v).all(axis=tuple(range(1, v.ndim))) for v in inputs]
    finite = jnp.all(jnp.stack(each_finite), axis=0)
    zeroed = [None if value is None else zero_nonfinite(finite, value) for value in operands]
    grads = jax.vmap(gradient)(zeroed, zero_nonfinite(finite, output_grads))
    return jnp.where(finite.reshape(-1, *[1] * (grads.ndim - 1)), grads, jnp.nan)


def _map_unfolded(
    op: LinearOp,
    function: Callable[[jax.Array], T],
    operands: Operands,
    output_grads: jax.Array,
) -> T:
    """Applies ``function`` to kernel gradients ``(examples, channels, rows)``.

    Of as many examples at once as a CPU's cache holds unfolded inputs.
    """
    # How many examples are unfolded at once.
    batch = size = len(output_grads)
    shape = op.outer_products()
    if jax.default_backend() == "cpu" and shape is not None:
        at_most = max(1, _CACHED_FLOATS // (shape.terms * shape.rows))
        size = math.gcd(batch, 2 ** (at_most.bit_length() - 1))

    # The kernel's gradient of each.
    def matrix(operands: Operands, output_grad: jax.Array) -> jax.Array:
        left, right = factors(op, operands, output_grad)
        return jnp.matmul(right[0].T, left[0], precision=EXACT)

    several = jax.tree.map(
        lambda x: x.reshape(batch // size, size, *x.shape[1:]), (operands, output_grads)
    )
    results = jax.lax.map(lambda some: function(jax.vmap(matrix)(*some)), several)
    mapped: T = jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), results)
    return mapped


def _kernel_to_block(op: LinearOp, entry: jax.ShapeDtypeStruct, matrix: jax.Array) -> jax.Array:
    """Reshapes a kernel's gradient ``(channels, rows)`` to the block's shape."""
    spec, kernel = op.equation.params["dimension_numbers"].rhs_spec, op.input_shape(1)
    full = matrix.reshape(kernel[spec[0]], *_window_shape(op), kernel[spec[1]])
    return transpose(op.view, entry, full.transpose(np.argsort([spec[0], *spec[2:], spec[1]])))


def _zero_nonfinite_examples(gradients: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients with zeros for examples that are not finite (0 * NaN is NaN), and squared norms."""
    squares = squared_norms(gradients)
    return zero_nonfinite(jnp.isfinite(squares), gradients), squares


# Cancellation. Where the terms of ``sum_t left_t right_t^T`` cancel, as in ``w @ a - w @ b`` with
# nearly equal a and b, the bound on rounding that a ghost norm includes may exceed the squared norm
# itself. The gradient of such an example is instantiated in about twice the precision, once for its
# norm and once for its clipped contribution. Whether this is done for an example follows from that
# example alone, so no example changes what another one contributes.


def may_cancel(block: RoutedBlock) -> bool:
    """Whether terms of the gradient can cancel: there are several, not all of them equal."""
    (first, *others) = block.ops
    shape = first.outer_products()
    several = shape is not None and shape.terms > 1 and first.row_sum is None
    return several or len(others) > 0


def for_each(chosen: jax.Array, function: Callable[[T, jax.Array], T], start: T) -> T:
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


def accurate_gradient(
    block: RoutedBlock, index: jax.Array, operands: list[Operands], output_grads: list[jax.Array]
) -> jax.Array:
    """One example's gradient in the shape of the block's entry, accurate where its terms cancel.

    Each factor is cut into slices of so few bits that sums of products of two slices are exact, and
    these are added with compensation. What is left over is smaller than the factors by the number
    of bits of two slices: its rounding is about the square of the machine epsilon.

    Source: Ozaki, Ogita, Oishi, Rump (2012), Error-free transformations of matrix multiplication.
    """
    entry = block.entry
    zero = abstract(entry.shape, accumulator(entry), varying_axes(entry))
    summed = CompensatedSum.zero(zero)
    for op, *values in zip(block.ops, operands, output_grads, strict=True):
        inputs, output_grad = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, index, 1), tuple(values)
        )
        summed = _add_gradient_at_op(summed, op, entry, inputs, output_grad)
    return summed.value()


def _add_gradient_at_op(
    summed: CompensatedSum,
    op: LinearOp,
    entry: jax.ShapeDtypeStruct,
    inputs: Operands,
    output_grad: jax.Array,
) -> CompensatedSum:
    """Adds the products of all slices of an operation's input with all of its output gradient."""
    shape, other, dtype = op.outer_products(), 1 - op.operand, accumulator(output_grad)
    assert shape is not None
    bits = (jnp.finfo(dtype).nmant + 1 - math.ceil(math.log2(shape.terms))) // 2
    rights = _slices(output_grad, bits, dtype)

    # The products of one slice of the input with all of the output gradient.
    def add_products(summed: CompensatedSum, left: Operands) -> tuple[CompensatedSum, None]:
        def add(summed: CompensatedSum, right: jax.Array) -> tuple[CompensatedSum, None]:
            return summed.add(_gradients_at_op(op, entry, left, right)[0]), None

        return jax.lax.scan(add, summed, rights)

    # All slices of the input; that of a lookup is its indices.
    if op.primitive in LOOKUPS:
        return add_products(summed, inputs)[0]
    lefts: Operands = [None, None]
    lefts[other] = _slices(inputs[other], bits, dtype)
    return jax.lax.scan(add_products, summed, lefts)[0]


def _slices(array: jax.Array, bits: int, dtype: np.dtype) -> jax.Array:
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
