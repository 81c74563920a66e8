"""Clipping as a transformation: what comes out, and which trees are refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import clip_per_example, clipped_grad

pytestmark = pytest.mark.usefixtures("strict_numerics")

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}


def update(l2_clip, updates, params=None):
    clip = clip_per_example(l2_clip)
    return clip.update(updates, clip.init(params), params)[0]


@pytest.mark.parametrize("l2_clip", [0.8, {"w": 0.5, "b": 0.1}], ids=str)
def test_clip_per_example_equals_clipped_grad(l2_clip):
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    batch = jax.random.normal(jax.random.key(0), (5, 2))
    grads = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batch)
    expected, _ = jax.jit(clipped_grad(loss, l2_clip, method="vmap"))(PARAMS, batch)
    chex.assert_trees_all_close(update(l2_clip, grads, PARAMS), expected, rtol=1e-5, atol=1e-6)


def test_clip_per_example_sums():
    ones = jnp.ones((10, 1))
    np.testing.assert_allclose(update(0.5, ones), [5.0], rtol=5e-6)
    np.testing.assert_allclose(update(2.0, ones), [10.0], rtol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_clip_per_example_nonfinite(broken):
    updates = {"w": jnp.ones((3, 2)).at[1, 0].set(broken), "b": jnp.ones((3,))}
    clipped = update(10.0, updates)
    np.testing.assert_array_equal(clipped["w"], [2, 2])
    np.testing.assert_array_equal(clipped["b"], 2)


@pytest.mark.slow
def test_clip_per_example_empty_batch():
    clipped = update(1.0, jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape)), PARAMS), PARAMS)
    chex.assert_trees_all_equal(clipped, jax.tree.map(jnp.zeros_like, PARAMS))


ONES = {"w": jnp.ones((3, 2)), "b": jnp.ones(3)}
REFUSED = [
    *((l2_clip, ONES, None, r"^l2_clip must ")
      for l2_clip in (0.0, -1.0, np.nan, np.inf, "1", None, {})),
    ({"w": 1.0, "c": 1.0}, ONES, None, r"^l2_clip must be a number or a prefix of the parameter"),
    (1.0, ONES, ONES, r"^updates must be per-example gradients, .* got \[\(3,\)"),
    (1.0, PARAMS, None, r"^updates must have one batch length on every leaf"),
    (1.0, {"w": jnp.float32(1)}, None, r"^updates must have a leading example axis"),
]  # fmt: skip


@pytest.mark.parametrize(("l2_clip", "updates", "params", "message"), REFUSED)
def test_clip_per_example_refuses(l2_clip, updates, params, message):
    with pytest.raises(ValueError, match=message):
        update(l2_clip, updates, params)
