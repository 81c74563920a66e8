import math

import numpy as np
import pytest
from accounting_cases import (
    MNIST_RATE,
    MNIST_ROWS,
    fixed_size,
    gaussian,
    laplace,
    mnist_steps,
    poisson,
)

from dpjax.accounting import epsilon, gdp
from dpjax.accounting.renyi import MOMENTS_ORDERS

DELTA = 1e-5


@pytest.mark.parametrize(("noise", "epochs", "_mu", "_clt", "moments", "_tight"), MNIST_ROWS)
def test_the_published_moments_figures(noise, epochs, _mu, _clt, moments, _tight):
    event = poisson(noise, MNIST_RATE, mnist_steps(epochs))
    value = epsilon(event, DELTA, adjacency="add_remove", method="moments")
    assert value == pytest.approx(moments, rel=0.025)


def test_the_first_row_by_both_conversions():
    event = poisson(1.3, MNIST_RATE, mnist_steps(15))
    assert round(epsilon(event, DELTA, adjacency="add_remove", method="moments"), 2) == 1.19
    assert round(epsilon(event, DELTA, adjacency="add_remove", method="rdp"), 2) == 0.95


def test_the_other_published_moments_figures():
    imdb = poisson(0.56, 512 / 25_000, 439)
    value = epsilon(imdb, DELTA, adjacency="add_remove", method="moments")
    assert value == pytest.approx(15.24, rel=0.025)
    movielens = poisson(0.6, 1 / 80, 1_600)
    value = epsilon(movielens, 1e-6, adjacency="add_remove", method="moments")
    assert value == pytest.approx(15.39, rel=0.025)


def test_the_orders_are_the_published_ones():
    assert len(MOMENTS_ORDERS) == 10 + 60 + 3
    assert MOMENTS_ORDERS[:5] == (1.25, 1.5, 1.75, 2, 2.25)
    assert MOMENTS_ORDERS[-4:] == (64, 128, 256, 512)
    assert list(MOMENTS_ORDERS) == sorted(set(MOMENTS_ORDERS))


@pytest.mark.parametrize(("adjacency", "clips"), [("add_remove", 1), ("replace_one", 2)])
def test_the_gaussian_against_closed_forms(adjacency, clips):
    noise, count = 10.0, 30
    mu = clips * math.sqrt(count) / noise
    orders = np.array(MOMENTS_ORDERS)
    classical = np.min(mu**2 * orders / 2 + math.log(1 / DELTA) / (orders - 1))
    value = epsilon(gaussian(noise, count), DELTA, adjacency=adjacency, method="moments")
    assert value == pytest.approx(classical)
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
