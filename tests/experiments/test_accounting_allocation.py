"""Monte Carlo of random allocation where it is a Gaussian mechanism, whose ε is exact."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

import dpjax.accounting
from experiments.accounting import allocation

DELTA = 1e-5


# Steps, participations, epochs; the number of Gaussian releases with the record.
@pytest.mark.parametrize(
    ("num_steps", "participations", "epochs", "releases"),
    [(1, 1, 1, 1), (2, 2, 1, 2), (1, 1, 4, 4)],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_every_step_is_a_gaussian_mechanism(num_steps, participations, epochs, releases, direction):
    """Off by five standard errors with probability below 1e-4 each, by Student's t of 15."""
    noise = 2.0
    settings = {
        "draws": 2**20, "num_steps": num_steps, "epochs": epochs, "seed": 0,
        "noise_multiplier": noise, "participations": participations,
    }  # fmt: skip
    event = GaussianDpEvent(noise / math.sqrt(releases))
    exact = dpjax.accounting.epsilon(event, DELTA, adjacency="zero_out")
    deltas, found = allocation.monte_carlo(settings, direction, exact, DELTA)
    assert abs(found.mean - exact) <= 5 * found.error
    assert found.error < 0.02 * exact
    assert abs(deltas(exact).mean - DELTA) <= 5 * deltas(exact).error
    # Power: not of ten per cent less noise.
    other = GaussianDpEvent(0.9 * noise / math.sqrt(releases))
    wrong = dpjax.accounting.epsilon(other, DELTA, adjacency="zero_out")
    assert abs(found.mean - wrong) > 5 * found.error


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("participations", [1, 3])
def test_weights_have_mean_one(direction, participations):
    """And those of the density without the record, e^-loss or e^loss."""
    losses, weights = allocation.sample_losses(
        np.random.default_rng(0), 100_000, num_steps=10, noise=1.0,
        participations=participations, direction=direction, near=1.0,
    )  # fmt: skip
    for values in (weights, weights * np.exp(-losses)):
        assert abs(values.mean() - 1) <= 6 * values.std() / math.sqrt(len(values))
    assert abs((weights * np.exp(-losses / 2)).mean() - 1) > 0.01
