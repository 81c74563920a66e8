"""The Gaussian mechanism's analytic calibration, against mpmath, at every epsilon."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import sensitivity
from dpjax.accounting import calibrate
from dpjax.mechanisms import Gaussian
from dpjax.sensitivity import Sensitivity

MANY = 100_000
ADJACENCIES = ("add_remove", "replace_one")


def exact_delta(mu, epsilon):
    """Balle and Wang 2018, Theorem 8, in sixty digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        one, other = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return mpmath.ncdf(one) - mpmath.exp(epsilon) * mpmath.ncdf(other)


def stated(adjacency="add_remove", value=2.0):
    return Sensitivity(value, "l2", adjacency)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0])
def test_delta_against_high_precision(mu, epsilon):
    exact = float(exact_delta(mu, epsilon))
    assert Gaussian(stated(), 2.0 / mu).delta(epsilon) == pytest.approx(exact, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_from_epsilon_spends_delta(epsilon, delta):
    used = Gaussian.from_epsilon(stated(), epsilon=epsilon, delta=delta)
    spent = float(exact_delta(2.0 / used.scale, epsilon))
    assert spent == pytest.approx(delta, rel=1e-8)
    assert used.delta(epsilon) <= delta * (1 + 1e-14)
    # power: a thousandth less noise is too little
    assert float(exact_delta(2.0 / (0.999 * used.scale), epsilon)) > delta * (1 + 1e-4)


def test_power_classical_calibration():
    classical = 2.0 * np.sqrt(2 * np.log(1.25 / 1e-5)) / 20.0
    assert Gaussian(stated(), classical).delta(20.0) > 1e-3
    assert Gaussian.from_epsilon(stated(), epsilon=20.0, delta=1e-5).scale > classical


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_certificate_of_gaussian(adjacency, epsilon):
    used = Gaussian.from_epsilon(stated(adjacency), epsilon=epsilon, delta=1e-6)
    certificate = used.certificate(1e-6)
    assert certificate.guarantee.adjacency == adjacency
    assert epsilon * (1 - 1e-8) <= certificate.epsilon <= epsilon
    assert certificate.epsilon_lower <= epsilon


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_calibrate_agrees_with_from_epsilon(adjacency):
    exact = Gaussian.from_epsilon(stated(adjacency), epsilon=1.5, delta=1e-5)
    found = calibrate(Gaussian(stated(adjacency), 1.0), epsilon=1.5, delta=1e-5)
    assert 0.999_999 * exact.scale <= found.scale <= 1.01 * exact.scale


@pytest.mark.slow
def test_release_symmetric_attacked_delta():
    """Rows of norm 1: x along one axis is replaced by z along another; moved by sqrt 2."""
    used = Gaussian(sensitivity.of_second_moment(1.0, num_features=2, adjacency="replace_one"), 1.0)
    with_x, with_z = jnp.diag(jnp.array([1.0, 0.0])), jnp.diag(jnp.array([0.0, 1.0]))
    draw = jax.jit(jax.vmap(used.release_symmetric, in_axes=(0, None)))
    keys = jax.random.split(jax.random.key(9), 2 * MANY)
    ones, others = np.asarray(draw(keys[:MANY], with_x)), np.asarray(draw(keys[MANY:], with_z))
    # At epsilon zero delta is the largest difference of an outcome's probabilities.
    found = np.mean(ones[:, 0, 0] > ones[:, 1, 1]) - np.mean(others[:, 0, 0] > others[:, 1, 1])
    surely = found - 6 * np.sqrt(0.5 / MANY)  # six standard errors at least
    assert surely <= used.delta(0.0) < found + 6 * np.sqrt(0.5 / MANY)
    # power: what is claimed for an added row is beaten by a replaced one
    added = sensitivity.of_second_moment(1.0, num_features=2, adjacency="add_remove")
    assert surely > Gaussian(added, 1.0).delta(0.0)
