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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bound", "method"), [*((b, "vmap") for b in BOUNDS), ("middle", "auto"), ("mixed", "auto")]
)
def test_clipped_grad_equals_the_loop(params, batch, bound, method):
    for mask in (ALL, MASK):
        found = compiled(bound, method=method)(params, batch, mask)
        assert_matches_hand(found, by_hand(bound, params, batch, mask))


@pytest.mark.parametrize("method", METHODS)
def test_clipped_grad_without_mask(params, batch, method):
    found = compiled(method=method)(params, batch, None)
    assert_matches_hand(found, by_hand("middle", params, batch))


def test_clipped_grad_needs_a_mask(params, batch):
    """A default would add up the padding of a sampler's batch, which repeats one record."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'mask'"):
        compiled()(params, batch)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("bound", "method"), [("middle", "vmap"), ("layers", "auto")])
def test_equals_the_loop_in_double_precision(params, batch, bound, method):
    wide = jax.tree.map(lambda leaf: leaf.astype(float), params)
    batch = batch | {name: batch[name].astype(float) for name in ("x", "weight")}
    found = compiled(bound, method=method)(wide, batch, MASK)
    assert {leaf.dtype for leaf in jax.tree.leaves((found[0], found[1].norms))} == {np.dtype(float)}
    assert_matches_hand(found, by_hand(bound, params, batch, MASK), rtol=1e-13)


def test_called_without_jit(params, batch):
    found = clipped_grad(regression_loss, 5.0, method="vmap")(params, batch, None)
    assert_matches_hand(found, by_hand("middle", params, batch))


def test_bound_clips_some_examples(params, batch):
    """Otherwise the tests above would say little of clipping."""
    _, norms, _ = by_hand("middle", params, batch)
    assert 2 <= np.sum(norms > 5.0) <= SIZE - 2


@pytest.mark.parametrize("method", METHODS)
def test_microbatches_equal_the_whole(params, batch, method):
    whole = compiled("layers", method=method)(params, batch, MASK)
    for size in (1, 3, SIZE):
        parts = compiled("layers", method=method, microbatch_size=size)
        assert_close(parts(params, batch, MASK), whole, atol=1e-5)


@pytest.mark.slow
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


def test_mask_equals_the_smaller_batch(params, batch):
    masked, info = compiled()(params, batch, MASK)
    smaller, smaller_info = compiled()(params, example_of(batch, MASK), np.ones(MASK.sum(), bool))
    assert_close(masked, smaller, atol=1e-5)
    np.testing.assert_allclose(info.norms[MASK], smaller_info.norms, rtol=1e-5)
    np.testing.assert_allclose(info.losses[MASK], smaller_info.losses, rtol=1e-5)
    assert not info.norms[~MASK].any()
    assert not info.losses[~MASK].any()


@pytest.mark.parametrize("method", METHODS)
def test_mask_of_nothing(params, batch, method):
    found = compiled(method=method)(params, batch, np.zeros(SIZE, bool))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize(
    "options", [*({"method": method} for method in METHODS), {"microbatch_size": 4}], ids=str
)
def test_empty_batch(params, batch, options):
    clipped_sum, info = compiled(**options)(params, example_of(batch, slice(0)), None)
    assert jax.tree.map(jnp.shape, clipped_sum) == jax.tree.map(jnp.shape, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(clipped_sum))
    assert info.norms.shape == info.losses.shape == (0,)
    assert info.num_nonfinite == 0


@pytest.mark.parametrize("options", [{}, {"microbatch_size": 1}], ids=str)
def test_one_example(params, batch, options):
    one = example_of(batch, slice(3, 4))
    assert_matches_hand(compiled(**options)(params, one, None), by_hand("middle", params, one))


class TestTransformations:
    def test_clipped_grad_traced_once(self, params, batch):
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

    @pytest.mark.slow
    def test_vmap_over_models(self, params, batch):
        models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), params)
        sums, info = jax.jit(jax.vmap(compiled(method="auto"), (0, None, None)))(
            models, batch, None
        )
        for i in range(3):
            expected = by_hand("middle", example_of(models, i), batch)
            assert_matches_hand(example_of((sums, info), i), expected)

    @pytest.mark.slow
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

    def test_clipped_grad_in_a_scan(self, params, batch):
        def step(params, _):
            clipped_sum, info = compiled(method="auto")(params, batch, ALL)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, clipped_sum), info.losses.sum()

        scanned, losses = jax.lax.scan(step, params, length=3)
        for _ in range(3):
            params, _ = step(params, None)
        assert_close(scanned, params, atol=1e-4)
        assert losses[2] < losses[0]

    def test_traced_bounds(self, params, batch):
        @jax.jit
        def compute(first, second):
            l2_clip = {"first": first, "second": second}
            return clipped_grad(regression_loss, l2_clip)(params, batch, None)

        assert_matches_hand(compute(0.5, 2.0), by_hand("layers", params, batch))


class TestKeysInTheBatch:
    @staticmethod
    def loss(params, example):
        kept = jax.random.bernoulli(example["key"], jnp.float32(0.5), example["x"].shape)
        hidden = jnp.where(kept, example["x"], 0) @ params["first"]["w"]
        return jnp.sum(hidden**2)

    @pytest.mark.parametrize("options", [{}, {"microbatch_size": 3}], ids=str)
    @pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
    def test_keys_in_the_batch(self, params, batch, options, raw):
        keys = jax.random.split(jax.random.key(5), SIZE)
        noisy = {"x": batch["x"], "key": jax.random.key_data(keys) if raw else keys}
        params = {"first": params["first"]}
        found = jax.jit(clipped_grad(self.loss, 1.0, **options))(params, noisy, None)
        assert_matches_hand(found, clipped_sum_by_hand(self.loss, 1.0, params, noisy))

    def test_empty_batch_of_keys(self, params):
        empty = {"x": jnp.ones((0, 4)), "key": jax.random.split(jax.random.key(5), 1)[:0]}
        clipped_sum, _ = jax.jit(clipped_grad(self.loss, 1.0))(
            {"first": params["first"]}, empty, None
        )
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
    def test_nonfinite_example_contributes_zero(self, options):
        compute = self.compute(**options)
        without, _ = compute(self.PARAMS, self.examples(), self.WITHOUT)
        for name in ("a", "b", "offset"):
            for value in (np.nan, np.inf, -np.inf):
                broken, info = compute(self.PARAMS, self.examples(name, value), ALL[:4])
                jax.tree.map(np.testing.assert_array_equal, broken, without)
                assert info.num_nonfinite == 1, (name, value)

    @pytest.mark.parametrize("options", [{"method": method} for method in METHODS], ids=str)
    def test_nonfinite_example_masked_out(self, options):
        clean = self.compute(**options)(self.PARAMS, self.examples(), self.WITHOUT)
        for value in (np.nan, np.inf):
            batch = self.examples("a", value)
            found = self.compute(**options)(self.PARAMS, batch, self.WITHOUT)
            jax.tree.map(np.testing.assert_array_equal, found, clean)
            assert found[1].num_nonfinite == 0

    @pytest.mark.parametrize("options", [{"method": method} for method in METHODS], ids=str)
    def test_overflowing_gradient(self, options):
        without, _ = self.compute(**options)(self.PARAMS, self.examples(), self.WITHOUT)
        for value in (1e30, -3e38):
            batch = self.examples("a", value)
            found, info = self.compute(**options)(self.PARAMS, batch, ALL[:4])
            jax.tree.map(np.testing.assert_array_equal, found, without)
            assert info.num_nonfinite == 1

    def test_large_gradient(self):
        batch = {"a": jnp.array([[1e18, 0.0, 0.0]])}
        found, info = self.compute()({"a": jnp.zeros(3)}, batch, None)
        np.testing.assert_allclose(found["a"], [1, 0, 0], rtol=1e-6)
        assert info.num_nonfinite == 0

    def test_nonfinite_batch(self):
        batch = self.examples() | {"offset": np.full(4, np.nan, np.float32)}
        found, info = self.compute()(self.PARAMS, batch, ALL[:4])
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))
        assert info.num_nonfinite == 4

    def test_zero_gradient(self):
        found, info = self.compute()({"a": jnp.zeros(3)}, {"a": jnp.zeros((2, 3))}, None)
        np.testing.assert_array_equal(found["a"], np.zeros(3))
        np.testing.assert_allclose(info.norms, 0, atol=1e-18)
        assert info.num_nonfinite == 0


X, W = jnp.ones((3, 2)), jnp.zeros(2)
BOUND, PREFIX = (
    r"^l2_clip must be a finite number > 0, got",
    r"^l2_clip must be a number or a prefix",
)
COUNT = r"must be a whole number >= 1, got"
REFUSED_OPTIONS = [
    *(({"method": method}, rf"^method must be one of 'auto', .* got {method!r}$")
      for method in ("ghost", "", None)),
    *(({"microbatch_size": s}, rf"^microbatch_size {COUNT}") for s in (0, -1, 2.0, True, "all")),
    ({"max_batch_size": 1.5}, rf"^max_batch_size {COUNT}"),
    *(({"l2_clip": bound}, BOUND) for bound in (0, -1.0, np.nan, np.inf, True, "1", np.ones(2))),
    *(({"l2_clip": {"w": bound}}, BOUND) for bound in (0, np.nan, "1")),
    *(({"l2_clip": bound}, r"^l2_clip must hold at least one number") for bound in (None, {}, [])),
]  # fmt: skip
REFUSED_ARGUMENTS = [
    *(({"l2_clip": bound}, PREFIX)
      for bound in ({"v": 1.0}, {"w": 1.0, "v": 1.0}, [1.0], {"w": {"kernel": 1.0}})),
    ({"batch": (X, jnp.ones(4))}, r"^batch must have one batch length on every leaf"),
    ({"batch": {"x": X, "rate": 0.1}}, r"^batch must have a leading example axis"),
    ({"batch": {}}, r"^batch must be a tree with at least one array"),
    *(({"mask": np.ones(shape, bool)}, r"^mask must be bool of shape \(3,\), .* got bool of")
      for shape in ((), (2,), (4,), (3, 1))),
    ({"mask": np.ones(3, np.float32)}, r"^mask must be bool .* got float32 of shape"),
    ({"mask": np.arange(3, dtype=np.int32)}, r"^mask must be bool .* got int32 of shape"),
]  # fmt: skip


def linear_in_w(params, x):
    return jnp.sum(params["w"] * x)


@pytest.mark.parametrize(("options", "message"), REFUSED_OPTIONS, ids=str)
def test_clipped_grad_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        clipped_grad(linear_in_w, **{"l2_clip": 1.0, **options})


@pytest.mark.parametrize(("arguments", "message"), REFUSED_ARGUMENTS)
def test_clipped_grad_refuses_arguments(arguments, message):
    arguments = {"l2_clip": 1.0, "params": {"w": W}, "batch": X, "mask": None, **arguments}
    compute = clipped_grad(linear_in_w, arguments.pop("l2_clip"))
    with pytest.raises(ValueError, match=message):
        compute(**arguments)
