"""Equinox modules: float arrays are the parameters, and each example has its own dropout key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gradient_oracle import sum_of_clipped

from dpjax import clipped_grad

SIZE, CLIP = 6, 0.7
MASK = np.array([True, True, False, True, True, True])
KEY = jax.random.key(2)


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


def loss(params, example, key):
    x, label = example
    return -jax.nn.log_softmax(eqx.combine(params, STATIC)(x, key))[label]


def clipped_sum_by_vmap(keys):
    """The clipped sum from the gradients that ``jax.vmap`` holds for all examples at once."""
    per_example = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0, 0)))
    losses, grads = per_example(PARAMS, BATCH, keys)
    each = [(losses[i], jax.tree.map(lambda leaf, i=i: leaf[i], grads)) for i in range(SIZE)]
    return sum_of_clipped(each, CLIP, PARAMS, MASK)


def assert_equal(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_a_module_with_dropout_equals_the_vmap_oracle(method):
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, jnp.arange(SIZE))
    expected, norms, losses = clipped_sum_by_vmap(keys)
    found, info = clipped_grad(loss, CLIP, method=method)(PARAMS, BATCH, MASK, key=KEY)
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    assert norms.max() > CLIP  # something is clipped
    assert_equal((found, info.norms, info.losses), (expected, norms, losses))


def test_one_mask_for_all_examples_is_another_sum():
    shared = clipped_sum_by_vmap(jnp.stack([KEY] * SIZE))
    found, info = clipped_grad(loss, CLIP)(PARAMS, BATCH, MASK, key=KEY)
    with pytest.raises(AssertionError):
        assert_equal((found, info.norms, info.losses), shared)


def test_a_module_that_is_not_partitioned_is_refused():
    with pytest.raises(ValueError, match=r"equinox\.partition"):
        clipped_grad(loss, CLIP)(eqx.nn.MLP(4, 3, 8, 1, key=KEY), BATCH, key=KEY)
