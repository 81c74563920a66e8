"""Readings of a curve, against closed forms and every test there is."""

import itertools
import math

import numpy as np
import pytest
from helpers.tradeoff_cases import curves, pairs
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import dpjax
from dpjax.accounting import gdp, risk
from dpjax.accounting.tradeoff import ApproximateDP, Gaussian, Identity, mixture

PRIORS = np.array([0.0, 1e-9, 0.01, 0.1, 0.5, 0.8, 1 - 1e-9, 1.0])
LEVELS = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 60)])


@pytest.mark.parametrize("mu", [1e-6, 0.5735, 1.0, 3.0])
def test_risks_of_gaussians(mu):
    curve = Gaussian(mu)
    total = 2 * norm.cdf(mu / 2) - 1
    assert risk.advantage(curve) == pytest.approx(total, rel=1e-9)
    assert risk.minimum_error_sum(curve) == pytest.approx(2 * norm.cdf(-mu / 2), rel=1e-9)
    assert risk.bayes_accuracy(curve, 0.5) == pytest.approx(norm.cdf(mu / 2))
    np.testing.assert_allclose(
        risk.true_positive_rate(curve, [0.01, 1e-5]), norm.sf(norm.isf([0.01, 1e-5]) - mu)
    )
    for prior in (0.1, 0.9):
        # The best threshold on N(0, 1) against N(mu, 1) is where the weighted densities meet.
        cut = mu / 2 + math.log((1 - prior) / prior) / mu
        best = prior * norm.sf(cut - mu) + (1 - prior) * norm.cdf(cut)
        assert risk.bayes_accuracy(curve, prior) == pytest.approx(best, rel=1e-12)
    assert risk.epsilon(curve, 1e-5) == pytest.approx(gdp.epsilon(mu, 1e-5), rel=1e-9, abs=1e-12)


def test_risks_of_published_row():
    assert 100 * risk.minimum_error_sum(Gaussian(0.57)) == pytest.approx(77.6, abs=0.05)
    assert 100 * risk.minimum_error_sum(ApproximateDP(3.01, slack=1e-5)) == pytest.approx(
        9.4, abs=0.05
    )


def test_risks_of_approximate_dp():
    budget, slack = 1.0, 0.01
    curve = ApproximateDP(budget, slack=slack)
    assert risk.advantage(curve) == pytest.approx(slack + (1 - slack) * math.tanh(budget / 2))
    assert risk.true_positive_rate(curve, 0.05) == pytest.approx(slack + math.e * 0.05)
    assert risk.epsilon(curve, slack) == pytest.approx(budget)
    # At a prior as strong as the budget only what is detected for sure helps.
    prior = 1 / (1 + math.exp(budget))
    assert risk.bayes_accuracy(curve, prior) == pytest.approx(1 - prior + prior * slack)


@given(pairs(), st.floats(0.0, 1.0))
def test_risks_of_discrete_pairs_against_every_test(curve, prior):
    events = np.array(list(itertools.product([0.0, 1.0], repeat=curve.p.size)))
    false, true = events @ curve.p, events @ curve.q
    assert risk.advantage(curve) == pytest.approx(np.max(true - false), abs=1e-12)
    assert risk.minimum_error_sum(curve) == pytest.approx(np.min(false + 1 - true), abs=1e-12)
    best = np.max(prior * true + (1 - prior) * (1 - false))
    assert risk.bayes_accuracy(curve, prior) == pytest.approx(best, abs=1e-12)
    found = risk.true_positive_rate(curve, np.minimum(false, 1.0))
    assert np.all(found >= true - 1e-9)


@given(curves())
def test_risks_are_bounded(curve):
    accuracy = risk.bayes_accuracy(curve, PRIORS)
    assert np.all(accuracy >= np.maximum(PRIORS, 1 - PRIORS))
    assert np.all(accuracy <= 1)
    assert 2 * risk.bayes_accuracy(curve, 0.5) - 1 == pytest.approx(
        risk.advantage(curve), abs=1e-12
    )
    assert 0 <= risk.advantage(curve) <= 1
    assert risk.advantage(curve) == pytest.approx(risk.advantage(curve.inverse()), abs=1e-9)
    rates = risk.true_positive_rate(curve, LEVELS)
    assert np.all(rates >= LEVELS)
    assert np.all(np.diff(rates) >= -1e-12)
    assert np.all(rates - LEVELS <= risk.advantage(curve) + 1e-9)


@given(st.floats(0.0, 4.0), st.floats(0.0, 4.0))
def test_risks_grow_as_curves_fall(first, second):
    low, high = (Gaussian(mu) for mu in sorted((first, second)))
    assert risk.advantage(low) <= risk.advantage(high)
    assert np.all(risk.bayes_accuracy(low, PRIORS) <= risk.bayes_accuracy(high, PRIORS) + 1e-15)
    assert np.all(risk.true_positive_rate(low, LEVELS) <= risk.true_positive_rate(high, LEVELS))


def test_risks_of_perfect_privacy():
    assert risk.advantage(Identity()) == 0.0
    assert risk.minimum_error_sum(Identity()) == 1.0
    np.testing.assert_array_equal(
        risk.bayes_accuracy(Identity(), PRIORS), np.maximum(PRIORS, 1 - PRIORS)
    )
    assert risk.epsilon(Identity(), 0.0) == 0.0


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_epsilon_of_asymmetric_curve(delta):
    """Of removal, (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1): its delta has a closed form."""
    rate, mu = 0.1, 1.0
    removal = mixture(Gaussian(mu), rate)
    # P(record) > e^eps P(none) where the likelihood ratio passes log(1 + (e^eps - 1) / q).
    exact = math.log1p(rate * math.expm1(gdp.epsilon(mu, delta / rate)))
    for curve in (removal, removal.inverse()):
        assert risk.epsilon(curve, delta) == pytest.approx(exact, rel=1e-6)
    # The other order alone is below it: the test sees which one is taken.
    assert min(removal.epsilon(delta), removal.inverse().epsilon(delta)) < 0.9 * exact


def test_bayes_accuracy_keeps_shapes():
    assert isinstance(risk.bayes_accuracy(Gaussian(1.0), 0.5), float)
    assert risk.bayes_accuracy(Gaussian(1.0), np.full((2, 3), 0.5)).shape == (2, 3)
    assert risk.epsilon(Gaussian(1.0), [1e-5, 1e-3]).shape == (2,)


@pytest.mark.parametrize("prior", [-0.1, 1.1, math.nan])
def test_bayes_accuracy_refuses(prior):
    with pytest.raises(ValueError, match=r"prior must be in \[0, 1\]"):
        risk.bayes_accuracy(Gaussian(1.0), prior)


@pytest.mark.parametrize("baseline", [1e-4, 0.05, 0.3, 0.9])
def test_success_of_the_best_attack_on_an_attribute_is_the_bound(baseline):
    """It answers "yes" where the noisy sum is above a threshold: its success attains the bound."""
    scale = 2.0
    mechanism = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "add_remove"), scale)
    threshold = norm.isf(baseline, scale=scale)
    attained = norm.sf(threshold, loc=1.0, scale=scale)
    bound = risk.success_probability(mechanism.certificate(1e-5).curve, baseline)
    assert bound == pytest.approx(attained, rel=1e-3)
    assert risk.success_probability(Gaussian(0.4), baseline) < attained  # power: more noise


def test_success_without_privacy_loss_is_the_baseline():
    baselines = np.array([0.0, 0.2, 1.0])
    np.testing.assert_allclose(risk.success_probability(Gaussian(0.0), baselines), baselines)


@pytest.mark.parametrize("baseline", [-0.1, 1.1, [0.5, math.nan]])
def test_success_refuses_a_baseline_that_is_no_probability(baseline):
    with pytest.raises(ValueError, match=r"baseline must be in \[0, 1\]"):
        risk.success_probability(Gaussian(1.0), baseline)
