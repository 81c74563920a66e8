"""Posteriors in closed form against scipy.stats, and mixtures of them."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from dpjax.bayes.conjugate import (
    BetaPosterior,
    DirichletPosterior,
    GammaPosterior,
    Mixture,
    NormalInverseGammaPosterior,
    NormalPosterior,
)

A, B = np.array([0.7, 3.0]), np.array([2.0, 9.0])
C = np.stack([A, B, A + 1], axis=-1)
CASES = {
    "beta": (BetaPosterior(A, B), stats.beta(A, B)),
    "gamma": (GammaPosterior(A, B), stats.gamma(A, scale=1 / B)),
    "normal": (NormalPosterior(A, B), stats.norm(A, np.sqrt(B))),
    "dirichlet": (DirichletPosterior(C), stats.beta(C, C.sum(-1, keepdims=True) - C)),
}
NIG = NormalInverseGammaPosterior(A, B, A + 1.5, B)
MEAN = stats.t(2 * A + 3, A, np.sqrt(B / ((A + 1.5) * B)))
VARIANCE = stats.invgamma(A + 1.5, scale=B)
# A key that is fixed; thresholds of five standard errors: false alarms below 1e-6 each.
SAMPLES = 4000
EVEN = np.full((3, 2), 1 / 3)


@pytest.mark.parametrize("name", CASES)
def test_mean_interval_and_cdf_are_those_of_scipy(name):
    posterior, distribution = CASES[name]
    np.testing.assert_allclose(posterior.mean, distribution.mean(), rtol=1e-12)
    for level in (0.5, 0.9, 0.999):
        low, high = posterior.interval(level)
        np.testing.assert_allclose([low, high], distribution.interval(level), rtol=1e-9)
        np.testing.assert_allclose(posterior.cdf(high), (1 + level) / 2, rtol=1e-9)


def test_normal_inverse_gamma_has_the_marginals_of_scipy():
    np.testing.assert_allclose(NIG.mean, np.stack([MEAN.mean(), VARIANCE.mean()], axis=-1))
    low, high = NIG.interval(0.9)
    ends = [
        np.stack([distribution.interval(0.9)[i] for distribution in (MEAN, VARIANCE)], axis=-1)
        for i in (0, 1)
    ]
    np.testing.assert_allclose([low, high], ends, rtol=1e-8)
    np.testing.assert_allclose(NIG.cdf(low), 0.05, rtol=1e-8)
    heavy = NormalInverseGammaPosterior(A, B, np.array([0.5, 1.0]), B)
    assert np.all(np.isinf(heavy.mean[:, 1]))


@pytest.mark.parametrize("posterior", [*(case[0] for case in CASES.values()), NIG])
def test_samples_follow_the_cdf(posterior):
    samples = np.asarray(posterior.sample(jax.random.key(1), SAMPLES), np.float64)
    assert samples.shape == (SAMPLES, *posterior.mean.shape)
    ranks = posterior.cdf(samples)
    allowed = 5 * np.sqrt(1 / 12 / SAMPLES)
    assert np.all(np.abs(ranks.mean(axis=0) - 0.5) < allowed)
    assert np.all(np.abs((ranks < 0.1).mean(axis=0) - 0.1) < 5 * np.sqrt(0.09 / SAMPLES))
    # Power: samples of the other data set are found out.
    swapped = posterior.cdf(samples[:, ::-1])
    assert np.all(np.abs(swapped.mean(axis=0) - 0.5) > allowed)


def mixture():
    """Of three beta distributions, for each of two data sets."""
    alpha = np.array([[1.0, 2.0], [5.0, 2.0], [9.0, 30.0]])
    weights = np.array([[0.5, 0.0], [0.2, 1.0], [0.3, 0.0]])
    return Mixture(BetaPosterior(alpha, np.full((3, 2), 4.0)), weights)


def test_mixture_weighs_its_components():
    mixed = mixture()
    expected = 0.5 * 0.2 + 0.2 * 5 / 9 + 0.3 * 9 / 13
    np.testing.assert_allclose(mixed.mean, [expected, 1 / 3])
    np.testing.assert_allclose(mixed.effective_sample_size, [1 / 0.38, 1.0])
    for level in (0.3, 0.9):
        low, high = mixed.interval(level)
        np.testing.assert_allclose(mixed.cdf(low), (1 - level) / 2, rtol=1e-9)
        np.testing.assert_allclose(mixed.cdf(high), (1 + level) / 2, rtol=1e-9)
    np.testing.assert_allclose(mixed.quantile(0.9)[1], stats.beta.ppf(0.9, 2, 4), rtol=1e-9)


@pytest.mark.parametrize("length", [3, 5])
def test_distribution_function_of_a_mixture_on_a_grid(length):
    """Three points are as many as the mixture has components."""
    mixed, grid = mixture(), np.linspace(0.1, 0.8, length)[:, None] + np.zeros(2)
    expected = np.stack([mixed.cdf(point) for point in grid])
    np.testing.assert_array_equal(mixed.cdf(grid), expected)
    np.testing.assert_array_equal(mixed.cdf(grid[None]), expected[None])
    np.testing.assert_allclose(expected[:, 1], stats.beta.cdf(grid[:, 1], 2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1, 3])
def test_sample_of_a_mixture_is_by_weight(entries):
    if entries == 1:
        mixed = mixture()
    else:
        concentration = np.random.default_rng(0).uniform(1, 9, (3, 2, entries))
        mixed = Mixture(DirichletPosterior(concentration), mixture().weights)
    size = 1_000
    samples = np.asarray(mixed.sample(jax.random.key(2), size), np.float64)
    assert samples.shape == (size, *mixed.mean.shape)
    ranks = mixed.cdf(samples)
    assert np.all(np.abs(ranks.mean(axis=0) - 0.5) < 5 * np.sqrt(1 / 12 / size))
    # Power: samples that ignore the weights are found out.
    evenly = dataclasses.replace(mixed, weights=EVEN).cdf(samples)
    assert np.any(np.abs(evenly.mean(axis=0) - 0.5) > 5 * np.sqrt(1 / 12 / size))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CASES["beta"][0].interval(1.0), ValueError, "level must be"),
        (lambda: mixture().quantile(0.0), ValueError, "probability must be"),
        (lambda: mixture().sample(jax.random.key(0), 0), ValueError, "num_samples must be"),
        (lambda: mixture().sample(0, 1), TypeError, "key must be"),
    ],
)
def test_arguments_of_posteriors_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
