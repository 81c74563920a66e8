"""Training, Markov chains, variational inference and posteriors, a few steps each by fixed keys."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide

import dpjax
from dpjax import bdp
from dpjax.bayes import DPSVI, conjugate, regression, sgmcmc
from golden.cases_bdp import account_numbers
from golden.cases_certificates import (
    ADD,
    BOTH,
    FAMILIES,
    REPLACE,
    chain,
    conjugate_release,
    one_posterior_sample,
    regression_mechanism,
    subsampled,
)
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


POISSON = dpjax.PoissonSampling(40, 0.3)
SAMPLINGS = {
    "poisson": (POISSON, ADD),
    "poisson in parts": (dpjax.PoissonSampling(40, 0.5, physical_batch_size=8), REPLACE),
    "truncated poisson": (dpjax.TruncatedPoissonSampling(40, 0.3, truncated_batch_size=10), ADD),
    "fixed size": (dpjax.FixedSizeSampling(40, 10), REPLACE),
    "shuffled": (dpjax.ShuffledEpochs(40, 15), REPLACE),
}


def _train(optimizer, mechanism, on_report=None):
    return dpjax.train(
        KEY,
        loss,
        PARAMS,
        (X, Y),
        optimizer,
        mechanism=mechanism,
        on_report=on_report,
        progress=False,
    ).params


def _step(name):
    """Two steps by hand, with what they saw."""
    sampling, adjacency = SAMPLINGS[name]
    mechanism = subsampled(sampling, 0.7, 3, adjacency, 0.5)
    step = dpjax.private_step(loss, optax.sgd(0.5), mechanism=mechanism, key=KEY)
    state, update, found = step.init(PARAMS), jax.jit(step.update), []
    for _ in range(2):
        state, info = update(state, (X, Y))
        found.append(
            {
                "params": state.params,
                "releases": int(state.num_releases),
                "drawn": int(info.batch_size),
                "norms": np.asarray(info.norms)[np.asarray(info.mask)],
                "loss": info.loss_sum,
            }
        )
    return found


def _train_with_account():
    mechanism = subsampled(POISSON, 2.0, 6, ADD, 0.5)
    accountant = bdp.TrainingAccountant(bdp.init(mechanism))
    _train(optax.sgd(0.5), mechanism, accountant)
    return account_numbers(accountant.state)


GAINS = sgmcmc.RMSProp(min_value=0.5, max_value=3.0)
KINDS = {"sgld": {}, "sghmc": {"friction": 0.3}, "psgld": {"preconditioner": GAINS}}
TRANSFORMS = {"sgld": sgmcmc.sgld, "sghmc": sgmcmc.sghmc, "psgld": sgmcmc.psgld}


def _chain(kind, step_size=0.4, **more):
    """Two kept states of each chain."""
    mechanism = chain(kind, ADD, step_size, POISSON, steps=4, clip=1.0, **more)
    target = log_likelihood, log_prior, PARAMS, (X, Y)
    return sgmcmc.sample(
        KEY, *target, mechanism=mechanism, burn_in=2, thinning=1, progress=False
    ).samples


def _transformation(kind, **more):
    """Two updates of a chain as an optax transformation."""
    scale = {"num_examples": 40, "expected_batch_size": 12.0, "l2_clip": 1.0}
    optimizer = TRANSFORMS[kind](0.4, **scale, key=KEY, log_prior=log_prior, **more)
    params, found = PARAMS, []
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def _rejection(adjacency):
    mechanism = one_posterior_sample(1.0, -2.0, 0.0, adjacency)
    target = lambda w, x: -((w - x) ** 2), jax.random.uniform, 0.4 + 0.2 * X[:8, 0]
    return sgmcmc.rejection_sample(KEY, *target, mechanism).params


def _beta():
    mechanism, family = one_posterior_sample(1.0, -3.0, 0.0, REPLACE), "beta-binomial"
    return sgmcmc.beta_sample(KEY, FAMILIES[family], RECORDS[family], mechanism).params


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
    mechanism = subsampled(POISSON, 0.8, 4, ADD)
    return DPSVI(model, GUIDES[guide](model), optax.adam(0.1), objective, mechanism=mechanism)


def _dpsvi_steps(guide, objective):
    """The parameters at the start and after two steps."""
    svi = _dpsvi(guide, objective)
    state = svi.init(KEY, X, Y)
    start, update = svi.get_params(state), jax.jit(svi.update)
    for _ in range(2):
        state, _ = update(state, X, Y)
    return {"start": start, "after": svi.get_params(state)}


def _dpsvi_run():
    return _dpsvi("normal", Trace_ELBO()).run(KEY, X, Y, num_steps=4, progress_bar=False).params


def _without_none(released):
    return {name: value for name, value in released._asdict().items() if value is not None}


def _regression(kind, adjacency):
    delta, cls = (0.0, "perturbed") if kind == "laplace" else (1e-5, kind)
    mechanism = regression_mechanism(cls, 4.0, delta, adjacency)
    released = mechanism.release_records(KEY, X, TARGETS)
    if kind != "adassp":
        return _without_none(released)
    return {
        "statistics": _without_none(released.statistics),
        "eigenvalue": released.smallest_eigenvalue,
        "ridge": released.ridge,
    }


PRIOR = {"prior_precision": 1.0, "noise_shape": 2.0, "noise_rate": 0.5}


def _posteriors():
    mechanism = regression_mechanism("perturbed", 50.0, 1e-5, REPLACE)
    released = regression.repair(mechanism.release_records(KEY, X, TARGETS), 0.5)
    known = regression.known_noise_posterior(released, prior_precision=1.0, noise_precision=4.0)
    unknown = regression.unknown_noise_posterior(released, 40, **PRIOR)
    return {
        "repaired": _without_none(released),
        "known": known._asdict(),
        "unknown": unknown._asdict(),
    }


def _noise_aware_regression():
    mechanism = regression_mechanism("perturbed", 50.0, 1e-5, REPLACE)
    released = mechanism.release_records(KEY, X, TARGETS)
    chains = {"num_draws": 16, "num_warmup": 2, "num_chains": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few draws do not mix
        found = regression.noise_aware_posterior(
            KEY, mechanism, released, num_examples=40, **PRIOR, **chains
        )
    return {"beta": found.beta, "sigma2": found.sigma2}


def _conjugate(family, adjacency):
    """The three posteriors: of the records, and of a release without and with its noise."""
    mechanism = conjugate_release(family, "laplace", 0.5, adjacency)
    records = RECORDS[family]
    released = mechanism.release(jax.random.key(3), records)
    n = len(records) if adjacency == REPLACE else None
    exact = FAMILIES[family].exact_posterior(records)
    naive = conjugate.naive_posterior(mechanism, released, n)
    aware = conjugate.noise_aware_posterior(
        KEY, mechanism, released, num_examples=n, num_particles=200
    )
    return {
        "exact": {"mean": exact.mean, "interval": tuple(exact.interval(0.9))},
        "naive": {"mean": naive.mean, "interval": tuple(naive.interval(0.9))},
        "noise-aware": {"mean": aware.mean, "effective size": aware.effective_sample_size},
    }


CASES = {
    "train sgd": partial(_train, optax.sgd(0.5), subsampled(POISSON, 0.7, 3, ADD, 0.5)),
    "train adam": partial(_train, optax.adam(0.1), subsampled(POISSON, 0.7, 3, ADD, 0.5)),
    "train per layer": partial(
        _train, optax.sgd(0.5), subsampled(POISSON, 0.7, 3, ADD, {"w": 0.3, "b": 0.4})
    ),
    "train with a Bayesian account": _train_with_account,
    **{f"steps {name}": partial(_step, name) for name in SAMPLINGS},
    **{kind: partial(_chain, kind, **options) for kind, options in KINDS.items()},
    "sgld decreasing": partial(
        _chain, "sgld", step_size=sgmcmc.PolynomialDecay(0.4, exponent=0.33)
    ),
    "sgld at half temperature, floor": partial(
        _chain, "sgld", temperature=0.5, min_noise_multiplier=9.0
    ),
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
