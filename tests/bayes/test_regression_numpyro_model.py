"""The numpyro model of a release against `noise_aware_posterior`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

from dpjax.bayes.regression import (
    PerturbedStatistics,
    RegressionBounds,
    noise_aware_posterior,
    released_regression,
)

NUM_RECORDS, NUM_DRAWS = 2_000, 700
PRIOR = {"prior_precision": 1.0, "noise_shape": 5.0, "noise_rate": 1.0}
BOUNDS = RegressionBounds(x_norm_bound=1.0, y_bound=2.5)
MECHANISMS = {
    "gaussian": PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=1e-5, adjacency="replace_one", num_features=1
    ),
    "laplace": PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=0.0, adjacency="replace_one", num_features=1
    ),
}


def conjugate_prior():
    """What `noise_aware_posterior` has."""
    variance = numpyro.sample(
        "sigma2", dist.InverseGamma(PRIOR["noise_shape"], PRIOR["noise_rate"])
    )
    spread = jnp.sqrt(variance / PRIOR["prior_precision"])
    return numpyro.sample("beta", dist.Normal(0, spread).expand([1]).to_event(1)), variance


def released_by(mechanism):
    x_key, y_key, key = jax.random.split(jax.random.key(7), 3)
    x = jax.random.uniform(x_key, (NUM_RECORDS, 1), minval=-1, maxval=1)
    y = x @ jnp.array([0.6]) + 0.5 * jax.random.normal(y_key, (NUM_RECORDS,))
    return mechanism.release_records(key, x, y)


def by_nuts(mechanism, released, prior=conjugate_prior):
    mcmc = MCMC(
        NUTS(released_regression), num_warmup=300, num_samples=NUM_DRAWS, progress_bar=False
    )
    mcmc.run(jax.random.key(3), prior, mechanism, released, NUM_RECORDS)
    return mcmc.get_samples()


def are_alike(draws, others):
    """Means within a third of a deviation, deviations within a fifth: twice the chains' error."""
    mean, other_mean = np.mean(draws, axis=0), np.mean(others, axis=0)
    std, other_std = np.std(draws, axis=0), np.std(others, axis=0)
    near = np.all(np.abs(mean - other_mean) < std / 3)
    return bool(near and np.all(np.abs(np.log(std / other_std)) < np.log(1.2)))


@pytest.mark.slow
@pytest.mark.parametrize("distribution", MECHANISMS)
def test_agrees_with_the_noise_aware_posterior(distribution):
    mechanism = MECHANISMS[distribution]
    released = released_by(mechanism)
    found = by_nuts(mechanism, released)

    def by_statistics(mechanism):
        return noise_aware_posterior(
            jax.random.key(2), mechanism, released, num_examples=NUM_RECORDS, **PRIOR
        )

    def agrees(draws):
        variances = np.log(found["sigma2"]), np.log(draws.sigma2)
        return are_alike(found["beta"], draws.beta) and are_alike(*variances)

    assert agrees(by_statistics(mechanism))
    # The power: of half the noise the posterior is another.
    assert not agrees(by_statistics(mechanism.with_privacy_factor(0.5)))


@pytest.mark.slow
def test_another_prior_is_the_users_own():
    def certain():
        return jnp.array([0.6]), numpyro.sample("sigma2", dist.HalfNormal(1.0))

    found = by_nuts(MECHANISMS["gaussian"], released_by(MECHANISMS["gaussian"]), certain)
    assert 0.1 < np.mean(found["sigma2"]) < 0.5
    assert "beta" not in found


def test_a_release_that_does_not_fit_is_refused():
    mechanism = MECHANISMS["gaussian"]
    released = released_by(mechanism)
    without = released._replace(yty=None)
    arguments = (conjugate_prior, mechanism)
    with pytest.raises(ValueError, match=r"released\.yty must be released"):
        released_regression(*arguments, without, NUM_RECORDS)
    with pytest.raises(ValueError, match="num_examples must be a finite number > 0, got 0"):
        released_regression(*arguments, released, 0)
    wide = replace(mechanism, num_features=3)
    with pytest.raises(ValueError, match="released must be arrays of shapes"):
        released_regression(conjugate_prior, wide, released, NUM_RECORDS)
