"""Tied embeddings whose ids lie outside the table, under each of JAX's modes for such lookups."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import by_route, routes_of

import dpjax
from dpjax.gradients._clipped_grad import sum_by_vmap
from dpjax.gradients.bookkeeping import norms as norms_module

ROWS, COLUMNS, CLIP = 5, 3, 1.0
TABLE = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
# One example each: inside; some beyond; all beyond; before the table; both.
IDS = np.array([[0, 3, 3], [1, 7, 5], [9, 9, 6], [-9, 2, -7], [-40, 4, 40]])
TARGETS = np.array([1, 4, 0, 2, 3])
MODES = {
    "clip": lambda table, ids: table.at[ids].get(mode="clip"),
    "constant": lambda table, ids: table.at[ids].get(mode="fill", fill_value=2.0),
    "NaN": lambda table, ids: jnp.take(table, ids, axis=0),
    "index": lambda table, ids: table[ids],
}
ROUTES = ["vmap", "ghost", "instantiate"]


def tied_loss(look_up):
    def loss(params, example):
        ids, target = example
        logits = jnp.tanh(look_up(params, ids)).sum(0) @ params.T
        return 30 * (jax.nn.logsumexp(logits) - logits[target])

    return loss


def clipped_sums(loss, route):
    """What each example alone contributes, and the norms found."""
    compute = partial(sum_by_vmap, loss) if route == "vmap" else by_route(route, loss)

    def alone(mask):
        return compute(CLIP, TABLE, (IDS, TARGETS), mask)

    return jax.jit(jax.vmap(alone))(np.eye(len(IDS), dtype=bool))


def expected(loss):
    """By plain differentiation, one example after the other."""
    sums = []
    for example in zip(IDS, TARGETS, strict=True):
        gradient = np.float64(jax.grad(loss)(jnp.asarray(TABLE), example))
        norm = np.linalg.norm(gradient)
        sums.append(gradient * min(1, CLIP / norm) if np.isfinite(norm) else 0 * TABLE)
    return np.array(sums)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("mode", MODES)
def test_lookups_outside_contribution(mode, route):
    loss = tied_loss(MODES[mode])
    found, _ = clipped_sums(loss, route)
    assert np.max(np.linalg.norm(found, axis=(1, 2))) <= CLIP
    np.testing.assert_allclose(found, expected(loss), rtol=1e-4, atol=1e-5)


def test_lookups_filled_with_nan():
    loss = tied_loss(MODES["NaN"])
    clipped_sum, info = dpjax.clipped_grad(loss, CLIP)(TABLE, (IDS, TARGETS), None)
    assert info.num_nonfinite == 4
    np.testing.assert_allclose(clipped_sum, expected(loss).sum(0), rtol=1e-4)


def test_lookups_outside_routes():
    assert set(routes_of(tied_loss(MODES["clip"]), TABLE, (IDS, TARGETS)).values()) == {"ghost"}


def outside_is_a_row(one, other):
    """Without the factor zero for what lies outside: -1 is the last row."""
    if not one.one_hot:
        one, other = other, one
    right = other.right if other.one_hot else other.right[0]
    rights = one.right @ right.T
    if other.one_hot:
        return (one.left[:, None] == other.left[None]).astype(rights.dtype), rights
    return other.left[0][:, one.left].T, rights


def outside_is_the_nearest_row(site, indices, signal):
    rows, columns = np.shape(TABLE)
    return jnp.clip(indices.reshape(-1), 0, rows - 1), signal.reshape(-1, columns)


def outside_is_left_out(site, indices, signal):
    index = indices.reshape(-1)
    inside = (index >= 0) & (index < ROWS)
    return jnp.where(inside, index, -1), signal.reshape(-1, COLUMNS)


@pytest.mark.parametrize(
    ("name", "twin", "mode"),
    [
        ("_grams", outside_is_a_row, "constant"),
        ("_lookup_factors", outside_is_the_nearest_row, "constant"),
        ("_lookup_factors", outside_is_left_out, "clip"),
    ],
)
def test_power_lookups_outside(name, twin, mode, monkeypatch):
    right = norms_module._grams

    def grams(one, other):
        return twin(one, other) if one.one_hot or other.one_hot else right(one, other)

    monkeypatch.setattr(norms_module, name, grams if name == "_grams" else twin)
    with pytest.raises(AssertionError):
        test_lookups_outside_contribution(mode, "ghost")
