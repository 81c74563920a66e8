"""Programs: control flow, nested calls, custom rules, derivatives and side effects in the loss."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from helpers.zoo_case import Case, Draw, scalar


def scan_over_steps(draw: Draw) -> Case:
    def loss(p, x):
        def step(hidden, token):
            hidden = jnp.tanh(hidden @ p["recurrent"] + token @ p["into"] + p["b"])
            return hidden, hidden @ p["out_of"]

        _, outputs = lax.scan(step, p["start"], x)
        return scalar(outputs + p["after"])

    params = {"recurrent": draw(3, 3), "into": draw(2, 3), "b": draw(3), "out_of": draw(3, 2)}
    return Case(loss, params | {"start": draw(3), "after": draw(2)}, draw.examples(4, 2))


def lstm_by_hand(draw: Draw) -> Case:
    def loss(p, x):
        def step(carry, token):
            hidden, cell = carry
            gates = token + hidden @ p["hidden"]
            forget, enter, leave, value = jnp.split(gates, 4)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(value)
            return (jax.nn.sigmoid(leave) * jnp.tanh(cell), cell), None

        (hidden, _), _ = lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), x @ p["into"] + p["b"])
        return scalar(hidden @ p["out_of"])

    params = {"hidden": draw(3, 12), "into": draw(2, 12), "b": draw(12), "out_of": draw(3, 2)}
    return Case(loss, params, draw.examples(4, 2))


def scan_over_layers(draw: Draw) -> Case:
    def loss(p, x):
        def layer(hidden, weights):
            return jnp.tanh(hidden @ weights["w"] + weights["b"]), None

        return scalar(lax.scan(layer, x, p["layers"])[0] @ p["head"])

    params = {"layers": {"w": draw(3, 4, 4), "b": draw(3, 4)}, "head": draw(4, 2)}
    return Case(loss, params, draw.examples(4))


def loops(draw: Draw) -> Case:
    def loss(p, x):
        fixed = lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["fixed"]) + i, x)
        mapped = lax.map(lambda token: jnp.sin(token * p["mapped"]), x)
        summed = lax.associative_scan(jnp.add, x * p["summed"])
        return scalar(fixed) + scalar(mapped) + scalar(summed)

    params = {"fixed": draw(3, 3), "mapped": draw(3), "summed": draw(3)}
    return Case(loss, params, draw.examples(2, 3))


def while_on_data(draw: Draw) -> Case:
    def loss(p, example):
        def step(state):
            return state[0] + 1, state[1] + 0.5

        shifted = lax.while_loop(lambda s: s[0] < example["n"], step, (0, example["x"]))[1]
        return scalar(jnp.tanh(shifted) @ p["w"] + p["b"])

    batch = {"n": draw.integers(0, 4), "x": draw.examples(3)}
    return Case(loss, {"w": draw(3, 2), "b": draw(2)}, batch)


def branches(draw: Draw) -> Case:
    def loss(p, example):
        x, which = example["x"], example["which"]
        hidden = lax.switch(
            which, [lambda h: h @ p["a"], lambda h: jnp.tanh(h @ p["b"]), lambda h: h @ p["a"].T], x
        )
        return scalar(lax.cond(which > 0, lambda h: h * p["c"], lambda h: h - 1, hidden) @ p["d"])

    params = {"a": draw(3, 3), "b": draw(3, 3), "c": draw(3), "d": draw(3, 2)}
    return Case(loss, params, {"x": draw.examples(3), "which": draw.integers(0, 3)})


def nested_calls(draw: Draw) -> Case:
    @jax.jit
    def inner(x, w):
        return jnp.tanh(jax.jit(jnp.matmul)(x, w))

    @jax.jit
    def outer(p, x):
        return inner(inner(x, p["w"]), p["w"]) + p["b"]

    def loss(p, x):
        return scalar(outer(p, x)) + scalar(outer(p, x * 2))

    return Case(loss, {"w": draw(3, 3), "b": draw(3)}, draw.examples(2, 3))


def remat(draw: Draw) -> Case:
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def block(p, x):
        return x + jax.checkpoint(jnp.tanh)(x @ p["w"] + p["b"])

    return Case(
        lambda p, x: scalar(block(p, block(p, x))),
        {"w": draw(3, 3), "b": draw(3)},
        draw.examples(2, 3),
    )


@jax.custom_jvp
def doubled_tangent(x, w):
    """A product whose derivative is declared to be twice what it is."""
    return x @ w


@doubled_tangent.defjvp
def _(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    return x @ w, 2 * (dx @ w) + 2 * (x @ dw)


@jax.custom_vjp
def scaled_cotangent(x, w):
    """A product whose cotangents are declared to be something else."""
    return x @ w


def _forward(x, w):
    return x @ w, (x, w)


def _backward(kept, cotangent):
    x, w = kept
    return 3 * cotangent @ w.T, jnp.clip(x.T @ cotangent, -1.0, 1.0)


scaled_cotangent.defvjp(_forward, _backward)


@jax.custom_vjp
def reversed_gradient(x):
    """The identity, its cotangent reversed."""
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, cotangent: (-0.5 * cotangent,))


def custom_rules(draw: Draw) -> Case:
    def loss(p, x):
        x = scaled_cotangent(doubled_tangent(x, p["jvp"]), p["vjp"])
        adversary = jax.nn.gelu(reversed_gradient(x @ p["before"])) @ p["after"]
        return scalar(jax.nn.relu(x)) + scalar(adversary + reversed_gradient(p["inside"]))

    params = {name: draw(3, 3) for name in ("jvp", "vjp", "before", "after")}
    return Case(loss, params | {"inside": draw(3)}, draw.examples(2, 3))


def mapped_inside(draw: Draw) -> Case:
    def loss(p, x):
        head = jax.vmap(lambda w, v: jnp.tanh(v @ w), in_axes=(0, None))
        per_pixel = jax.vmap(jax.vmap(lambda v: v * p["gain"] + p["b"]), in_axes=1, out_axes=1)
        return scalar(head(p["heads"], x)) + scalar(per_pixel(x[None]))

    params = {"heads": draw(2, 3, 4), "gain": draw(3), "b": draw(3)}
    return Case(loss, params, draw.examples(2, 3))


def derivative_in_the_loss(draw: Draw) -> Case:
    """The residual of a differential equation: second derivatives of a network in its input."""

    def loss(p, x):
        def network(t):
            return jnp.sum(jnp.tanh(t @ p["w"] + p["b"]) @ p["v"])

        slope = jax.grad(network)
        curvature = jax.jvp(slope, (x,), (jnp.ones_like(x),))[1]
        return jnp.sum((curvature + slope(x)) ** 2) + network(x)

    return Case(loss, {"w": draw(2, 4), "b": draw(4), "v": draw(4, 1)}, draw.examples(2))


def meta_learning(draw: Draw) -> Case:
    """The loss after one inner gradient step, through which the outer gradient passes."""

    def fit(p, x, y):
        return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] + p["b"] - y) ** 2)

    def loss(p, example):
        inner = jax.grad(fit)(p, example["x"], example["y"])
        stepped = jax.tree.map(lambda leaf, slope: leaf - 0.3 * slope, p, inner)
        return fit(stepped, example["x"] + 1, example["y"])

    params = {"w": draw(3, 2), "v": draw(2), "b": draw()}
    return Case(loss, params, {"x": draw.examples(4, 3), "y": draw.examples(4)})


def side_effects(draw: Draw) -> Case:
    def loss(p, x):
        hidden = x @ p["w"]
        jax.debug.callback(lambda _: None, hidden)
        return scalar(lax.optimization_barrier(hidden) + lax.optimization_barrier(p["b"]))

    return Case(loss, {"w": draw(3, 2), "b": draw(2)}, draw.examples(3))


def noise_from_the_example(draw: Draw) -> Case:
    def loss(p, example):
        kept = jax.random.bernoulli(example["key"], 0.7, (4,))
        hidden = jnp.where(kept, jnp.tanh(example["x"] @ p["w"]), 0) / 0.7
        return scalar(hidden * p["g"] + jax.random.normal(example["key"], (4,)) * p["scale"])

    params = {"w": draw(3, 4), "g": draw(4), "scale": draw()}
    return Case(loss, params, {"x": draw.examples(3), "key": draw.keys()})


def linear_algebra(draw: Draw) -> Case:
    def loss(p, x):
        positive = p["w"] @ p["w"].T + jnp.eye(3)
        solved = jax.scipy.linalg.solve(positive, x, assume_a="pos")
        return scalar(solved) + jnp.linalg.norm(p["v"]) * jnp.sum(x) + p["v"] @ x

    return Case(loss, {"w": draw(3, 3), "v": draw(3)}, draw.examples(3))


def complex_numbers(draw: Draw) -> Case:
    def loss(p, x):
        spectrum = jnp.fft.rfft(x) * p["filter"]
        rotated = (p["angle"] * 1j + 1) * x
        return scalar(jnp.fft.irfft(spectrum, 4)) + scalar(jnp.abs(rotated) + p["w"] @ x)

    return Case(loss, {"filter": draw(3), "angle": draw(4), "w": draw(4, 4)}, draw.examples(4))
