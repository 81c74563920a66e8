"""Norms and clipped sums where the terms of a gradient cancel, as in losses of pairs.

The losses are linear in the weights, or their data have few bits, so that nothing is rounded before
clipping, and the gradients in double precision are what norms and sums must follow.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import bookkeeping, by_route, fast_jit, routes_of
from helpers.gradient_oracle import clipped_sum_by_hand

from dpjax.gradients._clipped_grad import sum_by_vmap
from dpjax.gradients.bookkeeping import norms as norms_module

BATCH, FEATURES, COLUMNS = 4, 32, 8
# How much the two inputs of a pair differ, relative to them.
DIFFERENCES = [1e-2, 1e-3, 1e-4, 1e-6]


def normal(*shape, seed=0):
    return np.float32(np.random.default_rng(seed).normal(size=(BATCH, *shape)))


def nearly(array, difference):
    return np.float32(array * (1 + difference * normal(*array.shape[1:], seed=1)))


def siamese():
    def loss(w, e):
        return jnp.sum((e["a"] @ w - e["b"] @ w) * e["signal"])

    def batch(difference):
        first = normal(FEATURES)
        return {"a": first, "b": nearly(first, difference), "signal": normal(COLUMNS, seed=2)}

    return loss, jnp.zeros((FEATURES, COLUMNS)), batch


def few_bits(difference):
    """Inputs of ones, and two neighbours of each: their products and distances are exact."""
    step = 2.0 ** np.round(np.log2(difference))
    first, *steps = (np.sign(normal(4, seed=seed)) for seed in range(3))
    second, third = (np.float32(first + n * step * each) for n, each in enumerate(steps, 1))
    return {"a": first, "b": second, "c": third, "equal": np.arange(BATCH) % 2 == 0}


SIGNS = np.sign(normal(4, seed=3))


def distance():
    def loss(w, e):
        return jnp.sum((e["a"] @ w - e["b"] @ w) ** 2)

    return loss, SIGNS, few_bits


def contrastive():
    """Distances of equal pairs, and hinges of the others (Hadsell, Chopra, LeCun 2006)."""

    def loss(w, e):
        square = jnp.sum((e["a"] @ w - e["b"] @ w) ** 2)
        return jnp.where(e["equal"], square, jnp.maximum(0, 1 - jnp.sqrt(square)) ** 2)

    return loss, SIGNS, few_bits


def triplet():
    def loss(w, e):
        near, far = (jnp.sum((e["a"] @ w - e[other] @ w) ** 2) for other in "bc")
        return jnp.maximum(0, near - far + 1)

    return loss, SIGNS, few_bits


def lookups():
    def loss(table, e):
        return jnp.sum(table[e["words"]] * e["signals"])

    def batch(difference):
        signal = normal(COLUMNS)
        signals = np.stack([signal, -nearly(signal, difference)], axis=1)
        return {"words": np.full((BATCH, 2), 3), "signals": signals}

    return loss, jnp.zeros((5, COLUMNS)), batch


def tied_table():
    """A row of a table is looked up, and is an output of a product."""

    def loss(table, e):
        return jnp.vdot(table[e["word"]], e["a"]) - (table @ e["b"])[3]

    def batch(difference):
        first = normal(COLUMNS)
        return {"word": np.full(BATCH, 3), "a": first, "b": nearly(first, difference)}

    return loss, jnp.zeros((5, COLUMNS)), batch


def tokens():
    """One product whose terms cancel."""

    def loss(w, e):
        return jnp.sum((e["x"] @ w) * e["signal"])

    def batch(difference):
        half, signal = normal(3, FEATURES), normal(3, COLUMNS, seed=2)
        both = np.concatenate([half, nearly(half, difference)], axis=1)
        return {"x": both, "signal": np.concatenate([signal, -signal], axis=1)}

    return loss, jnp.zeros((FEATURES, COLUMNS)), batch


def convolution():
    """A convolution whose pixels cancel: those of the lower half of the image by the upper."""
    layout = ("NHWC", "HWIO", "NHWC")

    def loss(kernel, e):
        image = e["x"].reshape(1, 6, 4, 8)
        pixels = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", None, None, layout)
        return jnp.sum(pixels * e["signal"].reshape(1, 6, 2, 4))

    return loss, jnp.zeros((1, 3, 8, 4)), tokens()[2]


def under_remat():
    loss, w, batch = tokens()
    return jax.checkpoint(loss), w, batch


def recurrent():
    """The last states of two runs of a recurrent network."""

    def last_state(w, inputs):
        return jax.lax.scan(lambda h, x: (0.5 * h + x @ w, None), jnp.zeros(COLUMNS), inputs)[0]

    def loss(w, e):
        first, second = e["x"][:3], e["x"][3:]
        return jnp.vdot(last_state(w, first) - last_state(w, second), e["signal"][0])

    return loss, jnp.zeros((FEATURES, COLUMNS)), tokens()[2]


def stack():
    return in_a_stack(lambda layer: layer)


def stack_under_remat():
    return in_a_stack(jax.checkpoint)


def in_a_stack(wrap):
    of_layer, w, batch = tokens()

    def loss(stacked, e):
        layer = wrap(lambda total, w: (total + of_layer(w, e), None))
        return jax.lax.scan(layer, 0.0, stacked)[0]

    return loss, jnp.stack([w, w]), batch


CASES = [
    *((build, "ghost") for build in (siamese, triplet)),
    *(
        pytest.param(build, "ghost", marks=pytest.mark.slow)
        for build in (distance, contrastive, lookups, tied_table, recurrent)
    ),
    *(
        pytest.param(build, route, marks=() if build is tokens else pytest.mark.slow)
        for build in (tokens, convolution, stack, under_remat, stack_under_remat)
        for route in ("ghost", "sequential")
    ),
]


@pytest.mark.parametrize(("build", "route"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_cancelling_norms_and_sums(build, route):
    """Norms not below the truth and at most 1 % above, and the sum that of the truth so far."""
    loss, params, batch_of = build()
    compute = fast_jit(by_route(route, loss))
    for difference in DIFFERENCES:
        batch = batch_of(difference)
        _, truth, _ = clipped_sum_by_hand(loss, 1.0, params, batch)
        clip = float(np.median(truth))
        expected, _, _ = clipped_sum_by_hand(loss, clip, params, batch)
        summed, info = compute(jnp.float32(clip), params, batch, np.ones(BATCH, bool))
        assert np.all(info.norms >= truth * (1 - 1e-6)), info.norms / truth
        assert np.all(info.norms <= truth * 1.01), info.norms / truth
        assert np.linalg.norm(summed - expected) <= 0.01 * np.linalg.norm(expected)
        if difference > 1e-5:  # smaller ones are lost in the float32 gradients of the reference
            reference, _ = sum_by_vmap(loss, clip, params, batch, np.ones(BATCH, bool))
            np.testing.assert_allclose(summed, reference, atol=0.01 * clip)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=str)
def test_cancelling_norms_in_half_precision(dtype):
    """Pairs that differ by the last bit of one feature."""

    def loss(w, e):
        a, b, signal, w = (x.astype(dtype) for x in (e["a"], e["b"], e["signal"], w))
        return jnp.sum(((a @ w - b @ w) * signal).astype(jnp.float32))

    first = normal(FEATURES).astype(dtype)
    last_bit = np.float32(first[:, 0]) * (1 + float(jnp.finfo(dtype).eps))
    second = first.copy()
    second[:, 0] = last_bit.astype(dtype)
    batch = {"a": first, "b": second, "signal": normal(COLUMNS, seed=2).astype(dtype)}
    batch = jax.tree.map(np.float32, batch)
    difference = np.linalg.norm(np.float64(batch["a"]) - batch["b"], axis=1)
    truth = difference * np.linalg.norm(np.float64(batch["signal"]), axis=1)
    assert np.all((difference > 0) & (difference < 0.01))
    w = jnp.zeros((FEATURES, COLUMNS))
    _, info = fast_jit(by_route("ghost", loss))(1.0, w, batch, np.ones(BATCH, bool))
    assert np.all(info.norms >= truth * (1 - 1e-6)), info.norms / truth
    assert np.all(info.norms <= truth * 1.01), info.norms / truth


@pytest.mark.slow
@pytest.mark.parametrize("difference", [0.0, 1e-7, 1e-4])
def test_cancelling_contribution_within_the_bound(difference):
    """Terms of 10^8 clip bounds, alone and beside an example that does not cancel."""
    loss, params, batch_of = siamese()
    batch, clip = batch_of(difference), 1e-6
    batch["b"][0] = 0
    masks = np.vstack([np.eye(BATCH, dtype=bool), np.ones((1, BATCH), bool), np.arange(BATCH) > 0])
    run = fast_jit(jax.vmap(by_route("ghost", loss), (None, None, None, 0)))
    sums, _ = run(jnp.float32(clip), params, batch, masks)
    alone, (everyone, without) = np.float64(sums[:BATCH]), np.float64(sums[BATCH:])
    assert np.all(np.linalg.norm(alone, axis=(1, 2)) <= clip * (1 + 1e-6))
    assert np.linalg.norm(everyone - without) <= clip * (1 + 1e-6)
    np.testing.assert_allclose(everyone, alone.sum(0), atol=1e-5 * clip)


def on_own_features(difference):
    """Every example has its own features, so that the sum shows what each contributes."""
    loss, _, batch_of = siamese()
    own = np.eye(BATCH, dtype=np.float32)[:, :, None]
    batch = batch_of(difference)
    spread = {side: (own * batch[side][:, None]).reshape(BATCH, -1) for side in "ab"}
    return loss, jnp.zeros((BATCH * FEATURES, COLUMNS)), {**spread, "signal": batch["signal"]}


def what_the_first_contributes(compute, own_difference):
    """The norm and the contribution of the first example, whose neighbours cancel or do not."""
    found = []
    loss, params, own = on_own_features(own_difference)
    for difference in (0.5, 1e-4):
        others = on_own_features(difference)[2]
        batch = {name: np.concatenate([own[name][:1], x[1:]]) for name, x in others.items()}
        summed, info = compute(loss, params, batch)
        found.append((np.asarray(summed[:FEATURES]), np.asarray(info.norms[0])))
    return found


def at_once(loss, params, batch):
    return fast_jit(bookkeeping(loss, 0.1))(params, batch, None)


def by_micro_batches(loss, params, batch):
    return fast_jit(bookkeeping(loss, 0.1, microbatch_size=2))(params, batch, None)


def in_a_batch_of_batches(loss, params, batch):
    batches = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), batch)
    both = fast_jit(jax.vmap(bookkeeping(loss, 0.1), (None, 0, None)))(params, batches, None)
    return jax.tree.map(lambda x: x[0], both)


def under_a_checkpoint(loss, params, batch):
    return at_once(jax.checkpoint(loss), params, batch)


WAYS = [at_once, by_micro_batches, in_a_batch_of_batches, under_a_checkpoint]


# With the second difference its gradient is instantiated, with the first it is not.
@pytest.mark.parametrize("own_difference", [0.1, 1e-3])
@pytest.mark.parametrize("compute", WAYS)
def test_contribution_independent_of_cancelling_neighbours(compute, own_difference):
    (sums, norm), (other_sums, other_norm) = what_the_first_contributes(compute, own_difference)
    assert norm == other_norm
    np.testing.assert_array_equal(sums, other_sums)


@pytest.mark.slow
def test_power_instantiating_all_examples(monkeypatch):
    right = norms_module.for_each

    def of_all(chosen, *args):
        return right(jnp.broadcast_to(jnp.any(chosen), chosen.shape), *args)

    monkeypatch.setattr(norms_module, "for_each", of_all)
    (_, norm), (_, other_norm) = what_the_first_contributes(at_once, 0.1)
    assert norm != other_norm


def test_losses_without_cancellation_have_no_loop():
    """One product with one vector, as in a plain network."""

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    w, batch = jnp.zeros((64, 64)), normal(64)
    assert routes_of(loss, w, batch) == {"": "ghost"}
    assert "while" not in str(jax.make_jaxpr(bookkeeping(loss, 1.0))(w, batch, None))
    assert "while" in str(
        jax.make_jaxpr(bookkeeping(tokens()[0], 1.0))(*with_many_features(), None)
    )


def with_many_features():
    x, signal = normal(6, 256), normal(6, 256)
    return jnp.zeros((256, 256)), {"x": x, "signal": signal}
