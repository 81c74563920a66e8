"""Weight standardisation as the guide on recipes has it: in the layer, by flax's own argument."""

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.gradient_oracle import assert_matches_hand, clipped_sum_by_hand

from dpjax import clipped_grad

KERNELS = []
RNG = np.random.default_rng(0)
BATCH = (RNG.normal(size=(6, 7, 7)).astype(np.float32), RNG.integers(0, 3, 6))


def standardized_conv(x, kernel, *args, **kwargs):
    fan_in = kernel[..., 0].size
    kernel = jax.nn.standardize(kernel, axis=(0, 1, 2), epsilon=1e-8) / fan_in**0.5
    KERNELS.append(kernel)
    return jax.lax.conv_general_dilated(x, kernel, *args, **kwargs)


class Network(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(1, 4, (3, 3), conv_general_dilated=standardized_conv, rngs=rngs)
        self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.norm(self.conv(x[None, ..., None]))).mean((0, 1, 2)))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), conv_general_dilated=standardized_conv)(x[..., None])
        return nn.Dense(3)(jnp.tanh(nn.GroupNorm(num_groups=2)(x[None])).mean((0, 1, 2)))


def loss_and_params(of_nnx):
    if of_nnx:
        graph, params = nnx.split(Network())
        apply = lambda params, x: nnx.merge(graph, params)(x)  # noqa: E731
    else:
        params = Linen().init(jax.random.key(0), BATCH[0][0])
        apply = Linen().apply

    def loss(params, example):
        logits = apply(params, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return loss, params


@pytest.mark.parametrize("of_nnx", [True, False])
def test_kernels_have_mean_zero_and_variance_one_over_fan_in(of_nnx):
    loss, params = loss_and_params(of_nnx)
    KERNELS.clear()
    loss(params, jax.tree.map(lambda leaf: leaf[0], BATCH))
    kernel = np.float64(KERNELS[-1])
    assert kernel.shape == (3, 3, 1, 4)
    np.testing.assert_allclose(kernel.mean((0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(9 * kernel.var((0, 1, 2)), 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("of_nnx", [True, False])
@pytest.mark.parametrize("method", ["vmap", "auto"])
def test_clipped_sum_of_standardized_kernels(of_nnx, method):
    loss, params = loss_and_params(of_nnx)
    by_hand = clipped_sum_by_hand(loss, 0.3, params, BATCH)
    assert_matches_hand(clipped_grad(loss, 0.3, method=method)(params, BATCH, None), by_hand, 1e-4)
    assert (by_hand[1] > 0.3).any()
