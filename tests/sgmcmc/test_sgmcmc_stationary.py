"""Chains on a conjugate Gaussian against the discretised chain's own distribution, in closed form.

False alarms: five statistics of thousands of independent chains, each within 5 standard errors:
less than one in 100,000 for a test.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gaussian_model import (
    key,
    log_likelihood,
    log_prior,
    posterior,
    records,
    sghmc_distribution,
    sgld_distribution,
    whitened,
)

from dpjax import PoissonSampling
from dpjax.bayes.sgmcmc import (
    POSTERIOR_TEMPERATURE,
    PSGLD,
    PUBLISHED_TEMPERATURE,
    SGHMC,
    SGLD,
    RMSProp,
    sample,
)

STEP, FRICTION, CHAINS, ENOUGH = 0.2, 0.3, 2_048, 5.0


@functools.cache
def last_states(
    sampler, temperature, sampling_rate=1.0, step_size=STEP, num_steps=80, chains=CHAINS
):
    """One state of each of many independent chains, from the posterior's mean."""
    options = {
        SGLD: {},
        SGHMC: {"friction": FRICTION},
        # So much damping that every entry is the smallest: half as large as the noise assumes.
        PSGLD: {"preconditioner": RMSProp(min_value=0.5, max_value=1.0, damping=10.0)},
    }[sampler]
    chain = sampler(
        PoissonSampling(40, sampling_rate),
        l2_clip=1e3,  # clips nothing
        step_size=step_size,
        num_steps=num_steps,
        adjacency="add_remove",
        temperature=temperature,
        num_chains=chains,
        **options,
    )
    start = jnp.asarray(posterior().mean, jnp.float32)
    result = sample(
        key(3),
        log_likelihood,
        log_prior,
        start,
        records(),
        mechanism=chain,
        burn_in=num_steps - 1,
        progress=False,
    )
    return result.samples[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE])
def test_sgld_has_the_distribution_of_its_linear_system(temperature):
    states = last_states(SGLD, temperature)
    assert whitened(states, sgld_distribution(STEP, temperature)) < ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE])
def test_sghmc_has_the_distribution_of_its_linear_system(temperature):
    states = last_states(SGHMC, temperature)
    assert whitened(states, sghmc_distribution(STEP, temperature, FRICTION)) < ENOUGH


@pytest.mark.slow
def test_psgld_is_sgld_of_its_own_steps():
    states = last_states(PSGLD, 1.0)
    assert whitened(states, sgld_distribution(STEP / 2, 1.0)) < ENOUGH
    # Power: without the added noise, the release's own amounts to half the temperature.
    assert whitened(states, sgld_distribution(STEP / 2, 0.5)) > 2 * ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [SGLD, SGHMC])
def test_power_published_noise_at_temperature_one(sampler):
    distribution = (
        sgld_distribution(STEP, 1.0) if sampler is SGLD else sghmc_distribution(STEP, 1.0, FRICTION)
    )
    assert whitened(last_states(sampler, PUBLISHED_TEMPERATURE), distribution) > 2 * ENOUGH


@pytest.mark.slow
def test_sgld_of_small_steps_reaches_the_posterior():
    assert whitened(last_states(SGLD, 1.0), posterior()) > ENOUGH
    near = last_states(SGLD, 1.0, step_size=0.04, num_steps=200, chains=1_024)
    assert whitened(near, posterior()) < ENOUGH


@pytest.mark.parametrize(
    "distribution", [sgld_distribution, lambda step, t: sghmc_distribution(step, t, FRICTION)]
)
def test_closed_forms_tend_to_the_posterior(distribution):
    exact = posterior().covariance
    errors = [
        np.abs(distribution(step, 1.0).covariance / exact - 1).max() for step in (0.1, 0.01, 0.001)
    ]
    assert errors[0] > 8 * errors[1] > 64 * errors[2]
    assert errors[2] < 2e-3
    np.testing.assert_allclose(distribution(1e-4, 0.5).covariance, exact / 2, rtol=1e-3)


@pytest.mark.slow
def test_sgld_of_minibatches_has_the_covariance_of_their_noise():
    states = last_states(SGLD, 1.0, sampling_rate=0.25)
    inflated = sgld_distribution(STEP, 1.0, expected_batch_size=10)
    assert whitened(states, inflated) < ENOUGH
    assert inflated.covariance[0, 0] > 1.5 * sgld_distribution(STEP, 1.0).covariance[0, 0]
    assert whitened(states, sgld_distribution(STEP, 1.0)) > 2 * ENOUGH
