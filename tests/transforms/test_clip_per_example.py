"""Clipping as a transformation: what comes out, and which trees are refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import (
    PoissonSampling,
    TruncatedPoissonSampling,
    clip_per_example,
    clipped_grad,
    noisy_sgd,
)

pytestmark = pytest.mark.usefixtures("strict_numerics")

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}


def update(l2_clip, updates, params=None):
    clip = clip_per_example(l2_clip)
    return clip.update(updates, clip.init(params), params, mask=None)[0]


@pytest.mark.parametrize("l2_clip", [0.8, {"w": 0.5, "b": 0.1}], ids=str)
def test_clip_per_example_equals_clipped_grad(l2_clip):
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    batch = jax.random.normal(jax.random.key(0), (5, 2))
    grads = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batch)
    expected, _ = jax.jit(clipped_grad(loss, l2_clip, method="vmap"))(PARAMS, batch, None)
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


SAMPLERS = [PoissonSampling(40, 0.2, physical_batch_size=16), TruncatedPoissonSampling(40, 0.2)]


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda sampling: type(sampling).__name__)
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("function", [clip_per_example, clipped_grad])
def test_one_record_moves_the_sum_of_a_padded_batch_by_the_clip_bound(
    function, sampling, is_masked
):
    """For every record, and by all of it for those drawn; without a mask one moves it by more."""
    draw, _ = sampling.draw(sampling.init(jax.random.key(1)))
    batch = sampling.batch(draw, 0)
    assert 0 < int(batch.mask.sum()) < len(batch.mask)
    records, mask = jnp.eye(40), batch.mask if is_masked else None

    @jax.jit
    def summed(kept):
        """Of gradients of norm 5, those of other records than ``kept`` zero."""
        grads = 5 * (records * kept[:, None])[batch.indices]
        if function is clipped_grad:
            return clipped_grad(jnp.vdot, 1.0)(jnp.zeros(40), grads, mask)[0]
        clip = clip_per_example(1.0)
        return clip.update(grads, clip.init(None), mask=mask)[0]

    everything = summed(jnp.ones(40))
    moved = np.array([jnp.linalg.norm(everything - summed(1 - one)) for one in records])
    if not is_masked:  # the power of the test
        assert moved.max() > 2
        return
    drawn = np.zeros(40)
    drawn[np.asarray(batch.indices)[np.asarray(batch.mask)]] = 1
    np.testing.assert_allclose(moved, drawn, atol=1e-4)  # clipped_grad clips to 6e-5 less


@pytest.mark.parametrize(
    "optimizer",
    [
        clip_per_example(1.0),
        noisy_sgd(
            0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=2, key=jax.random.key(0)
        ),
    ],
    ids=["clip_per_example", "noisy_sgd"],
)
def test_update_needs_a_mask(optimizer):
    params = jnp.zeros(2)
    with pytest.raises(TypeError, match=r"update needs the keyword mask: mask=batch\.mask"):
        optimizer.update(jnp.ones((3, 2)), optimizer.init(params), params)
    for mask in (jnp.ones(2, bool), jnp.ones(3), jnp.ones((3, 1), bool)):
        with pytest.raises(ValueError, match=r"^mask must be bool of shape"):
            optimizer.update(jnp.ones((3, 2)), optimizer.init(params), params, mask=mask)


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
