"""Matrix products and entrywise operations: each way in which a parameter may enter them."""

import jax
import jax.numpy as jnp

from helpers.zoo_case import Case, Draw, scalar


def mlp(draw: Draw) -> Case:
    def loss(p, example):
        hidden = jnp.tanh(example["x"] @ p["w1"] + p["b1"])
        logits = hidden @ p["w2"] + p["b2"]
        return jax.nn.logsumexp(logits) - logits[example["y"]]

    params = {"w1": draw(5, 7), "b1": draw(7), "w2": draw(7, 3), "b2": draw(3)}
    return Case(loss, params, {"x": draw.examples(5), "y": draw.integers(0, 3)})


def tokens(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(jnp.tanh(x @ p["w"] + p["b"]).mean(axis=0))

    return Case(loss, {"w": draw(5, 3), "b": draw(3)}, draw.examples(6, 5))


def leading_axes(draw: Draw) -> Case:
    return Case(lambda w, x: scalar(x @ w), draw(4, 3), draw.examples(2, 3, 4))


def matrix_on_the_left(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(p["w"] @ x[:, 0]) + scalar(p["v"] @ x)

    return Case(loss, {"w": draw(3, 5), "v": draw(3, 5)}, draw.examples(5, 2))


def same_layer_twice(draw: Draw) -> Case:
    def loss(p, x):
        for _ in range(2):
            x = jnp.tanh(x @ p["w"] + p["b"])
        return scalar(x)

    return Case(loss, {"w": draw(4, 4), "b": draw(4)}, draw.examples(4))


def same_layer_on_tokens(draw: Draw) -> Case:
    def loss(p, x):
        for _ in range(3):
            x = x + jnp.tanh(x @ p["w"] + p["b"])
        return scalar(x)

    return Case(loss, {"w": draw(4, 4), "b": draw(4)}, draw.examples(3, 4))


def squared_matrix(draw: Draw) -> Case:
    return Case(lambda w, x: scalar(x @ w @ w), draw(4, 4), draw.examples(3, 4))


def transposed_and_not(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(jnp.tanh(x @ p["w"]) @ p["w"].T - x)

    return Case(loss, {"w": draw(5, 3)}, draw.examples(2, 5))


def left_and_right(draw: Draw) -> Case:
    return Case(lambda w, x: scalar(w @ jnp.tanh(x @ w)), draw(4, 4), draw.examples(4, 4))


def siamese(draw: Draw) -> Case:
    def loss(p, example):
        one, other = (jnp.tanh(example[side] @ p["w"] + p["b"]) for side in ("one", "other"))
        return jnp.sum((one - other) ** 2 * p["scale"])

    params = {"w": draw(4, 3), "b": draw(3), "scale": draw(3)}
    return Case(loss, params, {"one": draw.examples(4), "other": draw.examples(4)})


def cancelling_uses(draw: Draw) -> Case:
    def loss(p, x):
        return scalar(x @ p["w"] - jnp.roll(x, 1) @ p["w"] + (p["b"] + x) - (x * 2 + p["b"]))

    return Case(loss, {"w": draw(4, 4), "b": draw(4)}, draw.examples(4))


def site_and_nonlinear(draw: Draw) -> Case:
    def loss(w, x):
        return scalar(x @ w) + jnp.sum(jnp.tanh(w)) * jnp.sum(x)

    return Case(loss, draw(4, 3), draw.examples(4))


def odd_einsums(draw: Draw) -> Case:
    def loss(p, x):  # x: (a, b, c)
        one = jnp.einsum("abc,dca->db", x, p["one"])
        two = jnp.einsum("oi,tui->uot", p["two"], x)
        three = jnp.einsum("abc,c->ab", x, p["three"])
        four = jnp.einsum("abc,bz->zac", x, p["four"])
        return scalar(one) + scalar(two) + scalar(three) + scalar(four)

    params = {"one": draw(5, 4, 2), "two": draw(3, 4), "three": draw(4), "four": draw(3, 2)}
    return Case(loss, params, draw.examples(2, 3, 4))


def batched_products(draw: Draw) -> Case:
    def loss(p, x):  # x: (heads, tokens, d)
        one = jnp.einsum("htd,hdk->htk", x, p["per_head"])
        two = jnp.einsum("hkd,htd->kht", p["first"], x)
        three = jnp.einsum("htd,thdk->kt", x, p["two_batch_axes"])
        four = jnp.einsum("hd,hde->he", x[:, 0], p["blocks"])
        return scalar(one) + scalar(two) + scalar(three) + scalar(four)

    params = {"per_head": draw(2, 4, 3), "first": draw(2, 5, 4)}
    params |= {"two_batch_axes": draw(3, 2, 4, 2), "blocks": draw(2, 4, 4)}
    return Case(loss, params, draw.examples(2, 3, 4))


def contracted_away(draw: Draw) -> Case:
    def loss(p, x):
        return jnp.sin(jnp.vdot(p["w"], x)) + jnp.einsum("ij,kij->k", x, p["v"]).sum() ** 2

    return Case(loss, {"w": draw(3, 4), "v": draw(2, 3, 4)}, draw.examples(3, 4))


def outer_product(draw: Draw) -> Case:
    return Case(lambda w, x: scalar(jnp.outer(x, w) + w), draw(3), draw.examples(4))


def vectors_and_scalars(draw: Draw) -> Case:
    def loss(p, x):
        return jnp.sin(p["scale"] * (x @ p["w"]) + p["offset"]) + scalar(p["scale"] * x)

    return Case(loss, {"w": draw(4), "scale": draw(), "offset": draw()}, draw.examples(4))


def size_zero(draw: Draw) -> Case:
    def loss(p, x):
        empty = scalar(x[:, :0] @ p["no_rows"]) + scalar(x @ p["no_columns"]) + scalar(p["empty"])
        return empty + scalar(x @ p["w"]) + scalar(x[:0] @ p["no_terms"])

    params = {"no_rows": draw(0, 3), "no_columns": draw(4, 0), "empty": draw(0), "w": draw(4, 2)}
    return Case(loss, params | {"no_terms": draw(4, 3)}, draw.examples(2, 4))


def unused(draw: Draw) -> Case:
    def loss(p, x):
        _ = x @ p["dead"], x + p["dying"], x @ p["dead"]
        return scalar(x @ p["w"])

    params = {"w": draw(4, 2), "never": draw(3), "dead": draw(4, 2), "dying": draw(4)}
    return Case(loss, params, draw.examples(4))


def regularised(draw: Draw) -> Case:
    def loss(p, x):
        penalty = 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
        return scalar(x @ p["w"]) + penalty + jnp.sum(p["prior"] * jnp.arange(3.0))

    params = {"w": draw(4, 2), "prior": draw(3), "penalised_alone": draw(3)}
    return Case(loss, params, draw.examples(4))


def parameter_is_the_loss(draw: Draw) -> Case:
    return Case(lambda p, x: jnp.squeeze(p["loss"]), {"loss": draw(1)}, draw.examples(2))


def products_of_parameters(draw: Draw) -> Case:
    def loss(p, x):
        low_rank = p["w"] + 0.5 * p["a"] @ p["b"]
        return scalar(x @ low_rank) + scalar(p["v"] * p["v"] * x) + scalar(p["u"] * p["v"] + x)

    params = {"w": draw(4, 3), "a": draw(4, 2), "b": draw(2, 3), "v": draw(4), "u": draw(4)}
    return Case(loss, params, draw.examples(4))


def low_rank_adapters(draw: Draw) -> Case:
    base, head = draw(4, 3), draw(3, 2)

    def loss(p, x):
        hidden = jnp.tanh(x @ jnp.asarray(base) + (x @ p["a"]) @ p["b"])
        return scalar(hidden @ jnp.asarray(head))

    return Case(loss, {"a": draw(4, 2), "b": draw(2, 3)}, draw.examples(5, 4))


def divisions(draw: Draw) -> Case:
    def loss(p, x):
        shifted = 2 + x**2
        return scalar(p["above"] / shifted + x / (2 + p["below"] ** 2) + p["both"] / (x + 9))

    params = {"above": draw(3), "below": draw(3), "both": draw()}
    return Case(loss, params, draw.examples(3))


def divided_by_a_leaf(draw: Draw) -> Case:
    return Case(lambda p, x: scalar(x / p["w"]), {"w": 2 + abs(draw(3))}, draw.examples(3))


def entrywise_twice(draw: Draw) -> Case:
    def loss(p, x):
        gated = (x * p["gain"]) * p["gain"] - p["bias"]
        return scalar(p["bias"] - gated) + scalar(p["bias"] + x)

    return Case(loss, {"gain": draw(4), "bias": draw(4)}, draw.examples(3, 4))


def added_to_itself(draw: Draw) -> Case:
    return Case(lambda w, x: scalar((w + w) * x + (w - w)), draw(4), draw.examples(4))


def broadcasts(draw: Draw) -> Case:
    def loss(p, x):  # x: (2, 3, 4)
        x = x + p["middle"] + p["last"] * x - p["outer"][:, None, None]
        return scalar(x + jnp.broadcast_to(p["one"], x.shape) + p["ones"])

    params = {"middle": draw(1, 3, 1), "last": draw(4), "outer": draw(2)}
    params |= {"one": draw(), "ones": draw(1, 1, 1)}
    return Case(loss, params, draw.examples(2, 3, 4))


def bilinear(draw: Draw) -> Case:
    def loss(p, x):
        return jnp.sin(x @ p["w"] @ x) + scalar(jnp.einsum("i,kij,j->k", x, p["t"], jnp.sin(x)))

    return Case(loss, {"w": draw(4, 4), "t": draw(2, 4, 4)}, draw.examples(4))


def masked_and_scaled_weights(draw: Draw) -> Case:
    pattern = draw(4, 3) > 0

    def loss(p, x):
        sparse = x @ (p["sparse"] * jnp.asarray(pattern))
        return scalar(sparse + x @ (p["scaled"] / 2.0) + x @ (-p["negated"]))

    params = {name: draw(4, 3) for name in ("sparse", "scaled", "negated")}
    return Case(loss, params, draw.examples(2, 4))


def integer_and_boolean_inputs(draw: Draw) -> Case:
    def loss(p, example):
        counts, flags = example["counts"], example["flags"]
        return scalar(counts @ p["w"] + flags @ p["v"] + jnp.where(flags, p["b"], 0.0).sum())

    batch = {"counts": draw.integers(0, 5, 4), "flags": draw.integers(0, 2, 3) > 0}
    return Case(loss, {"w": draw(4, 2), "v": draw(3, 2), "b": draw(3)}, batch)


def output_used_twice(draw: Draw) -> Case:
    def loss(p, x):
        y = x @ p["w"]
        return scalar(y) + scalar(jnp.tanh(y) * p["g"]) * jnp.max(y)

    return Case(loss, {"w": draw(4, 3), "g": draw(3)}, draw.examples(4))


def layer_norm(draw: Draw) -> Case:
    def loss(p, x):
        normal = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
        return scalar((normal * p["scale"] + p["bias"]) @ p["w"])

    return Case(loss, {"scale": draw(4), "bias": draw(4), "w": draw(4, 3)}, draw.examples(3, 4))


def group_and_rms_norm(draw: Draw) -> Case:
    def loss(p, x):  # x: (pixels, channels)
        groups = x.reshape(3, 2, 2)
        groups = (groups - groups.mean((0, 2), keepdims=True)) / (0.1 + groups.std((0, 2)))[:, None]
        x = groups.reshape(3, 4) * p["scale"] + p["bias"]
        return scalar(x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-3) * p["rms"])

    params = {"scale": draw(4), "bias": draw(4), "rms": draw(4)}
    return Case(loss, params, draw.examples(3, 4))


def weight_normalisation(draw: Draw) -> Case:
    def loss(p, x):
        direction = p["v"] / jnp.linalg.norm(p["v"], axis=0)
        return scalar(x @ (direction * p["g"]) + p["b"])

    return Case(loss, {"v": draw(4, 3), "g": draw(3), "b": draw(3)}, draw.examples(4))


def mixed_trees(draw: Draw) -> Case:
    def loss(p, example):
        (w, (b, nothing)), x = p["layers"], example[0]
        assert nothing is None
        return scalar(x @ w + b) * example[1]["weight"] + p["temperature"]

    params = {"layers": [draw(3, 2), (draw(2), None)], "temperature": draw()}
    return Case(loss, params, (draw.examples(3), {"weight": draw.examples()}))
