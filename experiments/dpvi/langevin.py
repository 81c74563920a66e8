"""Private Langevin chains on the same regressions: the published comparison's other side."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.bayes.sgmcmc import SGLD, sample
from dpjax.datasets import Dataset

_THINNING = 10


def chain_of(
    num_examples: int, l2_clip: float, sampling_rate: float, num_steps: int, step_size: float
) -> SGLD:
    """Returns one chain at temperature 1: its own noise is all that protects.

    >>> chain_of(3_341, 0.25, 0.05, 1_000, 0.3).gaussian.noise_multiplier.__round__(1)
    29.8
    """
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    return SGLD(
        sampling, l2_clip=l2_clip, step_size=step_size, num_steps=num_steps, adjacency="zero_out"
    )


def chain_accuracies(data: Dataset, chain: SGLD, repeats: int, seed: int) -> np.ndarray:
    """Returns the test accuracies (%) of ``repeats`` chains, each a run of its own.

    Predictions are averages over every tenth state of a chain's second half.
    """
    chains = dataclasses.replace(chain, num_chains=repeats)
    records = tuple(map(jnp.asarray, data.train))
    start = jnp.zeros(records[0].shape[1])
    burn_in = _THINNING * (chain.num_steps // (2 * _THINNING))
    key = jax.random.key(seed)
    weights = sample(
        key,
        _log_likelihood,
        _log_prior,
        start,
        records,
        chains,
        burn_in=burn_in,
        thinning=_THINNING,
        progress=False,
    ).samples
    probabilities = jax.nn.sigmoid(jnp.asarray(weights) @ data.test.x.T).mean(axis=1)
    return np.asarray(100 * jnp.mean((probabilities > 0.5) == (data.test.y == 1), axis=1), float)


def _log_likelihood(weights: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = record
    return jax.nn.log_sigmoid((2 * y - 1) * (x @ weights))


def _log_prior(weights: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(weights**2)
