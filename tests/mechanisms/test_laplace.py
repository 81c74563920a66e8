"""The Laplace mechanism's guarantee is its closed form, under both adjacencies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import attacked_epsilon, release

from dpjax import sensitivity
from dpjax.accounting import calibrate
from dpjax.mechanisms import Composition, DiscreteLaplace, Laplace
from dpjax.sensitivity import Sensitivity

ADJACENCIES = ("add_remove", "replace_one")


def mechanism(adjacency="add_remove", epsilon=0.8, value=30.0):
    return Laplace.from_epsilon(Sensitivity(value, "l1", adjacency), epsilon=epsilon)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.01, 0.8, 10.0])
def test_certificate_is_the_closed_form(adjacency, epsilon):
    used = mechanism(adjacency, epsilon)
    assert used.pure_epsilon == pytest.approx(epsilon, rel=1e-15)
    for delta in (1e-9, epsilon / 100):
        # delta(e) = 1 - exp((e - epsilon) / 2) for e in [-epsilon, epsilon]
        exact = epsilon + 2 * math.log1p(-delta)
        certificate = used.certificate(delta)
        assert exact <= certificate.epsilon <= exact * (1 + 2e-3)
        assert certificate.epsilon_lower <= exact


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_factor_of_two_is_lost_or_added(adjacency):
    """A sum in [0, 30] has sensitivity 30 under both; bounds of (-30, 30) double it for one."""
    delta = 1e-9
    for bounds, times in (((0, 30), 1), ((-30, 30), 2 if adjacency == "replace_one" else 1)):
        stated = sensitivity.of_sum(bounds, norm="l1", adjacency=adjacency)
        certified = Laplace(stated, 60.0).certificate(delta).epsilon
        assert certified == pytest.approx(times * 0.5, rel=2e-3)


def test_published_scales_of_the_mean_weight():
    """Weights in [30, 60] kg: the mean absolute error is the scale."""
    for epsilon, students, error in ((1, 25, 1.2), (10, 25, 0.12), (0.1, 25, 12), (1, 250, 0.12)):
        mean = sensitivity.of_mean((30, 60), students, norm="l1", adjacency="replace_one")
        assert Laplace.from_epsilon(mean, epsilon=epsilon).scale == pytest.approx(error)


@pytest.mark.parametrize("cls", [Laplace, DiscreteLaplace])
def test_no_scale_is_made_from_an_l2_sensitivity(cls):
    """A record that moves four entries by one has L2 sensitivity 2 and L1 sensitivity 4."""
    with pytest.raises(ValueError, match="sensitivity must be stated in norm 'l1'"):
        cls.from_epsilon(Sensitivity(2, "l2", "add_remove"), epsilon=1.0)


def test_calibration_agrees_with_the_closed_form():
    found = calibrate(mechanism(epsilon=5.0), epsilon=0.5, delta=1e-6)
    assert found.sensitivity == mechanism().sensitivity
    # at most one per cent of epsilon is left unused, and delta gives back two deltas of epsilon
    assert 60.0 * (1 - 1e-5) <= found.scale <= 60.0 * 1.01


def test_two_releases_cost_both():
    both = Composition((mechanism(epsilon=0.5), mechanism(epsilon=0.3)))
    assert both.num_releases == 2
    assert both.certificate(1e-9).epsilon == pytest.approx(0.8, rel=2e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_attack_beats_it_and_half_the_noise_is_beaten(adjacency):
    used = mechanism(adjacency, epsilon=1.0, value=3.0)
    keys = jax.random.split(jax.random.key(4))
    draw = jax.jit(lambda key: release(used, key, jnp.zeros(100_000)))
    ones, others = (np.asarray(draw(key)) for key in keys)
    outcomes = [lambda x, t=t: x > t for t in (0.0, 1.5, 3.0, 4.5)]
    assert 0.9 < attacked_epsilon(ones + 3.0, others, outcomes) <= 1.0
    assert attacked_epsilon(ones / 2 + 3.0, others / 2, outcomes) > 1.0


def test_description_has_every_number():
    words = mechanism(epsilon=1 / 3).guarantee.description
    assert "sensitivity 30 in L1" in words["statistic"]
    assert "scale 90" in words["noise"]
    assert "epsilon at most 0.3334 at any delta" in words["guarantee"]  # rounded up
    assert "pure differential privacy" in str(mechanism().certificate(1e-6))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_epsilons_that_mean_nothing_are_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        mechanism(epsilon=epsilon)
