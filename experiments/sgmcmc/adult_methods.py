"""Bayesian logistic regression on Adult by the methods of Li et al. (2017)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.bayes.sgmcmc import (
    SGLD,
    OnePosteriorSample,
    calibrate_step_size,
    hybrid,
    private_chains,
    sample,
)
from dpjax.mechanisms import Mechanism
from experiments.data import Split
from experiments.published.langevin import markov_chain_sample

DELTA = 1e-5
SAMPLING_RATE = 1 / 64
NUM_STEPS = 500
# Adult's records have 14 ones at most, so their gradients have norm sqrt(14) at most.
NO_CLIP, CLIP = 4.0, 1.0
LEAST_LOG_LIKELIHOOD = -3.0
# Larger steps are unstable.
_LARGEST_STEP = 1.5
_LEARNING_RATE = 1.0
_START, _THINNING = 0.1, 10
NUTS_STEPS = 40


class Runs(NamedTuple):
    """Several independent runs of one method."""

    # (num_runs, num_kept, num_features)
    weights: np.ndarray
    mechanism: Mechanism  # of one run
    is_exact: bool  # whether the mechanism's guarantee holds for the run


Method = Callable[[Split, float, int, jax.Array], Runs]


def log_likelihood(weights: jax.Array, example: Any) -> jax.Array:
    """Log-likelihood of a label, 0 or 1, given features."""
    x, label = example
    logit = x @ weights
    return label * logit - jax.nn.softplus(logit)


def log_prior(weights: jax.Array) -> jax.Array:
    """Log-density of independent N(0, 1) weights, up to a constant."""
    return -0.5 * jnp.sum(weights**2)


def make_sgld(
    train: Split, step_size: float, l2_clip: float = NO_CLIP, temperature: float = 1.0
) -> SGLD:
    """Returns the SGLD mechanism of one chain."""
    sampling = dpjax.PoissonSampling(len(train.y), SAMPLING_RATE)
    return SGLD(
        sampling,
        l2_clip=l2_clip,
        step_size=step_size,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
        temperature=temperature,
        unit="one person",
    )


def run_sgld(train: Split, chain: SGLD, num_runs: int, key: jax.Array) -> Runs:
    """Runs chains from zero, and keeps every tenth state of their second half."""
    result = sample(
        key,
        log_likelihood,
        log_prior,
        jnp.zeros(train.x.shape[1]),
        tuple(train),
        mechanism=dataclasses.replace(chain, num_chains=num_runs),
        burn_in=chain.num_steps // 2,
        thinning=_THINNING,
        progress=False,
    )
    return Runs(result.samples, chain, True)


def dp_sgld(
    train: Split, epsilon: float, num_runs: int, key: jax.Array, l2_clip: float = NO_CLIP
) -> Runs:
    """Runs chains at temperature 1 with the largest stable step size certified at epsilon."""
    chain = calibrate_chain(make_sgld(train, _START, l2_clip), epsilon)
    return run_sgld(train, chain, num_runs, key)


def calibrate_chain(chain: SGLD, epsilon: float) -> SGLD:
    """Returns the chain with the largest certified step size, at most the largest stable one."""
    scaled = calibrate_step_size(chain, epsilon=epsilon, delta=DELTA)
    return dataclasses.replace(scaled, step_size=min(float(scaled.step_sizes[0]), _LARGEST_STEP))


def dp_sgd(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Returns the last iterates of DP-SGD with calibrated noise."""
    sampling = dpjax.PoissonSampling(len(train.y), SAMPLING_RATE)
    one = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=CLIP,
        noise_multiplier=1.0,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
        unit="one person",
    )
    mechanism = dpjax.calibrate(one, epsilon=epsilon, delta=DELTA)

    def run(key: jax.Array) -> Any:
        return dpjax.train(
            key,
            lambda weights, example: -log_likelihood(weights, example),
            jnp.zeros(train.x.shape[1]),
            tuple(train),
            optax.sgd(_LEARNING_RATE),
            mechanism=mechanism,
            steps_per_call=NUM_STEPS,
            progress=False,
        ).params

    weights = np.stack([run(one_key) for one_key in jax.random.split(key, num_runs)])
    return Runs(weights[:, None], mechanism, True)


def one_posterior_sample(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Returns one approximate sample per run of the tempered posterior, by NUTS."""
    mechanism = _one_sample(epsilon)
    return Runs(_draws(train, mechanism, num_runs, key)[:, None], mechanism, False)


def run_hybrid(train: Split, epsilon: float, num_runs: int, key: jax.Array) -> Runs:
    """Runs chains from one posterior sample each, with half of epsilon for each part."""
    both = hybrid(_one_sample(epsilon), make_sgld(train, _START), epsilon=epsilon, delta=DELTA)
    start, chain = both.parts
    assert isinstance(start, OnePosteriorSample)
    assert isinstance(chain, SGLD)
    start_key, chain_key = jax.random.split(key)
    starts = jnp.asarray(_draws(train, start, num_runs, start_key))
    return Runs(_chains_from(starts, train, chain, chain_key), both, False)


def _one_sample(epsilon: float) -> OnePosteriorSample:
    return OnePosteriorSample(
        epsilon, low=LEAST_LOG_LIKELIHOOD, high=0.0, adjacency="zero_out", unit="one person"
    )


def _draws(train: Split, mechanism: OnePosteriorSample, num_runs: int, key: jax.Array) -> Any:
    """Returns one sample per run, ``(num_runs, num_features)``, by preconditioned NUTS."""
    x = np.asarray(train.x, np.float64)
    curvature = mechanism.scale * x.T @ x / 4 + np.eye(x.shape[1])
    back = np.linalg.inv(np.linalg.cholesky(curvature)).T

    # The data are arguments, since the compiler would fold constants.
    def draw(key: jax.Array, data: Any, back: jax.Array) -> jax.Array:
        drawn = markov_chain_sample(
            key,
            log_likelihood,
            lambda inner: log_prior(back @ inner),
            jnp.zeros(len(back)),
            data,
            mechanism,
            num_steps=NUTS_STEPS,
        )
        return back @ drawn

    keys = jax.random.split(key, num_runs)
    data = jnp.asarray(x @ back, jnp.float32), jnp.asarray(train.y)
    drawn = jax.jit(jax.vmap(draw, (0, None, None)))(keys, data, jnp.asarray(back, jnp.float32))
    return np.asarray(drawn)


def _chains_from(starts: jax.Array, train: Split, chain: SGLD, key: jax.Array) -> np.ndarray:
    """Returns the states of chains from the given starts, thinned as in `run_sgld`."""
    runs = dataclasses.replace(chain, num_chains=len(starts))
    step = private_chains(key, log_likelihood, log_prior, runs)

    @jax.jit
    def states(starts: jax.Array, data: Any) -> jax.Array:
        first = step.init(jnp.zeros(starts.shape[1]))._replace(params=starts)

        def advance(state: Any, _: Any) -> tuple[Any, Any]:
            state = step.update(state, data)[0]
            return state, state.params

        return jax.lax.scan(advance, first, length=chain.num_steps)[1]

    every = np.asarray(states(starts, jax.device_put(tuple(train))))
    kept = every[chain.num_steps // 2 + _THINNING - 1 :: _THINNING]
    return np.moveaxis(kept, 0, 1)


METHODS: dict[str, Method] = {
    "OPS": one_posterior_sample,
    "hybrid": run_hybrid,
    "DP-SGD": dp_sgd,
    "DP-SGLD": dp_sgld,
    "DP-SGLD, clipped": functools.partial(dp_sgld, l2_clip=CLIP),
}
