"""One step of private training: sample, clip, sum, add noise, update."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_key, check_type
from dpjax._typing import LossFn, MicrobatchSize, PRNGKey, PyTree, SamplerState
from dpjax.gradients import AdaptiveClip, clipped_grad
from dpjax.gradients.shard_map import check_not_explicit
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo, sum_next_draw
from dpjax.training.data import Examples, PrefetchedDraw, check_records
from dpjax.training.run import Update
from dpjax.training.sharding import MeshSharding

# The key of the loss is ``fold_in(key, _LOSS_STREAM)``; those of sampler and noise, ``split(key)``,
# are derived from counters below 4, so the three are independent.
_LOSS_STREAM = 0x6C6F7373


class TrainState(NamedTuple):
    """The state of training. **Holds keys, which are secrets.**

    Attributes:
      params: the parameters after ``num_releases`` steps: what is released.
      optimizer: state of the private optimiser, the noise's key and count included.
      sampler: state of the sampler.
      loss_key: from which the key of each step and example is derived, the same in all steps;
        ``None`` if the loss takes no key.
    """

    params: PyTree
    optimizer: optax.OptState
    sampler: SamplerState
    loss_key: PRNGKey | None = None

    @property
    def num_releases(self) -> jax.Array:
        """Number of noisy sums released, as counted by the noise transformation."""
        return self.optimizer[0].num_releases


class PrivateStep(NamedTuple):
    """A step of private training as two jittable functions.

    Attributes:
      init: ``init(params) -> state``.
      update: ``update(state, data) -> (state, info)``: one release.
      one_device_update: the same without the mesh: its program identifies a run on any devices.
    """

    init: Callable[[PyTree], TrainState]
    update: Update[TrainState, Examples, StepInfo]
    one_device_update: Update[TrainState, Examples, StepInfo]


def private_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    mechanism: SubsampledGaussian,
    key: PRNGKey,
    loss_takes_key: bool = False,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
) -> PrivateStep:
    """Builds one step of DP-SGD with any optax optimiser, from its mechanism.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)`` with
        ``loss_takes_key``.
      optimizer: any optax optimiser; it sees the noisy sum over the expected batch size.
      mechanism: sampling, clip bound, noise and number of steps.
      key: from which the keys of the sampler, of the noise and of the loss are derived.
      loss_takes_key: whether the loss draws random numbers (dropout) from a key, which is then
        another one for each step and each example drawn in it.
      method, microbatch_size: see `clipped_grad`; with ``sharding``, of the rows on one device.
      sharding: mesh of devices over which batches, and parameters by a rule, are split. ``init``
        places the state there.

    Returns:
      ``init(params) -> TrainState`` and ``update(state, data) -> (TrainState, StepInfo)``, where
      ``data`` holds all records, on the leading axis of every array, or is `SplitRecords`.

    Privacy:
      Each update releases new parameters through one step of ``mechanism``; past its
      ``num_steps`` the parameters become NaN. `StepInfo` is not released. The keys of the loss are
      independent of the sampler, the noise and the records, so with them the guarantee is the same;
      like all keys they are secrets.

    Raises:
      ValueError: (in ``init``) for an optimiser with noise or clipping of dpjax's own.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(8, 0.5), l2_clip=1.0, noise_multiplier=1.0, num_steps=10,
    ...     adjacency="add_remove"
    ... )
    >>> loss = lambda w, x: jnp.sum((w - x) ** 2)
    >>> step = private_step(loss, optax.sgd(0.1), mechanism=mechanism, key=jax.random.key(0))
    >>> state, info = jax.jit(step.update)(step.init(jnp.zeros(2)), jnp.ones((8, 2)))
    >>> int(state.num_releases)
    1
    """
    check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
    check_type(
        "optimizer",
        optimizer,
        optax.GradientTransformation,
        "an optax optimiser such as optax.adam(1e-3)",
    )
    check_type("sharding", sharding, MeshSharding | None, "a MeshSharding or None")
    sampling = mechanism.sampling
    l2_clip = mechanism.l2_clip
    clipped_sum = clipped_grad(
        loss_fn,
        l2_clip,
        method=method,
        microbatch_size=microbatch_size,
        max_batch_size=sampling.num_static_batches * sampling.physical_batch_size,
    )
    key = as_key(key)
    sampler_key, noise_key = jax.random.split(key)
    loss_key = jax.random.fold_in(key, _LOSS_STREAM) if loss_takes_key else None
    private_optimizer = mechanism.private_optimizer(optimizer, key=noise_key)

    def init(params: PyTree) -> TrainState:
        optimizer_state, sampler = private_optimizer.init(params), sampling.init(sampler_key)
        state = TrainState(params, optimizer_state, sampler, loss_key)
        state = jax.tree.map(jnp.array, state)  # its own copies: a loop may donate them
        if sharding is not None:
            state = sharding.place(state, sharding.state_specs(state, state.params))
        return state

    def update(
        state: TrainState, data: Examples, sharding: MeshSharding | None = None
    ) -> tuple[TrainState, StepInfo]:
        if not isinstance(state.sampler, PrefetchedDraw):
            check_records(sampling, data)
        check_not_explicit("state", state)
        check_not_explicit("data", data)

        # The parameters, and the clip bound where it adapts.
        inputs = state.params
        if isinstance(l2_clip, AdaptiveClip):
            inputs = l2_clip.with_slots(inputs, state.optimizer[1].bound)

        # Draw a batch, clip the gradients of its records, and add them up.
        step_key = None
        if state.loss_key is not None:
            step_key = jax.random.fold_in(state.loss_key, state.num_releases)
        total, info, sampler = sum_next_draw(
            clipped_sum, sampling, state.sampler, inputs, data, step_key, sharding
        )

        # Add noise to the sum, divide it by the expected batch size, and optimise.
        updates, optimizer_state = private_optimizer.update(total, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)

        state = TrainState(params, optimizer_state, sampler, state.loss_key)
        if sharding is not None:
            state = sharding.constrain(state, sharding.state_specs(state, state.params))
        return state, info

    return PrivateStep(init, partial(update, sharding=sharding), partial(update, sharding=None))
