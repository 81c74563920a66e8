"""Where floats cancel, overflow or are half as long, an example still adds no more than its bound.

In the loss ``sum((left @ w) * right)`` both factors of the gradient ``left^T right`` are data, so
the true norm is known in double precision.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import bookkeeping, by_route, by_stored_values, fast_jit

from dpjax.gradients._clipped_grad import sum_by_vmap

CLIP = 0.5
ROUTES = ["ghost", "sequential", "instantiate"]
# Tokens and features: two long vectors, a balanced case, more tokens than entries.
SIZES = [(2, 2048), (8, 1024), (64, 64), (512, 8)]


def bilinear(w, example):
    return jnp.sum((example["left"] @ w) * example["right"])


def cancelling(tokens, features, columns, seed=0):
    """Examples whose terms are large and whose gradient is nearly zero, each in another way."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape)

    half, ones = tokens // 2, np.ones((1, features))
    left, right = normal(half, features), normal(half, columns)
    weights, profile = rng.uniform(1, 2, (tokens, 1)), rng.uniform(1, 2, (1, features))
    noise = normal(tokens, columns)
    balanced = noise - weights * np.sum(weights * noise, 0) / np.sum(weights**2)
    pairs = [
        (np.vstack([left, left]), np.vstack([right, -right * (1 + 1e-6 * normal(half, 1))])),
        (weights * ones, balanced),
        (weights * profile, balanced[:, :1] * rng.uniform(1, 2, (1, columns))),
        (profile * (1 + 1e-4 * normal(tokens, features)), noise - noise.mean(0)),
        (rng.uniform(1, 2, (tokens, features)), balanced[:, :1] * np.ones((1, columns))),
        (normal(tokens, features), noise),
    ]
    lefts, rights = (np.stack(side).astype(np.float32) for side in zip(*pairs, strict=True))
    return {"left": lefts, "right": rights}


def true_norms(batch):
    left, right = np.float64(batch["left"]), np.float64(batch["right"])
    return np.linalg.norm(np.einsum("btr,btc->brc", left, right), axis=(1, 2))


def contributions(compute, params, batch, clip=CLIP):
    """The norms that ``compute`` reports, and the sizes of what each example alone adds."""
    singles = jnp.eye(len(jax.tree.leaves(batch)[0]), dtype=bool)
    alone = fast_jit(jax.vmap(compute, (None, None, None, 0)))
    sums, info = alone(jnp.float32(clip), params, batch, singles)
    squares = [np.sum(np.float64(s).reshape(len(s), -1) ** 2, 1) for s in jax.tree.leaves(sums)]
    return np.asarray(jnp.diagonal(info.norms)), np.sqrt(sum(squares))


def assert_not_below(norms, truth):
    assert np.all(norms >= truth * (1 - 1e-6)), norms / truth


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "features"), SIZES)
def test_norms_not_below_the_truth(tokens, features):
    batch = cancelling(tokens, features, max(4, features // 4))
    w = jnp.zeros((features, batch["right"].shape[-1]))
    for route in ("ghost", "sequential"):
        norms, sizes = contributions(by_route(route, bilinear), w, batch)
        assert_not_below(norms, true_norms(batch))
        assert np.all(sizes <= CLIP * (1 + 1e-6))


@pytest.mark.parametrize(("tokens", "features"), SIZES)
def test_power_norms_without_the_margin(tokens, features):
    batch = cancelling(tokens, features, max(4, features // 4))
    lefts, rights = (jnp.einsum("btr,bsr->bts", side, side) for side in batch.values())
    squares = np.maximum(jnp.sum(lefts * rights, (1, 2)), 0)
    with pytest.raises(AssertionError):
        assert_not_below(np.sqrt(squares), true_norms(batch))


@pytest.mark.slow
def test_norms_without_cancellation():
    batch = jax.tree.map(lambda leaf: leaf[-1:], cancelling(64, 64, 16))
    norms, _ = contributions(by_route("ghost", bilinear), jnp.zeros((64, 16)), batch)
    np.testing.assert_allclose(norms, true_norms(batch), rtol=1e-5)


@pytest.mark.slow
def test_norms_of_cancelling_uses():
    def loss(w, example):
        return bilinear(w, example) - jnp.sum((example["nearly"] @ w) * example["right"])

    rng = np.random.default_rng(0)
    left = np.float32(rng.normal(size=(5, 3, 64)))
    nearly = left + np.float32(1e-5 * rng.normal(size=left.shape))
    right = np.float32(rng.normal(size=(5, 3, 8)))
    batch = {"left": left, "nearly": nearly, "right": right}
    truth = true_norms({"left": np.float64(left) - np.float64(nearly), "right": right})
    norms, sizes = contributions(by_route("ghost", loss), jnp.zeros((64, 8)), batch)
    assert_not_below(norms, truth)
    assert np.all(sizes <= CLIP * (1 + 1e-6))


@pytest.mark.slow
def test_norms_of_cancelling_lookups():
    def loss(table, example):
        return jnp.sum(table[example["index"]] * example["signal"])

    signal = np.zeros((3, 4, 2), np.float32)
    signal[0, :3, 0] = 1e8, 1, -1e8  # adds up to 1, in single precision to 0
    signal[1] = 1
    batch = {"index": np.array([[2, 2, 2, 0]] * 3, np.int32), "signal": signal}
    norms, sizes = contributions(bookkeeping_of(loss), jnp.zeros((3, 2)), batch)
    assert_not_below(norms, np.array([1, np.sqrt(9 + 9 + 1 + 1), 0]))
    np.testing.assert_allclose(norms[1:], [np.sqrt(20), 0], rtol=1e-6)
    assert np.all(sizes <= CLIP * (1 + 1e-6))


def bookkeeping_of(loss):
    return lambda clip, params, batch, mask: bookkeeping(loss, clip)(params, batch, mask)


SCALES = [(1e15, 1e15), (1e-20, 1e15), (1e15, 1e-20), (1e-20, 1e-20), (1e-22, 1e18), (1e-30, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_huge_and_tiny_factors(route):
    """Too large for its square to be a float: no contribution. Too small: no norm too small."""
    rng = np.random.default_rng(0)
    scales = np.float32(SCALES)[:, :, None, None]
    shape = (len(SCALES), 3)
    left = np.float32(rng.normal(size=(*shape, 5))) * scales[:, 0]
    right = np.float32(rng.normal(size=(*shape, 4))) * scales[:, 1]
    batch, clip = {"left": left, "right": right}, 1e-6
    norms, sizes = contributions(by_route(route, bilinear), jnp.zeros((5, 4)), batch, clip)
    assert not np.isfinite(norms[0])
    assert sizes[0] == 0
    assert_not_below(norms[1:], np.where(true_norms(batch) < 1e-18, 0, true_norms(batch))[1:])
    assert np.all(sizes <= clip * (1 + 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_factors(route, bad):
    batch = cancelling(8, 16, 4)
    for side in batch:
        spoilt = {name: leaf.copy() for name, leaf in batch.items()}
        spoilt[side][1, 2, 0] = bad
        compute, w = fast_jit(by_route(route, bilinear)), jnp.zeros((16, 4))
        summed, info = compute(CLIP, w, spoilt, np.ones(6, bool))
        expected, _ = compute(CLIP, w, batch, np.arange(6) != 1)
        assert info.num_nonfinite == 1
        np.testing.assert_allclose(summed, expected, rtol=1e-6)


def half_precision(dtype):
    """A loss computed in ``dtype`` with parameters in single precision."""

    def loss(p, x):
        p, x = jax.tree.map(lambda leaf: leaf.astype(dtype), (p, x))
        hidden = jnp.tanh(x @ p["w"] + p["b"])
        return jnp.sum((hidden @ p["w"].T).astype(jnp.float32) ** 2)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=str)
def test_half_precision(dtype, route):
    """Sums are kept in single precision: what each example adds alone adds up to the sum."""
    rng = np.random.default_rng(0)
    params = {"w": np.float32(rng.normal(size=(6, 4))), "b": np.zeros(4, np.float32)}
    batch = np.float32(rng.normal(size=(64, 3, 6)))
    masks = np.vstack([np.ones((1, 64), bool), np.eye(64, dtype=bool)])
    compute = fast_jit(jax.vmap(by_route(route, half_precision(dtype)), (None, None, None, 0)))
    sums, info = compute(CLIP, params, batch, masks)
    expected, truth = sum_by_vmap(half_precision(dtype), CLIP, params, batch, masks[0])
    np.testing.assert_allclose(info.norms[0], truth.norms, rtol=1e-2)
    for found, reference in zip(jax.tree.leaves(sums), jax.tree.leaves(expected), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found[0], reference, atol=0.02)
        np.testing.assert_allclose(found[0], found[1:].sum(0), atol=2e-5)
    squares = [np.sum(np.float64(s[1:]).reshape(64, -1) ** 2, 1) for s in jax.tree.leaves(sums)]
    assert np.all(np.sqrt(sum(squares)) <= CLIP * (1 + 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "part_size"), [(False, None), (True, None), (True, 5)])
def test_half_precision_in_a_stack(remat, part_size):
    """Norms and sums have the same output gradients, also where these are computed twice."""

    def layer(h, w):
        return jnp.tanh(h @ w.astype(h.dtype)), None

    def loss(w, x):
        h, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x.astype(jnp.bfloat16), w)
        return jnp.sum(h.astype(jnp.float32) ** 2)

    rng = np.random.default_rng(0)
    w, batch = np.float32(rng.normal(size=(3, 6, 6))), np.float32(rng.normal(size=(16, 4, 6)))
    norms, sizes = contributions(by_stored_values(part_size, loss), w, batch)
    _, truth = sum_by_vmap(loss, CLIP, w, batch, np.ones(16, bool))
    np.testing.assert_allclose(norms, truth.norms, rtol=3e-2)
    assert np.all(sizes <= CLIP * (1 + 1e-6))
    assert np.max(sizes) > CLIP * (1 - 1e-5)
