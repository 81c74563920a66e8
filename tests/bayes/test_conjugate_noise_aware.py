"""Noise-aware posteriors against sums over all exact statistics, their coverage, and proposals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.conjugate_cases import (
    ADJACENCIES,
    DRAW,
    FAMILIES,
    exact_sums,
    laplace_release,
    records_of,
)
from numpyro.infer import MCMC, NUTS
from scipy import stats

from dpjax.bayes.conjugate import (
    NormalKnownVariance,
    SufficientStatistics,
    SufficientStatisticsMechanism,
    naive_posterior,
    noise_aware_posterior,
)
from dpjax.bayes.conjugate.noise_aware import Proposal, normalize_weights
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
def test_noise_aware_posterior_of_counts_is_the_sum_over_all(kind, noisy, scale):
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


def test_noise_aware_posterior_sums_over_a_private_number_of_records():
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
def test_noise_aware_posterior_of_histograms_is_the_sum_over_all(epsilon):
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


def test_noise_aware_posterior_of_normal_sums_adds_variances():
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
def test_noise_aware_posterior_of_sum_and_squares_agrees_with_nuts():
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
def test_noise_aware_posterior_without_noise_is_the_exact_one(name, adjacency):
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
def test_noise_aware_posterior_of_noise_alone_is_nearly_the_prior(name):
    family = FAMILIES[name]
    release = laplace_release(family, "replace_one", 1e-3)
    prior = family.exact_posterior(jnp.zeros(0))
    released = np.zeros(len(family.encoding("replace_one").offset))
    aware = noise_aware_posterior(KEY, release, released, num_examples=20, num_particles=PARTICLES)
    for level in (0.2, 0.5, 0.8):
        np.testing.assert_allclose(aware.cdf(prior.quantile(level)), level, atol=0.05)


def test_noise_aware_posterior_keeps_batch_axes():
    release = laplace_release(FAMILIES["normal-unknown"], "replace_one", 1.0)
    aware = noise_aware_posterior(
        KEY, release, np.zeros((3, 4, 2)), num_examples=10, num_particles=60
    )
    assert aware.mean.shape == (3, 4, 2)
    assert aware.effective_sample_size.shape == (3, 4)


class OtherNoise(AdditiveNoise):
    """Noise of a distribution that the posterior does not support."""

    norm = "l1"
    guarantee = standard_deviation = half_width = None


OTHER_NOISE = SufficientStatisticsMechanism(
    FAMILIES["beta-binomial"],
    OtherNoise(FAMILIES["beta-binomial"].sensitivity(norm="l1", adjacency="replace_one"), 1.0),
)
NORMAL = laplace_release(FAMILIES["normal-unknown"], "replace_one", 1.0)


@pytest.mark.parametrize(
    ("key", "release", "num_examples", "num_particles", "error", "message"),
    [
        (KEY, NORMAL, 10, 0, ValueError, "num_particles must be a whole number"),
        (KEY, NORMAL, 1, 60, ValueError, "num_particles must be more: no particle is possible"),
        (0, NORMAL, 10, 60, TypeError, "key must be"),
        (KEY, OTHER_NOISE, 4, 60, TypeError, "mechanism must add Laplace or Gaussian noise"),
    ],
)
def test_noise_aware_posterior_refuses(key, release, num_examples, num_particles, error, message):
    released = np.zeros(len(release.family.encoding("replace_one").offset))
    with pytest.raises(error, match=message):
        noise_aware_posterior(
            key, release, released, num_examples=num_examples, num_particles=num_particles
        )


# Where the noise is about as large as what the data say, or larger; all at n = 100.
COVERAGE = {
    "beta-binomial": ("replace_one", 0.2),
    "dirichlet-multinomial": ("add_remove", 0.2),
    "gamma-poisson": ("add_remove", 0.5),
    "normal": ("replace_one", 0.3),
    "normal-unknown": ("replace_one", 0.7),
}
REPEATS = 1500


def released_from_prior(name, release):
    """Parameters from the prior, and the releases of data sets that follow them."""
    prior_key, key = jax.random.split(jax.random.key(11))
    nothing = SufficientStatistics(np.zeros(len(release.family.statistic_bounds[0])), np.float64(0))
    parameters = release.family.posterior(nothing).sample(prior_key, REPEATS)

    def one(key, theta):
        first, second = jax.random.split(key)
        return release.release(second, DRAW[name](first, theta, 100))

    released = jax.jit(jax.vmap(one))(jax.random.split(key, REPEATS), parameters)
    return np.asarray(parameters, np.float64), released


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_noise_aware_intervals_cover_and_naive_ones_do_not(name):
    """Outside 87 % to 93 % in 1,500 repeats of exact intervals: below 2e-4 for each parameter."""
    adjacency, epsilon = COVERAGE[name]
    release = laplace_release(FAMILIES[name], adjacency, epsilon)
    parameters, released = released_from_prior(name, release)
    public = 100 if adjacency == "replace_one" else None

    def covers(posterior):
        inside = np.mean(np.abs(posterior.cdf(parameters) - 0.5) <= 0.45, axis=0)
        return np.all((inside >= 0.87) & (inside <= 0.93)), np.min(inside)

    assert covers(
        noise_aware_posterior(
            jax.random.key(4), release, released, num_examples=public, num_particles=200
        )
    )[0]
    # Power: the same fails for the posterior that ignores the noise.
    right, least = covers(naive_posterior(release, released, public))
    assert not right
    assert least < 0.8


UNIFORMS = (np.arange(40_000) + 0.5)[:, None] / 40_000


def proposal(centre, scale, integer_valued, low=0.0, high=9.0):
    ends = np.array([low]), np.array([high])
    return Proposal(np.array([centre]), np.array([scale]), *ends, integer_valued)


@pytest.mark.parametrize(("centre", "scale"), [(4.0, 2.0), (0.0, 30.0), (9.0, 0.3)])
def test_draw_of_integers_follows_the_log_density(centre, scale):
    distribution = proposal(centre, scale, integer_valued=True)
    numbers = np.arange(10.0)
    drawn = distribution.draw(UNIFORMS)[:, 0]
    assert set(drawn) <= set(numbers)
    shares = np.array([np.mean(drawn == number) for number in numbers])
    stated = normalize_weights(distribution.log_density(numbers[:, None]))
    np.testing.assert_allclose(shares, stated, atol=2e-4)
    # Power: the density at the numbers themselves is not that of rounded draws.
    unrounded = normalize_weights(-np.abs(numbers - centre) / scale)
    assert scale > 9 or np.abs(shares - unrounded).max() > 2e-3


@pytest.mark.parametrize(("low", "high"), [(0.0, 9.0), (-np.inf, np.inf), (0.0, np.inf)])
def test_draw_follows_the_log_density(low, high):
    distribution = proposal(3.0, 2.0, integer_valued=False, low=low, high=high)
    drawn = np.sort(distribution.draw(UNIFORMS)[:, 0])
    assert drawn[0] >= low
    assert drawn[-1] <= high
    grid = np.linspace(max(low, -60), min(high, 60), 200_001)
    stated = np.cumsum(normalize_weights(distribution.log_density(grid[:, None])))
    ranks = np.interp(drawn, grid, stated)
    np.testing.assert_allclose(ranks, UNIFORMS[:, 0], atol=1e-3)


def test_fit_follows_the_weights_but_for_single_large_ones():
    drawn = np.linspace(0, 9, 1000)[:, None]
    weights = -np.abs(drawn[:, 0] - 6.0) / 0.5
    fitted = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=1e-3)
    assert fitted.centre == pytest.approx([6.0], abs=0.02)
    assert fitted.scale == pytest.approx([1.3 * 0.5], rel=0.1)
    weights[0] = 500.0
    clipped = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=1e-3)
    assert clipped.centre == pytest.approx([6.0], abs=0.3)
    narrow = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=7.0)
    assert narrow.scale == [7.0]


def test_fit_ignores_impossible_draws():
    drawn = np.array([[1.0], [2.0], [8.0]])
    log_weights = np.array([-np.inf, 0.0, -np.inf])
    fitted = proposal(1.0, 5.0, integer_valued=True).fit(drawn, log_weights, least_scale=0.5)
    assert fitted.centre == [2.0]
    assert normalize_weights(log_weights).tolist() == [0.0, 1.0, 0.0]
