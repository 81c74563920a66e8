import math

import pytest
from helpers.accounting_cases import (
    MNIST_RATE,
    fixed_size,
    gaussian,
    laplace,
    mnist_steps,
    poisson,
)

from dpjax.accounting import epsilon, gdp

DELTA = 1e-5


def test_first_row_by_both_conversions():
    event = poisson(1.3, MNIST_RATE, mnist_steps(15))
    assert round(epsilon(event, DELTA, adjacency="add_remove", method="moments"), 2) == 1.19
    assert round(epsilon(event, DELTA, adjacency="add_remove", method="rdp"), 2) == 0.95


@pytest.mark.parametrize(("adjacency", "clips"), [("add_remove", 1), ("replace_one", 2)])
def test_gaussian_is_between_its_curve_and_the_classical_conversion(adjacency, clips):
    noise, count = 10.0, 30
    mu = clips * math.sqrt(count) / noise
    classical = epsilon(gaussian(noise, count), DELTA, adjacency=adjacency, method="moments")
    improved = epsilon(gaussian(noise, count), DELTA, adjacency=adjacency, method="rdp")
    assert gdp.epsilon(mu, DELTA) < improved < classical


def test_sampling_half_without_replacement_helps_less_than_sampling_few():
    few, half, everything = (
        epsilon(fixed_size(4.0, size, 1_000, 10), DELTA, adjacency="replace_one", method="rdp")
        for size in (10, 500, 1_000)
    )
    whole = epsilon(gaussian(4.0, 10), DELTA, adjacency="replace_one", method="rdp")
    assert few < half < everything == pytest.approx(whole)


def test_little_laplace_noise_approaches_the_pure_bound():
    value = epsilon(laplace(0.001, 10), DELTA, adjacency="replace_one", method="rdp")
    assert value == pytest.approx(2 * 10 * 1_000, rel=1e-3)
