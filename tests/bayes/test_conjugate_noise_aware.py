"""Noise-aware posteriors against sums over all that may lie under the noise."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.conjugate_cases import ADJACENCIES, FAMILIES, exact_sums, laplace_release, records_of
from numpyro.infer import MCMC, NUTS
from scipy import stats

from dpjax.bayes.conjugate import (
    NormalKnownVariance,
    SufficientStatisticsMechanism,
    naive_posterior,
    noise_aware_posterior,
)
from dpjax.mechanisms import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from dpjax.mechanisms.additive import AdditiveNoise

PARTICLES = 20_000
KEY = jax.random.key(4)
GRID = np.linspace(0.02, 0.98, 25)


def density(mechanism, noise):
    """Of the noise, up to a constant; of discrete noise the probabilities."""
    distribution = stats.laplace if isinstance(mechanism, Laplace | DiscreteLaplace) else stats.norm
    return distribution.pdf(noise, scale=float(mechanism.scale)).prod(axis=-1)


def mixed(components_cdf, weights):
    return (weights * components_cdf).sum(axis=-1) / weights.sum()


def assert_same_cdf(aware, expected, rows=None):
    """Five standard errors of 20,000 particles, weighted: at most 0.025."""
    ours = np.array([aware.cdf(x) if rows is None else aware.cdf(np.full(3, x)) for x in GRID])
    tolerance = 2.5 / np.sqrt(aware.effective_sample_size)
    assert tolerance < 0.04
    np.testing.assert_allclose(ours, expected, atol=tolerance)
    # Power: a cdf that is moved by a little is rejected.
    assert np.abs(ours - np.roll(expected, 2, axis=0)).max() > tolerance


@pytest.mark.parametrize("kind", [Laplace, DiscreteLaplace, Gaussian, DiscreteGaussian])
@pytest.mark.parametrize(("noisy", "scale"), [(7, 3.0), (-6, 2.0), (3, 0.4)])
def test_beta_binomial_is_the_sum_over_all_counts(kind, noisy, scale):
    family, n = FAMILIES["beta-binomial"], 12
    sensitivity = family.sensitivity(norm=kind.norm, adjacency="replace_one")
    release = SufficientStatisticsMechanism(family, kind(sensitivity, scale))
    aware = noise_aware_posterior(
        KEY, release, [float(noisy)], num_examples=n, num_particles=PARTICLES
    )
    ones = np.arange(n + 1)
    weights = stats.betabinom.pmf(ones, n, 1, 2)
    weights = weights * density(release.mechanism, (noisy - ones)[:, None])
    cdf = stats.beta.cdf(GRID[:, None], 1 + ones, 2 + n - ones)
    assert_same_cdf(aware, mixed(cdf, weights))


def test_a_private_number_of_records_is_summed_over_too():
    family = FAMILIES["beta-binomial"]
    release = laplace_release(family, "add_remove", 0.4)
    noisy = np.array([6.3, 3.1])
    aware = noise_aware_posterior(KEY, release, noisy, num_particles=PARTICLES)
    ones, zeros = (part.ravel() for part in np.meshgrid(np.arange(90), np.arange(90)))
    kept = ones + zeros >= 1
    ones, zeros = ones[kept], zeros[kept]
    weights = stats.betabinom.pmf(ones, ones + zeros, 1, 2)
    weights = weights * density(release.mechanism, noisy - np.stack([ones, zeros], axis=-1))
    cdf = stats.beta.cdf(GRID[:, None], 1 + ones, 2 + zeros)
    assert_same_cdf(aware, mixed(cdf, weights))


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_histograms_are_summed_over_all_counts_of_n(epsilon):
    family, n = FAMILIES["dirichlet-multinomial"], 12
    release = laplace_release(family, "replace_one", epsilon)
    noisy = np.array([8.0, 1.5, -0.5])
    aware = noise_aware_posterior(KEY, release, noisy, num_examples=n, num_particles=PARTICLES)
    counts = np.array([c for c in itertools.product(range(n + 1), repeat=3) if sum(c) == n])
    prior = np.array(family.concentration)
    weights = stats.dirichlet_multinomial.pmf(counts, prior, n)
    weights = weights * density(release.mechanism, noisy - counts)
    after = prior + counts
    cdf = stats.beta.cdf(GRID[:, None, None], after, after.sum(-1, keepdims=True) - after)
    assert_same_cdf(aware, mixed(np.moveaxis(cdf, -1, 1), weights), rows=3)


def test_gaussian_noise_on_normal_sums_adds_to_their_variance():
    family = NormalKnownVariance((-50.0, 50.0), variance=4.0, prior_mean=1.0, prior_variance=9.0)
    sensitivity = family.sensitivity(norm="l2", adjacency="replace_one")
    release = SufficientStatisticsMechanism(family, Gaussian(sensitivity, 0.3))
    noisy, n = np.array([10.4]), 20  # of a sum in units of 100, from -50
    aware = noise_aware_posterior(KEY, release, noisy, num_examples=n, num_particles=PARTICLES)
    precision = 1 / 9 + n**2 / (n * 4 + (0.3 * 100) ** 2)
    weighted = 1 / 9 + n * (100 * noisy[0] - n * 50) / (n * 4 + 30**2)
    distribution = stats.norm(weighted / precision, precision**-0.5)
    points = distribution.ppf([0.05, 0.3, 0.5, 0.9])
    np.testing.assert_allclose([aware.cdf(x) for x in points], distribution.cdf(points), atol=0.025)
    assert aware.mean == pytest.approx(distribution.mean(), abs=0.025 * distribution.std())


@pytest.mark.slow
def test_sum_and_squares_agree_with_an_independent_sampler():
    """NUTS on parameters and sums together: 3,000 draws, means compared within 0.15 deviations."""
    family, n = FAMILIES["normal-unknown"], 30
    release = laplace_release(family, "replace_one", 1.0)
    noisy = np.array([-1.0, 3.0])
    aware = noise_aware_posterior(KEY, release, noisy, num_examples=n, num_particles=PARTICLES)

    def model():
        variance = numpyro.sample("variance", dist.InverseGamma(10.0, 9.0))
        mean = numpyro.sample("mean", dist.Normal(1.0, jnp.sqrt(variance / 10)))
        unit = numpyro.sample("unit", dist.Normal(0, 1))
        average = mean + unit * jnp.sqrt(variance / n)
        around = numpyro.sample("around", dist.Gamma((n - 1) / 2, 0.5)) * variance
        first = n * (average - 1) / 5
        second = around / 25 + first**2 / n
        noise = dist.Laplace(jnp.stack([first, second]), release.mechanism.scale)
        numpyro.sample("noisy", noise, obs=jnp.array(noisy))

    sampler = MCMC(NUTS(model), num_warmup=600, num_samples=3000, progress_bar=False)
    sampler.run(jax.random.key(1))
    drawn = np.stack([sampler.get_samples()[name] for name in ("mean", "variance")], axis=-1)
    spread = drawn.std(axis=0)
    np.testing.assert_array_less(np.abs(aware.mean - drawn.mean(axis=0)), 0.15 * spread)
    ranks = np.mean(drawn[:, None] <= np.stack(aware.interval(0.8)), axis=0)
    np.testing.assert_allclose(ranks, [[0.1, 0.1], [0.9, 0.9]], atol=0.03)
    # Power: the posterior that ignores the noise is rejected.
    naive = naive_posterior(release, noisy, n)
    assert np.any(np.abs(naive.mean - drawn.mean(axis=0)) > 0.15 * spread)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_without_noise_it_is_the_exact_posterior(name, adjacency):
    family, records = FAMILIES[name], records_of(name)
    release = laplace_release(family, adjacency, 1e12)
    released = family.encode(exact_sums(family, records), adjacency)
    public = 40 if adjacency == "replace_one" else None
    aware, exact = (
        noise_aware_posterior(KEY, release, released, num_examples=public, num_particles=50),
        (family.exact_posterior(records)),
    )
    np.testing.assert_allclose(aware.mean, exact.mean, rtol=1e-6)
    np.testing.assert_allclose(aware.interval(0.9), exact.interval(0.9), rtol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_with_nothing_but_noise_it_is_nearly_the_prior(name):
    family = FAMILIES[name]
    release = laplace_release(family, "replace_one", 1e-3)
    prior = family.exact_posterior(jnp.zeros(0))
    released = np.zeros(len(family.encoding("replace_one").offset))
    aware = noise_aware_posterior(KEY, release, released, num_examples=20, num_particles=PARTICLES)
    for level in (0.2, 0.5, 0.8):
        np.testing.assert_allclose(aware.cdf(prior.quantile(level)), level, atol=0.05)


def test_batches_keep_their_shape_and_errors_are_named():
    release = laplace_release(FAMILIES["normal-unknown"], "replace_one", 1.0)
    aware = noise_aware_posterior(
        KEY, release, np.zeros((3, 4, 2)), num_examples=10, num_particles=60
    )
    assert aware.mean.shape == (3, 4, 2)
    assert aware.effective_sample_size.shape == (3, 4)
    with pytest.raises(ValueError, match="num_particles must be a whole number"):
        noise_aware_posterior(KEY, release, np.zeros(2), num_examples=10, num_particles=0)
    with pytest.raises(ValueError, match="num_particles must be more: no particle is possible"):
        noise_aware_posterior(KEY, release, np.zeros(2), num_examples=1, num_particles=60)
    with pytest.raises(TypeError, match="key must be"):
        noise_aware_posterior(0, release, np.zeros(2), num_examples=10, num_particles=60)


class Unheard(AdditiveNoise):
    """Noise of a distribution that the posterior does not support."""

    norm = "l1"
    guarantee = standard_deviation = half_width = None


def test_other_noise_is_refused():
    family = FAMILIES["beta-binomial"]
    sensitivity = family.sensitivity(norm="l1", adjacency="replace_one")
    release = SufficientStatisticsMechanism(family, Unheard(sensitivity, 1.0))
    with pytest.raises(TypeError, match="mechanism must add Laplace or Gaussian noise"):
        noise_aware_posterior(KEY, release, [1.0], num_examples=4)
