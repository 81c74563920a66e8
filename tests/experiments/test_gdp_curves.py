"""The curves of Bu et al. (2020): printed figures, true bounds, and pictures of every row."""

import numpy as np
import pytest

import dpjax
from dpjax.accounting import profile_bounds, tradeoff
from experiments.gdp import curves

# The others are like these, and take a second each.
RUN_HERE = ("1", "2", "6")


@pytest.fixture(scope="module")
def records(run_rows):
    return run_rows(curves, *RUN_HERE, "A.1")


@pytest.mark.parametrize("name", RUN_HERE)
def test_run_row_has_the_printed_central_limit(records, name):
    record = records[name]
    for column in ("CLT μ", "CLT ε"):
        assert round(record.measured[column], 2) == record.source[column]
    assert record.measured["MA ε"] == pytest.approx(record.source["MA ε"], rel=0.01)


def test_run_row_2_has_the_printed_sums_of_errors(records):
    measured, certified = records["2"].measured, records["2"].certified
    printed = records["2"].source["errors, CLT %"]
    assert round(curves.min_error_sum(tradeoff.Gaussian(0.57)), 1) == printed
    assert round(measured["errors, CLT %"], 1) == 77.4
    assert round(measured["errors, MA pair %"], 1) == records["2"].source["errors, MA pair %"]
    assert round(measured["errors, MA envelope %"], 1) == 36.9
    assert 77.5 < certified["errors, lower %"] < certified["errors, upper %"] < 77.7


@pytest.mark.parametrize("name", RUN_HERE)
def test_run_row_bounds_hold_the_certified_epsilon_and_not_the_moments_accountant(records, name):
    certified, measured = records[name].certified, records[name].measured
    mechanism = curves.mnist.published_mechanisms()[int(name) - 1]
    epsilon = mechanism.certificate(1e-5).epsilon
    assert 0.998 * epsilon < certified["ε, lower"] < certified["ε"] < 1.002 * epsilon
    assert measured["errors, MA pair %"] <= measured["errors, MA envelope %"]
    assert measured["errors, MA envelope %"] < certified["errors, lower %"]
    for part in ("deltas", "detected"):
        series = {key: np.array(value) for key, value in records[name].series[part].items()}
        assert np.all(series["upper"] <= series["lower"] + 1e-12)
        assert np.all(series["lower"] <= series["MA"] + 1e-9)


def test_tradeoff_bounds_hold_a_known_curve_and_no_other():
    # Whole batches: four Gaussian releases of noise 2 are exactly 1-GDP.
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(10, 1.0),
        l2_clip=1.0,
        noise_multiplier=2.0,
        num_steps=4,
        adjacency="add_remove",
    )
    bounds = curves.tradeoff_bounds(mechanism, largest_epsilon=12.0)
    levels = np.linspace(0.001, 0.999, 200)

    def hold(mu):
        values = tradeoff.Gaussian(mu)(levels)
        return np.all((bounds.lower(levels) <= values) & (values <= bounds.upper(levels)))

    assert hold(1.0)
    assert not hold(0.98)
    assert not hold(1.02)


def test_run_row_of_one_epoch_is_near_the_central_limit(records):
    settings, certified = records["A.1"].settings, records["A.1"].certified
    assert 0.0089 < certified["sup |f − G|, lower"] < certified["sup |f − G|"] < 0.0091
    assert curves.clt_curve(**settings).mu == pytest.approx(records["2"].measured["CLT μ"])


def test_one_epoch_agrees_with_an_independent_composition(records):
    settings = records["A.1"].settings
    sampling = dpjax.PoissonSampling(10**9, settings["sampling_rate"])
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=settings["noise_multiplier"],
        num_steps=settings["num_steps"],
        adjacency="add_remove",
    )
    epsilons = np.array([-1.0, -0.3, 0.0, 0.3, 1.0, 2.0])
    bounds = curves.one_epoch(**settings)
    guarantees, limits = bounds.lower.delta(epsilons), bounds.upper.delta(epsilons)

    def agree(direction):
        other = profile_bounds(
            mechanism.event, epsilons, adjacency="add_remove", direction=direction
        )
        return np.all((other.lower <= guarantees) & (limits <= other.upper))

    # The curve's delta is that of the output with the record over the one without.
    assert agree("remove")
    assert not agree("add")
