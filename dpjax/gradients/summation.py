"""Compensated float32 sums of clipped gradients, with rounding inside the clip bound.

Rounding a sum over B examples can move it by some multiple of ``B * l2_clip * eps``, and adding one
example may change every rounding. So long sums are added in parts with compensation (Knuth's
two-sum), and every example is clipped to slightly less than its bound: see `rounding_margin`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy.typing as npt

from dpjax.gradients.shard_map import as_varying, varying_axes

# Examples in one dot product. Its rounding errors may all have one sign (equal gradients), and grow
# with the square of its length; those of compensated sums do not grow.
PART_SIZE = 512


A = TypeVar("A")
T = TypeVar("T")


class CompensatedSum(NamedTuple):
    """A running sum as ``total + error``, two trees of arrays of the same shapes."""

    total: Any  # the structure that the caller gave
    error: Any

    @classmethod
    def zero(cls, like: Any) -> "CompensatedSum":
        """An empty sum of trees like ``like`` (arrays or their shapes)."""
        return cls(_zeros(like), _zeros(like))

    def add(self, term: Any) -> "CompensatedSum":
        """Adds one tree, with compensation for the rounding error.

        Source: Knuth (1969), The Art of Computer Programming 2, Section 4.2.2, Theorem B.
        """
        total = jax.tree.map(jnp.add, self.total, term)
        error = jax.tree.map(_add_rounding_error, self.error, self.total, term, total)
        return CompensatedSum(total, error)

    def value(self) -> Any:
        """The sum, rounded once."""
        return jax.tree.map(jnp.add, self.total, self.error)


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
        some_factor, some = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, part_size), (factor, arrays)
        )
        new = start + jnp.arange(part_size) >= part * part_size
        return summed.add(weighted_sum(jnp.where(new, some_factor, 0), some))

    zero = CompensatedSum.zero(jax.eval_shape(weighted_sum, factor, arrays))
    return jax.lax.fori_loop(0, num_parts, add_part, zero).value()


def _add_rounding_error(
    error: jax.Array, before: jax.Array, term: jax.Array, total: jax.Array
) -> jax.Array:
    added = total - before
    return error + ((before - (total - added)) + (term - added))


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda x: as_varying(jnp.zeros(x.shape, x.dtype), varying_axes(x)), like)
