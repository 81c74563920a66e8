"""Sums over records in float64 on the host, with a proven bound on their rounding.

The change of a float32 sum when a record is added may exceed the record: by 0.1 % at 10^5 records.
Summed here, n terms have an error of at most n 2^-43 times the largest term, for n below 2^32; the
mechanisms that sum records enlarge their noise by `SUM_ROUNDING`, which covers 10^8 records.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

# Relative excess over the sensitivity of a sum of fewer than 2^26 records.
SUM_ROUNDING = 2.0**-16
_BLOCK = 256


def sum_in_blocks(terms: npt.ArrayLike, axis: int = 0) -> npt.NDArray[Any]:
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


def _blocks(terms: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Splits the first axis into blocks, the last one zero-padded."""
    count = -(-len(terms) // _BLOCK)
    padding = [(0, count * _BLOCK - len(terms))] + [(0, 0)] * (terms.ndim - 1)
    return np.pad(terms, padding).reshape(count, _BLOCK, *terms.shape[1:])
