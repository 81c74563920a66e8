"""The source's protocol for Abalone and Adult, as far as its description goes: no noise is added.

Every step draws weights theta from the variational distribution q, whose parameters a step then
moves by the clipped gradients at theta. The source takes the randomness of theta for the noise: it
compares q after a step with one record more and without it. What that covers is one draw theta for
each step, if whatever came before were public; the parameters of q themselves are protected by
nothing, although they are what is fitted, and what every step starts from.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import bdp
from dpjax.datasets import Dataset
from dpjax.sampling.base import gather
from experiments.dpvi.logistic_model import windowed_adagrad

NUM_RECORDS = 64
_LEAST_NORM = 1e-12


class Trail(NamedTuple):
    """Variational distributions along a run.

    Attributes:
      mean: after each step, ``(steps, d)``.
      scale: standard deviations, likewise.
      other_mean: the same without one of the drawn records, ``(steps, records, d)``.
      other_scale: likewise.
      mask: whether there was such a record, bool ``(steps, records)``.
    """

    mean: Any
    scale: Any
    other_mean: Any
    other_scale: Any
    mask: Any


def run(
    data: Dataset,
    *,
    l2_clip: float,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    seed: int,
) -> Trail:
    """Fits without noise, and notes where each step would have gone without one record."""
    sampling = dpjax.PoissonSampling(len(data.train.y), sampling_rate)
    optimizer = windowed_adagrad(learning_rate)
    trail = _run(sampling, optimizer, num_steps, l2_clip, tuple(data.train), jax.random.key(seed))
    return Trail(*(np.asarray(leaf) for leaf in trail))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    sampling: dpjax.PoissonSampling,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    l2_clip: Any,
    records: Any,
    key: jax.Array,
) -> Trail:
    start = (jnp.zeros(records[0].shape[1]), jnp.zeros(records[0].shape[1]))
    rate = sampling.expected_batch_size / sampling.num_examples

    def moved(params: Any, state: Any, summed: Any, normal: jax.Array) -> tuple[Any, Any]:
        free = jax.grad(partial(_data_free_loss, normal))(params)
        gradient = jax.tree.map(lambda s, f: s / rate + f, summed, free)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def step(carry: Any, key: jax.Array) -> tuple[Any, Trail]:
        params, state, sampler = carry
        draw, sampler = sampling.draw(sampler)
        batch = sampling.batch(draw, 0)
        normal = jax.random.normal(key, params[0].shape)
        grads = _clipped_gradients(params, gather(records, batch.indices), normal, l2_clip)
        kept = jax.tree.map(lambda g: jnp.where(batch.mask[:, None], g, 0), grads)
        summed = jax.tree.map(lambda g: g.sum(axis=0), kept)
        left_out = jax.tree.map(lambda s, g: s - g[:NUM_RECORDS], summed, kept)
        others, _ = jax.vmap(lambda s: moved(params, state, s, normal))(left_out)
        params, state = moved(params, state, summed, normal)
        trail = Trail(params[0], jnp.exp(params[1]), others[0], jnp.exp(others[1]), batch.mask)
        return (params, state, sampler), trail._replace(mask=batch.mask[:NUM_RECORDS])

    sampler_key, steps_key = jax.random.split(key)
    carry = (start, optimizer.init(start), sampling.init(sampler_key))
    return jax.lax.scan(step, carry, jax.random.split(steps_key, num_steps))[1]


def _weights(params: Any, normal: jax.Array) -> jax.Array:
    return params[0] + jnp.exp(params[1]) * normal


def _data_free_loss(normal: jax.Array, params: Any) -> jax.Array:
    """Minus log prior and entropy, up to a constant."""
    return 0.5 * jnp.sum(_weights(params, normal) ** 2) - params[1].sum()


def _clipped_gradients(params: Any, records: Any, normal: jax.Array, l2_clip: Any) -> Any:
    """Each record's, clipped: leaves ``(records, d)``."""

    def loss(params: Any, record: Any) -> jax.Array:
        x, y = record
        return -jax.nn.log_sigmoid((2 * y - 1) * (x @ _weights(params, normal)))

    grads = jax.vmap(jax.grad(loss), (None, 0))(params, records)
    norms = jnp.sqrt(sum(jnp.sum(g**2, axis=1) for g in grads))
    factors = jnp.minimum(1, l2_clip / jnp.maximum(norms, _LEAST_NORM))
    return jax.tree.map(lambda g: factors[:, None] * g, grads)


def account(
    trail: Trail, sampling_rate: float, num_examples: int, orders: Any
) -> bdp.AccountantState:
    """Returns the Bayesian account of one draw of weights for each step, add/remove.

    The two normal distributions of a step are replaced by two of equal scale with the same Rényi
    divergence of order 2, the larger of both directions, whose distance enters the formula of the
    sampled Gaussian.

    Privacy: no guarantee; see the module. Its differential epsilon is infinite.
    """
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    steps = len(trail.mean)
    mechanism = bdp.UnclippedGaussian(sampling, noise_std=1.0, num_steps=steps)
    moments = bdp.subsampled_gaussian_log_moments(
        orders, distances(trail), sampling_rate=sampling_rate, noise_std=1.0
    )
    return bdp.update_from_log_moments(bdp.init(mechanism, orders=orders), moments, trail.mask)


def distances(trail: Trail) -> np.ndarray:
    """Returns how far each step's distributions are apart, in standard deviations."""
    one = (trail.mean[:, None], trail.scale[:, None])
    other = (trail.other_mean, trail.other_scale)
    both = [
        bdp.diagonal_gaussian_log_moments((1,), *pair) for pair in ((*one, *other), (*other, *one))
    ]
    return np.sqrt(np.maximum(*both)[..., 0])
