"""BDP certificates: both epsilons, shares of the population, text, JSON and figure."""

import dataclasses
import json
import math

import numpy as np
import pytest
from helpers.inputs import gaussian_mechanism

import dpjax
from dpjax import bdp
from dpjax.bdp.conversion import population_epsilons
from dpjax.certificates.render import round_up


@pytest.fixture(scope="module")
def account():
    mechanism = gaussian_mechanism(dpjax.PoissonSampling(10_000, 0.02), num_steps=100)
    norms = np.random.default_rng(0).uniform(0, 0.5, (60, 200))
    return bdp.update(bdp.init(mechanism), norms)


@pytest.fixture(scope="module")
def certificate(account):
    return bdp.certificate(account, delta=1e-5)


def test_certificate_is_of_the_steps_that_ran(account, certificate):
    ran = account.mechanism.first_steps(60).certificate(1e-5)
    assert certificate.epsilon.dp == ran.epsilon
    assert certificate.dp_certificate.guarantee.num_releases == 60
    assert certificate.num_planned == 100


def test_certificate_has_epsilon_at_the_delta_of_the_share(account, certificate):
    # Markov: E_x[delta(x)] <= 1e-10, so at most 1e-5 of the records have a delta(x) above 1e-5.
    assert certificate.share == 0.99999
    expected = bdp.epsilon(account, 1e-10, definition="weak").bdp
    assert certificate.epsilon.bdp == pytest.approx(expected, rel=1e-6)


def test_population_epsilons_increase_with_the_share_to_infinity(account):
    found = population_epsilons(account, 1e-5, (0.0, 0.9, 0.99999, 1 - 1e-10))
    epsilons = [epsilon for _, epsilon in found]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == bdp.epsilon(account, 1e-5, definition="weak").bdp
    assert epsilons[-1] == math.inf  # a Bayesian delta of 1e-15 is below the estimators' failure


@pytest.mark.slow
def test_population_epsilons_hold_for_their_share_of_a_known_population():
    """The share of records whose own delta exceeds the certificate's is at most what is said."""
    sampling = dpjax.PoissonSampling(10_000, 0.05)
    mechanism = gaussian_mechanism(sampling, l2_clip=2.0, num_steps=30)
    norms = np.random.default_rng(1).exponential(0.35, 20_000)
    account = bdp.init(mechanism, failure_probability=1e-9)
    account = bdp.update(account, np.tile(norms, (30, 1)))
    own, delta = dataclasses.replace(mechanism, l2_clip=1.0), 1e-3
    for share, epsilon in population_epsilons(account, delta, (0.0, 0.9, 0.99)):
        # Bisection for the norm from which on a record's own delta at this epsilon exceeds 1e-3.
        low, high = 0.0, 2.0
        for _ in range(7):
            middle = (low + high) / 2
            event = own.with_privacy_factor(2.0 / middle).event
            curve = dpjax.accounting.tradeoff_curve(event, adjacency="add_remove")
            low, high = (low, middle) if curve.delta(epsilon) > delta else (middle, high)
        assert np.mean(norms >= low) <= 1 - share


def test_attack_success_is_of_both(certificate):
    for value, bound in zip(certificate.epsilon, certificate.attack_success, strict=True):
        assert bound == pytest.approx((math.exp(value) + 1e-5) / (1 + math.exp(value)))
    assert bdp.attack_success(math.inf) == 1


def test_certificate_prints_both_epsilons_everywhere(certificate):
    bdp_value, dp_value = map(round_up, certificate.epsilon)
    for text in (str(certificate), certificate.paragraph(), certificate._repr_html_()):
        assert bdp_value in text
        assert dp_value in text
        assert "outlier" in text
        assert "private records" in " ".join(text.split())
        assert "BDP" in text
    assert "not a differential privacy guarantee" in certificate.paragraph()


def test_certificate_names_the_estimator(account, certificate):
    assert "Theorem 4" in certificate.assumptions["estimator"]
    free = bdp.init(account.mechanism, estimator="empirical_bernstein")
    free = bdp.update(free, np.zeros((1, 50)))
    assert "any distribution" in bdp.certificate(free, 1e-5).assumptions["estimator"]


def test_to_dict_is_json_ready(certificate):
    content = json.loads(json.dumps(certificate.to_dict()))
    assert content["epsilon"]["bdp"] < content["epsilon"]["dp"]
    assert content["dp_certificate"]["adjacency"] == "add_remove"


def test_plot_shows_both(certificate):
    (axes,) = certificate.plot().axes
    labels = {line.get_label() for line in axes.get_lines()}
    assert labels == {"BDP, for a share of the population", "DP, for every record"}


def test_certificate_states_where_bdp_adds_nothing(account, certificate):
    at_bound = bdp.update(bdp.init(account.mechanism), np.full((100, 50), 1.0))
    useless = bdp.certificate(at_bound, 1e-5)
    assert useless.epsilon.bdp > useless.epsilon.dp
    assert "adds nothing" in " ".join(str(useless).split())
    assert "adds nothing" in useless.paragraph()
    assert "below the DP epsilon by" in str(certificate)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1 - 1e-12}, "delta must be so large"),
        ({"share": 1.0}, "share must be in"),
        ({"shares": (0.9, 1.0)}, r"shares must be numbers in \[0, 1\)"),
    ],
)
def test_certificate_refuses(account, settings, message):
    with pytest.raises(ValueError, match=message):
        bdp.certificate(account, 1e-5, **settings)


def test_certificate_states_a_seeded_run(account, certificate):
    seeded = bdp.certificate(account, 1e-5, seeded=True)
    assert "protects nobody" in str(seeded)
    assert "protects nobody" not in str(certificate)
    assert seeded.dp_certificate.guarantee.num_steps_run == 60
