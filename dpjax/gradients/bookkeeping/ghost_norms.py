"""Ghost norms: norms of per-example gradients from layer inputs and output gradients.

One example's gradient of a dense layer is ``sum_t left_t right_t^T`` with layer inputs ``left_t``
and output gradients ``right_t`` for each token or pixel t. The inner product of two such gradients
is ``sum_ts <left_t, left_s> <right_t, right_s>``, computed from two Gram matrices without the
gradient. A convolution is a dense layer on its unfolded input (im2col); the inputs of an embedding
are one-hot and kept as their indices.

Source: Goodfellow (2015); Li, Tramer, Liang, Hashimoto (2022); Bu, Mao, Xu (2022).
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from dpjax.gradients.bookkeeping.sites import Site, aval
from dpjax.gradients.clipping import EXACT, accumulator

T = TypeVar("T")

# Equations that may look up rows of a table by their indices.
LOOKUPS = frozenset({"gather", "dynamic_slice"})


class Factors(NamedTuple):
    """One example's gradient at one site: ``sum_t left_t right_t^T``, in float32 or wider.

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


class Shape(NamedTuple):
    """Sizes of `Factors`."""

    groups: int
    terms: int
    rows: int
    columns: int


class SquaredNorm(NamedTuple):
    """An upper bound of a squared norm or an inner product.

    Attributes:
      value: the bound.
      rounding: the part of it that bounds rounding; the error of the rest is at most that.
    """

    value: jax.Array
    rounding: jax.Array


def shape_of(site: Site) -> Shape | None:
    """The sizes of the site's factors; ``None`` if it is no sum of outer products."""
    shape = _shape_of_equation(site)
    if shape is None or site.repeats is None:
        return shape
    return shape._replace(terms=site.repeats * shape.terms)


def _shape_of_equation(site: Site) -> Shape | None:
    if site.equation.primitive.name == "dot_general":
        return _dot_shape(site)
    if site.equation.primitive.name == "conv_general_dilated" and is_unfoldable(site):
        return _convolution_shape(site)
    if site.equation.primitive.name in LOOKUPS and _looks_up_rows(site):
        rows, columns = aval(site.equation.invars[0]).shape
        return Shape(1, math.prod(aval(site.equation.invars[1]).shape), rows, columns)
    return None


def factors(site: Site, operands: list[Any], output_grad: jax.Array) -> Factors:
    """One example's factors, from the equation's inputs and the gradient at its output.

    Where the equation is repeated in a loop, both have an axis of its iterations, whose terms are
    concatenated.
    """
    if site.repeats is None:
        return _factors_of_equation(site, operands, output_grad)
    each = jax.vmap(partial(_factors_of_equation, site))(operands, output_grad)
    if each.left.ndim == 2:  # indices
        return Factors(each.left.reshape(-1), each.right.reshape(-1, each.right.shape[-1]))
    return Factors(*(_concatenate_terms(vectors) for vectors in each))


def _concatenate_terms(vectors: jax.Array) -> jax.Array:
    """``(iterations, groups, terms, columns)`` to ``(groups, iterations * terms, columns)``."""
    iterations, groups, terms, columns = vectors.shape
    return vectors.swapaxes(0, 1).reshape(groups, iterations * terms, columns)


def _factors_of_equation(site: Site, operands: list[Any], output_grad: jax.Array) -> Factors:
    if site.equation.primitive.name in LOOKUPS:
        index, right = _lookup_factors(site, operands[1], output_grad)
        return Factors(index, jnp.broadcast_to(right, (len(index), right.shape[-1])))
    if site.equation.primitive.name == "conv_general_dilated":
        left, right = unfold(site, operands[0]), output_grad_rows(site, output_grad)
        return Factors(_widen(left, output_grad)[None], _widen(right, output_grad)[None])
    return _dot_factors(site, operands[1 - site.operand], output_grad)


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
    if not one.one_hot and not other.one_hot:
        pairs = "gtr,gsr->gts"
        return _einsum(pairs, one.left, other.left), _einsum(pairs, one.right, other.right)
    if not one.one_hot:
        one, other = other, one
    right = other.right if other.one_hot else other.right[0]
    rights = _einsum("tc,sc->ts", one.right, right)
    if other.one_hot:
        same = (one.left[:, None] == other.left[None]) & (one.left >= 0)[:, None]
        return same.astype(rights.dtype), rights
    return (other.left[0][:, one.left] * (one.left >= 0)).T, rights


def _dot_shape(site: Site) -> Shape:
    (contracting, batch), operand = site.equation.params["dimension_numbers"], site.operand
    param = aval(site.equation.invars[operand]).shape
    groups = math.prod(param[d] for d in batch[operand])
    rows = math.prod(param[d] for d in contracting[operand])
    columns = math.prod(param) // (groups * rows)
    return Shape(groups, math.prod(aval(site.output).shape) // (groups * columns), rows, columns)


def _dot_factors(site: Site, other: jax.Array, output_grad: jax.Array) -> Factors:
    (contracting, batch), shape = site.equation.params["dimension_numbers"], _dot_shape(site)
    mine = 1 - site.operand
    free = [d for d in range(other.ndim) if d not in (*contracting[mine], *batch[mine])]
    left = other.transpose([*batch[mine], *free, *contracting[mine]])
    right = output_grad
    if site.operand == 0:  # the parameter's free axes come before the terms
        right = output_grad.reshape(shape.groups, shape.columns, shape.terms).swapaxes(1, 2)
    return Factors(
        _widen(left.reshape(shape.groups, shape.terms, shape.rows), output_grad),
        _widen(right.reshape(shape.groups, shape.terms, shape.columns), output_grad),
    )


def is_dense(site: Site) -> bool:
    """Whether the equation is a product with the parameter without axes common to both."""
    if site.equation.primitive.name != "dot_general":
        return False
    _, batch = site.equation.params["dimension_numbers"]
    sizes = [math.prod(aval(x).shape) for x in (site.output, *site.equation.invars)]
    return not batch[site.operand] and min(sizes) > 0


def dense_gradient(site: Site, operands: list[Any], output_grads: jax.Array) -> jax.Array:
    """The gradient of a dense site's operand, summed over the batch: one product of two matrices.

    Written with separate axes for examples and terms, XLA's CPU backend forms the transposed matrix
    first and copies it, which for large vocabularies takes as long as the product.
    """
    left, right = jax.vmap(partial(_dot_factors, site))(operands[1 - site.operand], output_grads)
    rows, columns = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (left, right))
    contracting = list(site.equation.params["dimension_numbers"][0][site.operand])
    shape = aval(site.equation.invars[site.operand]).shape
    free = [axis for axis in range(len(shape)) if axis not in contracting]
    order = [*contracting, *free]
    if free and free[0] == 0:
        rows, columns, order = columns, rows, [*free, *contracting]
    matrix = jnp.einsum("tr,tc->rc", rows, columns, precision=EXACT)
    return matrix.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))


def _convolution_shape(site: Site) -> Shape:
    kernel = aval(site.equation.invars[1]).shape
    columns = kernel[site.equation.params["dimension_numbers"].rhs_spec[0]]
    terms = math.prod(aval(site.output).shape) // columns
    return Shape(1, terms, math.prod(kernel) // columns, columns)


def _looks_up_rows(site: Site) -> bool:
    """Whether the equation takes one whole row of a matrix for each index."""
    table = aval(site.equation.invars[0]).shape
    if site.equation.primitive.name == "dynamic_slice":
        return len(table) == 2 and tuple(site.equation.params["slice_sizes"]) == (1, table[1])
    numbers = site.equation.params["dimension_numbers"]
    indices = aval(site.equation.invars[1]).shape
    return (
        len(table) == 2
        and tuple(site.equation.params["slice_sizes"]) == (1, table[1])
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and not numbers.operand_batching_dims
        and tuple(numbers.offset_dims) == (len(indices) - 1,)
        and indices[-1] == 1
    )


def _lookup_factors(site: Site, indices: jax.Array, output_grad: jax.Array) -> Factors:
    rows, columns = aval(site.equation.invars[0]).shape
    index, limits = indices.reshape(-1), jnp.iinfo(indices.dtype)
    index = jnp.clip(index, max(-1, limits.min), min(rows, limits.max)).astype(jnp.int32)
    inside = (index >= 0) & (index < rows)
    clipped = jnp.clip(index, 0, rows - 1)
    # A dynamic slice has no mode: it clips indices that are out of bounds.
    if site.equation.params.get("mode", GatherScatterMode.CLIP) == GatherScatterMode.CLIP:
        index = clipped
    else:
        index = jnp.where(inside, clipped, -1)  # out of bounds reads a constant
    return Factors(index, _widen(output_grad.reshape(-1, columns), output_grad))


def embedding_squared_norms(
    site: Site, operands: list[Any], output_grads: jax.Array
) -> SquaredNorm:
    """Squared norms of per-example gradients of an embedding, ``(batch,)``.

    Output gradients of lookups of one row are added up, then squared. Where the loss sums all rows
    looked up, the output gradients are equal, and counting the lookups of each row is enough.
    """
    num_rows = aval(site.equation.invars[0]).shape[0]
    index, output_grads = jax.vmap(partial(_lookup_factors, site))(operands[1], output_grads)
    squares = jnp.einsum("btc,btc->b", output_grads, output_grads, precision=EXACT)
    if site.row_sum is not None:
        pairs = map_sequentially(
            partial(_num_equal_pairs, num_rows), (jnp.maximum(index, 0), index >= 0)
        )
        return SquaredNorm(pairs.astype(squares.dtype) * squares, jnp.zeros_like(squares))
    output_grads = jnp.where(index[..., None] >= 0, output_grads, 0)
    rounding = 4 * jnp.finfo(output_grads.dtype).eps * squares
    sums = map_sequentially(partial(_squared_norm_of_row_sums, num_rows), (index, output_grads))
    return SquaredNorm(sums + rounding, rounding)


def map_sequentially(function: Callable[..., T], inputs: Any) -> T:
    """Maps over the batch one example at a time on CPU, to stay in its cache, else 32 at a time."""
    batch_size = None if jax.default_backend() == "cpu" else 32
    mapped: T = jax.lax.map(lambda each: function(*each), inputs, batch_size=batch_size)
    return mapped


def _num_equal_pairs(num_rows: int, row: jax.Array, inside: jax.Array) -> jax.Array:
    """Number of ordered pairs of one example's lookups that take the same row."""
    counted = inside.astype(jnp.float32)
    counts = jnp.zeros(num_rows).at[row].add(counted, mode="promise_in_bounds")
    return jnp.vdot(counts.at[row].get(mode="promise_in_bounds"), counted, precision=EXACT)


def _squared_norm_of_row_sums(
    num_rows: int, index: jax.Array, output_grads: jax.Array
) -> jax.Array:
    """Squared norm of one example's output gradients after summing those of equal rows.

    Sums are stored at the position of one of the row's lookups, so memory grows with the number of
    lookups and not with the table.
    """
    slots = jnp.arange(len(index), dtype=jnp.int32)
    slot_of_row = jnp.zeros(num_rows, jnp.int32).at[index].set(slots)
    sums = jnp.zeros_like(output_grads).at[slot_of_row[index]].add(output_grads)
    return jnp.vdot(sums, sums, precision=EXACT)


def _widen(array: jax.Array, output_grad: jax.Array) -> jax.Array:
    return array.astype(accumulator(output_grad))  # an input may be an integer


def is_unfoldable(site: Site) -> bool:
    """Whether the convolution is one matrix product on its unfolded input (no groups)."""
    parameters = site.equation.params
    return (
        parameters["feature_group_count"] == 1
        and parameters["batch_group_count"] == 1
        and set(parameters["lhs_dilation"]) <= {1}
        and min(itertools.chain((0,), *parameters["padding"])) >= 0
        and math.prod(aval(site.output).shape) > 0
    )


def unfold(site: Site, image: jax.Array) -> jax.Array:
    """The unfolded input (im2col), ``(pixels, rows)``: one patch for each output pixel.

    One gather with constant positions: less than half the time of a slice for each kernel tap.
    """
    parameters = site.equation.params
    numbers = parameters["dimension_numbers"]
    image = image.transpose([numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]])
    image = jnp.pad(image, [(0, 0), *parameters["padding"], (0, 0)])
    positions = _tap_positions(site, image.shape[1:-1])
    flat = image.reshape(image.shape[0], -1, image.shape[-1])
    return jnp.take(flat, positions, axis=1, mode="clip").reshape(
        -1, positions.shape[1] * flat.shape[2]
    )


def output_grad_rows(site: Site, output_grad: jax.Array) -> jax.Array:
    """The output gradient as ``(pixels, channels)``, in the order of `unfold`."""
    spec = site.equation.params["dimension_numbers"].out_spec
    output_grad = output_grad.transpose([spec[0], *spec[2:], spec[1]])
    return output_grad.reshape(-1, output_grad.shape[-1])


def matrix_to_kernel(site: Site, matrix: jax.Array) -> jax.Array:
    """Reshapes ``(channels, rows)`` to the kernel's layout."""
    spec = site.equation.params["dimension_numbers"].rhs_spec
    kernel = aval(site.equation.invars[1]).shape
    full = matrix.reshape(kernel[spec[0]], *_window_shape(site), kernel[spec[1]])
    return full.transpose(np.argsort([spec[0], *spec[2:], spec[1]]))


def _window_shape(site: Site) -> list[int]:
    spec = site.equation.params["dimension_numbers"].rhs_spec
    return [aval(site.equation.invars[1]).shape[d] for d in spec[2:]]


def _tap_positions(site: Site, spatial: tuple[int, ...]) -> np.ndarray:
    """Positions in the flattened padded image of each kernel tap, ``(pixels, taps)``."""
    parameters = site.equation.params
    output = [aval(site.output).shape[d] for d in parameters["dimension_numbers"].out_spec[2:]]
    axes = [
        np.arange(pixels)[:, None] * stride + np.arange(taps) * dilation
        for pixels, stride, taps, dilation in zip(
            output,
            parameters["window_strides"],
            _window_shape(site),
            parameters["rhs_dilation"],
            strict=True,
        )
    ]
    positions = np.zeros((1, 1), np.int32)
    for axis, extent in zip(axes, spatial, strict=True):
        positions = positions[:, None, :, None] * extent + axis[None, :, None, :]
        positions = positions.reshape(math.prod(positions.shape[:2]), -1)
    return positions
