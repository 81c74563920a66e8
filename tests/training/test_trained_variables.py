"""What is not trained is neither clipped nor noised, and stays as it is, bit for bit."""

import equinox as eqx
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers.inputs import gaussian_mechanism

from dpjax import clipped_grad, train
from dpjax.gradients import augmented_loss

KEY = jax.random.key(0)
CLIP, SIZE = 0.05, 12
RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(40, 6)).astype(np.float32), RNG.integers(0, 3, 40))
BATCH = jax.tree.map(lambda leaf: leaf[:SIZE], DATA)


class Network(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.body = nnx.LoRA(6, 2, 8, base_module=nnx.Linear(6, 8, rngs=rngs), rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(jnp.tanh(self.body(x))))


def loss(model, example):
    return optax.softmax_cross_entropy_with_integer_labels(model(example[0]), example[1])


gradient_of_all = nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param)))


HEAD = nnx.All(nnx.Param, nnx.PathContains("head"))
FILTERS = {
    "biases": (nnx.All(nnx.Param, nnx.PathContains("bias")), {(8,), (3,)}),
    "last layer": (HEAD, {(8, 3), (3,)}),
    "adapters and last layer": (nnx.Any(nnx.LoRAParam, HEAD), {(6, 2), (2, 8), (8, 3), (3,)}),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("method", ["vmap", "auto"])
def test_norms_and_sum_are_of_the_trained_variables(name, method):
    """Against ``jax.grad`` of all variables, example by example, of which the others are left."""
    trained, shapes = FILTERS[name]
    model = Network()
    summed, info = clipped_grad(loss, CLIP, wrt=trained, method=method)(model, BATCH, None)
    assert {leaf.shape for leaf in jax.tree.leaves(summed)} == shapes

    expected, norms, norms_of_all = jax.tree.map(jnp.zeros_like, summed), [], []
    for index in range(SIZE):
        gradients = gradient_of_all(model, jax.tree.map(lambda leaf, i=index: leaf[i], BATCH))
        norms_of_all.append(optax.tree.norm(gradients))
        kept = nnx.filter_state(gradients, trained)
        norms.append(optax.tree.norm(kept))
        scale = min(1.0, CLIP / float(norms[-1]))
        expected = jax.tree.map(lambda total, g, s=scale: total + s * g, expected, kept)
    np.testing.assert_allclose(info.norms, norms, rtol=1e-4)
    for leaf, other in zip(*map(jax.tree.leaves, (summed, expected)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-5)
    assert not np.allclose(info.norms, norms_of_all, rtol=1e-2)  # power: frozen ones would be seen


@pytest.mark.parametrize("name", FILTERS)
def test_one_example_moves_the_sum_by_the_clip_bound(name):
    gradient = clipped_grad(loss, CLIP, wrt=FILTERS[name][0])
    model, masks = Network(), jnp.arange(SIZE) != jnp.arange(SIZE + 1)[:, None]
    sums = [gradient(model, BATCH, mask)[0] for mask in masks]
    moves = [float(optax.tree.norm(jax.tree.map(jnp.subtract, sums[-1], one))) for one in sums[:-1]]
    assert 0.99 * CLIP < max(moves) <= CLIP * (1 + 1e-6)


def run(loss_fn, params, **options):
    mechanism = gaussian_mechanism(l2_clip=CLIP, noise_multiplier=5.0)
    optimizer = optax.adamw(0.1, weight_decay=0.1)
    return train(
        KEY, loss_fn, params, DATA, optimizer, mechanism=mechanism, progress=False, **options
    ).params


def equal_bits(tree, other):
    leaves = zip(*map(jax.tree.leaves, (tree, other)), strict=True)
    return [np.array_equal(a, b) for a, b in leaves]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_frozen_variables_of_a_module_stay(name):
    trained, shapes = FILTERS[name]
    model = Network()
    before = nnx.clone(model)
    result = run(loss, model, wrt=trained)
    assert {leaf.shape for leaf in jax.tree.leaves(result)} == shapes
    nnx.update(model, result)
    moved, frozen = nnx.split(model, trained, ...)[1:]
    moved_before, frozen_before = nnx.split(before, trained, ...)[1:]
    assert all(equal_bits(frozen, frozen_before))
    assert not any(equal_bits(moved, moved_before))
    everything = run(loss, before)  # power: untrained variables would have been moved
    assert not any(equal_bits(everything, nnx.state(before, nnx.Param)))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.Dense(8)(x)))


@pytest.mark.slow
def test_biases_of_a_tree_by_their_paths():
    """The one-liners of the guide on recipes, by flax's and by equinox's functions."""
    net = Linen()
    params = net.init(KEY, DATA[0][0])["params"]
    flat = flatten_dict(params)
    biases = {path: leaf for path, leaf in flat.items() if path[-1] == "bias"}

    def loss_of(params, example):
        logits = net.apply({"params": params}, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    by_flax = run(lambda some, ex: loss_of(unflatten_dict({**flat, **some}), ex), biases)
    is_bias = jax.tree.map_with_path(lambda path, _: path[-1].key == "bias", params)
    trained, frozen = eqx.partition(params, is_bias)
    by_equinox = run(lambda some, ex: loss_of(eqx.combine(some, frozen), ex), trained)

    assert set(by_flax) == {("Dense_0", "bias"), ("Dense_1", "bias")}
    assert not any(equal_bits(by_flax, biases))
    for path, leaf in by_flax.items():
        np.testing.assert_allclose(flatten_dict(by_equinox)[path], leaf, rtol=1e-5)


@pytest.mark.slow
def test_views_of_an_example_are_averaged_before_the_clip_for_the_last_layer():
    def flip(key, example):
        return example[0] * jax.random.rademacher(key, (), jnp.float32), example[1]

    views = clipped_grad(augmented_loss(loss, flip, num_views=16), CLIP, wrt=HEAD)
    summed, info = views(Network(), BATCH, None, key=KEY)
    expected = jax.tree.map(jnp.zeros_like, summed)
    for index in range(SIZE):
        keys = jax.random.split(jax.random.split(jax.random.fold_in(KEY, index))[0], 16)
        example = jax.tree.map(lambda leaf, i=index: leaf[i], BATCH)
        each = [
            nnx.grad(loss, argnums=nnx.DiffState(0, HEAD))(Network(), flip(key, example))
            for key in keys
        ]
        mean = jax.tree.map(lambda *leaves: sum(leaves) / 16, *each)
        norm = optax.tree.norm(mean)
        np.testing.assert_allclose(info.norms[index], norm, rtol=1e-4)
        expected = jax.tree.map(
            lambda total, g, n=norm: total + g * jnp.minimum(1, CLIP / n), expected, mean
        )
    for leaf, other in zip(*map(jax.tree.leaves, (summed, expected)), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-5)
