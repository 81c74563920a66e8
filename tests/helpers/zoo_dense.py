"""Matrix products, entrywise operations and look-ups, of parameters as they are and of views."""

import jax
import jax.numpy as jnp
from jax import lax

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


def reshaped_and_transposed(draw: Draw) -> Case:
    def loss(p, x):
        one = x @ p["flat"].reshape(4, 3)
        two = x @ p["cube"].transpose(2, 0, 1).reshape(4, 6)
        three = x @ p["row"][0].T
        return scalar(one) + scalar(two) + scalar(three) + scalar(p["column"].squeeze(1) * x)

    params = {"flat": draw(12), "cube": draw(2, 3, 4), "row": draw(1, 3, 4), "column": draw(4, 1)}
    return Case(loss, params, draw.examples(2, 4))


def two_views_of_one_leaf(draw: Draw) -> Case:
    def loss(p, x):
        reshaped = x @ p["w"].reshape(4, 4).T + x @ p["w"].reshape(8, 2).reshape(4, 4)
        return scalar(reshaped) + scalar(p["w"] @ x[0])

    return Case(loss, {"w": draw(4, 4)}, draw.examples(2, 4))


def fused_kernel(draw: Draw) -> Case:
    def loss(p, x):
        query, key, value = jnp.split(p["qkv"], 3, axis=1)
        weights = jax.nn.softmax((x @ query) @ (x @ key).T)
        return scalar(weights @ (x @ value)) + scalar(x @ p["other"][:, 1:3])

    return Case(loss, {"qkv": draw(4, 9), "other": draw(4, 4)}, draw.examples(3, 4))


def joined(draw: Draw) -> Case:
    def loss(p, x):
        wide = jnp.concatenate([p["a"], p["b"]], axis=1)
        stacked = jnp.stack([p["c"], p["d"]])
        padded = jnp.pad(p["e"], (1, 2))
        return scalar(x @ wide) + scalar(stacked @ x) + scalar(padded * x + jnp.cumsum(x * p["c"]))

    params = {"a": draw(4, 2), "b": draw(4, 3), "c": draw(4), "d": draw(4), "e": draw(1)}
    return Case(loss, params, draw.examples(4))


def rearranged(draw: Draw) -> Case:
    def loss(p, example):
        cut = lax.dynamic_slice(p["long"], (example["start"],), (3,))
        one = scalar(cut * example["x"]) + scalar(jnp.cumsum(p["steps"]) + example["x"])
        return one + scalar(p["flipped"][::-1] * example["x"]) + scalar(jnp.sort(p["sorted"]))

    params = {"long": draw(6), "steps": draw(3), "flipped": draw(3), "sorted": draw(3)}
    return Case(loss, params, {"x": draw.examples(3), "start": draw.integers(0, 4)})


def chosen(draw: Draw) -> Case:
    def loss(p, x):
        picked = jnp.where(x > 0, p["positive"], p["negative"])
        return scalar(picked * x + jnp.maximum(p["floor"], x)) + jnp.max(p["peak"]) * x[0]

    params = {name: draw(4) for name in ("positive", "negative", "floor", "peak")}
    return Case(loss, params, draw.examples(4))


def stopped(draw: Draw) -> Case:
    def loss(p, x):
        hidden = x @ lax.stop_gradient(p["frozen"]) + x @ lax.stop_gradient(p["view"].T)
        detached = lax.stop_gradient(x @ p["detached"])
        return scalar(hidden * p["live"] + detached + x @ p["view"].T)

    params = {"frozen": draw(4, 3), "view": draw(3, 4), "live": draw(3), "detached": draw(4, 3)}
    return Case(loss, params, draw.examples(4))


def embedding(draw: Draw) -> Case:
    def loss(p, example):
        present = (example["words"] > 0)[:, None]
        pooled = jnp.sum(p["table"][example["words"]] * present, 0) / (1 + present.sum())
        return scalar(pooled @ p["w"])

    params = {"table": draw(7, 5), "w": draw(5, 2)}
    return Case(loss, params, {"words": draw.integers(0, 7, 6)})


def rows_added_up(draw: Draw) -> Case:
    """Rows of which only the sum is read: bags of words, some of them outside the table."""

    def loss(p, words):
        kept = p["fill"].at[words].get(mode="fill", fill_value=0)
        as_a_batch = jnp.take(p["batched"], words[None], axis=0, mode="clip").mean(axis=1)
        grid = p["grid"][jnp.abs(words).reshape(2, 3) % 7].sum(axis=(0, 1))
        columns = p["not_all"][jnp.abs(words).reshape(2, 3) % 7].sum(axis=1)
        return scalar(kept.sum(0)) + scalar(as_a_batch) + scalar(grid) + scalar(columns)

    params = {name: draw(7, 5) for name in ("fill", "batched", "grid", "not_all")}
    return Case(loss, params, draw.integers(-3, 10, 6))


def indices_outside(draw: Draw) -> Case:
    def loss(p, words):
        return sum(
            scalar(p[mode].at[words].get(mode=mode, **options))
            for mode, options in (
                ("clip", {}),
                ("fill", {"fill_value": 0.5}),
                ("drop", {"fill_value": -1}),
            )
        ) + scalar(p["in_bounds"].at[jnp.abs(words) % 5].get(mode="promise_in_bounds"))

    params = {mode: draw(5, 6) for mode in ("clip", "fill", "drop", "in_bounds")}
    return Case(loss, params, draw.integers(-9, 9, 5))


def small_unsigned_indices(draw: Draw) -> Case:
    def loss(p, words):
        return scalar(p["table"][words]) + scalar(jnp.take(p["clip"], words, axis=0, mode="clip"))

    params = {"table": draw(300, 3), "clip": draw(300, 3)}
    return Case(loss, params, draw.integers(0, 256, 4).astype("uint8"))


def other_gathers(draw: Draw) -> Case:
    def loss(p, index):
        grid = jnp.stack([index, index[::-1]])
        return (
            scalar(p["vector"][index])
            + scalar(p["table"][grid])
            + scalar(p["columns"][:, index])
            + scalar(p["cube"][index])
            + scalar(p["pairs"][index, index[::-1]])
            + scalar(jnp.take_along_axis(p["along"], index[None], axis=1))
            + scalar(p["table"][index[0]])
        )

    params = {"vector": draw(4), "table": draw(4, 3), "columns": draw(3, 4)}
    params |= {"cube": draw(4, 2, 2), "pairs": draw(4, 4), "along": draw(1, 4)}
    return Case(loss, params, draw.integers(0, 4, 3))


def scattered(draw: Draw) -> Case:
    def loss(p, example):
        summed = jnp.zeros(5).at[example["index"]].add(p["w"])
        return scalar(summed) + scalar(p["v"].at[example["index"]].set(example["x"]))

    batch = {"index": draw.integers(0, 5, 3), "x": draw.examples(3)}
    return Case(loss, {"w": draw(3), "v": draw(5)}, batch)


def tied_embedding(draw: Draw) -> Case:
    def loss(p, words):
        hidden = jnp.tanh(p["table"][words] + p["positions"]) @ p["w"]
        logits = hidden @ p["table"].T
        shifted = jnp.take_along_axis(logits[:-1], words[1:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits[:-1], axis=-1) - shifted)

    params = {"table": draw(9, 4), "positions": draw(5, 4), "w": draw(4, 4)}
    return Case(loss, params, draw.integers(0, 9, 5))


def table_looked_up_twice(draw: Draw) -> Case:
    def loss(p, words):
        context, word = p["table"][words[1:]].mean(0), p["table"][words[0]]
        return -jax.nn.log_sigmoid(context @ word) + scalar(p["table"] @ context)

    return Case(loss, {"table": draw(8, 6)}, draw.integers(0, 8, 4))


def transposed_table(draw: Draw) -> Case:
    def loss(p, words):
        return scalar(p["table"].T[words] @ p["w"]) + scalar(p["w"].T @ p["table"].T[words[0]])

    return Case(loss, {"table": draw(4, 6), "w": draw(4, 4)}, draw.integers(0, 6, 3))


def one_hot_embedding(draw: Draw) -> Case:
    def loss(p, words):
        return scalar(jnp.tanh(jax.nn.one_hot(words, 6) @ p["table"]) @ p["table"].T)

    return Case(loss, {"table": draw(6, 4)}, draw.integers(0, 6, 3))


def two_branches(draw: Draw) -> Case:
    """As recommenders are built: user and item embeddings, a product and a perceptron."""

    def loss(p, example):
        users, items = p["users"], p["items"]
        product = users["product"][example["user"]] * items["product"][example["item"]]
        both = [users["deep"][example["user"]], items["deep"][example["item"]]]
        hidden = jax.nn.relu(jnp.concatenate(both) @ p["w1"] + p["b1"])
        rating = jnp.concatenate([product, hidden]) @ p["w2"] + p["b2"]
        return (rating[0] - example["rating"]) ** 2

    def tables(size):
        return {"product": draw(size, 3), "deep": draw(size, 4)}

    params = {"users": tables(6), "items": tables(5), "w1": draw(8, 4), "b1": draw(4)}
    params |= {"w2": draw(7, 1), "b2": draw(1)}
    batch = {"user": draw.integers(0, 6), "item": draw.integers(0, 5), "rating": draw.examples()}
    return Case(loss, params, batch)


def mixture_of_experts(draw: Draw) -> Case:
    def loss(p, x):
        gates = jax.nn.softmax(x @ p["router"])
        chosen = jnp.argmax(gates, axis=-1)
        hidden = jax.nn.relu(jnp.einsum("td,tdk->tk", x, p["into"][chosen]) + p["bias"][chosen])
        out = jnp.einsum("tk,tkd->td", hidden, p["out_of"][chosen])
        return scalar(x + out * jnp.max(gates, axis=-1, keepdims=True))

    params = {"router": draw(4, 3), "into": draw(3, 4, 5), "bias": draw(3, 5)}
    return Case(loss, params | {"out_of": draw(3, 5, 4)}, draw.examples(3, 4))


def expert_of_the_example(draw: Draw) -> Case:
    def loss(p, example):
        return scalar(p["experts"][example["expert"]] @ example["x"])

    batch = {"expert": draw.integers(0, 3), "x": draw.examples(4)}
    return Case(loss, {"experts": draw(3, 2, 4)}, batch)


def vocabulary_of_one(draw: Draw) -> Case:
    def loss(p, example):
        return scalar(p["table"][jnp.zeros((3,), jnp.int32)] * example)

    return Case(loss, {"table": draw(1, 4)}, draw.examples(3, 4))


def ranked_pairs(draw: Draw) -> Case:
    """Which of two has the higher score (RankNet)."""

    def loss(p, e):
        first, second = (jnp.tanh(e[side] @ p["w"]) @ p["v"] for side in ("first", "second"))
        return jax.nn.softplus(second - first)

    params = {"w": draw(8, 6) / 4, "v": draw(6)}
    return Case(loss, params, _pairs(draw, 8))


def siamese_dense(draw: Draw) -> Case:
    def loss(w, e):
        return jnp.sum((e["first"] @ w - e["second"] @ w) ** 2)

    return Case(loss, draw(8, 6), _pairs(draw, 8))


def siamese_recurrent(draw: Draw) -> Case:
    def last_state(w, x):
        return jax.lax.scan(lambda h, each: (0.5 * h + each @ w, None), jnp.zeros(4, x.dtype), x)[0]

    def loss(w, e):
        return jnp.sum((last_state(w, e["first"]) - last_state(w, e["second"])) * e["weights"])

    return Case(loss, draw(8, 4), _pairs(draw, 3, 8) | {"weights": draw.examples(4)})


def triplet_of_rows(draw: Draw) -> Case:
    """A query, and a row of a table that is looked up for and against it."""

    def loss(table, e):
        positive, negative = table[e["row"]] @ e["first"], table[e["row"]] @ e["second"]
        return jax.nn.softplus(negative - positive)

    return Case(loss, draw(5, 8), _pairs(draw, 8) | {"row": draw.integers(0, 5)})


def _pairs(draw: Draw, *shape: int) -> dict[str, object]:
    first = draw.examples(*shape)
    return {"first": first, "second": first * (1 + 0.01 * draw.examples(*shape))}
