"""Clip bounds: the largest norm of one clipped example, and the sensitivity of a clipped sum."""

from __future__ import annotations

from typing import Any

from dpjax._checks import check, check_positive, is_traced
from dpjax._lazy_imports import jax
from dpjax._typing import ClipBound
from dpjax.adjacency import Adjacency, sensitivity_factor
from dpjax.gradients.clip_rules import AdaptiveClip, ClipRule

# Squares of smaller numbers underflow in float32: norms below would be taken for zero.
_LEAST_BOUND = 1e-12


def clip_bounds(l2_clip: ClipBound) -> list[Any]:
    """Returns the numbers and rules of a clip bound, one for each group of leaves.

    >>> clip_bounds({"conv": 3.0, "dense": 4.0})
    [3.0, 4.0]
    """
    return [l2_clip] if isinstance(l2_clip, int | float) else jax.tree.leaves(l2_clip)


def total_l2_clip(l2_clip: ClipBound) -> float:
    """Returns the largest L2 norm of one clipped example over the whole tree.

    Args:
      l2_clip: a number, or a prefix tree of numbers, one for each group of leaves.

    Raises:
      ValueError: a bound that is not a finite number of at least 1e-12.

    >>> total_l2_clip({"conv": 3.0, "dense": 4.0})
    5.0
    """
    leaves = clip_bounds(l2_clip)
    if not leaves:
        raise ValueError(f"l2_clip must hold at least one number > 0, got {l2_clip!r}")
    if len(leaves) > 1 and any(isinstance(leaf, AdaptiveClip) for leaf in leaves):
        raise ValueError(
            f"l2_clip must be numbers, AutomaticClip or PSACClip where it has several groups of"
            f" leaves, got {l2_clip!r}: a bound that adapts is one for all parameters"
        )
    bounds = [float(b) if isinstance(b, ClipRule | AdaptiveClip) else b for b in leaves]
    for bound in bounds:
        check_positive("l2_clip", bound)
        if not is_traced(bound):
            check(float(bound) >= _LEAST_BOUND, "l2_clip", bound, f"at least {_LEAST_BOUND}")

    return bounds[0] if len(bounds) == 1 else sum(bound**2 for bound in bounds) ** 0.5


def check_clip_numbers(l2_clip: ClipBound, user: str) -> None:
    """Raises ValueError for a clip bound with a rule in it, which ``user`` does not take."""
    rules = [x for x in clip_bounds(l2_clip) if isinstance(x, ClipRule | AdaptiveClip)]
    if rules:
        raise ValueError(
            f"l2_clip must be a number, or numbers for groups of parameters, in {user}, got"
            f" {rules[0]!r}: rules that normalise gradients or move the bound are for private_step"
            " and train"
        )


def l2_sensitivity(l2_clip: ClipBound, adjacency: Adjacency) -> float:
    """Returns the L2 sensitivity of a clipped sum: the total clip bound, doubled in replace-one.

    Args:
      l2_clip: as in `total_l2_clip`.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    >>> l2_sensitivity(1.5, "add_remove"), l2_sensitivity(1.5, "replace_one")
    (1.5, 3.0)
    """
    return sensitivity_factor(adjacency) * total_l2_clip(l2_clip)
