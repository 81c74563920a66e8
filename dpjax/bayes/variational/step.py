"""One step of private variational inference: pure functions of a state."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.bayes.variational.coordinates import coordinates
from dpjax.bayes.variational.elbo import Problem, data_free_loss
from dpjax.gradients.clipped_grad import clipped_grad
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.step import StepInfo, sum_over_draw


class DPSVIState(NamedTuple):
    """State of `DPSVI`. **Holds keys, which are secrets.**

    Attributes:
      optim_state: of the optimiser, the unconstrained parameters included.
      rng_key: of the draws from the guide, as in numpyro's ``SVIState``.
      sampler: state of the sampler: who is drawn next.
      noise: state of the noise, which counts the releases.
    """

    optim_state: Any
    rng_key: jax.Array
    sampler: Any
    noise: Any

    @property
    def num_releases(self) -> jax.Array:
        """How many noisy sums were released, as the noise itself has counted."""
        return self.noise.num_releases


def make_step(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: Any,
    state: DPSVIState,
    records: Any,
    arrays: Any,
) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
    """Draw, clip, sum, noise, add what is free of data, step.

    Returns:
      The next state; and, not released, an estimate of minus the ELBO and what the step saw.
    """
    rng_key, key = jax.random.split(state.rng_key)
    params = optim.get_params(state.optim_state)
    free = jax.value_and_grad(partial(data_free_loss, problem))
    free_loss, free_grad = free(params, records, arrays, key)
    draw, sampler = mechanism.sampling.draw(state.sampler)
    summed, info = _clipped_sum(problem, mechanism, draw, params, records, arrays, key)
    noisy, noise = mechanism.noise(state.noise.key).update(summed, state.noise)
    scale = mechanism.sampling.num_examples / mechanism.sampling.expected_batch_size
    grads = jax.tree.map(lambda n, g: (scale * n).astype(g.dtype) + g, noisy, free_grad)
    optim_state = optim.update(grads, state.optim_state, value=jnp.nan)
    loss = scale * info.loss_sum + free_loss
    return DPSVIState(optim_state, rng_key, sampler, noise), (loss, info)


def with_index(records: Any) -> Any:
    """The records, each with its position."""
    return records, jnp.arange(len(records[0]))


def _clipped_sum(
    problem: Problem,
    mechanism: SubsampledGaussian,
    draw: Any,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
) -> tuple[Any, StepInfo]:
    where = coordinates(problem, mechanism.l2_clip, params, records, arrays, key)
    clipped = clipped_grad(where.loss, mechanism.l2_clip)
    data = with_index(records)
    summed, info = sum_over_draw(clipped, mechanism.sampling, draw, where.point, data)
    return where.to_params(summed), info
