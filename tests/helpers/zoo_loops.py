"""Loops over stacked layers and over time, slices of stacks, branches and rematerialised layers."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from helpers.zoo_case import Case, Draw, scalar


def stacked_layers(draw: Draw) -> Case:
    def loss(p, x):
        def layer(h, w):
            left, right = jnp.split(w["low_rank"], 2, axis=1)
            h = h + jnp.tanh(h @ w["w"] + w["b"]) * w["g"] + (h @ left) @ right.T
            return h + jnp.tanh(h @ w["w"].T) @ p["every"], h[0] * w["b"]

        h, kept = lax.scan(layer, x, p["layers"], reverse=True)
        return scalar(h @ p["head"]) + scalar(kept)

    layers = {"w": draw(3, 4, 4), "b": draw(3, 4), "g": draw(3, 4), "low_rank": draw(3, 4, 6)}
    return Case(
        loss, {"layers": layers, "head": draw(4, 2), "every": draw(4, 4)}, draw.examples(5, 4)
    )


def recurrent_decoder(draw: Draw) -> Case:
    """Products, biases and lookups by the same weights in every time step."""

    def loss(p, x):
        def step(h, token):
            word = jnp.argmax(token)
            h = jnp.tanh(h @ p["w"] + token @ p["into"] + p["b"] + p["table"][word])
            return h, (h @ p["out_of"]) @ p["w"].T

        return scalar(lax.scan(step, jnp.ones(3), x)[1])

    params = {"w": draw(3, 3), "into": draw(2, 3), "b": draw(3), "out_of": draw(3, 3)}
    return Case(loss, params | {"table": draw(2, 3)}, draw.examples(6, 2))


def state_space_model(draw: Draw) -> Case:
    """A diagonal linear recurrence over time in every layer of a stack."""

    def loss(p, x):
        def layer(h, w):
            decay = jnp.exp(-jnp.exp(w["decay"]))

            def step(state, token):
                state = decay * state + token @ w["into"]
                return state, state @ w["out_of"] + token * w["skip"]

            return h + jax.nn.silu(lax.scan(step, jnp.zeros(3), h)[1]), None

        return scalar(lax.scan(layer, x, p["layers"])[0] @ p["head"])

    layers = {"decay": draw(2, 3), "into": draw(2, 2, 3), "out_of": draw(2, 3, 2)}
    return Case(
        loss, {"layers": layers | {"skip": draw(2, 2)}, "head": draw(2)}, draw.examples(4, 2)
    )


def nested_stacks(draw: Draw) -> Case:
    def loss(p, x):
        def step(h, token):
            def layer(h, w):
                def inner(h, v):
                    return jnp.tanh(h @ v + h @ w["every"]), None

                h = h @ w["first"] + p["b"]
                return lax.scan(inner, h, w["inner"])[0], h

            h, kept = lax.scan(layer, h + token, p["layers"])
            return jnp.tanh(h), kept.sum(0)

        return scalar(lax.scan(step, jnp.zeros(3), x)[1])

    layers = {"first": draw(2, 3, 3), "every": draw(2, 3, 3), "inner": draw(2, 4, 3, 3)}
    return Case(loss, {"b": draw(3), "layers": layers}, draw.examples(5, 3))


def indexed_stack(draw: Draw) -> Case:
    def loss(p, x):
        for i in range(3):
            x = jnp.tanh(x @ p["w"][i] + p["b"][i])
        x = x @ p["w"][1].T + x @ p["wide"][:, :4] + (x @ p["wide"][:, 4:]).sum()
        for i in range(2):
            half = p["halves"][2 * i : 2 * i + 2]
            x = jnp.tanh(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, half)[0])
        even = p["strided"][::2]
        return scalar(x @ even[0]) + scalar(x @ even[1] + p["strided"][1][0])

    params = {"w": draw(3, 4, 4), "b": draw(3, 4), "halves": draw(4, 4, 4), "wide": draw(4, 7)}
    return Case(loss, params | {"strided": draw(3, 4, 4)}, draw.examples(3, 4))


def overlapping_parts(draw: Draw) -> Case:
    def loss(p, x):
        h, kept = lax.scan(lambda h, w: (jnp.tanh(h @ w), h * w[0]), x, p["rows"], unroll=2)
        outside = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, p["outside"])[0]
        shifted = (p["shifted"][1:] - p["shifted"][:-1]) @ x
        return scalar(h + outside @ p["outside"][0]) + scalar(kept) + scalar(shifted)

    params = {"rows": draw(3, 4, 4), "outside": draw(2, 4, 4), "shifted": draw(3, 4)}
    return Case(loss, params, draw.examples(4))


def stack_scanned_twice(draw: Draw) -> Case:
    """As two towers of shared layers; the second time in reverse order."""

    def loss(p, x):
        def layer(h, w):
            return jnp.tanh(h @ w["w"] + w["b"]), h @ w["w"]

        def backward(h, w):
            return jnp.tanh(h @ w["w"].T * w["b"]), h @ w["w"]

        towers = [lax.scan(layer, view, p)[0] for view in x]
        return scalar(towers[0] * towers[1]) + scalar(lax.scan(backward, x[1], p, reverse=True)[1])

    return Case(loss, {"w": draw(3, 4, 4), "b": draw(3, 4)}, draw.examples(2, 4))


def lengths_zero_and_one(draw: Draw) -> Case:
    def loss(p, x):
        def layer(h, w):
            return jnp.tanh(h @ w + h * p["g"]), None

        remat = jax.checkpoint(layer)
        h = lax.scan(layer, x, p["none"])[0] + lax.scan(remat, x, p["none_again"])[0]
        return scalar(h) + scalar(lax.scan(layer, x, p["one"])[0])

    params = {"none": draw(0, 4, 4), "none_again": draw(0, 4, 4), "one": draw(1, 4, 4)}
    return Case(loss, params | {"g": draw(4)}, draw.examples(4))


def counted_loops(draw: Draw) -> Case:
    def loss(p, x):
        h = lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["stack"][i] + p["w"] @ h), x)
        state = lax.scan(lambda c, _: ((jnp.tanh(c[0] @ c[1]), c[1]), None), (h, p["c"]), length=3)
        return scalar(state[0][0])

    return Case(loss, {"stack": draw(3, 4, 4), "w": draw(4, 4), "c": draw(4, 4)}, draw.examples(4))


def scanned_convolution(draw: Draw) -> Case:
    def loss(p, x):
        def convolve(h, kernel):
            numbers = ("NWC", "WIO", "NWC")
            return jnp.tanh(
                lax.conv_general_dilated(h, kernel, (1,), "SAME", dimension_numbers=numbers)
            ), None

        h, _ = lax.scan(convolve, x[None], p["stack"])
        return scalar(lax.scan(lambda h, _: convolve(h, p["same"]), h, None, length=3)[0])

    return Case(loss, {"stack": draw(3, 3, 2, 2), "same": draw(2, 2, 2)}, draw.examples(5, 2))


def returned_from_loops(draw: Draw) -> Case:
    """Parameters that a scan returns or carries: as they are, and changed."""

    def loss(p, x):
        h, (turned, _) = lax.scan(lambda h, w: (h @ w[0], (w[0].T, w[1])), x, (p["w"], p["b"]))

        def outer(h, _):
            inner = lax.scan(lambda c, w: (c, w.T), 0.0, p["inner"])[1]
            return jnp.tanh(h @ inner[0]), inner

        h, inner = lax.scan(outer, h, None, length=2)
        twice = lax.scan(lambda c, _: (2.0 * c, None), p["carried"], None, length=2)[0]
        swapped = lax.scan(lambda c, _: (c[::-1], None), (p["x"], p["y"]), None, length=3)[0]
        return scalar(h @ turned[0] + h @ inner[0, 1]) + scalar(h * twice * swapped[0])

    params = {"w": draw(2, 3, 3), "b": draw(2, 3), "inner": draw(2, 3, 3), "carried": draw(3)}
    return Case(loss, params | {"x": draw(3), "y": draw(3)}, draw.examples(2, 3))


def branches_of_layers(draw: Draw) -> Case:
    def loss(p, example):
        branches = [lambda h: h @ p["a"], lambda h: jnp.tanh(h @ p["a"].T) @ p["b"], lambda h: h]
        x = lax.switch(example["which"], branches, example["x"])

        def layer(carry, w):
            number, h = carry
            h = lax.cond(number % 2 == 0, lambda h: jnp.tanh(h @ w["even"]), lambda h: -h, h)
            h = lax.cond(h[0] > 0, lambda h: jnp.tanh(h @ w["w"]), lambda h: h @ w["w"].T, h)
            return (number + 1, h), None

        return scalar(lax.scan(layer, (0, x), p["layers"])[0][1])

    params = {"a": draw(3, 3), "b": draw(3, 3)}
    params |= {"layers": {"even": draw(4, 3, 3), "w": draw(4, 3, 3)}}
    return Case(loss, params, {"x": draw.examples(3), "which": draw.integers(0, 3)})


def remat_layers(draw: Draw) -> Case:
    def loss(p, x):
        @jax.checkpoint
        def layer(h, w):
            normal = h * lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 0.1) * w["g"]
            left, right = jnp.split(w["low_rank"], 2, axis=1)
            h = h + jnp.tanh(normal @ w["w"] + w["b"]) + (h @ left) @ right.T
            expert = w["experts"][jnp.argmax(h, 1)]
            return h + jnp.einsum("tde,e->td", expert, h[0]) + w["rows"][jnp.argmin(h, 1)], None

        h = lax.scan(layer, jnp.tanh(x @ p["into"]), p["layers"])[0]
        policy = jax.checkpoint_policies.dots_saveable
        h = jax.checkpoint(lambda h, w: jnp.tanh(h @ w + p["b"]), policy=policy)(h, p["w"])
        return scalar(h @ p["head"]) + scalar(jnp.sort(p["sorted"]))

    layers = {"w": draw(3, 4, 4), "b": draw(3, 4), "g": draw(3, 4), "low_rank": draw(3, 4, 6)}
    layers |= {"experts": draw(3, 4, 4, 4), "rows": draw(3, 4, 4)}
    params = {"layers": layers, "into": draw(4, 4), "w": draw(4, 4), "b": draw(4)}
    return Case(loss, params | {"head": draw(4, 2), "sorted": draw(3)}, draw.examples(5, 4))


def remat_in_loops(draw: Draw) -> Case:
    """Around a time step, around a whole stack, and around a part of a layer."""

    def loss(p, x):
        @jax.checkpoint
        def step(h, token):
            return jnp.tanh(h @ p["w"] + token @ p["into"] + p["b"]), None

        @partial(jax.checkpoint, prevent_cse=False)
        def stack(h, layers):
            def layer(h, w):
                inner = jax.checkpoint(lambda h: h @ w["twice"] @ w["twice"])
                return jnp.tanh(h @ w["w"] * w["g"] + inner(h)), None

            return lax.scan(layer, h, layers, reverse=True)[0]

        return scalar(stack(lax.scan(step, jnp.zeros(3), x)[0], p["layers"]))

    layers = {"w": draw(2, 3, 3), "g": draw(2, 3), "twice": draw(2, 3, 3)}
    params = {"w": draw(3, 3), "into": draw(2, 3), "b": draw(3), "layers": layers}
    return Case(loss, params, draw.examples(6, 2))


def custom_rules_on_the_way(draw: Draw) -> Case:
    """A normalisation with its own derivative, which takes activations and, once, a parameter."""

    @jax.custom_vjp
    def normalise(h):
        return h * lax.rsqrt(jnp.mean(h**2) + 0.1)

    def forward(h):
        return normalise(h), h

    def backward(h, cotangent):
        return jax.vjp(lambda h: h * lax.rsqrt(jnp.mean(h**2) + 0.1), h)[1](cotangent)

    normalise.defvjp(forward, backward)

    def loss(p, x):
        def layer(h, w):
            return jnp.tanh(normalise(h) @ w + jax.nn.gelu(h)), None

        h = lax.scan(jax.checkpoint(layer), x, p["remat"])[0]
        return scalar(lax.scan(layer, h, p["layers"])[0] * normalise(p["inside"]))

    params = {"layers": draw(2, 3, 3), "remat": draw(2, 3, 3), "inside": draw(3)}
    return Case(loss, params, draw.examples(3))
