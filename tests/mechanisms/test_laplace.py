"""The Laplace mechanism's guarantee is its closed form, under both adjacencies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import attacked_epsilon, release

from dpjax import sensitivity
from dpjax.accounting import calibrate
from dpjax.mechanisms import Laplace
from dpjax.sensitivity import Sensitivity

ADJACENCIES = ("add_remove", "replace_one")


def mechanism(adjacency="add_remove", epsilon=0.8, value=30.0):
    return Laplace.from_epsilon(Sensitivity(value, "l1", adjacency), epsilon=epsilon)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.01, 0.8, 10.0])
def test_certificate_of_laplace(adjacency, epsilon):
    used = mechanism(adjacency, epsilon)
    assert used.pure_epsilon == pytest.approx(epsilon, rel=1e-15)
    for delta in (1e-9, epsilon / 100):
        # delta(e) = 1 - exp((e - epsilon) / 2) for e in [-epsilon, epsilon]
        exact = epsilon + 2 * math.log1p(-delta)
        certificate = used.certificate(delta)
        assert exact <= certificate.epsilon <= exact * (1 + 2e-3)
        assert certificate.epsilon_lower <= exact


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_certificate_applies_adjacency_once(adjacency):
    """A sum in [0, 30] has sensitivity 30 under both; bounds of (-30, 30) double it for one."""
    delta = 1e-9
    for bounds, times in (((0, 30), 1), ((-30, 30), 2 if adjacency == "replace_one" else 1)):
        stated = sensitivity.of_sum(bounds, norm="l1", adjacency=adjacency)
        certified = Laplace(stated, 60.0).certificate(delta).epsilon
        assert certified == pytest.approx(times * 0.5, rel=2e-3)


def test_from_epsilon_of_published_scales():
    """Weights in [30, 60] kg: the mean absolute error is the scale."""
    for epsilon, students, error in ((1, 25, 1.2), (10, 25, 0.12), (0.1, 25, 12), (1, 250, 0.12)):
        mean = sensitivity.of_mean((30, 60), students, norm="l1", adjacency="replace_one")
        assert Laplace.from_epsilon(mean, epsilon=epsilon).scale == pytest.approx(error)


def test_calibrate_laplace():
    found = calibrate(mechanism(epsilon=5.0), epsilon=0.5, delta=1e-6)
    assert found.sensitivity == mechanism().sensitivity
    # at most one per cent of epsilon is left unused, and delta gives back two deltas of epsilon
    assert 60.0 * (1 - 1e-5) <= found.scale <= 60.0 * 1.01


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_release_attacked_epsilon(adjacency):
    used = mechanism(adjacency, epsilon=1.0, value=3.0)
    keys = jax.random.split(jax.random.key(4))
    draw = jax.jit(lambda key: release(used, key, jnp.zeros(100_000)))
    ones, others = (np.asarray(draw(key)) for key in keys)
    outcomes = [lambda x, t=t: x > t for t in (0.0, 1.5, 3.0, 4.5)]
    assert 0.9 < attacked_epsilon(ones + 3.0, others, outcomes) <= 1.0
    assert attacked_epsilon(ones / 2 + 3.0, others / 2, outcomes) > 1.0
