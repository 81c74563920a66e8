"""Every public entry point under strict dtype promotion and without rank promotion.

Third-party code that promotes (numpyro's NUTS and Bernoulli, optax's Adam) is left out, or called
by dpjax under the usual promotions.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.inputs import gaussian_mechanism, squared_error

import dpjax
from dpjax import sensitivity
from dpjax.bayes import conjugate, regression
from dpjax.bayes.regression import noise_aware

pytestmark = pytest.mark.usefixtures("strict_numerics")

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = RNG.normal(size=40).astype(np.float32)
BOUNDS = regression.RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
PRIOR = {"prior_precision": 1.0, "noise_shape": 2.0, "noise_rate": 1.0}
STATISTICS = {
    law: regression.PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=delta, adjacency="replace_one", num_features=2
    )
    for law, delta in (("gaussian", 1e-5), ("laplace", 0.0))
}
SUM = sensitivity.of_sum((np.zeros(3), np.ones(3)), norm="l1", adjacency="add_remove")
COUNT = sensitivity.of_count(norm="l1", adjacency="add_remove")
L2 = dpjax.Sensitivity(1.0, "l2", "add_remove", shape=(3,))
LINF = dpjax.Sensitivity(1.0, "linf", "add_remove", shape=(3,))


def log_likelihood(params, example):
    return -squared_error(params, example)


def log_prior(params):
    return -jnp.sum(params["w"] ** 2)


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def linear_guide(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(2))
    numpyro.sample("w", dist.Normal(loc, 0.5).to_event(1))


def releases(mechanism):
    return mechanism.release(KEY, jnp.ones(3))


def train_with(sampling, adjacency="add_remove"):
    mechanism = gaussian_mechanism(sampling, num_steps=2, adjacency=adjacency)
    params, options = {"w": jnp.zeros(2)}, {"mechanism": mechanism, "progress": False}
    return dpjax.train(KEY, squared_error, params, (X, Y), optax.sgd(0.1), **options).params


def clipped(**options):
    compute = dpjax.clipped_grad(squared_error, l2_clip=1.0, **options)
    return compute({"w": jnp.zeros(2)}, (X, Y), None)


def update(transformation):
    params = {"w": jnp.zeros(2)}
    return transformation.update({"w": jnp.ones(2)}, transformation.init(params), params)


def langevin(sampler, **options):
    chain = sampler(
        dpjax.PoissonSampling(40, 0.25), l2_clip=1.0, step_size=0.01, num_steps=2,
        adjacency="add_remove", **options,
    )  # fmt: skip
    data, start = (X, Y), {"w": jnp.zeros(2)}
    return dpjax.bayes.sgmcmc.sample(
        KEY, log_likelihood, log_prior, start, data, mechanism=chain, progress=False
    ).samples


def variational():
    mechanism = gaussian_mechanism(num_steps=2)
    svi = dpjax.bayes.DPSVI(linear, linear_guide, optax.sgd(0.1), mechanism=mechanism)
    return svi.run(KEY, X, Y, progress_bar=False).params


def released(law):
    return STATISTICS[law].release_records(KEY, X, Y)


def fit_noise_aware(law):
    sizes = {"num_draws": 8, "num_warmup": 2, "num_chains": 1}
    fit = partial(regression.noise_aware_posterior, KEY, STATISTICS[law])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        draws = fit(released(law), num_examples=40, **PRIOR, **sizes)
    return draws, regression.prediction_interval(KEY, draws, X, 0.9)


def density_of_statistics(law):
    """What NUTS evaluates, which runs under numpyro's promotions there."""
    mechanism = STATISTICS[law]
    observation = noise_aware.observe(mechanism, released(law), 40)
    prior = noise_aware.ConjugatePrior(*map(jnp.float32, (1.0, 2.0, 1.0)))
    features = regression.FeaturePrior(0.5) if law == "laplace" else None
    second_moment = noise_aware.second_moment_prior(features, mechanism, observation)
    coordinates = noise_aware.make_coordinates(observation, prior, mechanism)
    density = partial(
        noise_aware.log_density,
        coordinates=coordinates, observation=observation, second_moment=second_moment,
        prior=prior, noise_distribution=law,
    )  # fmt: skip
    unknowns = jnp.zeros_like(coordinates.scales)
    found = noise_aware.decode(unknowns, coordinates, observation, prior)
    parameters = noise_aware.draw_parameters(KEY, found, observation.num_examples, prior)
    return jax.value_and_grad(density)(unknowns), parameters


def regression_model(law):
    def prior():
        return numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1)), jnp.ones(())

    model = numpyro.handlers.seed(regression.released_regression, KEY)
    return numpyro.infer.util.log_density(
        model, (prior, STATISTICS[law], released(law), 40), {}, {}
    )


def closed_forms():
    data = regression.repair(regression.sufficient_statistics(X, Y), 0.1)
    unknown = regression.unknown_noise_posterior(data, 40, **PRIOR)
    known = regression.known_noise_posterior(data, prior_precision=1.0, noise_precision=1.0)
    return [(fit.covariance, fit.predict(X).interval(0.9)) for fit in (unknown, known)]


def private_bounds():
    mechanism = regression.PrivateBounds(
        x_norm_bounds=(1.0, 2.0),
        y_bounds=(1.0, 2.0),
        quantile=0.9,
        epsilon=1.0,
        adjacency="add_remove",
    )
    return mechanism.release_positions(KEY, X, Y)


def adassp():
    mechanism = regression.AdaSSP.from_epsilon(
        BOUNDS, epsilon=1.0, delta=1e-5, adjacency="add_remove", num_features=2
    )
    return mechanism.release_records(KEY, X, Y)


def conjugate_posterior(aware):
    family = conjugate.BetaBinomial(alpha=1.0, beta=1.0)
    noise = dpjax.Laplace(family.sensitivity(norm="l1", adjacency="replace_one"), scale=2.0)
    release = conjugate.SufficientStatisticsMechanism(family, noise)
    fit = partial(conjugate.noise_aware_posterior, KEY) if aware else conjugate.naive_posterior
    return fit(release, [25.0], num_examples=40).interval(0.9)


RMS_PROP = dpjax.bayes.sgmcmc.RMSProp(min_value=0.1, max_value=5.0)
ENTRY_POINTS = {
    "Laplace": lambda: releases(dpjax.Laplace(SUM, 1.0)),
    "Gaussian": lambda: releases(dpjax.Gaussian(L2, 1.0)),
    "DiscreteLaplace": lambda: dpjax.DiscreteLaplace(COUNT, 1.0).release(KEY, 3),
    "NoisyMax": lambda: releases(dpjax.NoisyMax.from_epsilon(LINF, epsilon=1.0)),
    "ExponentialMechanism": lambda: releases(
        dpjax.ExponentialMechanism.from_epsilon(LINF, epsilon=1.0)
    ),
    "Poisson": lambda: train_with(dpjax.PoissonSampling(40, 0.25)),
    "truncated Poisson": lambda: train_with(
        dpjax.TruncatedPoissonSampling(40, 0.25, truncated_batch_size=20)
    ),
    "shuffled": lambda: train_with(dpjax.ShuffledEpochs(40, 10), "replace_one"),
    "clipped_grad": clipped,
    "clipped_grad, scanned": lambda: clipped(microbatch_size=10),
    "add_gaussian_noise": lambda: update(
        dpjax.add_gaussian_noise(noise_multiplier=1.0, l2_clip=1.0, key=KEY)
    ),
    "sgld": lambda: langevin(dpjax.bayes.sgmcmc.SGLD),
    "sghmc": lambda: langevin(dpjax.bayes.sgmcmc.SGHMC, friction=0.5),
    "psgld": lambda: langevin(dpjax.bayes.sgmcmc.PSGLD, preconditioner=RMS_PROP),
    "DPSVI": variational,
    "noise_aware_posterior": lambda: fit_noise_aware("gaussian"),
    "density, Gaussian": lambda: density_of_statistics("gaussian"),
    "density, Laplace": lambda: density_of_statistics("laplace"),
    "released_regression": lambda: [regression_model(law) for law in STATISTICS],
    "closed forms": closed_forms,
    "PrivateBounds": private_bounds,
    "AdaSSP": adassp,
    "conjugate, naive": lambda: conjugate_posterior(False),
    "conjugate, noise-aware": lambda: conjugate_posterior(True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_entry_points_promote_nothing(name):
    leaves = jax.tree.leaves(ENTRY_POINTS[name]())
    assert all(np.isfinite(leaf).all() for leaf in leaves if np.ndim(leaf))


def test_power_strict_settings():
    """The power check: both kinds of promotion are errors here."""
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 2)) + jnp.ones(2)
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.ones(2) + jnp.arange(2)
