"""Gradient distances of train and test: the tests' verdicts where they are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from experiments.bdp.table import (
    all_distances,
    compare,
    compare_samples,
    disjoint_distances,
)
from experiments.data import Split, load_data

RNG = np.random.default_rng(0)


def loss(params, example):
    return 0.5 * jnp.sum((params - example[0]) ** 2)  # the gradient is params - x


def normal(num, scale=1.0):
    return Split(RNG.normal(0, scale, (num, 8)).astype(np.float32), np.zeros(num, np.int32))


def compared(train, test):
    data = dataclasses.replace(load_data("digits"), train=train, test=test)
    return compare(jax.random.key(0), loss, jnp.zeros(8), data)


@pytest.mark.slow
def test_compare_accepts_equal_parts_and_rejects_others():
    """By chance one of the two p-values is below 0.001 for one key in 500; this key is fixed."""
    same = compared(normal(1000), normal(1000))["disjoint pairs"]
    other = compared(normal(1000), normal(1000, 1.3))["disjoint pairs"]
    assert min(same["t"], same["levene"]) > 1e-3
    assert max(other["t"], other["levene"]) < 1e-3


def rejections(pairs, num_trials=60):
    """How often equal parts are called different at 0.05, by the test of means."""
    found = [
        compare_samples(pairs(normal(40).x), pairs(normal(40).x))["t"] for _ in range(num_trials)
    ]
    return sum(p < 0.05 for p in found)


def test_compare_samples_of_all_pairs_rejects_equal_parts():
    """Three of 60 are expected; 10 and more have a chance of 1e-3."""
    assert rejections(lambda x: np.linalg.norm(x[::2] - x[1::2], axis=1)) < 10
    assert rejections(pdist) > 20


@pytest.mark.slow
def test_compare_counts_disjoint_and_all_pairs():
    found = compared(normal(1000), normal(60))
    counts = {(way, part): sum(found[way][part]) for way in found for part in ("train", "test")}
    assert counts["disjoint pairs", "train"] == 500
    assert counts["disjoint pairs", "test"] == 30
    assert counts["all pairs", "train"] == 100 * 99 // 2
    assert counts["all pairs", "test"] == 60 * 59 // 2


def test_distances_and_disjoint_distances_are_those_of_the_gradients():
    two = Split(np.array([[0.0] * 8, [3.0, 4.0] + [0.0] * 6], np.float32), np.zeros(2, np.int32))
    for distances in (all_distances, disjoint_distances):
        found = distances(jax.random.key(0), loss, jnp.zeros(8), two)
        assert found == pytest.approx([5.0])
