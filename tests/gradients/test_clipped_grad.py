"""The sum itself: equal to a loop over examples, whatever the mask, the parts, the transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gradient_oracle import (
    assert_close,
    assert_matches_hand,
    clipped_sum_by_hand,
    example_of,
)

from dpjax import clipped_grad

pytestmark = pytest.mark.usefixtures("strict_numerics")

METHODS = ("auto", "vmap")
SIZE = 7


def regression_loss(params, example):
    """Two layers, three leaves in the example: numbers, a label and a weight."""
    hidden = jnp.tanh(example["x"] @ params["first"]["w"] + params["first"]["b"])
    logits = hidden @ params["second"]["w"]
    return -example["weight"] * jax.nn.log_softmax(logits)[example["label"]]


@pytest.fixture
def params():
    keys = jax.random.split(jax.random.key(1), 3)
    return {
        "first": {"w": jax.random.normal(keys[0], (4, 5)), "b": jax.random.normal(keys[1], (5,))},
        "second": {"w": jax.random.normal(keys[2], (5, 3))},
    }


@pytest.fixture
def batch():
    x, label, weight = jax.random.split(jax.random.key(2), 3)
    return {
        "x": jax.random.normal(x, (SIZE, 4)),
        "label": jax.random.randint(label, (SIZE,), 0, 3),
        "weight": jax.random.uniform(weight, (SIZE,), minval=0.1, maxval=4.0),
    }


MASK = np.array([True, False, True, True, False, True, True])
ALL = np.ones(SIZE, bool)
BOUNDS = {
    "tight": 1e-3,
    "middle": 5.0,
    "loose": 100.0,
    "layers": {"first": 0.5, "second": 2.0},
    "mixed": {"first": {"w": 0.1, "b": 3.0}, "second": 1e-3},
    "leaves": {"first": {"w": 0.1, "b": 3.0}, "second": {"w": 50.0}},
}


@functools.cache
def compiled(bound="middle", method="vmap", microbatch_size=None):
    """The function under test; compiled once for all tests that want the same."""
    options = {"method": method, "microbatch_size": microbatch_size}
    return jax.jit(clipped_grad(regression_loss, BOUNDS[bound], **options))


def by_hand(bound, params, batch, mask=None):
    return clipped_sum_by_hand(regression_loss, BOUNDS[bound], params, batch, mask)


@pytest.mark.parametrize(
    ("bound", "method"), [*((b, "vmap") for b in BOUNDS), ("middle", "auto"), ("mixed", "auto")]
)
def test_equals_the_loop(params, batch, bound, method):
    for mask in (ALL, MASK):
        found = compiled(bound, method=method)(params, batch, mask)
        assert_matches_hand(found, by_hand(bound, params, batch, mask))


@pytest.mark.parametrize("method", METHODS)
def test_no_mask_is_a_mask_of_all(params, batch, method):
    found = compiled(method=method)(params, batch)
    assert_matches_hand(found, by_hand("middle", params, batch))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("bound", "method"), [("middle", "vmap"), ("layers", "auto")])
def test_equals_the_loop_in_double_precision(params, batch, bound, method):
    wide = jax.tree.map(lambda leaf: leaf.astype(float), params)
    batch = batch | {name: batch[name].astype(float) for name in ("x", "weight")}
    found = compiled(bound, method=method)(wide, batch, MASK)
    assert {leaf.dtype for leaf in jax.tree.leaves((found[0], found[1].norms))} == {np.dtype(float)}
    assert_matches_hand(found, by_hand(bound, params, batch, MASK), rtol=1e-13)


def test_called_without_jit(params, batch):
    found = clipped_grad(regression_loss, 5.0, method="vmap")(params, batch)
    assert_matches_hand(found, by_hand("middle", params, batch))


def test_the_bound_binds_some_examples_and_not_others(params, batch):
    """Otherwise the tests above would say little of clipping."""
    _, norms, _ = by_hand("middle", params, batch)
    assert 2 <= np.sum(norms > 5.0) <= SIZE - 2


@pytest.mark.parametrize("method", METHODS)
def test_microbatches_only_schedule(params, batch, method):
    whole = compiled("layers", method=method)(params, batch, MASK)
    for size in (1, 3, SIZE):
        parts = compiled("layers", method=method, microbatch_size=size)
        assert_close(parts(params, batch, MASK), whole, atol=1e-5)


@pytest.mark.parametrize("microbatch_size", [2, 5, 1000])
def test_microbatches_of_any_size(params, batch, microbatch_size):
    whole = compiled()(params, batch, MASK)
    parts = compiled(microbatch_size=microbatch_size)(params, batch, MASK)
    assert_close(parts, whole, atol=2e-6)


@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_numpy_batches_and_lists_as_masks(params, batch, microbatch_size):
    compute = clipped_grad(regression_loss, 5.0, method="vmap", microbatch_size=microbatch_size)
    found = compute(params, jax.tree.map(np.asarray, batch), MASK.tolist())
    assert_matches_hand(found, by_hand("middle", params, batch, MASK))


def test_shapes_and_dtypes(params, batch):
    clipped_sum, info = compiled("mixed")(params, batch, MASK)
    assert jax.tree.map(jnp.shape, clipped_sum) == jax.tree.map(jnp.shape, params)
    assert jax.tree.structure(info.norms) == jax.tree.structure(BOUNDS["mixed"])
    assert {leaf.shape for leaf in jax.tree.leaves((info.norms, info.losses))} == {(SIZE,)}
    assert info.num_nonfinite.shape == ()
    assert info.num_nonfinite.dtype == jnp.int32


def test_the_mask_is_the_smaller_batch(params, batch):
    masked, info = compiled()(params, batch, MASK)
    smaller, smaller_info = compiled()(params, example_of(batch, MASK), np.ones(MASK.sum(), bool))
    assert_close(masked, smaller, atol=1e-5)
    np.testing.assert_allclose(info.norms[MASK], smaller_info.norms, rtol=1e-5)
    np.testing.assert_allclose(info.losses[MASK], smaller_info.losses, rtol=1e-5)
    assert not info.norms[~MASK].any()
    assert not info.losses[~MASK].any()


@pytest.mark.parametrize("method", METHODS)
def test_a_mask_of_nothing_gives_zeros(params, batch, method):
    found = compiled(method=method)(params, batch, np.zeros(SIZE, bool))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize(
    "options", [*({"method": method} for method in METHODS), {"microbatch_size": 4}], ids=str
)
def test_an_empty_batch_gives_zeros(params, batch, options):
    clipped_sum, info = compiled(**options)(params, example_of(batch, slice(0)))
    assert jax.tree.map(jnp.shape, clipped_sum) == jax.tree.map(jnp.shape, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(clipped_sum))
    assert info.norms.shape == info.losses.shape == (0,)
    assert info.num_nonfinite == 0


@pytest.mark.parametrize("options", [{}, {"microbatch_size": 1}], ids=str)
def test_one_example(params, batch, options):
    one = example_of(batch, slice(3, 4))
    assert_matches_hand(compiled(**options)(params, one), by_hand("middle", params, one))


class TestTransformations:
    def test_nothing_is_traced_again_on_the_second_call(self, params, batch):
        traces = []

        def loss(params, example):
            traces.append(None)
            return regression_loss(params, example)

        compute = jax.jit(clipped_grad(loss, 1.0))
        clipped_sum, _ = compute(params, batch, MASK)
        first = len(traces)
        assert first > 0
        moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, clipped_sum)
        compute(moved, jax.tree.map(lambda leaf: leaf[::-1], batch), ~MASK)
        assert len(traces) == first

    def test_vmap_over_models(self, params, batch):
        models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), params)
        sums, info = jax.jit(jax.vmap(compiled(method="auto"), (0, None)))(models, batch)
        for i in range(3):
            expected = by_hand("middle", example_of(models, i), batch)
            assert_matches_hand(example_of((sums, info), i), expected)

    def test_vmap_over_batches_masks_and_bounds(self, params, batch):
        bounds = jnp.array([0.1, 1.0])
        masks = np.stack([MASK, ~MASK])
        batches = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), batch)

        def compute(bound, batch, mask):
            return clipped_grad(regression_loss, bound, microbatch_size=2)(params, batch, mask)

        found = jax.jit(jax.vmap(compute))(bounds, batches, masks)
        for i in range(2):
            expected = clipped_sum_by_hand(
                regression_loss, float(bounds[i]), params, example_of(batches, i), masks[i]
            )
            assert_matches_hand(example_of(found, i), expected)

    def test_as_the_body_of_a_scan(self, params, batch):
        def step(params, _):
            clipped_sum, info = compiled(method="auto")(params, batch, ALL)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, clipped_sum), info.losses.sum()

        scanned, losses = jax.lax.scan(step, params, length=3)
        for _ in range(3):
            params, _ = step(params, None)
        assert_close(scanned, params, atol=1e-4)
        assert losses[2] < losses[0]

    def test_bounds_of_layers_may_be_traced(self, params, batch):
        @jax.jit
        def compute(first, second):
            l2_clip = {"first": first, "second": second}
            return clipped_grad(regression_loss, l2_clip)(params, batch)

        assert_matches_hand(compute(0.5, 2.0), by_hand("layers", params, batch))


class TestKeysInTheBatch:
    @staticmethod
    def loss(params, example):
        kept = jax.random.bernoulli(example["key"], jnp.float32(0.5), example["x"].shape)
        hidden = jnp.where(kept, example["x"], 0) @ params["first"]["w"]
        return jnp.sum(hidden**2)

    @pytest.mark.parametrize("options", [{}, {"microbatch_size": 3}], ids=str)
    @pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
    def test_each_example_has_its_own_dropout(self, params, batch, options, raw):
        keys = jax.random.split(jax.random.key(5), SIZE)
        noisy = {"x": batch["x"], "key": jax.random.key_data(keys) if raw else keys}
        params = {"first": params["first"]}
        found = jax.jit(clipped_grad(self.loss, 1.0, **options))(params, noisy)
        assert_matches_hand(found, clipped_sum_by_hand(self.loss, 1.0, params, noisy))

    def test_an_empty_batch_of_keys(self, params):
        empty = {"x": jnp.ones((0, 4)), "key": jax.random.split(jax.random.key(5), 1)[:0]}
        clipped_sum, _ = jax.jit(clipped_grad(self.loss, 1.0))({"first": params["first"]}, empty)
        assert not np.any(clipped_sum["first"]["w"])


def linear(params, example):
    """A loss whose gradient is the example itself; ``offset`` only moves the loss."""
    offset = example.get("offset", jnp.float32(0))
    return sum(jnp.vdot(params[name], example[name]) for name in params) + offset


class TestNotFinite:
    PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}  # noqa: RUF012
    WITHOUT = np.array([True, False, True, True])

    @staticmethod
    @functools.cache
    def compute(per_layer=False, **options):
        return jax.jit(clipped_grad(linear, {"a": 1.0, "b": 5.0} if per_layer else 1.0, **options))

    @staticmethod
    def examples(name="a", value=1.0):
        batch = {"a": np.ones((4, 3)), "b": 2 * np.ones((4, 2, 2)), "offset": np.zeros(4)}
        batch[name][(1,) + (0,) * (batch[name].ndim - 1)] = value
        return jax.tree.map(np.float32, batch)

    @pytest.mark.parametrize(
        "options",
        [*({"method": method} for method in METHODS), {"per_layer": True}, {"microbatch_size": 3}],
        ids=str,
    )
    def test_contributes_exactly_zero_and_is_counted(self, options):
        compute = self.compute(**options)
        without, _ = compute(self.PARAMS, self.examples(), self.WITHOUT)
        for name in ("a", "b", "offset"):
            for value in (np.nan, np.inf, -np.inf):
                broken, info = compute(self.PARAMS, self.examples(name, value), ALL[:4])
                jax.tree.map(np.testing.assert_array_equal, broken, without)
                assert info.num_nonfinite == 1, (name, value)

    @pytest.mark.parametrize("options", [{"method": method} for method in METHODS], ids=str)
    def test_masked_out_it_is_neither_counted_nor_seen(self, options):
        clean = self.compute(**options)(self.PARAMS, self.examples(), self.WITHOUT)
        for value in (np.nan, np.inf):
            batch = self.examples("a", value)
            found = self.compute(**options)(self.PARAMS, batch, self.WITHOUT)
            jax.tree.map(np.testing.assert_array_equal, found, clean)
            assert found[1].num_nonfinite == 0

    @pytest.mark.parametrize("options", [{"method": method} for method in METHODS], ids=str)
    def test_a_gradient_too_large_to_square_is_not_finite(self, options):
        without, _ = self.compute(**options)(self.PARAMS, self.examples(), self.WITHOUT)
        for value in (1e30, -3e38):
            batch = self.examples("a", value)
            found, info = self.compute(**options)(self.PARAMS, batch, ALL[:4])
            jax.tree.map(np.testing.assert_array_equal, found, without)
            assert info.num_nonfinite == 1

    def test_a_gradient_just_small_enough_to_square_is_clipped(self):
        batch = {"a": jnp.array([[1e18, 0.0, 0.0]])}
        found, info = self.compute()({"a": jnp.zeros(3)}, batch)
        np.testing.assert_allclose(found["a"], [1, 0, 0], rtol=1e-6)
        assert info.num_nonfinite == 0

    def test_all_of_them(self):
        batch = self.examples() | {"offset": np.full(4, np.nan, np.float32)}
        found, info = self.compute()(self.PARAMS, batch, ALL[:4])
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))
        assert info.num_nonfinite == 4

    def test_a_zero_gradient_stays_zero(self):
        found, info = self.compute()({"a": jnp.zeros(3)}, {"a": jnp.zeros((2, 3))})
        np.testing.assert_array_equal(found["a"], np.zeros(3))
        np.testing.assert_allclose(info.norms, 0, atol=1e-18)
        assert info.num_nonfinite == 0


class TestRefusedArguments:
    X = jnp.ones((3, 2))
    W = jnp.zeros(2)

    @staticmethod
    def loss(w, x):
        return jnp.sum(w * x)

    @pytest.mark.parametrize("method", ["ghost", "", None])
    def test_an_unknown_method(self, method):
        with pytest.raises(ValueError, match=rf"^method must be one of 'auto', .* got {method!r}$"):
            clipped_grad(self.loss, 1.0, method=method)

    @pytest.mark.parametrize("size", [0, -1, 2.0, True, "all"])
    def test_a_microbatch_of_no_size(self, size):
        with pytest.raises(ValueError, match=r"^microbatch_size must be a whole number >= 1, got"):
            clipped_grad(self.loss, 1.0, microbatch_size=size)

    @pytest.mark.parametrize("bound", [0, -1.0, np.nan, np.inf, True, "1", np.ones(2)], ids=repr)
    def test_a_bound_that_is_no_positive_number(self, bound):
        for l2_clip in (bound, {"w": bound}):
            with pytest.raises(ValueError, match=r"^l2_clip must be a finite number > 0, got"):
                clipped_grad(self.loss, l2_clip)({"w": self.W}, self.X)

    @pytest.mark.parametrize("l2_clip", [None, {}, []])
    def test_no_bound_at_all(self, l2_clip):
        with pytest.raises(ValueError, match=r"^l2_clip must hold at least one number"):
            clipped_grad(self.loss, l2_clip)(self.W, self.X)

    @pytest.mark.parametrize(
        "l2_clip", [{"v": 1.0}, {"w": 1.0, "v": 1.0}, [1.0], {"w": {"kernel": 1.0}}], ids=str
    )
    def test_bounds_that_are_no_prefix(self, l2_clip):
        with pytest.raises(ValueError, match=r"^l2_clip must be a number or a prefix of the param"):
            clipped_grad(lambda p, x: self.loss(p["w"], x), l2_clip)({"w": self.W}, self.X)

    def test_leaves_of_differing_length(self):
        with pytest.raises(ValueError, match=r"^batch must have one batch length on every leaf"):
            clipped_grad(self.loss, 1.0)(self.W, (self.X, jnp.ones(4)))

    def test_a_leaf_without_examples(self):
        with pytest.raises(ValueError, match=r"^batch must have a leading example axis"):
            clipped_grad(self.loss, 1.0)(self.W, {"x": self.X, "rate": 0.1})

    def test_an_empty_tree_of_examples(self):
        with pytest.raises(ValueError, match=r"^batch must be a tree with at least one array"):
            clipped_grad(self.loss, 1.0)(self.W, {})

    @pytest.mark.parametrize("shape", [(), (2,), (4,), (3, 1)])
    def test_a_mask_of_another_shape(self, shape):
        with pytest.raises(ValueError, match=r"^mask must be bool of shape \(3,\), .* got bool of"):
            clipped_grad(self.loss, 1.0)(self.W, self.X, np.ones(shape, bool))

    @pytest.mark.parametrize("mask", [np.ones(3, np.float32), np.arange(3, dtype=np.int32)])
    def test_a_mask_of_weights_or_indices(self, mask):
        with pytest.raises(ValueError, match=rf"^mask must be bool .* got {mask.dtype} of shape"):
            clipped_grad(self.loss, 1.0)(self.W, self.X, mask)
