"""The published Wishart noise breaks its promise, by an attack that ours withstands."""

import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpjax.bayes.regression import RegressionBounds, WishartNoise
from experiments.published.regression import (
    excludes_record,
    nonprivate_wishart_noise,
    wishart_noise,
)

FALSE_ALARM = 1e-6
NUM_DRAWS = 30_000
EPSILON = 1.0


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


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [1, 4])
def test_excludes_record_breaks_the_published_noise(dimension):
    row = tuple(np.full(dimension, dimension**-0.5))
    draw = functools.partial(
        nonprivate_wishart_noise, num_features=dimension, x_norm_bound=1.0, epsilon=EPSILON
    )
    hits, alarms = rates(draw, row)
    assert alarms == 0
    assert beats((hits, alarms), EPSILON)
    assert beats((hits, alarms), 5 * EPSILON)
    # delta is 1 - e^(-epsilon / 3) in every dimension
    share = -math.expm1(-EPSILON / 3)
    assert stats.binomtest(hits, NUM_DRAWS, share).pvalue > FALSE_ALARM
    assert stats.binomtest(hits, NUM_DRAWS, share / 1.1).pvalue < FALSE_ALARM
    assert beats((hits, alarms), EPSILON, delta=0.9 * share)
    assert not beats((hits, alarms), EPSILON, delta=share)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 4])
def test_excludes_record_does_not_beat_wishart_noise(dimension):
    bounds = RegressionBounds(x_norm_bound=math.sqrt(0.5), y_bound=math.sqrt(0.5))
    used = WishartNoise.from_epsilon(
        bounds, epsilon=EPSILON, delta=1e-4, adjacency="add_remove", num_features=dimension - 1
    )

    def draw(key):
        return wishart_noise(key, dimension, used.degrees_of_freedom, used.scale)

    row = tuple(np.full(dimension, dimension**-0.5))
    assert not beats(rates(draw, row), EPSILON, 1e-4)


@pytest.mark.parametrize(
    ("num_features", "options", "message"),
    [
        (0, {}, "num_features must be a whole number >= 1"),
        (2, {"x_norm_bound": -1.0}, "x_norm_bound must be a finite number > 0"),
        (2, {"epsilon": 0.0}, "epsilon must be a finite number > 0"),
    ],
)
def test_nonprivate_wishart_noise_refuses(num_features, options, message):
    with pytest.raises(ValueError, match=message):
        nonprivate_wishart_noise(
            jax.random.key(0), num_features, **{"x_norm_bound": 1.0, "epsilon": 1.0, **options}
        )
