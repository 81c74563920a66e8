"""How far one example moves a clipped sum: never beyond the bound, and all the way to it.

The gradient of the loss used here is the example itself, so any set of gradients can be had.
"""

import functools
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.extra.numpy import arrays

from dpjax import clipped_grad, l2_sensitivity, total_l2_clip

pytestmark = pytest.mark.usefixtures("strict_numerics")

SIZE = 4
SHAPES = {"a": (2,), "b": (1, 2)}
BOUNDS = {"flat": 0.7, "layers": {"a": 0.3, "b": 0.4}}


class Neighbours(NamedTuple):
    """A batch, one of its examples, and what may stand in its place."""

    batch: dict[str, np.ndarray]
    index: int
    replacement: dict[str, np.ndarray]


# Asymmetric: mostly positive, and each example at a scale of its own.
entries = st.floats(-10, 1000, width=32)
scales = st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1.0, 1e4])


@st.composite
def examples(draw, count):
    scale = draw(arrays(np.float64, count, elements=scales))
    values = {
        name: draw(arrays(np.float64, (count, *shape), elements=entries))
        for name, shape in SHAPES.items()
    }
    return {n: v * scale.reshape(-1, *[1] * (v.ndim - 1)) for n, v in values.items()}


neighbours = st.builds(Neighbours, examples(SIZE), st.integers(0, SIZE - 1), examples(1))


def loss(params, example):
    return sum(jnp.vdot(params[name], example[name]) for name in params)


@functools.cache
def library(bound, **options):
    compute = clipped_grad(loss, BOUNDS[bound], **options)
    return jax.jit(lambda params, batch, mask: compute(params, batch, mask)[0])


def moves(clipped_sum, case, dtype):
    """How far the sum moves when the example is removed, and when it is replaced."""
    params = {name: np.zeros(shape, dtype) for name, shape in SHAPES.items()}
    batch = {name: dtype(leaf) for name, leaf in case.batch.items()}
    replaced = {name: leaf.copy() for name, leaf in batch.items()}
    for name in replaced:
        replaced[name][case.index] = case.replacement[name][0]
    everyone = np.ones(SIZE, bool)
    base = clipped_sum(params, batch, everyone)
    removed = clipped_sum(params, batch, np.arange(SIZE) != case.index)
    return distance(base, removed), distance(base, clipped_sum(params, replaced, everyone))


def distance(tree, other):
    return np.sqrt(sum(np.sum((np.float64(tree[n]) - np.float64(other[n])) ** 2) for n in tree))


def assert_bounded(clipped_sum, bound, case, dtype):
    """The rounding of at most SIZE terms of norm ``total``, with room: 8 SIZE eps of it."""
    total = total_l2_clip(BOUNDS[bound])
    tolerance = 8 * SIZE * np.finfo(dtype).eps * total
    removed, replaced = moves(clipped_sum, case, dtype)
    assert removed <= l2_sensitivity(BOUNDS[bound], "add_remove") + tolerance
    assert replaced <= l2_sensitivity(BOUNDS[bound], "replace_one") + tolerance


@pytest.mark.parametrize("options", [{"method": "vmap"}, {}, {"microbatch_size": 3}], ids=str)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clipped_grad_sensitivity(dtype, bound, options):
    @hypothesis.given(neighbours)
    def check(case):
        assert_bounded(library(bound, **options), bound, case, dtype)

    with jax.enable_x64(dtype is np.float64):
        check()


@pytest.mark.parametrize("bound", BOUNDS)
def test_sensitivity_is_reached(bound):
    """By a large example, and by replacing it with its opposite; large in every group."""
    batch = {name: np.zeros((SIZE, *shape)) for name, shape in SHAPES.items()}
    batch["a"][1], batch["b"][1] = [300, 2], [[-1, 5]]
    opposite = {name: -leaf[1:2] for name, leaf in batch.items()}
    removed, replaced = moves(library(bound), Neighbours(batch, 1, opposite), np.float32)
    total = total_l2_clip(BOUNDS[bound])
    assert removed == pytest.approx(total, rel=0.01)
    assert replaced == pytest.approx(2 * total, rel=0.01)


def scaled(tree, factor):
    return {name: leaf * factor.reshape(-1, *[1] * (leaf.ndim - 1)) for name, leaf in tree.items()}


def norms(tree):
    return np.sqrt(sum(np.sum(leaf.reshape(len(leaf), -1) ** 2, 1) for leaf in tree.values()))


def factor(norm):
    return np.minimum(1, BOUNDS["flat"] / np.maximum(norm, 1e-300))


def sums(tree, mask):
    return {name: np.sum(leaf[mask], axis=0) for name, leaf in tree.items()}


def right(params, batch, mask):
    return sums(scaled(batch, factor(norms(batch))), mask)


def clips_the_mean(params, batch, mask):
    mean = {name: np.mean(leaf[mask], axis=0, keepdims=True) for name, leaf in batch.items()}
    return sums(scaled(mean, mask.sum() * factor(norms(mean))), np.ones(1, bool))


def clips_the_batch(params, batch, mask):
    whole = {name: np.sum(leaf[mask], axis=0, keepdims=True) for name, leaf in batch.items()}
    return sums(scaled(whole, factor(norms(whole))), np.ones(1, bool))


def clips_each_leaf(params, batch, mask):
    each = {
        name: scaled({name: leaf}, factor(norms({name: leaf})))[name]
        for name, leaf in batch.items()
    }
    return sums(each, mask)


def violation_is_found(clipped_sum):
    @hypothesis.settings(
        phases=[hypothesis.Phase.generate], report_multiple_bugs=False, max_examples=300
    )
    @hypothesis.given(neighbours)
    def check(case):
        assert_bounded(clipped_sum, "flat", case, np.float64)

    try:
        check()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("twin", [clips_the_mean, clips_the_batch, clips_each_leaf])
def test_power_wrong_clipping(twin):
    assert violation_is_found(twin)


@pytest.mark.slow
def test_assertion_passes_right_clipping():
    assert not violation_is_found(right)
