"""Per-example gradients as sums of outer products, and their norms without forming them.

The gradient of one example at a site that multiplies matrices is ``sum_t left_t right_t^T``: what
went in and what comes back, for each token or pixel t. The inner product of two such gradients is
``sum_ts <left_t, left_s> <right_t, right_s>``: two small Gram matrices instead of one large
gradient. An embedding's left vectors are one-hot, and are kept as their indices.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from dpjax.gradients.bookkeeping.patches import is_plain, patches, signal_rows
from dpjax.gradients.bookkeeping.program import Site, aval
from dpjax.gradients.clipping import EXACT, accumulator

# Equations that may take whole rows of a table, each by its index.
LOOKUPS = frozenset({"gather", "dynamic_slice"})


class Factors(NamedTuple):
    """One example's gradient at one site: ``sum_t left_t right_t^T``, in float32 or wider.

    Attributes:
      left: ``(groups, terms, rows)``, or for one-hot vectors their row indices ``(terms,)``, -1
        where the vector is zero.
      right: ``(groups, terms, columns)``; ``(terms, columns)`` beside indices.
    """

    left: jax.Array
    right: jax.Array

    @property
    def one_hot(self) -> bool:
        """Whether ``left`` holds indices."""
        return self.left.ndim == 1


class Shape(NamedTuple):
    """Sizes of `Factors`, known before anything is computed."""

    groups: int
    terms: int
    rows: int
    columns: int


def shape_of(site: Site) -> Shape | None:
    """The sizes of the site's factors; ``None`` if it is no sum of outer products."""
    if site.equation.primitive.name == "dot_general":
        return _dot_shape(site)
    if site.equation.primitive.name == "conv_general_dilated" and is_plain(site):
        return _convolution_shape(site)
    if site.equation.primitive.name in LOOKUPS and _looks_up_rows(site):
        rows, columns = aval(site.equation.invars[0]).shape
        return Shape(1, math.prod(aval(site.equation.invars[1]).shape), rows, columns)
    return None


def factors(site: Site, operands: list[Any], signal: jax.Array) -> Factors:
    """One example's factors, from the equation's inputs and the signal at its output."""
    if site.equation.primitive.name in LOOKUPS:
        index, right = _lookup_factors(site, operands[1], signal)
        return Factors(index, jnp.broadcast_to(right, (len(index), right.shape[-1])))
    if site.equation.primitive.name == "conv_general_dilated":
        left, right = patches(site, operands[0]), signal_rows(site, signal)
        return Factors(_wide(left, signal)[None], _wide(right, signal)[None])
    return _dot_factors(site, operands[1 - site.operand], signal)


def inner_product(one: Factors, other: Factors) -> jax.Array:
    """An upper bound, tight to rounding, of ``sum_ts <left_t, left_s> <right_t, right_s>``.

    The terms have either sign and may cancel, so their rounding (which grows with the length of the
    vectors) and their underflow are added on top: a norm that comes out too small would let an
    example through unclipped.
    """
    lefts, rights = _grams(one, other)
    products, info = lefts * rights, jnp.finfo(lefts.dtype)
    length = sum(vectors.shape[-1] for vectors in other if vectors.ndim > 1)
    rounding = (4 + math.sqrt(length)) * info.eps * jnp.sum(jnp.abs(products))
    underflow = length * info.tiny * (jnp.sum(jnp.abs(lefts)) + jnp.sum(jnp.abs(rights)))
    return jnp.sum(products) + rounding + underflow


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


def _einsum(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, precision=EXACT)


def _dot_shape(site: Site) -> Shape:
    (contracting, batch), operand = _dims(site), site.operand
    param = aval(site.equation.invars[operand]).shape
    groups = math.prod(param[d] for d in batch[operand])
    rows = math.prod(param[d] for d in contracting[operand])
    columns = math.prod(param) // (groups * rows)
    return Shape(groups, math.prod(aval(site.output).shape) // (groups * columns), rows, columns)


def _dot_factors(site: Site, other: jax.Array, signal: jax.Array) -> Factors:
    (contracting, batch), shape = _dims(site), _dot_shape(site)
    mine = 1 - site.operand
    free = [d for d in range(other.ndim) if d not in (*contracting[mine], *batch[mine])]
    left = other.transpose([*batch[mine], *free, *contracting[mine]])
    right = signal
    if site.operand == 0:  # then the parameter's free axes come before the terms
        right = signal.reshape(shape.groups, shape.columns, shape.terms).swapaxes(1, 2)
    return Factors(
        _wide(left.reshape(shape.groups, shape.terms, shape.rows), signal),
        _wide(right.reshape(shape.groups, shape.terms, shape.columns), signal),
    )


def _convolution_shape(site: Site) -> Shape:
    kernel = aval(site.equation.invars[1]).shape
    columns = kernel[site.equation.params["dimension_numbers"].rhs_spec[0]]
    terms = math.prod(aval(site.output).shape) // columns
    return Shape(1, terms, math.prod(kernel) // columns, columns)


def _dims(site: Site) -> Any:
    return site.equation.params["dimension_numbers"]


def _looks_up_rows(site: Site) -> bool:
    """Whether the lookup takes whole rows of a matrix, one for each index."""
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


def _lookup_factors(site: Site, indices: jax.Array, signal: jax.Array) -> Factors:
    rows, columns = aval(site.equation.invars[0]).shape
    index, limits = indices.reshape(-1), jnp.iinfo(indices.dtype)
    index = jnp.clip(index, max(-1, limits.min), min(rows, limits.max)).astype(jnp.int32)
    inside = (index >= 0) & (index < rows)
    clipped = jnp.clip(index, 0, rows - 1)
    # What the mode says of an index outside; a dynamic slice has none and moves it inside.
    if site.equation.params.get("mode", GatherScatterMode.CLIP) == GatherScatterMode.CLIP:
        index = clipped
    else:
        index = jnp.where(inside, clipped, -1)  # an index outside reads a constant, not the table
    return Factors(index, _wide(signal.reshape(-1, columns), signal))


def squared_norms_of_lookups(site: Site, operands: list[Any], signals: jax.Array) -> jax.Array:
    """The squared norms of one embedding's gradients, ``(batch,)``, from a whole batch.

    Signals that come back to one row are added up, then squared. Where the program adds all rows
    up, their signals are one and the same, and it is enough to count the lookups of each row.
    """
    num_rows = aval(site.equation.invars[0]).shape[0]
    index, signals = jax.vmap(partial(_lookup_factors, site))(operands[1], signals)
    squares = jnp.einsum("btc,btc->b", signals, signals, precision=EXACT)
    if site.total is not None:
        pairs = in_turn(partial(_equal_pairs, num_rows), (jnp.maximum(index, 0), index >= 0))
        return pairs.astype(squares.dtype) * squares
    signals = jnp.where(index[..., None] >= 0, signals, 0)
    rounding = 4 * jnp.finfo(signals.dtype).eps * squares
    return in_turn(partial(_square_of_rows, num_rows), (index, signals)) + rounding


def in_turn(function: Callable[..., jax.Array], inputs: Any) -> jax.Array:
    """One example after the other: a CPU's cache then holds what each needs (a count for every row
    of a table, a large gradient). Accelerators take some at a time.
    """
    together = None if jax.default_backend() == "cpu" else 32
    return jax.lax.map(lambda each: function(*each), inputs, batch_size=together)


def _equal_pairs(num_rows: int, row: jax.Array, inside: jax.Array) -> jax.Array:
    """How many ordered pairs of one example's lookups take the same row."""
    counted = inside.astype(jnp.float32)
    counts = jnp.zeros(num_rows).at[row].add(counted, mode="promise_in_bounds")
    return jnp.vdot(counts.at[row].get(mode="promise_in_bounds"), counted, precision=EXACT)


def _square_of_rows(num_rows: int, index: jax.Array, signals: jax.Array) -> jax.Array:
    """The square of one example's signals, added up row by row.

    Each row that is looked up gets a slot, the number of one of its lookups, so that the sums take
    as many rows as there are lookups and not as many as the table has.
    """
    slots = jnp.arange(len(index), dtype=jnp.int32)
    slot_of_row = jnp.zeros(num_rows, jnp.int32).at[index].set(slots)
    sums = jnp.zeros_like(signals).at[slot_of_row[index]].add(signals)
    return jnp.vdot(sums, sums, precision=EXACT)


def _wide(array: jax.Array, signal: jax.Array) -> jax.Array:
    return array.astype(accumulator(signal))  # an input may be an integer
