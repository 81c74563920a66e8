"""Sensitivities of common statistics, with their shapes, from public bounds on one record.

Each holds for records clipped by `clip_to` or `clip_norm_to`, and is attained. The bounds must be
public: computed from the private data, they are a release of their own.
"""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, check, check_choice, check_count, check_positive
from dpjax._typing import Bounds
from dpjax.adjacency import (
    Adjacency,
    check_adjacency,
    is_size_public,
    sensitivity_factor,
)
from dpjax.sensitivity.base import Norm, Sensitivity

Array = npt.NDArray[np.float64]
_ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}


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
      ValueError: bounds as in `of_sum`; and under ``"add_remove"``, where the number of records is
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
    return replace(total, value=total.value / num_examples)


def of_count(*, norm: Norm, adjacency: Adjacency) -> Sensitivity:
    """Returns the sensitivity of the number of records with some property: one.

    Args:
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: the neighbouring relation.

    >>> of_count(norm="l1", adjacency="replace_one").value
    1.0
    """
    return Sensitivity(1.0, norm, adjacency, monotone=True)


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
        raise ValueError(f"bounds must be {allowed}, got {bounds!r}") from None
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
