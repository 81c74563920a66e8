"""Parameters that are rearranged, cut, joined or looked up in before they are used."""

import jax
import jax.numpy as jnp
from jax import lax

from helpers.zoo_case import Case, Draw, scalar


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
