"""Data-augmentation MCMC: exact distributions of small cases, and conjugate posteriors."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC
from scipy.stats import binom

from dpjax import sensitivity
from dpjax.bayes.augmentation import RecordSweep, gibbs_kernel
from dpjax.bayes.conjugate import (
    BetaBinomial,
    GammaPoisson,
    SufficientStatisticsMechanism,
    noise_aware_posterior,
)
from dpjax.mechanisms import DiscreteGaussian, Gaussian, Laplace

ONE = sensitivity.of_sum((0.0, 1.0), norm="l1", adjacency="replace_one")


def coins(num_examples, y=None):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("records", num_examples):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def counts(num_examples):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("records", num_examples):
        numpyro.sample("y", dist.Poisson(rate))


def heads(sites):
    return sites["y"]


def sweep_of(mechanism, released, statistic=heads):
    return RecordSweep(coins, jnp.asarray(released), mechanism, statistic, "records")


def sum_frequencies(mechanism, released, num_examples, p, num_sweeps):
    """Frequencies of the sum of ``num_examples`` Bernoulli(p) records, and effective samples."""
    sweep = sweep_of(mechanism, released)

    def step(records, key):
        proposal_key, key = jax.random.split(key)
        proposals = {"y": jax.random.bernoulli(proposal_key, p, (num_examples,)).astype(int)}
        records, _ = sweep.sweep(key, records, proposals)
        return records, records["y"].sum()

    start = {"y": jnp.zeros(num_examples, int)}
    keys = jax.random.split(jax.random.key(0), num_sweeps)
    sums = np.asarray(jax.jit(lambda: jax.lax.scan(step, start, keys)[1])())[100:]
    indicators = (sums[:, None] == np.arange(num_examples + 1)).astype(float)
    return indicators.mean(0), effective_sample_size(indicators[None])


def exact_sum_distribution(mechanism, released, num_examples, p):
    total = np.arange(num_examples + 1)
    deviations = np.abs(released - total) / mechanism.scale
    power = 1 if isinstance(mechanism, Laplace) else 2
    weights = binom.pmf(total, num_examples, p) * np.exp(-(deviations**power) / power)
    return weights / weights.sum()


# Six frequencies within five standard errors: false alarms below 1e-5.
def assert_sums_have(expected, frequencies, sizes):
    errors = np.sqrt(expected * (1 - expected) / sizes)
    assert (np.abs(frequencies - expected) < 5 * errors).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace(ONE, scale=1.5),
        Gaussian(dataclasses.replace(ONE, norm="l2"), scale=1.5),
        DiscreteGaussian(dataclasses.replace(ONE, norm="l2"), scale=1.5),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_sweep_leaves_the_exact_distribution_of_the_sum(mechanism):
    expected = exact_sum_distribution(mechanism, 4.0, 5, 0.4)
    frequencies, sizes = sum_frequencies(mechanism, 4.0, 5, 0.4, 20_000)
    assert (sizes > 2_000).all()
    assert_sums_have(expected, frequencies, sizes)

    # Power: half the noise, or none in the likelihood.
    for scale in (0.75, 1e6):
        other = exact_sum_distribution(dataclasses.replace(mechanism, scale=scale), 4.0, 5, 0.4)
        with pytest.raises(AssertionError):
            assert_sums_have(other, frequencies, sizes)


@pytest.mark.slow
def test_acceptance_is_at_least_exp_of_minus_epsilon():
    mechanism = Laplace.from_epsilon(ONE, epsilon=0.7)
    keys = jax.random.split(jax.random.key(1), 3)
    records, proposals = ({"y": jax.random.uniform(key, (500,))} for key in keys[:2])
    for released in (-300.0, 250.0, 900.0):
        probabilities = sweep_of(mechanism, released).sweep(keys[2], records, proposals)[1]
        assert probabilities.min() >= math.exp(-0.7) * (1 - 1e-4)

    # A record at the other bound, away from the release, attains it.
    (worst,) = sweep_of(mechanism, -9.0).sweep(keys[0], {"y": jnp.zeros(1)}, {"y": jnp.ones(1)})[1]
    np.testing.assert_allclose(worst, math.exp(-0.7), rtol=1e-5)


def posterior_draws(model, family, mechanism, released, num_examples, scale=None):
    """Draws of the parameter, from a kernel whose noise may have another scale."""
    assumed = mechanism if scale is None else dataclasses.replace(mechanism, scale=scale)
    kernel = gibbs_kernel(
        model,
        released,
        mechanism=assumed,
        statistic=lambda sites: family.statistic(sites["y"]),
        plate="records",
    )
    mcmc = MCMC(kernel, num_warmup=500, num_samples=5_000, progress_bar=False)
    mcmc.run(jax.random.key(2), num_examples)
    (name,) = {*mcmc.get_samples()} - {"y"}
    return np.asarray(mcmc.get_samples()[name], float)


# Five quantiles within 4.5 standard errors, of the chain and of the particles: below 1e-4.
def assert_draws_have(posterior, draws):
    for probability in (0.05, 0.25, 0.5, 0.75, 0.95):
        below = (draws < posterior.quantile(probability)).astype(float)
        size = 1 / (1 / effective_sample_size(below[None]) + 1 / posterior.effective_sample_size)
        error = math.sqrt(probability * (1 - probability) / size)
        assert abs(below.mean() - probability) < 4.5 * error


COUNTS = GammaPoisson(shape=2.0, rate=0.5, largest_count=30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family", "noise", "scale", "data"),
    [
        (coins, BetaBinomial(), Laplace, 4.0, np.arange(60) % 4 == 0),
        (counts, COUNTS, Gaussian, 25.0, np.arange(60) % 7),
    ],
    ids=["coins", "counts"],
)
def test_draws_are_those_of_the_exact_posterior(model, family, noise, scale, data):
    bound = family.sensitivity(norm=noise.norm, adjacency="replace_one")
    mechanism = noise(bound, scale=scale)
    release = SufficientStatisticsMechanism(family, mechanism)
    released = release.release(jax.random.key(3), jnp.asarray(data, float))
    posterior = noise_aware_posterior(
        jax.random.key(4), release, released, num_examples=60, num_particles=20_000
    )
    draws = posterior_draws(model, family, mechanism, released, 60)
    assert effective_sample_size(draws[None]) > 150
    assert_draws_have(posterior, draws)

    # Power: a sampler that takes the sum as nearly exact.
    ignoring = posterior_draws(model, family, mechanism, released, 60, scale=mechanism.scale / 8)
    with pytest.raises(AssertionError):
        assert_draws_have(posterior, ignoring)


def labelled(num_examples):
    """Two sites under the plate, one of them of vectors, and local latent labels."""
    means = numpyro.sample("means", dist.Normal(0, 2).expand([2, 3]).to_event(2))
    with numpyro.plate("records", num_examples):
        label = numpyro.sample("label", dist.Bernoulli(0.5))
        numpyro.sample("x", dist.Normal(means[label], 1.0).to_event(1))


@pytest.mark.slow
def test_sites_under_the_plate_are_drawn_together():
    bounds = -jnp.full(3, 5.0), jnp.full(3, 5.0)
    noise = sensitivity.of_sum(bounds, norm="l2", adjacency="replace_one")
    kernel = gibbs_kernel(
        labelled,
        np.array([60.0, 0.0, -60.0]),
        mechanism=Gaussian(noise, scale=5.0),
        statistic=lambda sites: jnp.clip(sites["x"], *bounds),
        plate="records",
    )
    mcmc = MCMC(kernel, num_warmup=200, num_samples=200, progress_bar=False)
    mcmc.run(jax.random.key(0), 40)
    draws = mcmc.get_samples()
    assert {name: values.shape[1:] for name, values in draws.items()} == {
        "label": (40,),
        "means": (2, 3),
        "x": (40, 3),
    }
    np.testing.assert_allclose(draws["x"].sum(1).mean(0), [60.0, 0.0, -60.0], atol=6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": Laplace(dataclasses.replace(ONE, adjacency="add_remove"), 1.0)}, "public"),
        ({"released": np.nan}, "released must be"),
    ],
)
def test_gibbs_kernel_refuses_arguments(change, message):
    arguments = {"released": 3.0, "mechanism": Laplace(ONE, 1.0)} | change
    with pytest.raises(ValueError, match=message):
        gibbs_kernel(coins, **arguments, statistic=heads, plate="records")


def transposed(num_examples):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("records", num_examples, dim=-1), numpyro.plate("times", 3, dim=-2):
        numpyro.sample("y", dist.Bernoulli(p))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "args", "statistic", "plate", "message"),
    [
        (coins, (5,), heads, "people", "plate must be the name of a plate"),
        (coins, (5, np.ones(5)), heads, "records", "site 'y' under plate 'records' is observed"),
        (transposed, (5,), heads, "records", r"of size 5, first, got values of shape \(3, 5\)"),
        (coins, (5,), lambda sites: sites["y"].sum(), "records", r"result must be of shape \(5,\)"),
    ],
)
def test_gibbs_kernel_refuses_models(model, args, statistic, plate, message):
    kernel = gibbs_kernel(model, 3.0, mechanism=Laplace(ONE, 1.0), statistic=statistic, plate=plate)
    with pytest.raises(ValueError, match=message):
        MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False).run(jax.random.key(0), *args)
