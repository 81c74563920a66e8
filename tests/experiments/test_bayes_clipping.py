"""The effect of smaller bounds: bias on one side, noise on the other."""

import dataclasses

import numpy as np
import pytest

from experiments.bayes import clipping
from experiments.lib.registry import experiment_of


@pytest.fixture(scope="module")
def records(run_rows):
    experiment = dataclasses.replace(experiment_of(clipping), data=lambda: "simulated")
    return run_rows(experiment, "simulated, B_x")


def test_run_row_has_bias_below_and_noise_above_the_best_bound(records):
    series = records["simulated, B_x"].series
    noisy, clipped = np.array(series["noisy"]), np.array(series["clipped"])
    best = int(noisy.argmin())
    assert 0 < best < len(noisy) - 1
    # Left of the best the error is that of clipping, right of it that of the noise.
    assert clipped[0] > 2 * series["not private"]
    assert noisy[0] == pytest.approx(clipped[0], rel=0.1)
    assert noisy[-1] > 1.1 * clipped[-1]


def test_run_row_has_the_best_bound_and_the_epsilon_spent(records):
    for record in records.values():
        assert record.certified["ε"] == pytest.approx(1.0, rel=1e-3)
        assert record.measured["MAE, best"] == min(record.series["noisy"])
        assert record.measured["MAE, best"] < record.measured["MAE, largest bound"]
        assert record.measured["MAE, best"] > record.measured["MAE, not private"]


def test_scale_bounds_changes_the_named_bounds():
    records = clipping.simulate(50, 4, seed=0)
    for which, expected in (("B_x", (1.0, 1.0)), ("B_y", (2.0, 0.5)), ("both", (1.0, 0.5))):
        bounds = clipping.scale_bounds(records, which, 0.5).bounds
        assert (bounds.x_norm_bound, bounds.y_bound) == expected


def test_simulate_has_targets_of_which_half_is_noise():
    records = clipping.simulate(50_000, 4, seed=0)
    x, y = np.asarray(records.x, float), np.asarray(records.y, float)
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert y.var() == pytest.approx(1.0, abs=0.03)
    assert residuals.var() == pytest.approx(0.5, abs=0.02)
