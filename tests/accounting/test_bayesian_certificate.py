"""The certificate of a Bayesian account: two epsilons, a curve, and words."""

import dataclasses
import json
import math

import numpy as np
import pytest

import dpjax
from dpjax.accounting import bayesian
from dpjax.accounting.certificate_text import upward


@pytest.fixture(scope="module")
def account():
    sampling = dpjax.PoissonSampling(10_000, 0.02)
    mechanism = dpjax.SubsampledGaussian(sampling, 1.0, 1.0, 100, "add_remove", "one person")
    norms = np.random.default_rng(0).uniform(0, 0.5, (60, 200))
    return bayesian.update(bayesian.init(mechanism), norms)


@pytest.fixture(scope="module")
def certificate(account):
    return bayesian.certificate(account, delta=1e-5)


def test_both_epsilons_are_of_the_steps_that_ran(account, certificate):
    ran = account.mechanism.prefix(60).certificate(1e-5)
    assert certificate.epsilon.differential == ran.epsilon
    assert certificate.differential.num_releases == 60
    assert certificate.num_planned == 100


def test_the_bayesian_one_is_read_at_a_delta_that_leaves_the_share(account, certificate):
    # Markov: E_x[delta(x)] <= 1e-10, so at most 1e-5 of the records have a delta(x) above 1e-5.
    assert certificate.share == 0.99999
    expected = bayesian.epsilon(account, 1e-10, definition="weak").bayesian
    assert certificate.epsilon.bayesian == pytest.approx(expected, rel=1e-6)


def test_percentiles_grow_with_the_share_and_end_in_infinity(account):
    readings = bayesian.percentiles(account, 1e-5, (0.0, 0.9, 0.99999, 1 - 1e-10))
    epsilons = [epsilon for _, epsilon in readings]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == bayesian.epsilon(account, 1e-5, definition="weak").bayesian
    assert epsilons[-1] == math.inf  # a Bayesian delta of 1e-15 is below the estimators' failure


def test_markovs_reading_holds_on_a_population_that_is_known():
    """The share of records whose own delta exceeds the certificate's is at most what is said."""
    sampling = dpjax.PoissonSampling(10_000, 0.05)
    mechanism = dpjax.SubsampledGaussian(sampling, 2.0, 1.0, 30, "add_remove")
    norms = np.random.default_rng(1).exponential(0.35, 20_000)
    account = bayesian.init(mechanism, failure_probability=1e-9)
    account = bayesian.update(account, np.tile(norms, (30, 1)))
    own, delta = dataclasses.replace(mechanism, l2_clip=1.0), 1e-3
    for share, epsilon in bayesian.percentiles(account, delta, (0.0, 0.9, 0.99)):
        # Bisection for the norm from which on a record's own delta at this epsilon exceeds 1e-3.
        low, high = 0.0, 2.0
        for _ in range(7):
            middle = (low + high) / 2
            event = own.scale_noise(2.0 / middle).event
            curve = dpjax.accounting.tradeoff_curve(event, adjacency="add_remove")
            low, high = (low, middle) if curve.delta(epsilon) > delta else (middle, high)
        assert np.mean(norms >= low) <= 1 - share


def test_attack_bounds_are_of_both(certificate):
    for value, bound in zip(certificate.epsilon, certificate.attack, strict=True):
        assert bound == pytest.approx((math.exp(value) + 1e-5) / (1 + math.exp(value)))
    assert bayesian.attack_success(math.inf) == 1


def test_no_text_gives_the_bayesian_epsilon_alone(certificate):
    bayesian_value, differential = map(upward, certificate.epsilon)
    for text in (str(certificate), certificate.paragraph(), certificate._repr_html_()):
        assert bayesian_value in text
        assert differential in text
        assert "outlier" in text
        assert "private records" in text
        assert "drawn like the data" in text
    assert "not differential privacy" in certificate.paragraph()


def test_assumptions_name_the_estimator(account, certificate):
    assert "Theorem 4" in certificate.assumptions["estimator"]
    free = bayesian.init(account.mechanism, estimator="empirical_bernstein")
    free = bayesian.update(free, np.zeros((1, 50)))
    assert "whatever" in bayesian.certificate(free, 1e-5).assumptions["estimator"]


def test_it_is_json_ready(certificate):
    content = json.loads(json.dumps(certificate.to_dict()))
    assert content["epsilon"]["bayesian"] < content["epsilon"]["differential"]
    assert content["differential"]["adjacency"] == "add_remove"


def test_the_picture_shows_both(certificate):
    (axes,) = certificate.plot().axes
    labels = {line.get_label() for line in axes.get_lines()}
    assert labels == {"Bayesian, for records like the data", "differential, for all"}


def test_a_bayesian_epsilon_that_adds_nothing_is_called_so(account, certificate):
    at_bound = bayesian.update(bayesian.init(account.mechanism), np.full((100, 50), 1.0))
    useless = bayesian.certificate(at_bound, 1e-5)
    assert useless.epsilon.bayesian > useless.epsilon.differential
    assert "adds nothing" in str(useless)
    assert "adds nothing" in useless.paragraph()
    assert "less than the differential one, by" in str(certificate)


def test_an_infinite_differential_epsilon_is_said():
    released = bayesian.UnclippedGaussian(dpjax.PoissonSampling(1_000, 0.01), 2.0, 10)
    account = bayesian.update(bayesian.init(released), np.full((10, 100), 0.5))
    text = str(bayesian.certificate(account, 1e-5))
    assert "epsilon inf for every record" in text
    assert "none: one record can move a sum by any amount" in text


def test_a_share_beyond_the_estimators_is_refused(account):
    with pytest.raises(ValueError, match="delta must be so large"):
        bayesian.certificate(account, 1e-5, share=1 - 1e-12)
    with pytest.raises(ValueError, match="share must be in"):
        bayesian.certificate(account, 1e-5, share=1.0)
