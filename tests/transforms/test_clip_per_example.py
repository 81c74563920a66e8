"""Clipping as a transformation: what comes out, and which trees are refused."""

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
def test_it_is_the_sum_of_clipped_grad(l2_clip):
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    batch = jax.random.normal(jax.random.key(0), (5, 2))
    grads = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batch)
    expected, _ = jax.jit(clipped_grad(loss, l2_clip, method="vmap"))(PARAMS, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        update(l2_clip, grads, PARAMS),
        expected,
    )


def test_it_sums_and_does_not_average():
    ones = jnp.ones((10, 1))
    np.testing.assert_allclose(update(0.5, ones), [5.0], rtol=5e-6)
    np.testing.assert_allclose(update(2.0, ones), [10.0], rtol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_an_example_that_is_not_finite_adds_nothing(broken):
    updates = {"w": jnp.ones((3, 2)).at[1, 0].set(broken), "b": jnp.ones((3,))}
    clipped = update(10.0, updates)
    np.testing.assert_array_equal(clipped["w"], [2, 2])
    np.testing.assert_array_equal(clipped["b"], 2)


def test_no_examples_give_zeros():
    clipped = update(1.0, jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape)), PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, clipped, jax.tree.map(jnp.zeros_like, PARAMS))


@pytest.mark.parametrize("l2_clip", [0.0, -1.0, np.nan, np.inf, "1", None, {}], ids=repr)
def test_a_bad_bound_is_refused_at_once(l2_clip):
    with pytest.raises(ValueError, match=r"^l2_clip must "):
        clip_per_example(l2_clip)


def test_bounds_that_are_no_prefix_are_refused():
    with pytest.raises(ValueError, match=r"^l2_clip must be a number or a prefix of the parameter"):
        update({"w": 1.0, "c": 1.0}, jax.tree.map(lambda leaf: leaf[None], PARAMS))


def test_a_sum_is_refused_where_the_parameters_show_it():
    with pytest.raises(
        ValueError, match=r"^updates must be per-example gradients, .* got \[\(3,\)"
    ):
        update(
            1.0,
            {"w": jnp.ones((3, 2)), "b": jnp.ones(3)},
            {"w": jnp.ones((3, 2)), "b": jnp.ones(3)},
        )


def test_a_sum_of_leaves_of_differing_length_is_refused_without_them():
    with pytest.raises(ValueError, match=r"^updates must have one batch length on every leaf"):
        update(1.0, PARAMS)


def test_a_sum_of_scalars_is_refused():
    with pytest.raises(ValueError, match=r"^updates must have a leading example axis"):
        update(1.0, {"w": jnp.float32(1)})
