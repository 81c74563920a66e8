"""Vectorised maximisation and root finding for scalar functions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Beyond it exp(-x) is zero in double precision.
LARGEST_LOSS = 745.0
_GOLDEN = (math.sqrt(5) - 1) / 2
_GOLDEN_STEPS = 75
_BISECTIONS = 64
_DOUBLINGS = 60


def maximum(
    function: Callable[[Array], Array], low: Array, high: Array, *, steps: int = _GOLDEN_STEPS
) -> Array:
    """Returns the largest value of a quasi-concave function between ``low`` and ``high``.

    Golden section, elementwise. What is returned was attained, so it is never above the maximum.
    Where rounding makes the function flat the search goes up, so the flat part must lie below.
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    best = np.maximum(np.maximum(function(low), function(high)), np.maximum(at_left, at_right))
    for _ in range(steps):
        rises = at_right >= at_left
        low, high = np.where(rises, left, low), np.where(rises, high, right)
        kept, at_kept = np.where(rises, right, left), np.where(rises, at_right, at_left)
        new = np.where(rises, low + _GOLDEN * (high - low), high - _GOLDEN * (high - low))
        at_new = function(new)
        left, right = np.where(rises, kept, new), np.where(rises, new, kept)
        at_left, at_right = np.where(rises, at_kept, at_new), np.where(rises, at_new, at_kept)
        best = np.maximum(best, at_new)
    return best


def least_argument(decreasing: Callable[[Array], Array], target: Array) -> Array:
    """Returns the least x >= 0 at which a decreasing function is at most ``target``.

    Rounded up, so that it is; infinity where there is no such x below 2^60.
    """
    high = np.zeros_like(target)
    for _ in range(_DOUBLINGS):
        high = np.where(decreasing(high) <= target, high, np.maximum(2 * high, 1.0))
    low = np.where(high > 1, high / 2, 0.0)
    found = decreasing(high) <= target
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = decreasing(middle) <= target
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(found, high, np.inf)


def scalar(values: Array) -> Any:
    """Returns a float for an array without axes, else the array."""
    return values.item() if values.ndim == 0 else values
