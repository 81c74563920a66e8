"""Losses of nnx modules, and losses with a key for each example, against explicit functions."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.inputs import gaussian_mechanism

import dpjax
from dpjax.gradients import clipped_grad, explain

KEY = jax.random.key(7)
X = jax.random.normal(jax.random.key(1), (5, 3))
Y = jnp.arange(5.0)
MASK = jnp.array([True, True, False, True, False])
METHODS = ["vmap", "bookkeeping"]


class Net(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.hidden = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.first = nnx.Dropout(rate, rngs=rngs)
        self.second = nnx.Dropout(rate, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)
        self.offset = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        x = nnx.gelu(self.norm(self.hidden(x)))
        return self.out(self.second(self.first(x)))[0] + self.offset[...]


def loss(model, example):
    x, y = example
    return (model(x) - y) ** 2


def keyed_loss(model, example, key):
    del key  # the module's own streams start from it
    return loss(model, example)


def assert_close(tree, other, rtol=1e-5):
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(other)
    chex.assert_trees_all_close(leaves, others, rtol=rtol, atol=1e-5)


@functools.cache
def model_with(rate=0.0):
    return Net(nnx.Rngs(0), rate)


def functional(model):
    """The loss of the split module, and its parameters."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    return lambda params, example: loss(nnx.merge(graphdef, params, rest), example), params


class TestModule:
    @pytest.mark.parametrize(("method", "microbatch_size"), [("vmap", None), ("bookkeeping", 2)])
    def test_module_equals_split_function(self, method, microbatch_size):
        options = {"method": method, "microbatch_size": microbatch_size}
        found, info = clipped_grad(loss, 0.5, **options)(model_with(), (X, Y), MASK)
        split_loss, params = functional(model_with())
        expected, expected_info = clipped_grad(split_loss, 0.5, **options)(params, (X, Y), MASK)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        chex.assert_trees_all_equal(found, expected)
        np.testing.assert_array_equal(info.norms, expected_info.norms)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", METHODS)
    def test_wrt_filter(self, method):
        only_out = nnx.All(nnx.Param, nnx.PathContains("out"))
        summed, _ = clipped_grad(loss, 1e6, wrt=only_out, method=method)(model_with(), (X, Y), None)
        everything, _ = clipped_grad(loss, 1e6, method=method)(model_with(), (X, Y), None)
        assert set(summed) == {"out"}
        assert_close(summed["out"], everything["out"])

    def test_other_state_traced_once(self, monkeypatch):
        module = clipped_grad.__globals__
        calls, vmap = [], module["sum_by_vmap"]
        counted = lambda *a, **kw: calls.append(None) or vmap(*a, **kw)  # noqa: E731
        monkeypatch.setitem(module, "sum_by_vmap", counted)
        gradient, model = clipped_grad(loss, 1e6, method="vmap"), Net(nnx.Rngs(0))
        before, _ = gradient(model, (X, Y), None)
        model.offset[...] = jnp.float32(3)
        after, _ = gradient(model, (X, Y), None)
        np.testing.assert_allclose(
            after["out"]["bias"][...] - before["out"]["bias"][...], 2 * 3 * len(X), rtol=1e-5
        )
        assert len(calls) == 1

    def test_module_unchanged(self):
        class Counting(nnx.Module):
            def __init__(self):
                self.weight = nnx.Param(jnp.ones(3))
                self.calls = nnx.Variable(jnp.zeros((), jnp.uint32))

            def __call__(self, x):
                self.calls[...] += 1
                return x @ self.weight[...]

        model = Counting()
        clipped_grad(loss, 1.0)(model, (X, Y), None)
        assert model.calls[...] == 0

    @pytest.mark.slow
    def test_clipped_grad_in_nnx_jit(self):
        @nnx.jit
        def gradient(model, batch):
            return clipped_grad(loss, 0.5)(model, batch, None)[0]

        assert_close(
            gradient(model_with(), (X, Y)),
            clipped_grad(loss, 0.5)(model_with(), (X, Y), None)[0],
        )

    def test_explain(self):
        routes = explain(loss, model_with(), (X, Y), wrt=nnx.PathContains("out"))
        assert len(routes.leaves) == 2
        assert len(explain(keyed_loss, model_with(0.5), (X, Y), key=KEY).leaves) == 6


class TestKeys:
    """Dropout with rate one half; gradients are not clipped, so that they can be told apart."""

    @staticmethod
    def explicit(model, keys):
        """Per-example gradients, each with the module's streams seeded by hand."""
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)

        def one(params, example, key):
            model = nnx.merge(graphdef, params, rest, copy=True)
            model.first.rngs = nnx.RngStream(jax.random.fold_in(key, 0), tag="dropout")
            model.second.rngs = nnx.RngStream(jax.random.fold_in(key, 1), tag="dropout")
            return loss(model, example)

        return jax.vmap(jax.grad(one), (None, 0, 0))(params, (X, Y), keys)

    @pytest.mark.slow
    @pytest.mark.parametrize(("method", "microbatch_size"), [("vmap", None), ("bookkeeping", 2)])
    def test_nnx_dropout_of_explicit_keys(self, method, microbatch_size):
        model = model_with(0.5)
        gradient = clipped_grad(keyed_loss, 1e6, method=method, microbatch_size=microbatch_size)
        summed, _ = gradient(model, (X, Y), MASK, key=KEY)
        keys = jax.vmap(lambda slot: jax.random.fold_in(KEY, slot))(jnp.arange(5))
        each = self.explicit(model, keys)
        assert_close(summed, jax.tree.map(lambda leaf: leaf[MASK].sum(0), each), rtol=1e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", METHODS)
    def test_linen_dropout_of_explicit_keys(self, method):
        net = nn.Sequential([nn.Dense(8), nn.Dropout(0.5, deterministic=False), nn.Dense(1)])
        params = nn.Sequential([nn.Dense(8), nn.gelu, nn.Dense(1)]).init(KEY, X[0])["params"]

        def loss(params, example, key):
            x, y = example
            return (net.apply({"params": params}, x, rngs={"dropout": key})[0] - y) ** 2

        summed, info = clipped_grad(loss, 1e6, method=method)(params, (X, Y), None, key=KEY)
        keys = [jax.random.fold_in(KEY, slot) for slot in range(5)]
        losses = [loss(params, (x, y), key) for x, y, key in zip(X, Y, keys, strict=True)]
        np.testing.assert_allclose(info.losses, jnp.stack(losses), rtol=1e-4)
        grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, (X, Y), jnp.stack(keys))
        assert_close(summed, jax.tree.map(lambda leaf: leaf.sum(0), grads), rtol=1e-4)

    # Three equal examples have one mask of 8 with probability 2^-16.
    ALIKE = (jnp.ones((3, 8)), jnp.zeros(3))

    @staticmethod
    def masked(weights, example, key):
        return jnp.sum(weights * example[0] * jax.random.bernoulli(key, 0.5, (8,)))

    def differ(self, gradient, key):
        masks = [
            gradient(jnp.ones(8), self.ALIKE, jnp.arange(3) == i, key=key)[0] for i in range(3)
        ]
        return len({mask.tobytes() for mask in map(np.asarray, masks)}) > 1

    def test_dropout_differs_between_examples_and_steps(self):
        gradient = clipped_grad(self.masked, 1e6)
        assert self.differ(gradient, KEY)
        first = gradient(jnp.ones(8), self.ALIKE, None, key=KEY)[0]
        second = gradient(jnp.ones(8), self.ALIKE, None, key=jax.random.key(8))[0]
        assert not np.array_equal(first, second)

    def test_power_one_key_for_all_examples(self):
        """The mutant closes over the step's key instead of taking the example's."""
        mutant = clipped_grad(lambda w, example, _: self.masked(w, example, KEY), 1e6)
        assert not self.differ(mutant, KEY)

    def test_dropout_differs_between_layers(self):
        """Otherwise the second layer would drop nothing more, and one unit in two would be left."""
        model = model_with(0.5)

        def kept(model, example, key):
            return jnp.sum(model.second(model.first(example))) + 0 * jnp.sum(model.out.bias[...])

        _, info = clipped_grad(kept, 1.0)(model, jnp.ones((3, 400)), None, key=KEY)
        # Of 400 units with value 4 a quarter is left: 4 standard deviations are 140, one in 16,000.
        assert np.all(np.abs(info.losses - 400) < 140)


class TestOptimizer:
    @pytest.mark.slow
    def test_nnx_optimizer(self):
        """Two steps of the loop in the documentation, and of the same by hand."""
        noise = dpjax.add_gaussian_noise(noise_multiplier=0.3, l2_clip=0.5, key=KEY)
        transformation = optax.chain(noise, optax.scale(1 / 5), optax.sgd(0.1))
        model, gradient = Net(nnx.Rngs(0), 0.5), clipped_grad(keyed_loss, 0.5)
        graphdef, params, rest = jax.tree.map(jnp.copy, nnx.split(model, nnx.Param, ...))
        optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
        state = transformation.init(params)

        @nnx.jit
        def step(model, optimizer, key):
            summed, _ = gradient(model, (X, Y), None, key=key)
            optimizer.update(model, summed)

        @jax.jit
        def explicit_step(params, state, key):
            summed, _ = gradient(
                nnx.merge(graphdef, params, rest, copy=True), (X, Y), None, key=key
            )
            updates, state = transformation.update(summed, state, params)
            return optax.apply_updates(params, updates), state

        for key in jax.random.split(jax.random.key(2), 2):
            step(model, optimizer, key)
            params, state = explicit_step(params, state, key)
        assert_close(nnx.state(model, nnx.Param), params)
        mechanism = dpjax.mechanism_of(
            optimizer, sampling=dpjax.PoissonSampling(50, 0.1), adjacency="add_remove"
        )
        assert (mechanism.l2_clip, mechanism.noise_multiplier, mechanism.num_steps) == (0.5, 0.3, 2)

    @pytest.mark.slow
    def test_train_takes_a_module(self):
        mechanism = gaussian_mechanism(dpjax.PoissonSampling(5, 0.5), l2_clip=0.5, num_steps=2)
        model = Net(nnx.Rngs(0))
        run = functools.partial(dpjax.train, progress=False)
        result = run(KEY, loss, model, (X, Y), optax.sgd(0.1), mechanism=mechanism)
        split_loss, params = functional(model)
        expected = run(KEY, split_loss, params, (X, Y), optax.sgd(0.1), mechanism=mechanism)
        chex.assert_trees_all_equal(result.params, expected.params)
        nnx.update(model, result.params)
        np.testing.assert_array_equal(model.out.bias[...], result.params["out"]["bias"][...])


class TestRefused:
    def test_random_streams_without_a_key(self):
        with pytest.raises(ValueError, match=r"module's own random streams.* pass key="):
            clipped_grad(loss, 1.0)(model_with(0.5), (X, Y), None)

    def test_dropout_that_is_switched_off_needs_no_key(self):
        model = nnx.view(model_with(0.5), deterministic=True)
        summed, _ = clipped_grad(loss, 1.0)(model, (X, Y), None)
        assert_close(summed, clipped_grad(loss, 1.0)(model_with(), (X, Y), None)[0])

    def test_batch_normalisation(self):
        class Normed(Net):
            def __init__(self, rngs):
                super().__init__(rngs)
                self.norm = nnx.BatchNorm(8, rngs=rngs)

        model = Normed(nnx.Rngs(0))
        with pytest.raises(ValueError, match="normalises over the batch axis"):
            clipped_grad(lambda model, x: jnp.sum(model(x[None])), 1.0)(model, X, None)
        model.eval()
        assert clipped_grad(loss, 1.0)(model, (X, Y), None)[1].num_nonfinite == 0

    def test_wrt_without_a_module(self):
        with pytest.raises(
            ValueError, match=r"^wrt is a filter .* of an nnx.Module.* type dict: of a tree, pass"
        ):
            clipped_grad(loss, 1.0, wrt=nnx.Param)({"w": jnp.ones(3)}, (X, Y), None)

    @pytest.mark.parametrize("key", [0, "key"])
    def test_keys_of_other_types(self, key):
        with pytest.raises(TypeError, match=r"^key must be a scalar JAX key"):
            clipped_grad(keyed_loss, 1.0)(model_with(0.5), (X, Y), None, key=key)

    def test_params_of_other_types(self):
        """As the modules of equinox have them."""

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Layer:
            weight: jax.Array | None
            activation: object

        def loss(layer, example):
            return jnp.sum(layer.activation(example @ layer.weight))

        layer = Layer(jnp.ones(3), jnp.tanh)
        with pytest.raises(ValueError, match=r"params.activation is of type .*equinox.partition"):
            clipped_grad(loss, 1.0)(layer, X, None)
        trained, static = Layer(layer.weight, None), Layer(None, layer.activation)
        combined = lambda p: Layer(p.weight, static.activation)  # noqa: E731
        summed, _ = clipped_grad(lambda p, x: loss(combined(p), x), 1e6)(trained, X, None)
        expected = jax.grad(lambda w: jnp.sum(jnp.tanh(X @ w)))(layer.weight)
        np.testing.assert_allclose(summed.weight, expected, rtol=1e-5)
