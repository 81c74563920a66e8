"""The published Wishart noise breaks its promise, by an attack that ours withstands."""

import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpjax.bayes.regression import RegressionBounds, WishartNoise
from dpjax.mechanisms.base import Mechanism
from experiments.published.regression import (
    excludes_record,
    nonprivate_wishart_noise,
    wishart_noise,
)

FALSE_ALARM = 1e-6
NUM_DRAWS = 30_000
EPSILON = 1.0


@functools.cache
def rates(draw, row):
    """How often the test says "not in the data" without the row and, wrongly, with it."""
    row = np.array(row)
    keys = jax.random.split(jax.random.key(1), 2 * NUM_DRAWS)
    noise = jax.jit(jax.vmap(draw))(keys)
    excludes = jax.vmap(excludes_record, (0, None))
    without, held = noise[:NUM_DRAWS], noise[NUM_DRAWS:] + np.outer(row, row)
    return int(excludes(without, row).sum()), int(excludes(held, row).sum())


def beats(rates, epsilon, delta=0.0):
    """Whether the test significantly beats (epsilon, delta), by Clopper and Pearson."""
    hits, alarms = rates
    lower = stats.beta.ppf(FALSE_ALARM / 2, hits, NUM_DRAWS - hits + 1) if hits else 0.0
    upper = stats.beta.isf(FALSE_ALARM / 2, alarms + 1, NUM_DRAWS - alarms)
    return bool(lower > math.exp(epsilon) * upper + delta)


def published(dimension):
    return functools.partial(
        nonprivate_wishart_noise, num_features=dimension, x_norm_bound=1.0, epsilon=EPSILON
    )


PUBLISHED = {1: published(1), 4: published(4)}


@pytest.mark.parametrize("dimension", [1, 4])
def test_the_published_noise_lets_a_row_out_for_sure(dimension):
    row = tuple(np.full(dimension, dimension**-0.5))
    hits, alarms = rates(PUBLISHED[dimension], row)
    assert alarms == 0
    assert beats((hits, alarms), EPSILON)
    assert beats((hits, alarms), 5 * EPSILON)
    # delta is 1 - e^(-epsilon / 3) in every dimension
    share = -math.expm1(-EPSILON / 3)
    assert stats.binomtest(hits, NUM_DRAWS, share).pvalue > FALSE_ALARM
    assert stats.binomtest(hits, NUM_DRAWS, share / 1.1).pvalue < FALSE_ALARM
    assert beats((hits, alarms), EPSILON, delta=0.9 * share)
    assert not beats((hits, alarms), EPSILON, delta=share)


@pytest.mark.parametrize("dimension", [2, 4])
def test_the_same_attack_does_not_beat_our_noise(dimension):
    bounds = RegressionBounds(x_norm_bound=math.sqrt(0.5), y_bound=math.sqrt(0.5))
    used = WishartNoise.from_epsilon(
        bounds, epsilon=EPSILON, delta=1e-4, adjacency="add_remove", num_features=dimension - 1
    )

    def draw(key):
        return wishart_noise(key, dimension, used.degrees_of_freedom, used.scale)

    row = tuple(np.full(dimension, dimension**-0.5))
    assert not beats(rates(draw, row), EPSILON, 1e-4)


def test_its_accuracy_is_no_evidence():
    """The best attack is right less often than a purely private mechanism would allow."""
    # The largest of any test: the rest of the loss is constant.
    advantage = -math.expm1(-EPSILON / 3)
    assert (1 + advantage) / 2 < 1 / (1 + math.exp(-EPSILON))


def test_it_is_no_mechanism():
    assert not isinstance(nonprivate_wishart_noise, type)
    assert "NOT" in nonprivate_wishart_noise.__doc__
    names = {kind.__name__ for kind in Mechanism.__subclasses__()}
    assert not any("not_private" in name.lower() for name in names)


def test_bad_input_is_refused():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="num_features must be a whole number >= 1"):
        nonprivate_wishart_noise(key, 0, x_norm_bound=1.0, epsilon=1.0)
    with pytest.raises(ValueError, match="x_norm_bound must be a finite number > 0"):
        nonprivate_wishart_noise(key, 2, x_norm_bound=-1.0, epsilon=1.0)
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        nonprivate_wishart_noise(key, 2, x_norm_bound=1.0, epsilon=0.0)
