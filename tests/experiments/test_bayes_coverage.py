"""The coverage experiment, on few and small data sets."""

import numpy as np
import pytest

from experiments.bayes import coverage

SMALL = {"num_data_sets": 60, "num_draws": 300, "num_warmup": 200}


def test_simulate_has_the_stated_moments():
    settings = coverage.Settings(500, **SMALL)
    data = coverage.simulate(settings)
    assert data.exact.xtx.shape == (60, 2, 2)
    assert (data.beta.shape, data.new_x.shape, data.new_y.shape) == ((60, 2), (60, 1, 2), (60, 1))
    # Each feature is uniform on an interval of length sqrt(2): its mean square is 1 / 6.
    mean_square = np.diagonal(data.exact.xtx, axis1=1, axis2=2).mean() / 500
    assert mean_square == pytest.approx(1 / 6, rel=0.02)
    # Of variances from IG(10, 2.25) the mean is 1 / 4; coefficients have as much.
    explained = np.einsum("ri,rij,rj->r", data.beta, data.exact.xtx, data.beta)
    assert np.mean(data.exact.yty - explained) / 500 == pytest.approx(0.25, abs=0.04)
    noise = np.asarray(data.released.xty - data.exact.xty)
    scale = settings.mechanism().noise_scales.xty
    assert noise.std() == pytest.approx(scale, rel=0.25)


@pytest.fixture(scope="module")
def records(run_rows):
    return list(run_rows(coverage, "n = 100", **SMALL).values())


def test_run_row_covers_by_noise_aware_intervals_only(records):
    for record in records:
        measured = record.measured
        # 120 intervals: a coverage of 90 % is measured below 75 % less than once in 10^3 times.
        assert measured["noise-aware, coefficients %"] > 75
        assert measured["naive, coefficients %"] < 60
        assert measured["exact, coefficients %"] > 75
        lengths = record.series["lengths"]
        assert lengths["noise-aware"] > lengths["exact"]
