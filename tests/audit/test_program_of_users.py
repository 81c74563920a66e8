"""The check of a program on right steps as users of flax, numpyro and jax_privacy write them.

Each is shown but for noise with a covariance, which is not decided.
"""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from numpyro.infer import Trace_ELBO

from dpjax.audit import check_program

Z = 1.1
DEVIATION = Z  # of the noise that is added
X = jax.random.normal(jax.random.key(9), (6, 4))
Y = jnp.array([0, 1, 2, 0, 1, 2])
KEY = jax.random.key(0)


def cross_entropy(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def noisy(key, tree):
    """Adds normal noise to every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    added = [
        leaf + DEVIATION * jax.random.normal(k, leaf.shape)
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, added)


def clipped_sum(gradients):
    """Clips by optax's own function, as in its differentially private optimiser."""
    leaves, structure = jax.tree.flatten(gradients)
    summed, _ = optax.per_example_global_norm_clip(leaves, 1.0)
    return jax.tree.unflatten(structure, summed)


def nnx_step():
    model = nnx.Sequential(
        nnx.Linear(4, 5, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(5, 3, rngs=nnx.Rngs(1))
    )
    graph, params = nnx.split(model)

    def loss(params, x, y):
        return cross_entropy(nnx.merge(graph, params)(x), y)

    def step(key, params, x, y):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        noise = noisy(key, clipped_sum(gradients))
        return jax.tree.map(lambda p, g: p - 0.1 * g / 6, params, noise)

    return step, (KEY, params, X, Y)


def linen_step():
    model = nn.Sequential([nn.Dense(5), nn.relu, nn.Dense(3)])
    params = model.init(KEY, X[:1])
    optimizer = optax.adam(1e-2)

    def loss(params, x, y):
        return cross_entropy(model.apply(params, x), y)

    def step(key, params, state, x, y):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        norms = jax.vmap(optax.tree.norm)(gradients)
        factors = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
        summed = jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), gradients)
        updates, state = optimizer.update(noisy(key, summed), state, params)
        return optax.apply_updates(params, updates), state

    return step, (KEY, params, optimizer.init(params), X, Y)


def linen_step_in_microbatches():
    model = nn.Dense(3)
    params = model.init(KEY, X[:1])

    def gradient(params, x, y):
        found = jax.grad(lambda p: cross_entropy(model.apply(p, x), y))(params)
        factor = jnp.minimum(1.0, 1.0 / optax.tree.norm(found))
        return jax.tree.map(lambda g: g * factor, found)

    def step(key, params, x, y):
        def add(total, part):
            found = jax.vmap(gradient, (None, 0, 0))(params, *part)
            return jax.tree.map(lambda t, g: t + g.sum(0), total, found), None

        parts = x.reshape(3, 2, 4), y.reshape(3, 2)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return noisy(key, total)

    return step, (KEY, params, X, Y)


def numpyro_step():
    """A step on the evidence lower bound of each record, with one draw of the guide for all."""

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(jnp.zeros(4), 10.0).to_event(1))
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)

    def guide(x):
        loc = numpyro.param("loc", jnp.zeros(4))
        numpyro.sample("mean", dist.Normal(loc, 0.1).to_event(1))

    def loss(params, key, x):
        return Trace_ELBO().loss(key, params, model, guide, x)

    def step(key, params, x):
        draw, noise = jax.random.split(key)
        gradients = jax.vmap(jax.grad(loss), (None, None, 0))(params, draw, x)
        return noisy(noise, clipped_sum(gradients))

    return step, (KEY, {"loc": jnp.zeros(4)}, X)


def clip_transform_step():
    """Clips each gradient by ``optax.clip_by_global_norm``, as after jax_privacy's clipped sums."""
    clip = optax.clip_by_global_norm(1.0)

    def step(key, w, x):
        def gradient(record):
            found = jax.grad(lambda w: jnp.sum((w - record) ** 2))(w)
            return clip.update(found, clip.init(w))[0]

        total = jax.tree.map(lambda g: g.sum(0), jax.vmap(gradient)(x))
        return optax.apply_updates(w, jax.tree.map(lambda g: -0.1 * g, noisy(key, total)))

    return step, (KEY, jnp.zeros(4), X)


def flat_step():
    """Clips and adds noise to a flat vector, with a mask of the drawn records."""

    def loss(w, x, y):
        return cross_entropy(x @ w["a"] + w["b"], y)

    w = {"a": jnp.zeros((4, 3)), "b": jnp.zeros(3)}

    def step(key, w, x, y, mask):
        def gradient(x, y):
            flat, _ = ravel_pytree(jax.grad(loss)(w, x, y))
            return flat / jnp.maximum(1.0, jnp.linalg.norm(flat))

        total = jnp.sum(jnp.where(mask[:, None], jax.vmap(gradient)(x, y), 0.0), axis=0)
        flat, unravel = ravel_pytree(w)
        return unravel(flat - 0.1 * (total + DEVIATION * jax.random.normal(key, flat.shape)))

    return step, (KEY, w, X, Y, jnp.ones(6, bool))


def covariance_step():
    """Noise with a known covariance, whose least eigenvalue is that of the mechanism."""

    def step(key, w, x):
        factors = jnp.minimum(1.0, 1.0 / jnp.linalg.norm(x, axis=1))
        covariance = Z**2 * (jnp.eye(4) + 0.1 * jnp.ones((4, 4)))
        noise = jax.random.multivariate_normal(key, jnp.zeros(4), covariance)
        return w - 0.1 * (factors @ x + noise)

    return step, (KEY, jnp.zeros(4), X)


SHOWN = {
    "nnx": (nnx_step, (2, 3)),
    "linen": (linen_step, (3, 4)),
    "linen, microbatches": (linen_step_in_microbatches, (2, 3)),
    "clip by optax": (clip_transform_step, 2),
    "flat": (flat_step, (2, 3, 4)),
    "numpyro": (numpyro_step, 2),
}


def report(make, records):
    step, arguments = make()
    return check_program(
        step, *arguments, records=records, noise_multiplier=Z, adjacency="zero_out"
    )


@pytest.mark.parametrize("name", SHOWN)
def test_right_steps_are_shown(name):
    found = report(*SHOWN[name])
    assert found.verdict == "shown", str(found)
    assert found.noise_multiplier >= Z * (1 - 1e-4)


@pytest.mark.parametrize("name", SHOWN)
def test_power_half_of_the_noise_is_not_shown(name, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "DEVIATION", Z / 2)
    assert report(*SHOWN[name]).verdict != "shown"


def test_noise_with_a_covariance_is_not_decided():
    found = report(covariance_step, 2)
    assert found.verdict == "not decided"
    assert [one.reason for one in found.findings] == [
        "a sum over the records is returned with noise that is correlated"
    ]
