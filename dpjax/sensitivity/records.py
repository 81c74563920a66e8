"""Clipping of records to public bounds or an L2 norm, and rounding to a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, as_floats, check, check_positive, is_traced
from dpjax._typing import Bounds
from dpjax.gradients.clipping import accumulator, clip_factor
from dpjax.sensitivity.statistics import checked_bounds

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
