"""Training, Markov chains, variational inference and posteriors, a few steps each by fixed keys."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide

from golden import api
from golden.cases_certificates import ADD, BOTH, REPLACE
from golden.cases_draws import RECORDS

KEY = jax.random.key(7)
_RNG = np.random.default_rng(0)
X = jnp.asarray(_RNG.normal(size=(40, 3)), jnp.float32)
Y = jnp.asarray(X @ np.array([1.0, -2.0, 0.5]) + _RNG.normal(size=40) > 0, jnp.float32)
TARGETS = jnp.asarray(X @ np.array([0.5, -0.3, 0.1]) + 0.3 * _RNG.normal(size=40), jnp.float32)
PARAMS = {"w": jnp.array([0.1, 0.2, -0.3]), "b": jnp.array(0.05)}


def loss(params, example):
    x, y = example
    return optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"], y)


def log_likelihood(params, example):
    return -loss(params, example)


def log_prior(params):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


SAMPLINGS = {
    "poisson": (api.poisson(40, 0.3), ADD),
    "poisson in parts": (api.poisson(40, 0.5, 8), REPLACE),
    "truncated poisson": (api.truncated_poisson(40, 0.3, 10), ADD),
    "fixed size": (api.fixed_size(40, 10), REPLACE),
    "shuffled": (api.shuffled(40, 15), REPLACE),
}


def _mechanism(sampling, steps=3, noise=0.7):
    sampler, adjacency = SAMPLINGS[sampling]
    return api.subsampled_gaussian(sampler, noise=noise, steps=steps, adjacency=adjacency, clip=0.5)


def _train(optimizer, sampling="poisson"):
    mechanism = _mechanism(sampling)
    return api.train(loss, PARAMS, (X, Y), mechanism, optimizer, KEY)


def _train_per_layer():
    mechanism = api.subsampled_gaussian(
        api.poisson(40, 0.3), noise=0.7, steps=3, adjacency=ADD, clip={"w": 0.3, "b": 0.4}
    )
    return api.train(loss, PARAMS, (X, Y), mechanism, optax.sgd(0.5), KEY)


def _step(sampling):
    """Two steps by hand, with what they saw."""
    step = api.private_step(loss, optax.sgd(0.5), mechanism=_mechanism(sampling), key=KEY)
    state, update, found = step.init(PARAMS), jax.jit(step.update), []
    for _ in range(2):
        state, info = update(state, (X, Y))
        found.append(api.step_numbers(state, info))
    return found


def _train_with_account():
    mechanism = _mechanism("poisson", steps=6, noise=2.0)
    accountant = api.bdp_training_accountant(mechanism)
    api.train(loss, PARAMS, (X, Y), mechanism, optax.sgd(0.5), KEY, on_report=accountant)
    return api.bdp_numbers(accountant.state, 1e-3)


KINDS = {"sgld": {}, "sghmc": {"friction": 0.3}, "psgld": {"gains": (0.5, 3.0)}}


def _chain(kind, step_size=0.4, **more):
    """Two kept states of each chain."""
    mechanism = api.chain(
        kind,
        api.poisson(40, 0.3),
        clip=1.0,
        step_size=step_size,
        steps=4,
        adjacency=ADD,
        **more,
    )
    arguments = log_likelihood, log_prior, PARAMS, (X, Y), mechanism, KEY
    return api.sample_chain(*arguments, burn_in=2, thinning=1)


def _transformation(kind, **more):
    """Two updates of a chain as an optax transformation."""
    optimizer = api.chain_transformation(
        kind, 0.4, n=40, batch_size=12.0, clip=1.0, key=KEY, log_prior=log_prior, **more
    )
    params, found = PARAMS, []
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def _rejection(adjacency):
    mechanism = api.one_posterior_sample(1.0, -2.0, 0.0, adjacency)
    return api.rejection_sample(
        lambda w, x: -((w - x) ** 2), jax.random.uniform, 0.4 + 0.2 * X[:8, 0], mechanism, KEY
    )


def _beta():
    mechanism = api.one_posterior_sample(1.0, -3.0, 0.0, REPLACE)
    return api.beta_sample(RECORDS["beta-binomial"], mechanism, KEY)


def model(x, y=None):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


GUIDES = {
    "normal": autoguide.AutoNormal,
    "multivariate normal": autoguide.AutoMultivariateNormal,
    "low rank": partial(autoguide.AutoLowRankMultivariateNormal, rank=2),
}


def _dpsvi(guide, objective):
    return api.dpsvi(
        model,
        GUIDES[guide](model),
        optax.adam(0.1),
        objective,
        sampling=api.poisson(40, 0.3),
        steps=4,
        clip=1.0,
        noise=0.8,
        adjacency=ADD,
    )


def _dpsvi_steps(guide, objective):
    return api.dpsvi_steps(_dpsvi(guide, objective), KEY, 2, X, Y)


def _dpsvi_run():
    return api.dpsvi_run(_dpsvi("normal", Trace_ELBO()), KEY, 4, X, Y)


def _regression(kind, adjacency):
    delta = 0.0 if kind == "laplace" else 1e-5
    mechanism = api.regression_mechanism(
        "perturbed" if kind == "laplace" else kind, epsilon=4.0, delta=delta, adjacency=adjacency
    )
    released = api.regression_release(mechanism, KEY, X, TARGETS)
    return api.adassp_numbers(released) if kind == "adassp" else api.statistics(released)


def _posteriors():
    mechanism = api.regression_mechanism("perturbed", epsilon=50.0, delta=1e-5, adjacency=REPLACE)
    released = api.repair(api.regression_release(mechanism, KEY, X, TARGETS), 0.5)
    return {
        "repaired": api.statistics(released),
        **api.regression_posteriors(released, 40),
    }


def _noise_aware_regression():
    mechanism = api.regression_mechanism("perturbed", epsilon=50.0, delta=1e-5, adjacency=REPLACE)
    released = api.regression_release(mechanism, KEY, X, TARGETS)
    return api.noise_aware_regression(KEY, mechanism, released, 40, draws=16, warmup=2)


def _conjugate(family, adjacency):
    """The three posteriors: of the records, and of a release without and with its noise."""
    mechanism = api.conjugate_release(family, "laplace", scale=0.5, adjacency=adjacency)
    records = RECORDS[family]
    released = api.conjugate_noisy(mechanism, 3, records)
    n = len(records) if adjacency == REPLACE else None
    return {
        "exact": api.exact_conjugate(family, records),
        "naive": api.naive_conjugate(mechanism, released, n),
        "noise-aware": api.noise_aware_conjugate(KEY, mechanism, released, n),
    }


CASES = {
    "train sgd": partial(_train, optax.sgd(0.5)),
    "train adam": partial(_train, optax.adam(0.1)),
    "train per layer": _train_per_layer,
    "train with a Bayesian account": _train_with_account,
    **{f"steps {name}": partial(_step, name) for name in SAMPLINGS},
    **{kind: partial(_chain, kind, **options) for kind, options in KINDS.items()},
    "sgld decreasing": partial(_chain, "sgld", step_size=api.decreasing(0.4, 0.33)),
    "sgld at half temperature, floor": partial(_chain, "sgld", temperature=0.5, floor=9.0),
    "sgld 2 chains, own batches": partial(_chain, "sgld", num_chains=2),
    "sgld 2 chains, shared batches": partial(_chain, "sgld", num_chains=2, batches="shared"),
    **{f"{k} transformation": partial(_transformation, k, **o) for k, o in KINDS.items()},
    **{f"rejection sample {adjacency}": partial(_rejection, adjacency) for adjacency in BOTH},
    "beta sample": _beta,
    **{
        f"dpsvi {guide}, particles {particles}": partial(
            _dpsvi_steps, guide, Trace_ELBO(num_particles=particles)
        )
        for guide, particles in (
            ("normal", 1),
            ("normal", 3),
            ("multivariate normal", 1),
            ("multivariate normal", 3),
            ("low rank", 1),
        )
    },
    "dpsvi mean field": partial(_dpsvi_steps, "normal", TraceMeanField_ELBO()),
    "dpsvi run": _dpsvi_run,
    **{
        f"regression {kind} {adjacency}": partial(_regression, kind, adjacency)
        for kind in ("perturbed", "laplace", "adassp", "wishart")
        for adjacency in BOTH
    },
    "regression posteriors": _posteriors,
    "regression noise-aware": _noise_aware_regression,
    **{
        f"conjugate {family} {adjacency}": partial(_conjugate, family, adjacency)
        for family in RECORDS
        for adjacency in BOTH
    },
}
