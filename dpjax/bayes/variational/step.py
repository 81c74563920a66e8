"""One step of differentially private stochastic variational inference."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.optim import _NumPyroOptim

from dpjax._typing import PRNGKey
from dpjax.bayes.variational.arguments import Leaves
from dpjax.bayes.variational.clipping import choose_coordinates
from dpjax.bayes.variational.elbo import Problem, data_free_loss
from dpjax.gradients import clipped_grad
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo, sum_next_draw
from dpjax.training.data import SplitRecords
from dpjax.training.sharding import MeshSharding


class DPSVIState(NamedTuple):
    """State of `DPSVI`. **Holds keys, which are secrets.**

    Attributes:
      optim_state: state of the optimiser, which includes the unconstrained parameters.
      rng_key: key of the draws from the guide, as in numpyro's ``SVIState``.
      sampler: state of the sampler.
      noise: state of the noise, which counts the releases.
      seeded: whether the key that the state was made from looks like ``jax.random.key(seed)``.
    """

    optim_state: Any
    rng_key: PRNGKey
    sampler: Any
    noise: Any
    seeded: jax.Array

    @property
    def num_releases(self) -> jax.Array:
        """Number of noisy sums released so far."""
        return self.noise.num_releases


def make_step(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    records: Leaves,
    arrays: Leaves,
    sharding: MeshSharding | None = None,
    positions: jax.Array | None = None,
) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
    """Draws a batch, adds noise to the clipped sum, adds the data-free gradient, and updates.

    Args:
      problem: model and guide.
      mechanism: sampling, clip bound and noise.
      optim: numpyro's optimiser.
      state: before the step.
      records: all of them, or the buffer with the drawn ones of a data source.
      arrays: the public arrays.
      sharding: of batches and parameters, or ``None`` for one device.
      positions: in the data set, of the records in a buffer.

    Returns:
      The next state; and, not released, an estimate of the negative ELBO and a `StepInfo`.
    """
    summed, info, sampler = clip_draw(
        problem, mechanism, optim, state, state.sampler, records, arrays, sharding, positions
    )
    noisy, noise = mechanism.noise(state.noise.key).update(summed, state.noise)
    moved, free_loss = move(problem, mechanism, optim, state, noisy, records, arrays)
    loss = _scale(mechanism) * info.loss_sum + free_loss
    moved = moved._replace(sampler=sampler, noise=noise)
    if sharding is not None:
        moved = place_state(moved, optim, sharding)
    return moved, (loss, info)


def place_state(state: DPSVIState, optim: _NumPyroOptim, sharding: MeshSharding) -> DPSVIState:
    """Returns the state on the devices of ``sharding``, its parameters placed by their rule."""
    params = optim.get_params(state.optim_state)
    return sharding.place(state, sharding.state_specs(state, params))


def clip_draw(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    sampler: Any,
    records: Leaves,
    arrays: Leaves,
    sharding: MeshSharding | None = None,
    positions: jax.Array | None = None,
) -> tuple[Any, StepInfo, Any]:
    """Returns the clipped sum over the next draw of ``sampler``, without noise; see `make_step`.

    Also a `StepInfo`, and the sampler's next state.
    """
    _, key = jax.random.split(state.rng_key)
    params = optim.get_params(state.optim_state)
    where = choose_coordinates(problem, mechanism.l2_clip, params, records, arrays, key)
    most = mechanism.sampling.num_static_batches * mechanism.sampling.physical_batch_size
    clipped = clipped_grad(where.loss, mechanism.l2_clip, max_batch_size=most)
    examples = with_index(records) if positions is None else (records, positions)
    summed, info, moved = sum_next_draw(
        clipped, mechanism.sampling, sampler, where.point, examples, sharding=sharding
    )
    return where.to_params(summed), info, moved


def move(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    noisy: Any,
    records: Leaves,
    arrays: Leaves,
) -> tuple[DPSVIState, jax.Array]:
    """Returns the state after an update with a noisy sum, and the data-free loss before it.

    Of ``records`` only shapes and dtypes are used. Sampler and noise stay as they are.
    """
    rng_key, key = jax.random.split(state.rng_key)
    params, scale = optim.get_params(state.optim_state), _scale(mechanism)
    free = jax.value_and_grad(partial(data_free_loss, problem))
    free_loss, free_grad = free(params, records, arrays, key)
    grads = jax.tree.map(lambda n, g: (scale * n).astype(g.dtype) + g, noisy, free_grad)
    optim_state = optim.update(grads, state.optim_state, value=jnp.nan)
    return state._replace(optim_state=optim_state, rng_key=rng_key), free_loss


def _scale(mechanism: SubsampledGaussian) -> float:
    return mechanism.sampling.num_examples / mechanism.sampling.expected_batch_size


def with_index(records: Leaves) -> Any:
    """Returns the records, each with its position in the data set."""
    first, joined = records[0], join_records(records)
    if not isinstance(joined, SplitRecords):
        return records, jnp.arange(len(first))
    return replace(joined, arrays=(joined.arrays, joined.positions))


def join_records(records: Leaves) -> Any:
    """Returns the arrays, or those of `SplitRecords` as one."""
    first = records[0]
    if not isinstance(first, SplitRecords):
        return records
    return replace(first, arrays=[leaf.arrays for leaf in records])
