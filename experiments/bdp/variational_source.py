"""Protocol of Triastcyn and Faltings (2020) for Abalone and Adult, which adds no noise.

Each step samples weights from the variational distribution q and updates q's parameters with the
clipped gradients at these weights. The account compares q after a step with and without one record.
It would cover the release of one weight sample per step if the state before it were public; it does
not cover the release of q's parameters.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import bdp
from dpjax.sampling.base import gather
from experiments.data import Dataset
from experiments.dpvi.logistic import windowed_adagrad
from experiments.published.bdp import UnclippedGaussian

# Number of sampled records of a step for which the step without them is computed.
_NUM_RECORDS = 64


class Trajectory(NamedTuple):
    """Variational distributions of each step, with and without single records."""

    mean: Any  # after each step, (steps, d)
    scale: Any  # standard deviations, of the same shape
    other_mean: Any  # means without one sampled record, (steps, records, d)
    other_scale: Any  # standard deviations without it
    mask: Any  # which records were sampled, bool (steps, records)


def run_source_protocol(
    data: Dataset,
    *,
    l2_clip: float,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    seed: int,
) -> Trajectory:
    """Fits without noise; computes each step also without each of some sampled records."""
    sampling = dpjax.PoissonSampling(len(data.train.y), sampling_rate)
    optimizer = windowed_adagrad(learning_rate)
    records, key = tuple(data.train), jax.random.key(seed)
    return jax.tree.map(np.asarray, _run(sampling, optimizer, num_steps, l2_clip, records, key))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    sampling: dpjax.PoissonSampling,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    l2_clip: Any,
    records: Any,
    key: jax.Array,
) -> Trajectory:
    start = (jnp.zeros(records[0].shape[1]), jnp.zeros(records[0].shape[1]))
    rate = sampling.expected_batch_size / sampling.num_examples

    def data_free_loss(params: Any, normal: jax.Array) -> jax.Array:
        """Negative log prior and entropy, up to a constant."""
        weights = params[0] + jnp.exp(params[1]) * normal
        return 0.5 * jnp.sum(weights**2) - params[1].sum()

    def update(params: Any, state: Any, summed: Any, normal: jax.Array) -> tuple[Any, Any]:
        free = jax.grad(data_free_loss)(params, normal)
        gradient = jax.tree.map(lambda s, f: s / rate + f, summed, free)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def step(carry: Any, key: jax.Array) -> tuple[Any, Trajectory]:
        params, state, sampler = carry
        draw, sampler = sampling.draw(sampler)
        batch = sampling.batch(draw, 0)
        normal = jax.random.normal(key, params[0].shape)
        grads = _clipped_gradients(params, gather(records, batch.indices), normal, l2_clip)
        kept = jax.tree.map(lambda g: jnp.where(batch.mask[:, None], g, 0), grads)
        summed = jax.tree.map(lambda g: g.sum(axis=0), kept)
        left_out = jax.tree.map(lambda s, g: s - g[:_NUM_RECORDS], summed, kept)
        others, _ = jax.vmap(lambda s: update(params, state, s, normal))(left_out)
        params, state = update(params, state, summed, normal)
        found = Trajectory(
            params[0], jnp.exp(params[1]), others[0], jnp.exp(others[1]), batch.mask[:_NUM_RECORDS]
        )
        return (params, state, sampler), found

    sampler_key, steps_key = jax.random.split(key)
    carry = (start, optimizer.init(start), sampling.init(sampler_key))
    return jax.lax.scan(step, carry, jax.random.split(steps_key, num_steps))[1]


def _clipped_gradients(params: Any, records: Any, normal: jax.Array, l2_clip: Any) -> Any:
    """Returns each record's clipped gradient: leaves ``(records, d)``."""

    def loss(params: Any, record: Any) -> jax.Array:
        x, y = record
        weights = params[0] + jnp.exp(params[1]) * normal
        return -jax.nn.log_sigmoid((2 * y - 1) * (x @ weights))

    grads = jax.vmap(jax.grad(loss), (None, 0))(params, records)
    norms = jnp.sqrt(sum(jnp.sum(g**2, axis=1) for g in grads))
    factors = jnp.minimum(1, l2_clip / jnp.maximum(norms, 1e-12))
    return jax.tree.map(lambda g: factors[:, None] * g, grads)


def account(
    run: Trajectory, sampling_rate: float, num_examples: int, orders: Sequence[int]
) -> bdp.AccountantState:
    """Returns the BDP account of the release of one weight sample per step, under add/remove.

    The two normal distributions of a step are replaced by two of equal scale with the same Rényi
    divergence of order 2 (the larger direction), whose distance enters the formula of the
    subsampled Gaussian mechanism.

    Privacy:
      No guarantee (see the module); the DP epsilon is infinite.
    """
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    mechanism = UnclippedGaussian(sampling, noise_std=1.0, num_steps=len(run.mean))
    moments = bdp.subsampled_gaussian_log_moments(
        orders, distances(run), sampling_rate=sampling_rate, noise_std=1.0
    )
    return bdp.update_from_log_moments(bdp.init(mechanism, orders=orders), moments, run.mask)


def distances(run: Trajectory) -> np.ndarray:
    """Returns the distances of each step's distributions in standard deviations."""
    one = (run.mean[:, None], run.scale[:, None])
    other = (run.other_mean, run.other_scale)
    both = [
        bdp.diagonal_gaussian_log_moments((1,), *pair) for pair in ((*one, *other), (*other, *one))
    ]
    return np.sqrt(np.maximum(*both)[..., 0])
