import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import (
    MNIST_RATE,
    MNIST_ROWS,
    fixed_size,
    gaussian,
    laplace,
    mnist_steps,
    poisson,
)

from dpjax.accounting import UnsupportedEventError, gdp

mpmath.mp.dps = 60


def _exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    above = mpmath.ncdf(-epsilon / mu + mu / 2)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize(("noise", "epochs", "mu", "epsilon", "_moments", "_tight"), MNIST_ROWS)
def test_epsilon_of_published_mnist_figures(noise, epochs, mu, epsilon, _moments, _tight):
    limit = gdp.poisson_clt_mu(noise, MNIST_RATE, mnist_steps(epochs))
    assert round(limit, 2) == mu
    assert round(gdp.epsilon(limit, 1e-5), 2) == epsilon


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "mu", "epsilon"),
    [
        (0.56, 512 / 25_000, 439, 1e-5, 2.07, 10.43),  # IMDb
        (0.60, 1 / 80, 1_600, 1e-6, 1.94, 10.61),  # MovieLens
    ],
)
def test_epsilon_of_other_published_figures(noise, rate, steps, delta, mu, epsilon):
    limit = gdp.poisson_clt_mu(noise, rate, steps)
    assert round(limit, 2) == mu
    assert round(gdp.epsilon(limit, delta), 2) == epsilon


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.0, 40.0])
@pytest.mark.parametrize("deviations", [0.0, 0.3, 2.0, 8.0, 30.0])
def test_delta_against_high_precision(mu, deviations):
    epsilon = mu * mu / 2 + deviations * mu
    exact = _exact_delta(mu, epsilon)
    assert gdp.delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("mu", [1e-3, 0.5, 5.0, 60.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5, 0.2])
def test_epsilon_against_high_precision(mu, delta):
    value = gdp.epsilon(mu, delta)
    if value == 0:
        assert delta >= _exact_delta(mu, 0)
    else:
        assert float(_exact_delta(mu, value) / mpmath.mpf(delta)) == pytest.approx(1, rel=1e-9)


def test_delta_and_epsilon_at_ends_of_the_range():
    assert gdp.epsilon(0.0, 1e-5) == 0
    assert gdp.epsilon(math.inf, 1e-5) == math.inf
    assert gdp.epsilon(1.0, gdp.delta(1.0, 0.0)) == 0
    assert gdp.epsilon(1.0, 0.9 * gdp.delta(1.0, 0.0)) > 0
    assert gdp.delta(0.0, 0.0) == 0
    assert gdp.delta(math.inf, 3.0) == 1
    assert gdp.delta(1.0, 1e6) == 0
    assert gdp.poisson_clt_mu(0.0, 0.1, 5) == gdp.poisson_clt_mu(0.01, 0.1, 5) == math.inf


def test_functions_broadcast():
    noise = np.array([0.6, 1.3])
    limits = gdp.poisson_clt_mu(noise, 0.01, np.array([[10], [20]]))
    assert limits.shape == (2, 2)
    assert limits[1, 0] == gdp.poisson_clt_mu(0.6, 0.01, 20)
    deltas = gdp.delta(1.0, np.linspace(0, 3, 7))
    assert deltas.dtype == np.float64
    assert np.all(np.diff(deltas) < 0)
    assert isinstance(gdp.delta(1.0, 1.0), float)
    epsilons = gdp.epsilon([[0.5], [1.0]], [1e-5, 1e-3, 0.4])
    assert epsilons[1].tolist() == [gdp.epsilon(1.0, delta) for delta in (1e-5, 1e-3, 0.4)]
    assert isinstance(epsilons[1, 0].item(), float)
    assert isinstance(gdp.poisson_clt_mu(1, 1, 1), float)


@pytest.mark.parametrize(("mu", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_functions_refuse(mu, delta):
    with pytest.raises(ValueError, match="must be"):
        gdp.epsilon(mu, delta)


def test_mu_of_event():
    assert gdp.mu_of_event(gaussian(2.0, 9), "add_remove") == pytest.approx(1.5)
    assert gdp.mu_of_event(gaussian(2.0, 9), "replace_one") == pytest.approx(3.0)
    sampled = gdp.mu_of_event(poisson(1.1, MNIST_RATE, 14_062), "add_remove")
    assert sampled == pytest.approx(gdp.poisson_clt_mu(1.1, MNIST_RATE, 14_062))
    both = dp_event.ComposedDpEvent([gaussian(2.0, 9), poisson(1.1, MNIST_RATE, 14_062)])
    assert gdp.mu_of_event(both, "add_remove") == pytest.approx(math.hypot(1.5, sampled))
    assert gdp.mu_of_event(dp_event.NonPrivateDpEvent(), "add_remove") == math.inf


def test_mu_of_event_of_fixed_size_samples():
    event = fixed_size(1.1, 256, 60_000, 14_062)
    assert round(gdp.mu_of_event(event, "replace_one"), 2) == 3.63


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (poisson(1.0, 0.1, 3), "replace_one"),
        (fixed_size(1.0, 10, 100, 3), "add_remove"),
        (laplace(1.0), "add_remove"),
    ],
)
def test_mu_of_event_refuses(event, adjacency):
    with pytest.raises(UnsupportedEventError, match="no central limit"):
        gdp.mu_of_event(event, adjacency)
