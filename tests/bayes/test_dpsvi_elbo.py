"""Without noise and clipping DPSVI is numpyro's SVI, on models and guides as users write them."""

from functools import cache

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.dpsvi_cases import (
    FULL_RANK,
    MIXED,
    RECORDS,
    X,
    Y,
    flat,
    gradients,
    logistic,
    logistic_guide,
    mixture,
    private,
    step_of,
)
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal

from dpjax.sampling import FixedSizeSampling, PoissonSampling

KEY = jax.random.key(7)


def eight_schools(schools, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", schools):
        numpyro.sample("y", dist.Normal(mu, jnp.sqrt(tau**2 + sigma**2)), obs=y)


def bayesian_network(x, y=None, hidden=4):
    first = numpyro.sample("first", dist.Normal(jnp.zeros((x.shape[1], hidden)), 1.0).to_event(2))
    last = numpyro.sample("last", dist.Normal(jnp.zeros((hidden, 1)), 1.0).to_event(2))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        mean = (jnp.tanh(x @ first) @ last)[:, 0]
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


def network_guide(x, y=None, hidden=4):
    """Written by hand: quicker to start than an autoguide."""
    for name, shape in (("first", (x.shape[1], hidden)), ("last", (hidden, 1))):
        loc = numpyro.param(f"{name}_loc", 0.5 + jnp.zeros(shape))
        numpyro.sample(name, dist.Normal(loc, 0.3).to_event(2))
    numpyro.sample("precision", dist.LogNormal(numpyro.param("precision_loc", 0.0), 0.2))


def subsampled(x, y):
    """numpyro's way to write a minibatch, with a fixed size: the sampler takes its place."""
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", RECORDS, subsample_size=10) as chosen:
        labels = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x[chosen] @ weights), obs=labels)


SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
EXAMPLES = {
    "mixture": (mixture, (MIXED,), {}),
    "eight schools": (eight_schools, (8, SIGMA), {"y": EFFECTS}),
    "network": (bayesian_network, (X, Y), {"hidden": 3}),
}

GUIDES = {
    "mixture": FULL_RANK,
    "eight schools": AutoNormal(eight_schools),
    "network": network_guide,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_update_on_all_records_is_numpyros(name):
    model, args, kwargs = EXAMPLES[name]
    guide = GUIDES[name]
    records = 8 if name == "eight schools" else RECORDS
    sampling = FixedSizeSampling(records, records)
    theirs, mine, loss, my_loss = gradients(private(model, guide, sampling=sampling), args, kwargs)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(my_loss, loss, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Trace_ELBO(num_particles=3), TraceMeanField_ELBO()], ids=type)
def test_update_with_particles_and_analytic_divergences_is_numpyros(loss):
    theirs, mine, value, my_value = gradients(private(loss=loss), (X, Y), {})
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(my_value, value, rtol=1e-4)


@cache
def step_on_all():
    svi = private()
    return flat(step_of(svi, svi.init(KEY, X, Y), X, Y))


@pytest.mark.slow
def test_update_is_the_gradient_of_all_records_in_expectation():
    """1,000 batches; an entry further off than 5 standard errors comes once in 10^6."""
    svi = private(sampling=PoissonSampling(RECORDS, 0.2))
    state = svi.init(KEY, X, Y)
    expected = step_on_all()

    def step(key):
        noise = state.noise._replace(key=jax.random.fold_in(key, 1))  # one for each batch
        after, _ = svi.update(state._replace(sampler=key, noise=noise), X, Y)
        before, after = (svi.optim.get_params(s.optim_state) for s in (state, after))
        return jax.flatten_util.ravel_pytree(jax.tree.map(jnp.subtract, before, after))[0]

    steps = jax.jit(jax.vmap(step))(jax.random.split(jax.random.key(1), 1000))
    tolerance = 5 * steps.std(0) / np.sqrt(1000)
    assert np.all(np.abs(steps.mean(0) - expected) < tolerance)
    assert not np.all(np.abs(0.2 * steps.mean(0) - expected) < tolerance)  # power: n/b forgotten


@pytest.mark.slow
def test_update_takes_a_subsampled_plate_as_the_samplers():
    written = private(subsampled, logistic_guide)
    step = flat(step_of(written, written.init(KEY, X, Y), X, Y))
    np.testing.assert_allclose(step, step_on_all(), rtol=1e-5)


@pytest.mark.slow
def test_run_learns_what_numpyro_learns():
    svi = private(optim=optax.adam(0.05), num_steps=300)
    theirs = SVI(logistic, logistic_guide, optax.adam(0.05), Trace_ELBO())
    mine = svi.run(KEY, X, Y, progress_bar=False)
    other = theirs.run(KEY, 300, X, Y, progress_bar=False)
    np.testing.assert_allclose(mine.params["loc"], other.params["loc"], atol=0.3)
    assert mine.losses.shape == (300,)
    evaluate = jax.jit(lambda state: svi.evaluate(state, X, Y))  # else one operation at a time
    assert evaluate(mine.state) < 0.8 * evaluate(svi.init(KEY, X, Y))
