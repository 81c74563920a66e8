"""Models as users write them: flax linen and nnx, equinox, recurrent networks, half precision."""

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.gradient_oracle import assert_close, example_of, sum_of_clipped

from dpjax import clipped_grad

pytestmark = pytest.mark.usefixtures("strict_numerics")

SIZE = 5
MASK = np.array([True, True, False, True, True])


def assert_matches_the_loop(loss_fn, l2_clip, params, batch, rtol=2e-5):
    """Against each example's own gradient at the parameters' own precision, summed in NumPy."""
    value_and_grad = jax.jit(jax.value_and_grad(loss_fn))
    found = [value_and_grad(params, example_of(batch, i)) for i in range(SIZE)]
    expected, norms, losses = sum_of_clipped(found, l2_clip, params, MASK)
    compute = jax.jit(clipped_grad(loss_fn, l2_clip, method="vmap"))
    clipped_sum, info = compute(params, batch, MASK)
    assert jax.tree.structure(clipped_sum) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(clipped_sum), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * l2_total(l2_clip))
    np.testing.assert_allclose(jax.tree.leaves(info.norms), jax.tree.leaves(norms), rtol=10 * rtol)
    np.testing.assert_allclose(np.float64(info.losses), losses, rtol=10 * rtol)
    assert info.num_nonfinite == 0
    assert min(np.min(n[MASK]) for n in jax.tree.leaves(norms)) > 0


def l2_total(l2_clip):
    return np.sqrt(sum(bound**2 for bound in jax.tree.leaves(l2_clip)))


@pytest.fixture
def images():
    x, y = jax.random.split(jax.random.key(0))
    return jax.random.normal(x, (SIZE, 6, 6, 2)), jax.random.randint(y, (SIZE,), 0, 3)


class Residual(nn.Module):
    """Every example has its own dropout key."""

    @nn.compact
    def __call__(self, x):
        x = nn.GroupNorm(num_groups=2)(nn.Dense(4)(x))
        x = x + nn.Dropout(0.3, deterministic=False)(nn.relu(x))
        return nn.Dense(3)(x.mean((-3, -2)))


@pytest.mark.slow
def test_flax_linen_with_dropout(images):
    keys = jax.random.split(jax.random.key(1), SIZE)
    model = Residual()
    streams = {"params": keys[0], "dropout": keys[0]}
    params = jax.jit(model.init)(streams, images[0][:1])["params"]

    def loss(params, example):
        x, y, key = example
        logits = model.apply({"params": params}, x[None], rngs={"dropout": key})[0]
        return -jax.nn.log_softmax(logits)[y]

    bounds = {"Dense_0": 0.1, "GroupNorm_0": 1.0, "Dense_1": 0.5}
    assert_matches_the_loop(loss, bounds, params, (*images, keys))


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(72, 5, rngs=rngs)
        self.norm = nnx.LayerNorm(5, rngs=rngs)
        self.second = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x.reshape(-1)))))


@pytest.mark.slow
def test_flax_nnx_split_and_merge(images):
    graph, params = nnx.split(Mlp(nnx.Rngs(0)))

    def loss(params, example):
        x, y = example
        return -jax.nn.log_softmax(nnx.merge(graph, params)(x))[y]

    assert isinstance(params, nnx.State)
    assert_matches_the_loop(loss, 0.5, params, images)


def test_nnx_state_of_bounds(images):
    graph, params = nnx.split(Mlp(nnx.Rngs(0)))
    bounds = {"first": 0.1, "norm": 1.0, "second": 2.0}

    def loss(params, example):
        return nnx.merge(graph, params)(example[0]).sum() ** 2

    compute = jax.jit(clipped_grad(loss, nnx.State(bounds), method="vmap"))
    clipped_sum, info = compute(params, images, None)
    all_grads = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, images)
    for name, bound in bounds.items():
        grads = all_grads[name]
        squares = sum(
            np.sum(np.float64(leaf).reshape(SIZE, -1) ** 2, axis=1)
            for leaf in jax.tree.leaves(grads)
        )
        np.testing.assert_allclose(info.norms[name], np.sqrt(squares), rtol=1e-4)
        scale = np.minimum(1, bound / np.sqrt(squares))
        expected = jax.tree.map(lambda leaf, s=scale: np.tensordot(s, leaf, 1), grads)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            clipped_sum[name],
            expected,
        )


@pytest.mark.slow
def test_lstm():
    sequences = jax.random.normal(jax.random.key(3), (SIZE, 4, 3))
    model = nn.RNN(nn.OptimizedLSTMCell(4))
    params = jax.jit(model.init)(jax.random.key(4), sequences[:1])["params"]

    def loss(params, x):
        return jnp.mean(model.apply({"params": params}, x[None])[0, -1] ** 2)

    assert_matches_the_loop(loss, 1e-2, params, sequences)


def test_scan_with_remat():
    params = {"w": jax.random.normal(jax.random.key(5), (3, 3)), "h": jnp.ones(3)}

    def loss(params, x):
        @jax.checkpoint
        def cell(h, x):
            return jnp.tanh(params["w"] @ h + x), None

        return jnp.sum(jax.lax.scan(cell, params["h"], x)[0] ** 2)

    sequences = jax.random.normal(jax.random.key(6), (SIZE, 6, 3))
    assert_matches_the_loop(loss, 0.7, params, sequences)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "l2_clip"), [(jnp.bfloat16, 0.5), (jnp.float16, {"w": 0.5, "b": 0.1})]
)
def test_half_precision(dtype, l2_clip):
    keys = jax.random.split(jax.random.key(7), 2)
    params = {"w": jax.random.normal(keys[0], (8, 3), dtype), "b": jnp.zeros(3, dtype)}
    batch = jax.random.normal(keys[1], (SIZE, 8), dtype)

    def loss(params, x):
        return jnp.sum(jax.nn.softplus(x @ params["w"] + params["b"]))

    # Each gradient is rounded to half precision, 8 or 11 bits, on either side.
    assert_matches_the_loop(loss, l2_clip, params, batch, rtol=float(jnp.finfo(dtype).eps))


def test_mixed_precision():
    params = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2)}
    batch = jnp.arange(1, SIZE + 1, dtype=jnp.float32)

    def loss(params, x):
        return x * (params["half"].astype(jnp.float32).sum() + params["single"].sum())

    clipped_sum, info = jax.jit(clipped_grad(loss, 2.0, method="vmap"))(params, batch, None)
    np.testing.assert_allclose(info.norms, 2 * batch, rtol=1e-6)
    expected = jnp.full(2, SIZE, jnp.float32)  # every example is clipped to (1, 1, 1, 1)
    assert_close(clipped_sum, {"half": expected, "single": expected}, atol=1e-5)


# Equinox: float arrays are the parameters, and each example has its own dropout key.


CLIP, KEY = 0.7, jax.random.key(2)


class Net(eqx.Module):
    hidden: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key):
        hidden_key, out_key = jax.random.split(key)
        self.hidden = eqx.nn.Linear(4, 8, key=hidden_key)
        self.norm = eqx.nn.LayerNorm(8)
        self.dropout = eqx.nn.Dropout(0.5)
        self.out = eqx.nn.Linear(8, 3, key=out_key)

    def __call__(self, x, key):
        return self.out(self.dropout(jax.nn.gelu(self.norm(self.hidden(x))), key=key))


PARAMS, STATIC = eqx.partition(Net(jax.random.key(0)), eqx.is_inexact_array)
BATCH = (
    jax.random.normal(jax.random.key(1), (SIZE, 4)),
    jnp.arange(SIZE) % 3,
)


def equinox_loss(params, example, key):
    x, label = example
    return -jax.nn.log_softmax(eqx.combine(params, STATIC)(x, key))[label]


def clipped_sum_by_vmap(keys):
    """The clipped sum from the gradients that ``jax.vmap`` holds for all examples at once."""
    per_example = jax.jit(jax.vmap(jax.value_and_grad(equinox_loss), (None, 0, 0)))
    losses, grads = per_example(PARAMS, BATCH, keys)
    each = [(losses[i], jax.tree.map(lambda leaf, i=i: leaf[i], grads)) for i in range(SIZE)]
    return sum_of_clipped(each, CLIP, PARAMS, MASK)


def assert_equal(found, expected):
    leaves, others = jax.tree.leaves(found), jax.tree.leaves(expected)
    chex.assert_trees_all_close(leaves, others, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_equinox_dropout_equals_vmap(method):
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, jnp.arange(SIZE))
    expected, norms, losses = clipped_sum_by_vmap(keys)
    found, info = clipped_grad(equinox_loss, CLIP, method=method)(PARAMS, BATCH, MASK, key=KEY)
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    assert norms.max() > CLIP  # something is clipped
    assert_equal((found, info.norms, info.losses), (expected, norms, losses))


def test_power_equinox_one_dropout_mask():
    shared = clipped_sum_by_vmap(jnp.stack([KEY] * SIZE))
    found, info = clipped_grad(equinox_loss, CLIP)(PARAMS, BATCH, MASK, key=KEY)
    with pytest.raises(AssertionError):
        assert_equal((found, info.norms, info.losses), shared)


def test_equinox_unpartitioned_module_refused():
    with pytest.raises(ValueError, match=r"equinox\.partition"):
        clipped_grad(equinox_loss, CLIP)(eqx.nn.MLP(4, 3, 8, 1, key=KEY), BATCH, None, key=KEY)
