"""The noise as random numbers: scale, shape and independence, with the power to see it broken.

Keys are fixed, so nothing here flickers. For a key drawn anew each assertion would fail with a
probability of at most FALSE_ALARM.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism
from scipy import stats

from dpjax import (
    PoissonSampling,
    add_gaussian_noise,
    differentially_private_aggregate,
    noisy_sgd,
)

pytestmark = pytest.mark.usefixtures("strict_numerics")

FALSE_ALARM = 1e-6
STEPS, COORDINATES, BATCH = 4, 20_000, 5
MULTIPLIER, L2_CLIP = 1.5, 0.4
PARAMS = {"a": jnp.zeros(COORDINATES), "b": jnp.zeros(COORDINATES)}


class Draws(NamedTuple):
    """What a transformation made of zeros, ``(steps, leaves, coordinates)``, and what it should."""

    values: np.ndarray
    deviation: float


def draw(transformation, updates=PARAMS, deviation=MULTIPLIER * L2_CLIP):
    def step(state, _):
        output, state = transformation.update(updates, state, PARAMS, mask=None)
        return state, jnp.stack([output["a"], output["b"]])

    _, values = jax.lax.scan(step, transformation.init(PARAMS), length=STEPS)
    return Draws(np.asarray(values, np.float64), deviation)


def assert_scale(draws):
    """Sample variance inside its chi-square interval, for each step and leaf."""
    count, tests = draws.values.shape[-1], draws.values[..., 0].size
    tail = FALSE_ALARM / tests / 2
    low, high = stats.chi2.ppf([tail, 1 - tail], count) / count
    ratios = np.mean(draws.values**2, axis=-1) / draws.deviation**2
    assert np.all((low < ratios) & (ratios < high)), ratios


def assert_normal(draws):
    """Kolmogorov-Smirnov against the normal law of the stated deviation."""
    p = stats.kstest(draws.values.ravel(), stats.norm(scale=draws.deviation).cdf).pvalue
    assert p > FALSE_ALARM


def assert_independent(draws):
    """No correlation between any two of all (step, leaf) rows, nor of neighbouring coordinates."""
    rows = draws.values.reshape(-1, draws.values.shape[-1])
    pairs = np.triu_indices(len(rows), 1)
    between = np.corrcoef(rows)[pairs]
    within = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in rows]
    correlations = np.array([*between, *within])
    limit = stats.norm.ppf(1 - FALSE_ALARM / len(correlations) / 2) / np.sqrt(rows.shape[-1] - 1)
    assert np.all(np.abs(correlations) < limit), correlations


ASSERTIONS = [assert_scale, assert_normal, assert_independent]


def key(seed=0):
    return jax.random.key(seed)


def mechanism():
    changes = {"l2_clip": L2_CLIP, "noise_multiplier": MULTIPLIER, "num_steps": STEPS}
    return gaussian_mechanism(PoissonSampling(50, 0.1), **changes)


EXAMPLES = jax.tree.map(lambda leaf: jnp.zeros((BATCH, *leaf.shape)), PARAMS)
DRAWS: dict[str, Callable[[], Draws]] = {
    "add_gaussian_noise": lambda: draw(
        add_gaussian_noise(noise_multiplier=MULTIPLIER, l2_clip=L2_CLIP, key=key())
    ),
    "add_gaussian_noise by layer": lambda: draw(
        add_gaussian_noise(noise_multiplier=MULTIPLIER, l2_clip={"a": 3.0, "b": 4.0}, key=key()),
        deviation=5 * MULTIPLIER,
    ),
    "SubsampledGaussian.noise": lambda: draw(mechanism().noise(key())),
    "SubsampledGaussian.private_optimizer": lambda: draw(
        mechanism().private_optimizer(optax.sgd(2.0), key=key()),
        deviation=2.0 * MULTIPLIER * L2_CLIP / 5,
    ),
    "noisy_sgd": lambda: draw(
        noisy_sgd(
            0.5, l2_clip=L2_CLIP, noise_multiplier=MULTIPLIER, expected_batch_size=8, key=key()
        ),
        EXAMPLES,
        0.5 * MULTIPLIER * L2_CLIP / 8,
    ),
    "differentially_private_aggregate": lambda: draw(
        differentially_private_aggregate(L2_CLIP, MULTIPLIER, key()),
        EXAMPLES,
        MULTIPLIER * L2_CLIP / BATCH,
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_noise_distribution(name):
    draws = DRAWS[name]()
    for assertion in ASSERTIONS:
        assertion(draws)


def normal(seed, *shape):
    return MULTIPLIER * L2_CLIP * np.asarray(jax.random.normal(key(seed), shape), np.float64)


def forgets_the_clip():
    return normal(0, STEPS, 2, COORDINATES) / L2_CLIP


def divides_by_the_batch():
    return normal(0, STEPS, 2, COORDINATES) / BATCH


def is_two_percent_too_small():
    return 0.98 * normal(0, STEPS, 2, COORDINATES)


def one_step_is_noiseless():
    return normal(0, STEPS, 2, COORDINATES) * np.array([1, 1, 0, 1])[:, None, None]


def one_key_for_both_leaves():
    return np.stack([normal(step, COORDINATES)[None].repeat(2, 0) for step in range(STEPS)])


def one_key_for_all_steps():
    return normal(0, 2, COORDINATES)[None].repeat(STEPS, 0)


def one_key_for_the_next_leaf_and_step():
    rows = [normal(seed, COORDINATES) for seed in range(STEPS + 1)]
    return np.stack([rows[:-1], rows[1:]], axis=1)


def one_draw_for_two_coordinates():
    return normal(0, STEPS, 2, COORDINATES // 2).repeat(2, axis=-1)


def is_laplace():
    rng = np.random.default_rng(0)
    return rng.laplace(0, MULTIPLIER * L2_CLIP / np.sqrt(2), (STEPS, 2, COORDINATES))


@pytest.mark.parametrize(
    ("twin", "assertion"),
    [
        (forgets_the_clip, assert_scale),
        (forgets_the_clip, assert_normal),
        (divides_by_the_batch, assert_scale),
        (divides_by_the_batch, assert_normal),
        (is_two_percent_too_small, assert_scale),
        (one_step_is_noiseless, assert_scale),
        (one_key_for_both_leaves, assert_independent),
        (one_key_for_all_steps, assert_independent),
        (one_key_for_the_next_leaf_and_step, assert_independent),
        (one_draw_for_two_coordinates, assert_independent),
        (is_laplace, assert_normal),
    ],
)
def test_power_broken_noise(twin, assertion):
    with pytest.raises(AssertionError), np.errstate(invalid="ignore"):
        assertion(Draws(twin(), MULTIPLIER * L2_CLIP))


def test_assertions_pass_gaussian_noise():
    for assertion in ASSERTIONS:
        assertion(Draws(normal(1, STEPS, 2, COORDINATES), MULTIPLIER * L2_CLIP))
