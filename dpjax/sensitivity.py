"""Sensitivities of statistics, with norm and adjacency, from public bounds on records.

Each holds for records clipped by `clip_to` or `clip_norm_to`, and is attained. The bounds must be
public: computed from the private data, they are a release of their own.

Sums over records are taken in float64 on the host, with a proven bound on their rounding.
The change of a float32 sum when a record is added may exceed the record: by 0.1 % at 10^5 records.
Summed here, n terms have an error of at most n 2^-43 times the largest term, for n below 2^32; the
mechanisms that sum records enlarge their noise by `SUM_ROUNDING`, which covers 10^8 records.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_float64,
    as_floats,
    batch_length,
    check,
    check_choice,
    check_count,
    check_function,
    check_normal,
    check_positive,
    check_type,
    is_traced,
)
from dpjax._typing import ArrayTree, Bounds, PyTree
from dpjax.adjacency import (
    Adjacency,
    check_adjacency,
    is_size_public,
    sensitivity_factor,
)
from dpjax.gradients.clipping import accumulator, clip_factor

__all__ = [
    "EmpiricalSensitivity",
    "Norm",
    "Sensitivity",
    "clip_norm_to",
    "clip_to",
    "empirical_sensitivity",
    "of_count",
    "of_histogram",
    "of_mean",
    "of_quantile_counts",
    "of_second_moment",
    "of_second_moment_in_box",
    "of_sum",
    "parallel_databases",
    "to_grid",
]

Norm = Literal["l1", "l2", "linf"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
_ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}
Shape = tuple[int, ...]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sensitivity:
    """The largest distance between a statistic's values on two neighbouring data sets.

    It is the sensitivity under its adjacency *itself*: under ``"replace_one"`` it is not doubled
    again. Mechanisms take their sensitivity and adjacency from here only.

    Attributes:
      value: a finite number of at least 2^-1022, in the units of the statistic; a bound for every
        pair of neighbours, never a distance measured on some data (see `EmpiricalSensitivity`).
      norm: the norm of the distance: ``"l1"``, ``"l2"`` or ``"linf"``, over all entries of
        all arrays of the statistic; of a symmetric matrix, over the upper triangle and the
        diagonal.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      monotone: whether of two neighbours one has the larger value in every entry, as the counts
        of a histogram when a record is added. Selection then costs half (see `NoisyMax`).
      shape: the shape of the statistic, a scalar by default: of a vector of three ``(3,)``, of a
        symmetric d by d matrix that of its upper triangle, ``(d * (d + 1) // 2,)``, of a tree a
        tuple of the shapes of its arrays, in the order of ``jax.tree.leaves``. No mechanism
        releases a value of another shape, such as the records in place of their mean.

    Raises:
      ValueError: a value, norm, adjacency or shape that is not allowed.

    >>> Sensitivity(100.0, norm="l1", adjacency="replace_one").value
    100.0
    >>> Sensitivity(1.0, norm="l2", adjacency="add_remove", shape=((3,), ())).shapes
    ((3,), ())
    """

    value: float
    norm: Norm
    adjacency: Adjacency
    monotone: bool = False
    shape: Shape | tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        check_normal("value", self.value)
        check_choice("norm", self.norm, NORMS)
        check_adjacency(self.adjacency)
        check(isinstance(self.monotone, bool), "monotone", self.monotone, "True or False")
        allowed = "a tuple of whole numbers >= 0, or of a tree a tuple of such tuples"
        is_shape = isinstance(self.shape, tuple) and all(map(_is_shape, self.shapes))
        check(is_shape, "shape", self.shape, allowed)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the statistic's arrays; of a statistic of one array its shape alone."""
        is_tree = any(isinstance(part, tuple) for part in self.shape)
        return self.shape if is_tree else (self.shape,)  # type: ignore[return-value]

    @property
    def clip_bound(self) -> float:
        """The clip bound of a sum with this sensitivity: all of it, or half under replace-one.

        Events state noise over a clip bound, and accountants multiply the clip bound by the factor
        of the adjacency. Dividing by the same factor here cancels it.
        """
        return self.value / sensitivity_factor(self.adjacency)


@dataclass(frozen=True)
class EmpiricalSensitivity:
    """The largest distance between some neighbours: a *lower* bound on the sensitivity.

    For teaching and tests; no mechanism accepts it. It depends on the data, so publishing it is a
    release of its own, and the sensitivity on other data may be much larger.

    Attributes:
      value: the largest distance, at least zero.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: of the neighbours that were compared.
    """

    value: float
    norm: Norm
    adjacency: Adjacency


def check_sensitivity(sensitivity: Sensitivity, norm: Norm) -> None:
    """Raises an error unless ``sensitivity`` is a `Sensitivity` in ``norm``.

    Raises:
      TypeError: not a `Sensitivity`; an empirical one is only a lower bound.
      ValueError: it is stated in another norm.
    """
    if isinstance(sensitivity, EmpiricalSensitivity):
        raise TypeError(
            "sensitivity must be a Sensitivity, a bound for every pair of neighbours; an"
            f" EmpiricalSensitivity is only a lower bound on it, got {sensitivity!r}"
        )
    allowed = "a Sensitivity, which names its norm and adjacency"
    check_type("sensitivity", sensitivity, Sensitivity, allowed)
    check(sensitivity.norm == norm, "sensitivity", sensitivity, f"stated in norm {norm!r}")


def check_shapes(name: str, shapes: Sequence[Shape], sensitivity: Sensitivity) -> None:
    """Raises an error unless ``shapes`` are those of the statistic of ``sensitivity``.

    Args:
      name: of the argument, for the error.
      shapes: of the arrays of a value that is to be released.
      sensitivity: as stated.

    Raises:
      ValueError: other shapes.
    """
    if tuple(shapes) != sensitivity.shapes:
        got, stated = map(_format_shapes, (shapes, sensitivity.shapes))
        raise ValueError(
            f"{name} must be of shape {stated}, which its sensitivity states, got shape {got}:"
            " release the statistic, not the records that it is computed from, or state the"
            " sensitivity of what is released with its shape, Sensitivity(..., shape=...)"
        )


def _format_shapes(shapes: Sequence[Shape]) -> str:
    """Shapes for an error: of one array its shape."""
    if len(shapes) == 1:
        return str(shapes[0])
    return f"{tuple(shapes)} (a tree of {len(shapes)} arrays)"


def _is_shape(shape: object) -> bool:
    """Whether ``shape`` is a tuple of whole numbers of at least zero."""
    return isinstance(shape, tuple) and all(
        isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0
        for size in shape
    )


def of_sum(bounds: Bounds, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of the sum of records in a box.

    Adding, removing or zeroing a record moves the sum by the record, so by as much as the bound
    farther from zero; replacing one moves it by as much as the distance between the bounds.

    Args:
      bounds: ``(low, high)``, of one number each for records that are numbers, whose sum is a
        number; or arrays ``(d,)`` for records of d entries, whose sum is of shape ``(d,)``.
      norm: of the sensitivity.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Raises:
      ValueError: bounds that are not finite, out of order, or with sensitivity zero.

    >>> of_sum((-3, 7), norm="l1", adjacency="add_remove").value
    7.0
    >>> of_sum((-3, 7), norm="l1", adjacency="replace_one").value
    10.0
    >>> of_sum(([-3, 0], [7, 1]), norm="l1", adjacency="add_remove").shape
    (2,)
    """
    check_adjacency(adjacency)
    low, high = checked_bounds(bounds)
    if adjacency == "replace_one":
        with np.errstate(over="ignore"):
            return Sensitivity(_length(high - low, norm), norm, adjacency, shape=low.shape)
    one_sign = bool(np.all(low >= 0) or np.all(high <= 0))
    return Sensitivity(_length(_farther(low, high), norm), norm, adjacency, one_sign, low.shape)


def of_mean(bounds: Bounds, num_examples: int, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of the mean of ``num_examples`` records in a box.

    A zeroed record still counts in the number, which is public.

    Args:
      bounds: as in `of_sum`.
      num_examples: number of records, at least 1.
      norm: of the sensitivity.
      adjacency: ``"zero_out"`` or ``"replace_one"``.

    Raises:
      ValueError: bounds as in `of_sum`, or as many as there are records (a mean of as many features
        is an `of_sum`, divided); and under ``"add_remove"``, where the number of records is
        private too: release the sum and the number, and divide.

    >>> of_mean((30, 60), 25, norm="l1", adjacency="replace_one").value
    1.2
    >>> of_mean((30, 60), 25, norm="l1", adjacency="zero_out").value
    2.4
    """
    check_count("num_examples", num_examples)
    check_adjacency(adjacency)
    if not is_size_public(adjacency):
        raise ValueError(
            "adjacency must be 'replace_one' or 'zero_out' for a mean, whose divisor is the number"
            " of records, got 'add_remove': release the sum (of_sum) and the number (of_count),"
            " and divide"
        )
    total = of_sum(bounds, norm=norm, adjacency=adjacency)
    one_each = num_examples > 1 and total.shape == (num_examples,)
    allowed = f"those of one record, not of each of {num_examples} records"
    check(not one_each, "bounds", bounds, allowed)
    return replace(total, value=total.value / num_examples)


def of_count(num_counts: int | None = None, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of the number of records with some property, or with each of several.

    One record may have all of the properties or none: see `of_histogram` where it has exactly one.

    Args:
      num_counts: of several counts ``(num_counts,)``; without it the statistic is one number.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: the neighbouring relation.

    >>> of_count(norm="l1", adjacency="replace_one").value
    1.0
    >>> of_count(4, norm="l2", adjacency="replace_one").value
    2.0
    """
    if num_counts is None:
        return Sensitivity(1.0, norm, adjacency, monotone=True)
    check_count("num_counts", num_counts)
    length = _length(np.ones(num_counts), norm)
    # A replacement may raise one count and lower another.
    monotone = adjacency != "replace_one" or num_counts == 1
    return Sensitivity(length, norm, adjacency, monotone, (num_counts,))


def of_histogram(num_bins: int, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of a histogram ``(num_bins,)``, every record in exactly one bin.

    Replacing a record takes it out of one bin and puts it into another; a zeroed one is in none.

    Args:
      num_bins: number of bins, at least two.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: the neighbouring relation.

    >>> of_histogram(10, norm="l1", adjacency="replace_one").value
    2.0
    """
    check_count("num_bins", num_bins, minimum=2)
    moves = np.ones(sensitivity_factor(adjacency))
    monotone = adjacency != "replace_one"
    return Sensitivity(_length(moves, norm), norm, adjacency, monotone, (num_bins,))


def of_quantile_counts(num_thresholds: int, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of the numbers of records below each of ``num_thresholds`` values.

    One record may be below all of them; a replacement moves every count in the same direction.

    Args:
      num_thresholds: number of thresholds.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: the neighbouring relation.

    >>> of_quantile_counts(9, norm="l2", adjacency="add_remove").value
    3.0
    """
    check_count("num_thresholds", num_thresholds)
    length = _length(np.ones(num_thresholds), norm)
    return Sensitivity(length, norm, adjacency, monotone=True, shape=(num_thresholds,))


def of_second_moment(l2_bound: float, *, num_features: int, adjacency: Adjacency) -> Sensitivity:
    """Returns the L2 sensitivity of the sum of x x^T over records with ``|x| <= l2_bound``.

    Over the upper triangle with the diagonal, as ``release_symmetric`` draws the noise. With a
    record x replaced by z the distance is at most the Frobenius norm of x x^T - z z^T, whose square
    is |x|^4 + |z|^4 - 2 (x . z)^2; two different unit vectors attain both. So it is sqrt(2)
    ``l2_bound``^2, not twice ``l2_bound``^2, and for records of one entry ``l2_bound``^2.

    Args:
      l2_bound: public bound on the norm of a record.
      num_features: d, the number of entries of a record; the triangle has d (d + 1) / 2.
      adjacency: the neighbouring relation.

    >>> round(of_second_moment(2.0, num_features=3, adjacency="replace_one").value, 3)
    5.657
    """
    check_positive("l2_bound", l2_bound)
    check_count("num_features", num_features)
    check_adjacency(adjacency)
    factor = math.sqrt(2) if adjacency == "replace_one" and num_features > 1 else 1.0
    value, shape = factor * float(l2_bound) * float(l2_bound), triangle_shape(num_features)
    return Sensitivity(value, "l2", adjacency, shape=shape)


def of_second_moment_in_box(bounds: Bounds, *, adjacency: Adjacency) -> Sensitivity:
    """Returns the L1 sensitivity of the sum of x x^T over records in a box, by its upper triangle.

    It is for ``release_symmetric``, which draws the noise of the triangle, d (d + 1) / 2 entries.

    With u = x + z and v = x - z, 2 (x x^T - z z^T) is u v^T + v u^T, and |u_i| + |v_i| is twice the
    larger of |x_i| and |z_i|. By Cauchy and Schwarz a replacement moves the triangle by no more
    than the farthest corner of the box alone, which attains it if z = 0 is allowed. Where no entry
    can be zero, the nearest corner is the farthest from it.

    Args:
      bounds: ``(low, high)``, arrays with one bound for every entry of a record.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      The exact sensitivity; where only some entries can be zero, under ``"replace_one"``, a bound
      that may not be attained.

    >>> of_second_moment_in_box(([-1, -1], [1, 1]), adjacency="replace_one").value
    3.0
    >>> of_second_moment_in_box(([2, 2], [3, 3]), adjacency="replace_one").value
    15.0
    """
    check_adjacency(adjacency)
    low, high = checked_bounds(bounds)
    shape = triangle_shape(low.size)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        farthest = _triangle(_farther(low, high))
        if adjacency != "replace_one":
            one_sign = bool(np.all(low >= 0) or np.all(high <= 0))
            return Sensitivity(farthest, "l1", adjacency, one_sign, shape)
        value = min(farthest, _ranges_of_products(low, high))
    return Sensitivity(value, "l1", adjacency, shape=shape)


def triangle_shape(num_features: int) -> tuple[int]:
    """Returns the shape of the upper triangle, with the diagonal, of a matrix of d rows."""
    return (num_features * (num_features + 1) // 2,)


def checked_bounds(bounds: Bounds) -> tuple[Array, Array]:
    """Returns both bounds in float64, of one shape; raises ValueError unless low <= high."""
    allowed = "(low, high), finite numbers or arrays of one for each entry, with low <= high"
    try:
        low, high = (as_float64(bound, "bounds") for bound in bounds)
        low, high = np.broadcast_arrays(low, high)
    except (TypeError, ValueError):
        low = high = np.empty(0)
    fine = low.ndim <= 1 and low.size > 0 and bool(np.all(np.isfinite(low) & np.isfinite(high)))
    check(fine and bool(np.all(low <= high)), "bounds", bounds, allowed)
    return low, high


def _farther(low: Array, high: Array) -> Array:
    """The largest absolute value of each entry."""
    return np.maximum(np.abs(low), np.abs(high))


def _length(moves: Array, norm: Norm) -> float:
    """The norm of ``moves``; infinite where float64 does not hold it."""
    check_choice("norm", norm, _ORDERS)
    # Divided by a power of two: squares neither overflow nor lose digits.
    exponent = int(np.frexp(np.max(moves))[1])
    length = np.linalg.norm(np.atleast_1d(np.ldexp(moves, -exponent)), _ORDERS[norm])
    with np.errstate(over="ignore"):
        return float(np.ldexp(length, exponent))


def _triangle(entries: Array) -> float:
    """The sum of x_i x_j over i <= j."""
    x = np.atleast_1d(entries)
    return float(np.sum(np.triu(np.outer(x, x))))


def _ranges_of_products(low: Array, high: Array) -> float:
    """The sum over i <= j of the range of x_i x_j."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    products = np.stack([np.outer(a, b) for a in (low, high) for b in (low, high)])
    ranges = products.max(axis=0) - products.min(axis=0)
    # Where neither entry can be zero the difference would cancel; also of squares: with the sizes
    # |x_i| in [a_i, b_i] it is b_i b_j - a_i a_j = (b_i - a_i) b_j + a_i (b_j - a_j).
    far, with_zero = _farther(low, high), (low <= 0) & (high >= 0)
    near = np.where(with_zero, 0.0, np.minimum(np.abs(low), np.abs(high)))
    width = far - near
    of_sizes = np.outer(width, far) + np.outer(near, width)
    either = with_zero[:, None] | with_zero
    np.fill_diagonal(either, False)
    return float(np.sum(np.triu(np.where(either, ranges, of_sizes))))


# Relative excess over the sensitivity of a sum of fewer than 2^26 records.
SUM_ROUNDING = 2.0**-16
_BLOCK = 256


def sum_in_blocks(terms: npt.ArrayLike, axis: int = 0) -> np.ndarray:
    """Returns the sum over ``axis`` of float64 numbers, in blocks of 256, and blocks of these.

    Each of at most four rounds has a relative error below 2^-45 (Higham 2002, Section 4.2).
    Integers are summed exactly, in int64.

    >>> float(sum_in_blocks(np.full(1000, 0.1)))
    100.0
    """
    sums = np.moveaxis(np.asarray(terms), axis, 0)
    sums = sums.astype(np.int64 if sums.dtype.kind in "biu" else np.float64)
    while len(sums) > 1:
        sums = _blocks(sums).sum(axis=1)
    return sums[0] if len(sums) else np.zeros(sums.shape[1:], sums.dtype)


def products_in_blocks(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns the sum over records of ``left`` times ``right`` as an outer product.

    Args:
      left: float64 ``(..., n, a)``.
      right: float64 ``(..., n, b)``.

    Returns:
      ``(..., a, b)``.
    """
    left, right = (_blocks(np.moveaxis(part, -2, 0)) for part in (left, right))
    left, right = (np.moveaxis(part, (0, 1), (-3, -2)) for part in (left, right))
    return sum_in_blocks(np.swapaxes(left, -1, -2) @ right, axis=-3)


def _blocks(terms: np.ndarray) -> np.ndarray:
    """Splits the first axis into blocks, the last one zero-padded."""
    count = -(-len(terms) // _BLOCK)
    padding = [(0, count * _BLOCK - len(terms))] + [(0, 0)] * (terms.ndim - 1)
    return np.pad(terms, padding).reshape(count, _BLOCK, *terms.shape[1:])


# Squares of smaller numbers underflow in float32: norms below would be taken for zero.
_LEAST_BOUND = 1e-12


def clip_to(records: npt.ArrayLike, bounds: Bounds) -> jax.Array:
    """Returns ``records`` with every entry clipped to its bounds; NaN becomes the lower bound.

    NaN must not reach a statistic, where noise would not hide it, and must not raise an error
    either, since the error would reveal the record.

    Args:
      records: floats ``(n,)`` or ``(n, d)``; integers become floats.
      bounds: ``(low, high)`` as in `of_sum`, broadcast over the last axis. They are rounded inwards
        to the records' dtype, so that no clipped record is outside them.

    Raises:
      ValueError: bounds as in `of_sum`, or with no number of the records' dtype between them.

    >>> clip_to(jnp.array([-5.0, 2.0, jnp.inf, jnp.nan]), (-3, 7)).tolist()
    [-3.0, 2.0, 7.0, -3.0]
    """
    records = as_floats(records, "records")
    ends = _rounded_inwards(bounds, records.dtype)
    try:
        low, high = (jnp.broadcast_to(end, records.shape) for end in ends)
    except ValueError as error:
        raise ValueError(f"bounds must be one for each entry of a record: {error}") from error
    return jnp.where(jnp.isnan(records), low, jnp.clip(records, low, high))


def clip_norm_to(records: npt.ArrayLike, l2_bound: float) -> jax.Array:
    """Returns ``records`` with its rows clipped to an L2 norm of at most ``l2_bound``.

    A row whose norm is not finite becomes zero.

    Args:
      records: floats ``(n, d)``; those of half precision become float32.
      l2_bound: a finite number of at least 1e-12. The norms keep it up to the rounding of float32.

    Raises:
      ValueError: a bound out of range, or ``records`` that are not rows of real numbers.

    >>> clip_norm_to(jnp.array([[3.0, 4.0], [jnp.nan, 0.0]]), 1.0).round(3).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    check_positive("l2_bound", l2_bound)
    large = is_traced(l2_bound) or float(l2_bound) >= _LEAST_BOUND
    check(large, "l2_bound", l2_bound, f"at least {_LEAST_BOUND}")
    records = as_floats(records, "records")
    records = records.astype(accumulator(records))
    check(records.ndim == 2, "records", records.shape, "rows of numbers, of shape (n, d)")
    norms = jnp.linalg.norm(records, axis=1, keepdims=True)
    factors = clip_factor(norms, l2_bound)
    finite = jnp.broadcast_to(jnp.isfinite(norms), records.shape)
    return jnp.where(finite, records * factors, jnp.zeros_like(records))


def to_grid(records: npt.ArrayLike, grid: float) -> npt.NDArray[np.int64]:
    """Returns each of ``records`` in units of ``grid``, rounded to a whole number.

    Sums of what it returns are exact, and discrete mechanisms take them. Records are rounded
    *before* they are summed: rounding a sum would add to its sensitivity. What was within bounds
    is within ``to_grid(bounds, grid)``; multiply the release by ``grid`` to go back.

    Args:
      records: finite numbers, of any shape.
      grid: the spacing, above zero; public.

    Raises:
      ValueError: ``grid`` is not a finite number above zero, or a record is not finite or more
        than 2^53 units large: clip first.

    >>> to_grid([0.31, -1.26], grid=0.1).tolist()
    [3, -13]
    """
    check_positive("grid", grid)
    units = np.rint(as_float64(records, "records") / grid)
    if not np.all(np.abs(units) < 2**53):
        raise ValueError("records must be finite and below 2^53 units of grid: clip them first")
    return units.astype(np.int64)


def _rounded_inwards(bounds: Bounds, dtype: npt.DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns both bounds in ``dtype``, rounded inwards.

    Devices flush subnormal numbers to zero, which may be out of bounds as well.
    """
    low, high = checked_bounds(bounds)
    lowest, highest = low.astype(dtype), high.astype(dtype)
    beyond = np.asarray(np.inf, dtype)
    lowest = np.where(lowest.astype(np.float64) < low, np.nextafter(lowest, beyond), lowest)
    highest = np.where(highest.astype(np.float64) > high, np.nextafter(highest, -beyond), highest)
    tiny = jnp.finfo(dtype).tiny
    lowest = np.where((low > 0) & (lowest < tiny), tiny, lowest)
    highest = np.where((high < 0) & (highest > -tiny), -tiny, highest)
    check(bool(np.all(lowest <= highest)), "bounds", bounds, f"apart by a number of dtype {dtype}")
    return lowest, highest


def parallel_databases(records: ArrayTree) -> PyTree:
    """Returns the n neighbours of ``records`` that each lack one of them, stacked.

    Args:
      records: a tree of arrays ``(n, ...)``, n of at least two.

    Returns:
      The same tree of arrays ``(n, n - 1, ...)``; the first lacks the first record.

    >>> parallel_databases(jnp.array([1, 2, 3])).tolist()
    [[2, 3], [1, 3], [1, 2]]
    """
    n = batch_length(records, "records")
    check(n >= 2, "records", f"{n} records", "at least two records")
    remaining = np.arange(n - 1) + (np.arange(n - 1) >= np.arange(n)[:, None])
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[remaining], records)


def empirical_sensitivity(
    query: Callable[[PyTree], ArrayTree], records: ArrayTree, *, norm: Norm
) -> EmpiricalSensitivity:
    """Returns the largest change of ``query`` when one of *these* records is removed.

    A lower bound on the sensitivity under add/remove, for teaching and for tests: no
    mechanism accepts it.

    Args:
      query: from a tree of arrays with a leading axis of records to a tree of arrays; vmapped.
      records: such a tree, of at least two records.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``, over all entries of all arrays of the answer.

    >>> ages = jnp.array([20.0, 30.0, 90.0])
    >>> empirical_sensitivity(jnp.sum, ages, norm="l1").value
    90.0
    """
    check_function("query", query, "records")
    check_choice("norm", norm, NORMS)
    answers = jax.vmap(lambda part: _flat(query(part)))(parallel_databases(records))
    moves = answers - _flat(query(records))[None]
    distances = jnp.linalg.norm(moves, ord=_ORDERS[norm], axis=1)
    return EmpiricalSensitivity(float(distances.max()), norm, "add_remove")


def _flat(tree: ArrayTree) -> jax.Array:
    leaves = [jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves)
