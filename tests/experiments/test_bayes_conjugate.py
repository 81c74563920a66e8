"""Conjugate posteriors: rates, coverage and the columns of the table."""

import numpy as np
import pytest

from experiments.bayes import conjugate
from experiments.bayes.conjugate import DELTA, make_release

# The others are like these.
RUN_HERE = (
    "consistency: normal, known variance",
    "coverage: normal, known variance, n = 100",
    "coverage: normal, known variance, n = 20,000",
)


@pytest.fixture(scope="module")
def records(run_rows):
    return run_rows(conjugate, *RUN_HERE)


def test_run_row_has_the_published_rates_of_convergence(records):
    measured = records[RUN_HERE[0]].measured
    assert measured["slope, private"] == pytest.approx(-1, abs=0.1)
    assert measured["slope, sampling"] == pytest.approx(-0.5, abs=0.1)
    series = records[RUN_HERE[0]].series
    ratios = np.array(series["private"]) / np.array(series["sampling"])
    assert np.all(np.diff(ratios) < 0)


def test_run_row_covers_by_noise_aware_intervals_only(records):
    for name in RUN_HERE[1:]:
        aware = records[name].measured["noise-aware coverage %"]
        naive = records[name].measured["naive coverage %"]
        assert all(87 <= share <= 93 for share in aware)
        if records[name].settings["noise matters"]:
            assert min(naive) < 80
        else:
            assert min(naive) > 85


def test_run_row_certifies_the_mechanism_that_ran(records):
    laplace, gaussian = records[RUN_HERE[0]], records[RUN_HERE[1]]
    assert laplace.certified["pure ε"] == pytest.approx(1.0)
    assert laplace.certified["ε at δ = 1e-6"] <= 1 + 1e-6
    assert "pure differential privacy" in laplace.certificate
    assert gaussian.certified["pure ε"] is None
    release = make_release("normal, known variance", "Gaussian", 1.0, "replace_one")
    certified = gaussian.certified["ε at δ = 1e-6"]
    assert certified == release.certificate(DELTA).epsilon == pytest.approx(1.0, rel=5e-3)
