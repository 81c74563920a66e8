"""Per-example clipping: norms, clip factors, and clipped sums with their rounding.

A clip bound is a number (flat L2 over the whole tree) or a prefix of the parameter tree with a
number for each group of leaves (per-layer clipping); a rule of `dpjax.gradients.clip_rules` may
stand for a number. With one bound ``c_g`` for each group one
example contributes a vector of norm at most ``sqrt(sum_g c_g**2)``, the *total* clip bound, which
is what noise is scaled by.

Rounding a float32 sum over B examples can move it by some multiple of ``B * l2_clip * eps``, and
adding one example may change every rounding. So long sums are added in parts with compensation
(Knuth's two-sum), and every example is clipped to slightly less than its bound: see
`rounding_margin`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._typing import ClipBound, Numeric, PyTree
from dpjax.gradients.clip_rules import AdaptiveClip, ClipRule
from dpjax.gradients.shard_map import as_varying, varying_axes

A = TypeVar("A")
T = TypeVar("T")

# Accelerators multiply float32 in fewer bits by default (10 in TF32, 7 in bfloat16): with norms
# rounded like that a clipped example could exceed its bound.
EXACT = jax.lax.Precision.HIGHEST
# Examples in one dot product. Its rounding errors may all have one sign (equal gradients), and grow
# with the square of its length; those of compensated sums do not grow.
PART_SIZE = 512


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

    norms: PyTree
    losses: jax.Array
    num_nonfinite: jax.Array


# The clipped sum, shaped like the parameters, and its info; and a function that returns both from
# (params, batch, mask).
ClippedSum: TypeAlias = tuple[PyTree, ClippedGradInfo]
ClippedSumFn: TypeAlias = Callable[..., ClippedSum]


def clip_and_sum(
    grads: PyTree, l2_clip: ClipBound, usable: jax.Array, max_batch_size: int | None = None
) -> tuple[PyTree, "Clipping"]:
    """Clips every example of ``grads`` and sums the ``usable`` ones with finite norms.

    Args:
      grads: per-example tree, every leaf of shape ``(batch, ...)``.
      l2_clip: a number, or a prefix tree of numbers.
      usable: bool ``(batch,)``; the others contribute exactly zero.
      max_batch_size: see `clip_factors`.

    Returns:
      A tree without the example axis, at least float32 (rounding a sum before the noise would add
      to its sensitivity), and the clip factors.
    """
    squares = jax.tree.map(squared_norms, grads)
    clipping = clip_factors(squares, l2_clip, usable, max_batch_size)
    finite = clipping.finite
    return jax.tree.map(lambda f, g: weighted_sum(f, finite, g), clipping.factors, grads), clipping


class Clipping(NamedTuple):
    """Clip factors of each example.

    Attributes:
      factors: a tree like the parameters, every leaf ``(batch,)``; 0 for excluded examples.
      norms: the unclipped norms, a tree like ``l2_clip`` of ``(batch,)``.
      finite: which examples are included: usable, and all of their norms finite.
    """

    factors: PyTree
    norms: PyTree
    finite: jax.Array


def clip_factors(
    squares: PyTree, l2_clip: ClipBound, usable: jax.Array, max_batch_size: int | None = None
) -> Clipping:
    """Returns each leaf's clip factors from each leaf's squared norms (a tree of ``(batch,)``).

    Bounds are divided by one plus `rounding_margin` of ``max_batch_size``, the most examples whose
    clipped gradients are added up (by default the batch).

    Raises:
      ValueError: ``l2_clip`` is no prefix of ``squares``.
    """
    terms = len(usable) if max_batch_size is None else max_batch_size
    bounds, structure = jax.tree.flatten(l2_clip)
    leaves, treedef = jax.tree.flatten(squares)

    # The group of each leaf.
    try:
        numbers = jax.tree.unflatten(structure, range(len(bounds)))
        groups = jax.tree.leaves(jax.tree.broadcast(numbers, squares))
    except ValueError as error:
        raise ValueError(
            "l2_clip must be a number or a prefix of the parameter tree, got the structure"
            f" {structure} for a tree of structure {treedef}"
        ) from error

    # The norm and the clip factor of each group.
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


def sum_of_slots(
    rule: AdaptiveClip,
    norms: jax.Array,
    usable: jax.Array,
    bound: jax.Array,
    max_batch_size: int | None = None,
) -> jax.Array:
    """Returns the sums of the slots of the ``usable`` examples with finite norms: ``(num_slots,)``.

    Args:
      rule: of the slots.
      norms: the unclipped norms, ``(batch,)``.
      usable: bool ``(batch,)``; the others contribute exactly zero.
      bound: the current one.
      max_batch_size: see `clip_factors`: the slots have the same margin.
    """
    terms = len(usable) if max_batch_size is None else max_batch_size
    finite = usable & jnp.isfinite(norms)
    scale = 1 / (1 + rounding_margin(terms, norms.dtype))
    return weighted_sum(jnp.full(norms.shape, scale, norms.dtype), finite, rule.slots(norms, bound))


def clipped_grad_info(
    norms: PyTree, losses: jax.Array, mask: jax.Array, finite: jax.Array
) -> ClippedGradInfo:
    """The info of a batch, with zeros in the slots that are masked out."""
    return ClippedGradInfo(
        norms=jax.tree.map(lambda norm: jnp.where(mask, norm, 0), norms),
        losses=jnp.where(mask, losses, 0),
        num_nonfinite=jnp.sum(mask & ~finite),
    )


def clip_factor(norm: jax.Array, bound: Numeric | ClipRule, num_terms: int = 0) -> jax.Array:
    """``min(1, bound / norm)``, and 1 at norm zero; ``bound`` less the margin for a sum.

    Or a rule's factor, less the same margin.
    """
    margin = rounding_margin(num_terms, norm.dtype) if num_terms else 0.0
    if isinstance(bound, ClipRule):
        return bound.factor(norm) * (1 / (1 + margin))
    bound = jnp.asarray(bound, norm.dtype) * (1 / (1 + margin))
    return jnp.minimum(1, bound / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def squared_norms(leaf: jax.Array) -> jax.Array:
    """Each example's squared norm, ``(batch,)``, accumulated in float32 or wider."""
    flat = leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])).astype(accumulator(leaf))
    return jnp.einsum("bi,bi->b", flat, flat, precision=EXACT)


def weighted_sum(factor: jax.Array, finite: jax.Array, leaf: jax.Array) -> jax.Array:
    """``sum_b factor_b leaf_b`` over the finite examples.

    The reduction is a dot: several times faster than summing scaled copies.
    """
    dtype = accumulator(leaf)

    def dot(factor: jax.Array, arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        gradients = zero_nonfinite(*arrays).astype(dtype)
        return jnp.tensordot(factor, gradients, axes=1, precision=EXACT)

    return sum_in_parts(dot, factor.astype(dtype), (finite, leaf))


def zero_nonfinite(finite: jax.Array, leaf: jax.Array) -> jax.Array:
    """``leaf`` with zeros for the examples that are not ``finite``, since 0 * NaN is NaN."""
    return jnp.where(finite.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)


def accumulator(leaf: jax.Array | jax.ShapeDtypeStruct) -> np.dtype:
    """The dtype in which sums over a leaf are accumulated: float32 or wider."""
    return jnp.dtype(jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32)


class CompensatedSum(NamedTuple):
    """A running sum as ``total + error``, two trees of arrays of the same shapes."""

    total: PyTree
    error: PyTree

    @classmethod
    def zero(cls, like: PyTree) -> "CompensatedSum":
        """An empty sum of trees like ``like`` (arrays or their shapes)."""
        zeros = jax.tree.map(
            lambda x: as_varying(jnp.zeros(x.shape, x.dtype), varying_axes(x)), like
        )
        return cls(zeros, zeros)

    def add(self, term: PyTree) -> "CompensatedSum":
        """Adds one tree, with compensation for the rounding error.

        Source: Knuth (1969), The Art of Computer Programming 2, Section 4.2.2, Theorem B.
        """

        def add_rounding_error(
            error: jax.Array, before: jax.Array, term: jax.Array, total: jax.Array
        ) -> jax.Array:
            added = total - before
            return error + ((before - (total - added)) + (term - added))

        total = jax.tree.map(jnp.add, self.total, term)
        error = jax.tree.map(add_rounding_error, self.error, self.total, term, total)
        return CompensatedSum(total, error)

    def value(self) -> PyTree:
        """The sum, rounded once."""
        return jax.tree.map(jnp.add, self.total, self.error)


@jax.jit
def sum_of_clipped(l2_clip: Numeric, summed: PyTree) -> PyTree:
    """Identity that marks a sum of clipped gradients.

    In a traced program it marks the sum for `dpjax.audit.check_program`, which does not analyse how
    it was computed: one example moves it by at most ``l2_clip``; at 0 by the bound of the marked
    sums that it was computed from.
    """
    del l2_clip
    return summed


def rounding_margin(num_examples: int, dtype: npt.DTypeLike = jnp.float32) -> float:
    """Bound on how far rounding moves a sum beyond the clip bound, relative to the bound.

    ``eps (2 num_examples + 2)``, where ``eps`` is the dtype's machine epsilon (2^-23 for float32).
    Two neighbouring sums of norm up to ``num_examples`` bounds, each rounded to the nearest float,
    move apart by up to ``eps num_examples`` bounds. That half of the first term is proven, and
    compensation adds nothing to it in first order. The other half is for the rounding inside parts
    of `PART_SIZE` examples, whose worst case is larger: it is measured, not proven. Over equal,
    alternating and random gradients of 255 to 10^6 examples, on every route, neighbouring sums
    moved beyond the bound by less than a third of the margin. The sums of several devices are added
    without compensation, which is measured too (on eight), not proven. The second term is for the
    norm and the clip factor.

    >>> rounding_margin(256) < 1e-4 < rounding_margin(1_000_000) < 0.25
    True
    """
    return float(jnp.finfo(dtype).eps) * (2 * num_examples + 2)


def sum_in_parts(weighted_sum: Callable[[jax.Array, A], T], factor: jax.Array, arrays: A) -> T:
    """Returns ``weighted_sum(factor, arrays)``, compensated beyond `PART_SIZE` examples.

    Args:
      weighted_sum: linear in ``factor``: a sum over the leading axis of ``factor`` and ``arrays``.
      factor: each example's clip factor, ``(batch,)``.
      arrays: a tree of arrays with the same leading axis.
    """
    size = len(factor)
    if size <= PART_SIZE:
        return weighted_sum(factor, arrays)
    num_parts = -(-size // PART_SIZE)
    part_size = -(-size // num_parts)

    def add_part(part: jax.Array, summed: CompensatedSum) -> CompensatedSum:
        # The last part overlaps the one before it, whose examples are given weight zero.
        start = jnp.minimum(part * part_size, size - part_size)
        part_factor, part_arrays = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, part_size), (factor, arrays)
        )
        new = start + jnp.arange(part_size) >= part * part_size
        return summed.add(weighted_sum(jnp.where(new, part_factor, 0), part_arrays))

    zero = CompensatedSum.zero(jax.eval_shape(weighted_sum, factor, arrays))
    return jax.lax.fori_loop(0, num_parts, add_part, zero).value()
