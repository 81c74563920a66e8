"""Budgets: the smallest floor, the largest steps and the hybrid."""

import dataclasses

import numpy as np
import pytest

from dpjax import Composition, PoissonSampling
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import decompose
from dpjax.bayes.sgmcmc import (
    PUBLISHED_TEMPERATURE,
    SGLD,
    CyclicalCosine,
    OnePosteriorSample,
    calibrate_min_noise,
    calibrate_step_size,
    hybrid,
)

CHAIN = SGLD(
    PoissonSampling(10_000, 0.02),
    l2_clip=2.0,
    step_size=CyclicalCosine(4.0, period=3),
    num_steps=300,
    adjacency="add_remove",
)


def certified(mechanism):
    return certified_epsilon(decompose(mechanism.event, mechanism.guarantee.adjacency), 1e-5)[1]


def test_calibrate_min_noise_meets_the_budget_with_the_smallest_noise():
    noisier = calibrate_min_noise(CHAIN, epsilon=1.0, delta=1e-5)
    assert certified(CHAIN) > 1.05
    assert 0.99 <= certified(noisier) <= 1
    assert (
        certified(
            dataclasses.replace(noisier, min_noise_multiplier=0.98 * noisier.min_noise_multiplier)
        )
        > 1
    )
    np.testing.assert_array_equal(noisier.step_sizes, CHAIN.step_sizes)
    assert noisier.excess_temperatures[0] > 0


def test_calibrate_min_noise_leaves_a_private_chain_alone():
    assert calibrate_min_noise(CHAIN, epsilon=50.0, delta=1e-5).min_noise_multiplier == 0


@pytest.mark.parametrize(("floor", "is_kept"), [(20.0, True), (1.5, False)])
def test_calibrate_min_noise_never_lowers_a_minimum(floor, is_kept):
    chain = dataclasses.replace(CHAIN, min_noise_multiplier=floor)
    noisier = calibrate_min_noise(chain, epsilon=1.0, delta=1e-5)
    assert certified(noisier) <= 1
    assert (noisier.min_noise_multiplier == floor) == is_kept
    assert noisier.min_noise_multiplier >= floor


def test_calibrate_step_size_meets_the_budget_at_the_same_temperature():
    slower = calibrate_step_size(CHAIN, epsilon=1.0, delta=1e-5)
    assert 0.99 <= certified(slower) <= 1
    ratios = slower.step_sizes / CHAIN.step_sizes
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    assert ratios[0] < 1
    assert (slower.excess_temperatures == 0).all()


def test_calibrate_step_size_leaves_less_to_each_of_several_chains():
    one, two = (
        calibrate_step_size(several, epsilon=1.0, delta=1e-5).step_sizes[0]
        for several in (CHAIN, dataclasses.replace(CHAIN, num_chains=2))
    )
    assert two < 0.7 * one


def test_calibrate_step_size_lies_between_the_published_bounds():
    sampling, half = PoissonSampling(50_000, 0.02), PUBLISHED_TEMPERATURE
    chain = SGLD(
        sampling,
        l2_clip=4.0,
        step_size=0.1,
        num_steps=10_000,
        adjacency="add_remove",
        temperature=half,
    )
    ours = calibrate_step_size(chain, epsilon=0.1, delta=1e-5).step_size
    assert ours == pytest.approx(3.2e-4, rel=0.05)
    assert 9.2e-8 < ours < 0.106  # tests/experiments/test_published_langevin.py


@pytest.mark.parametrize("keep_steps", [True, False])
def test_hybrid_spends_half_on_each_part(keep_steps):
    start = OnePosteriorSample(9.0, low=-3.0, high=0.0, adjacency="add_remove")
    both = hybrid(start, CHAIN, epsilon=2.0, delta=1e-5, keep_steps=keep_steps)
    assert isinstance(both, Composition)
    assert both.mechanisms[0].epsilon == 1.0
    assert 0.99 <= certified(both.mechanisms[1]) <= 1
    assert 1 < certified(both) <= 2
    assert (both.mechanisms[1].min_noise_multiplier > 0) == keep_steps
