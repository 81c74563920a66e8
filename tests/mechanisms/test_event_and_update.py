"""The real step is attacked, and never gives away more than its event's certificate says.

The strongest attack on one release: one record's gradient is a vector of norm ``l2_clip`` along one
coordinate, everyone else's is zero. Then the release is that coordinate's noisy sum, and the
likelihood ratio between any two of its distributions here is monotone in it: by Neyman and Pearson
the best attack at every level is a threshold. If the mechanism is (epsilon, delta)-private, no
threshold has ``TPR > exp(epsilon) * FPR + delta``, in either direction.
"""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism
from scipy import stats

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.training import private_step

FALSE_ALARM = 1e-6  # of one whole attack: all thresholds, directions and deltas together
NUM_RELEASES = 100_000
_THRESHOLDS = np.linspace(-3, 4, 15)


def releases(mechanism: SubsampledGaussian, in_clips: float, seed: int) -> np.ndarray:
    """Independent first releases, in clips, where record 0's gradient is ``in_clips`` bounds."""
    gradients = np.zeros((mechanism.sampling.num_examples, 1), np.float32)
    # Ten times what is allowed, so that clipping is part of what is attacked.
    gradients[0] = 10 * in_clips * mechanism.l2_clip
    keys = jax.random.split(jax.random.key(seed), NUM_RELEASES)
    params = np.asarray(_params_after_one_step(mechanism, keys, gradients))
    return -params * mechanism.sampling.expected_batch_size / mechanism.l2_clip


@partial(jax.jit, static_argnums=0)
def _params_after_one_step(mechanism: SubsampledGaussian, keys, gradients):
    def params(key):
        step = private_step(lambda w, x: w @ x, optax.sgd(1.0), mechanism=mechanism, key=key)
        return step.update(step.init(jnp.zeros(1)), gradients)[0].params[0]

    return jax.vmap(params)(keys)


def beats(ones: np.ndarray, others: np.ndarray, curve: list[tuple[float, float]]) -> bool:
    """Whether some threshold surely beats one of the certified (epsilon, delta)."""
    shares = [np.array([(side > t).mean() for t in _THRESHOLDS]) for side in (ones, others)]
    both_tails = [np.concatenate([share, 1 - share]) for share in shares]
    return any(
        (_lower(hits) > np.exp(epsilon) * _upper(false_alarms) + delta).any()
        for hits, false_alarms in (both_tails, both_tails[::-1])
        for epsilon, delta in curve
    )


def certified(mechanism: SubsampledGaussian, deltas: tuple[float, ...]) -> list:
    """The first step's certified epsilons at these deltas."""
    return [(mechanism.first_steps(1).certificate(delta).epsilon, delta) for delta in deltas]


# Clopper and Pearson's bounds; two shares for each threshold, tail and direction (the deltas share
# them), each bound wrong with an equal part of the false alarm.
_EACH = FALSE_ALARM / (4 * 2 * len(_THRESHOLDS))


def _lower(share: np.ndarray) -> np.ndarray:
    hits = np.round(share * NUM_RELEASES)
    return np.nan_to_num(stats.beta.ppf(_EACH, hits, NUM_RELEASES - hits + 1), nan=0.0)


def _upper(share: np.ndarray) -> np.ndarray:
    hits = np.round(share * NUM_RELEASES)
    return np.nan_to_num(stats.beta.isf(_EACH, hits + 1, NUM_RELEASES - hits), nan=1.0)


DELTAS = (0.1, 0.05, 0.02, 0.005)
# What record 0's gradient is, in clip bounds, in two neighbouring data sets.
NEIGHBOURS = {"add_remove": (1.0, 0.0), "replace_one": (1.0, -1.0)}

HONEST = [
    (PoissonSampling(6, 0.3, physical_batch_size=4), "add_remove"),
    (PoissonSampling(6, 0.3, physical_batch_size=4), "replace_one"),
    (TruncatedPoissonSampling(6, 0.5, truncated_batch_size=2), "add_remove"),
    (TruncatedPoissonSampling(6, 0.5, truncated_batch_size=2), "replace_one"),
    (FixedSizeSampling(6, 2), "replace_one"),
    (ShuffledEpochs(6, 2), "replace_one"),
]
HALF_THE_NOISE = {"noise_multiplier": 0.5}
TWICE_THE_RATE = {"sampling": PoissonSampling(6, 0.6, physical_batch_size=4)}


def mechanism(sampling, adjacency, noise_multiplier=1.0):
    return gaussian_mechanism(
        sampling, l2_clip=0.5, noise_multiplier=noise_multiplier, num_steps=3, adjacency=adjacency
    )


@cache
def neighbours(attacked: SubsampledGaussian):
    """Releases under two neighbouring data sets."""
    one, other = NEIGHBOURS[attacked.adjacency]
    return releases(attacked, one, seed=1), releases(attacked, other, seed=2)


@cache
def curve(described: SubsampledGaussian):
    return certified(described, DELTAS)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "adjacency"), HONEST)
def test_update_attacked_epsilon(sampling, adjacency):
    honest = mechanism(sampling, adjacency)
    assert not beats(*neighbours(honest), curve(honest))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "adjacency"),
    [
        (HALF_THE_NOISE, "add_remove"),
        (HALF_THE_NOISE, "replace_one"),
        (TWICE_THE_RATE, "add_remove"),
    ],
)
def test_power_step_that_differs_from_its_event(broken, adjacency):
    described = mechanism(PoissonSampling(6, 0.3, physical_batch_size=4), adjacency)
    run = dataclasses.replace(described, **broken)
    assert beats(*neighbours(run), curve(described))


@pytest.mark.slow
def test_power_one_clip_where_replacement_moves_two():
    run = mechanism(PoissonSampling(6, 0.3, physical_batch_size=4), "replace_one")
    claimed = dataclasses.replace(run, adjacency="add_remove")
    assert beats(*neighbours(run), curve(claimed))


def test_power_amplification_without_sampling():
    run = mechanism(ShuffledEpochs(6, 6), "replace_one")
    claimed = mechanism(PoissonSampling(6, 0.3, physical_batch_size=4), "replace_one")
    assert beats(*neighbours(run), curve(claimed))
