"""Pairs of records, one in the place of the other: how far apart their gradients are.

Under replace-one the cost of a step depends on a record and on the one that replaces it. Clipping
knows their norms and not the angle between them, so pairs take gradients of their own, formed one
pair at a time: use as many as the estimator needs, not the whole batch.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._validation import as_key, batch_length, check, check_count, check_positive
from dpjax.gradients.clipped_grad import LossFn

_PAIRS_AT_ONCE = 16


class Pairs(NamedTuple):
    """Clipped gradients of pairs of records. **Private values.**

    They are what ``replaced_sampled_gaussian`` takes, in its order.

    Attributes:
      norms: of the one, ``(pairs,)``.
      other_norms: of the other, ``(pairs,)``.
      cosines: of the angle between them, in [-1, 1], ``(pairs,)``; 1 where one has no norm.
    """

    norms: jax.Array
    other_norms: jax.Array
    cosines: jax.Array

    @property
    def distances(self) -> jax.Array:
        """Of the two gradients, ``(pairs,)``: what the source puts into its formula."""
        cross = self.norms * self.other_norms * (1 - self.cosines)
        return jnp.sqrt((self.norms - self.other_norms) ** 2 + 2 * cross)


def independent_pairs(key: jax.Array, num_examples: int, num_pairs: int) -> jax.Array:
    """Returns indices ``(2, num_pairs)`` of pairs drawn at random, no record in two of them.

    All pairs of one sample are many more, and not independent: an estimator that takes them for
    independent draws is too sure of itself.

    Raises:
      ValueError: more pairs than half the records.

    >>> pairs = independent_pairs(jax.random.key(0), num_examples=10, num_pairs=5)
    >>> sorted(pairs.ravel().tolist()) == list(range(10))
    True
    """
    check_count("num_pairs", num_pairs)
    check(2 * num_pairs <= num_examples, "num_pairs", num_pairs, f"at most {num_examples // 2}")
    return jax.random.permutation(as_key(key), num_examples)[: 2 * num_pairs].reshape(2, num_pairs)


def gradient_pairs(
    loss_fn: LossFn, params: Any, first: Any, second: Any, *, l2_clip: float | None = None
) -> Pairs:
    """Returns norms and angles of the gradients of pairs of examples.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``. An example may be a whole batch, with a loss
        that is its mean: then the pairs are pairs of batches, and what is replaced is a batch.
      params: where the gradients are taken.
      first: examples with a leading axis of pairs.
      second: those that replace them, likewise.
      l2_clip: bound on each gradient's norm over all parameters; by default none.

    Raises:
      ValueError: ``first`` and ``second`` differ in length, or ``l2_clip`` is not positive.

    >>> loss = lambda w, x: w @ x
    >>> x, y = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 4.0]])
    >>> pairs = gradient_pairs(loss, jnp.zeros(2), x, y, l2_clip=2.0)
    >>> pairs.norms.tolist(), pairs.other_norms.tolist(), pairs.cosines.tolist()
    ([2.0], [2.0], [0.0])
    """
    lengths = batch_length(first, "first"), batch_length(second, "second")
    check(
        lengths[0] == lengths[1], "second", lengths[1], f"as many examples as first, {lengths[0]}"
    )
    if l2_clip is not None:
        check_positive("l2_clip", l2_clip)
    bound = jnp.inf if l2_clip is None else l2_clip
    return _geometry(loss_fn, params, (first, second), jnp.float32(bound))


@functools.partial(jax.jit, static_argnums=0)
def _geometry(loss_fn: LossFn, params: Any, examples: Any, bound: jax.Array) -> Pairs:
    def one(pair: Any) -> Pairs:
        g, other = (jax.grad(loss_fn)(params, example) for example in pair)
        norms = jnp.sqrt(_dot(g, g)), jnp.sqrt(_dot(other, other))
        product = norms[0] * norms[1]
        angled = jnp.isfinite(product) & (product > 0)
        cosine = jnp.where(angled, _dot(g, other) / jnp.where(angled, product, 1), 1)
        norm, other_norm = (_clipped(norm, bound) for norm in norms)
        return Pairs(norm, other_norm, jnp.clip(cosine, -1, 1))

    return jax.lax.map(one, examples, batch_size=_PAIRS_AT_ONCE)


def _clipped(norm: jax.Array, bound: jax.Array) -> jax.Array:
    """A gradient that is not finite contributes nothing."""
    return jnp.where(jnp.isfinite(norm), jnp.minimum(norm, bound), 0)


def _dot(tree: Any, other: Any) -> jax.Array:
    products = jax.tree.map(
        lambda a, b: jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST), tree, other
    )
    return sum(jax.tree.leaves(products), jnp.float32(0))
