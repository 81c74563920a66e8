"""Per-example clipping: norms, clip factors and the clipped sum.

A clip bound is a number (flat L2 over the whole tree) or a prefix of the parameter tree with a
number for each group of leaves (per-layer clipping). With one bound ``c_g`` for each group one
example contributes a vector of norm at most ``sqrt(sum_g c_g**2)``, the *total* clip bound, which
is what noise is scaled by.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import check, check_positive, is_traced
from dpjax._typing import ArrayTree, ClipBound, Numeric
from dpjax.adjacency import Adjacency, sensitivity_factor
from dpjax.gradients.summation import rounding_margin, sum_in_parts

# Accelerators multiply float32 in fewer bits by default (10 in TF32, 7 in bfloat16): with norms
# rounded like that a clipped example could exceed its bound.
EXACT = jax.lax.Precision.HIGHEST
# Squares of smaller numbers underflow in float32: norms below would be taken for zero.
_LEAST_BOUND = 1e-12


class ClippedGradInfo(NamedTuple):
    """Per-example norms and losses. **Private values**: not part of any release.

    Attributes:
      norms: L2 norms before clipping, ``(batch,)``; with per-layer bounds a tree like ``l2_clip``
        of such arrays. Zero where masked out. By book-keeping upper bounds, at most 1 % above the
        norms where the terms of a gradient cancel, and else equal up to rounding.
      losses: one loss for each example, ``(batch,)``. Zero where masked out.
      num_nonfinite: number of unmasked examples set to zero because their loss or gradient was not
        finite, or the squared norm overflowed.
    """

    norms: Any
    losses: jax.Array
    num_nonfinite: jax.Array


# The clipped sum, shaped like the parameters, and its info; and a function that returns both from
# (params, batch, mask).
ClippedSum: TypeAlias = tuple[Any, ClippedGradInfo]
ClippedSumFn: TypeAlias = Callable[..., ClippedSum]


def total_l2_clip(l2_clip: ClipBound) -> float:
    """Returns the largest L2 norm of one clipped example over the whole tree.

    Args:
      l2_clip: a number, or a prefix tree of numbers, one for each group of leaves.

    Raises:
      ValueError: a bound that is not a finite number of at least 1e-12.

    >>> total_l2_clip({"conv": 3.0, "dense": 4.0})
    5.0
    """
    bounds = _checked_bounds(l2_clip)
    if len(bounds) == 1:
        return bounds[0]
    return sum(bound**2 for bound in bounds) ** 0.5


def l2_sensitivity(l2_clip: ClipBound, adjacency: Adjacency) -> float:
    """Returns the L2 sensitivity of a clipped sum: the total clip bound, doubled in replace-one.

    Args:
      l2_clip: as in `total_l2_clip`.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    >>> l2_sensitivity(1.5, "add_remove"), l2_sensitivity(1.5, "replace_one")
    (1.5, 3.0)
    """
    return sensitivity_factor(adjacency) * total_l2_clip(l2_clip)


def clip_and_sum(grads: ArrayTree, l2_clip: ClipBound, usable: jax.Array) -> tuple[Any, Any]:
    """Clips every example of ``grads`` and sums the ``usable`` ones with finite norms.

    Args:
      grads: per-example tree, every leaf of shape ``(batch, ...)``.
      l2_clip: a number, or a prefix tree of numbers.
      usable: bool ``(batch,)``; the others contribute exactly zero.

    Returns:
      ``(clipped_sum, norms)``: a tree without the example axis, at least float32 (rounding a sum
      before the noise would add to its sensitivity), and the unclipped norms like ``l2_clip``.
    """
    factors, norms, finite = clip_factors(jax.tree.map(squared_norms, grads), l2_clip, usable)
    return jax.tree.map(lambda f, g: weighted_sum(f, finite, g), factors, grads), norms


class Clipping(NamedTuple):
    """Clip factors of each example.

    Attributes:
      factors: a tree like the parameters, every leaf ``(batch,)``; 0 for excluded examples.
      norms: the unclipped norms, a tree like ``l2_clip`` of ``(batch,)``.
      finite: which examples are included: usable, and all of their norms finite.
    """

    factors: Any
    norms: Any
    finite: jax.Array


def clip_factors(
    squares: ArrayTree, l2_clip: ClipBound, usable: jax.Array, max_batch_size: int | None = None
) -> Clipping:
    """Returns each leaf's clip factors from each leaf's squared norms (a tree of ``(batch,)``).

    Bounds are divided by one plus `rounding_margin` of ``max_batch_size``, the most examples whose
    clipped gradients are added up (by default the batch).
    """
    terms = len(usable) if max_batch_size is None else max_batch_size
    bounds, structure = _checked_bounds(l2_clip), jax.tree.structure(l2_clip)
    groups = _leaf_groups(structure, squares)
    leaves, treedef = jax.tree.flatten(squares)
    norms = [
        jnp.sqrt(sum(leaf for g, leaf in zip(groups, leaves, strict=True) if g == group))
        for group in range(len(bounds))
    ]
    norms = [jnp.broadcast_to(norm, usable.shape) for norm in norms]  # a group may have no leaves
    finite = usable & jnp.all(jnp.stack([jnp.isfinite(n) for n in norms]), axis=0)
    factors = [
        jnp.where(finite, clip_factor(n, c, terms), 0) for n, c in zip(norms, bounds, strict=True)
    ]
    of_leaves = jax.tree.unflatten(treedef, [factors[group] for group in groups])
    return Clipping(of_leaves, jax.tree.unflatten(structure, norms), finite)


def clipped_grad_info(
    norms: ArrayTree, losses: jax.Array, mask: jax.Array, finite: jax.Array
) -> ClippedGradInfo:
    """The info of a batch, with zeros in the slots that are masked out."""
    return ClippedGradInfo(
        norms=jax.tree.map(lambda norm: jnp.where(mask, norm, 0), norms),
        losses=jnp.where(mask, losses, 0),
        num_nonfinite=jnp.sum(mask & ~finite),
    )


def clip_factor(norm: jax.Array, bound: Numeric, num_terms: int = 0) -> jax.Array:
    """``min(1, bound / norm)``, and 1 at norm zero; ``bound`` less the margin for a sum."""
    margin = rounding_margin(num_terms, norm.dtype) if num_terms else 0.0
    bound = jnp.asarray(bound, norm.dtype) * (1 / (1 + margin))
    return jnp.minimum(1, bound / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def check_prefix(l2_clip: ClipBound, params: ArrayTree) -> None:
    """Raises ValueError for bounds that are not positive or not a prefix of ``params``."""
    _checked_bounds(l2_clip)
    _leaf_groups(jax.tree.structure(l2_clip), params)


def _checked_bounds(l2_clip: ClipBound) -> list[Any]:
    bounds = jax.tree.leaves(l2_clip)
    if not bounds:
        raise ValueError(f"l2_clip must hold at least one number > 0, got {l2_clip!r}")
    for bound in bounds:
        check_positive("l2_clip", bound)
        if not is_traced(bound):
            check(float(bound) >= _LEAST_BOUND, "l2_clip", bound, f"at least {_LEAST_BOUND}")
    return bounds


def _leaf_groups(structure: jax.tree_util.PyTreeDef, tree: ArrayTree) -> list[int]:
    ids = jax.tree.unflatten(structure, range(structure.num_leaves))
    try:
        return jax.tree.leaves(jax.tree.broadcast(ids, tree))
    except ValueError as error:
        raise ValueError(
            "l2_clip must be a number or a prefix of the parameter tree, got the structure"
            f" {structure} for a tree of structure {jax.tree.structure(tree)}"
        ) from error


def squared_norms(leaf: jax.Array) -> jax.Array:
    """Each example's squared norm, ``(batch,)``, accumulated in float32 or wider."""
    flat = leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])).astype(accumulator(leaf))
    return jnp.einsum("bi,bi->b", flat, flat, precision=EXACT)


def weighted_sum(factor: jax.Array, finite: jax.Array, leaf: jax.Array) -> jax.Array:
    """``sum_b factor_b leaf_b`` over the finite examples.

    The reduction is a dot: several times faster than summing scaled copies.
    """
    dtype = accumulator(leaf)

    def dot(factor: jax.Array, arrays: Any) -> jax.Array:
        kept = zero_nonfinite(*arrays).astype(dtype)
        return jnp.tensordot(factor, kept, axes=1, precision=EXACT)

    return sum_in_parts(dot, factor.astype(dtype), (finite, leaf))


def zero_nonfinite(finite: jax.Array, leaf: jax.Array) -> jax.Array:
    """``leaf`` with zeros for the examples that are not ``finite``, since 0 * NaN is NaN."""
    return jnp.where(finite.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)


def accumulator(leaf: Any) -> np.dtype:
    """The dtype in which sums over a leaf are accumulated: float32 or wider."""
    return jnp.dtype(jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32)
