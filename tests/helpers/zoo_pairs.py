"""Losses of pairs whose members differ by 1 %: the terms of their gradients nearly cancel."""

import jax
import jax.numpy as jnp

from helpers.zoo_case import Case, Draw


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
