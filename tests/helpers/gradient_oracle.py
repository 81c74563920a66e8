"""The slow way to a clipped sum: a Python loop over examples, in double precision, with NumPy."""

import functools
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np


def clipped_sum_by_hand(loss_fn, l2_clip, params, batch, mask=None):
    """Returns ``(clipped_sum, norms, losses)`` of NumPy arrays; all zero where masked out.

    ``l2_clip`` is a number, or a mapping (of mappings) of numbers over the first levels of the
    parameters.
    """
    size = len(jax.tree.leaves(batch)[0])
    with jax.enable_x64(True):
        examples = [example_of(jax.tree.map(_wide, batch), i) for i in range(size)]
        wide = jax.tree.map(_wide, params)
        found = [_value_and_grad(loss_fn)(wide, example) for example in examples]
    return sum_of_clipped(found, l2_clip, params, mask)


@functools.cache
def _value_and_grad(loss_fn):
    return jax.jit(jax.value_and_grad(loss_fn))


def example_of(batch, index):
    """One entry of the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], batch)


def sum_of_clipped(losses_and_grads, l2_clip, params, mask=None):
    """The same from each example's ``(loss, gradient)``."""
    total = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), params)
    norms, losses = [], []
    for i, (loss, grad) in enumerate(losses_and_grads):
        clipped, norm = _clip(jax.tree.map(np.float64, grad), l2_clip)
        counts = mask is None or bool(mask[i])
        if counts:
            total = jax.tree.map(np.add, total, clipped)
        norms.append(jax.tree.map(lambda n, counts=counts: n * counts, norm))
        losses.append(float(loss) * counts)
    return total, jax.tree.map(lambda *each: np.array(each), *norms), np.array(losses)


def assert_matches_hand(found, by_hand, rtol=2e-5):
    """Sum, norms and losses agree, relative to the largest entry of each leaf."""
    clipped_sum, info = found
    jax.tree.map(lambda a, b: _close(a, b, rtol), clipped_sum, by_hand[0])
    jax.tree.map(lambda a, b: _close(a, b, rtol), info.norms, by_hand[1])
    _close(info.losses, by_hand[2], rtol)
    assert info.num_nonfinite == 0


def assert_close(found, expected, atol):
    """Two trees of the same structure, dtypes and shapes agree up to ``atol``."""
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    chex.assert_trees_all_close(found, expected, rtol=atol, atol=atol)


def _close(found, expected, rtol):
    assert found.shape == expected.shape
    scale = np.max(np.abs(expected), initial=1e-30)
    np.testing.assert_allclose(np.float64(found), expected, rtol=0, atol=rtol * scale)


def _clip(grad, bound):
    if isinstance(bound, Mapping):
        parts = {name: _clip(grad[name], bound[name]) for name in bound}
        norms = {name: norm for name, (_, norm) in parts.items()}
        return _like(grad, {name: clipped for name, (clipped, _) in parts.items()}), norms
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(grad)))
    return jax.tree.map(lambda leaf: leaf * min(1.0, bound / max(norm, 1e-300)), grad), norm


def _like(tree, parts):
    leaves = jax.tree.leaves({name: parts[name] for name in tree})
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _wide(leaf):
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
