"""One step of private training: draw, clip, sum, noise, update. Pure functions of their state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._validation import as_key
from dpjax.gradients.clipped_grad import ClippedSumFn, LossFn, clipped_grad
from dpjax.gradients.clipping import ClippedGradInfo
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import Sampling, check_data, gather

# XLA's CPU backend runs loop bodies slower, but every copy of the body has to be compiled: up to
# this many physical batches stand outside a loop.
_UNROLLED = 16


class TrainState(NamedTuple):
    """Everything training goes on from. **Holds keys, which are secrets.**

    Attributes:
      params: the parameters after ``num_releases`` steps: what is released.
      optimizer: state of the private optimiser, the noise's key and count included.
      sampler: state of the sampler.
    """

    params: Any
    optimizer: Any
    sampler: Any

    @property
    def num_releases(self) -> jax.Array:
        """How many noisy sums were released, as the noise itself has counted."""
        return self.optimizer[0].num_releases


class StepInfo(NamedTuple):
    """What one step saw of the data. **Private values**: not part of the release.

    Attributes:
      batch_size: records drawn, int32.
      loss_sum: sum of their losses.
      num_nonfinite: records left out because their gradient was not finite, int32.
      norms: unclipped norms as `ClippedGradInfo`'s, ``(slots,)`` for the sampler's usual batches;
        those of a further batch, which one draw in some hundred needs, are not kept.
      mask: which of those slots were drawn, bool ``(slots,)``.
    """

    batch_size: jax.Array
    loss_sum: jax.Array
    num_nonfinite: jax.Array
    norms: Any
    mask: jax.Array


class PrivateStep(NamedTuple):
    """``init(params) -> state`` and ``update(state, data) -> (state, info)``, both jittable."""

    init: Callable[[Any], TrainState]
    update: Callable[[TrainState, Any], tuple[TrainState, StepInfo]]


def private_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mechanism: SubsampledGaussian,
    key: jax.Array,
    *,
    method: str = "auto",
    microbatch_size: int | None = None,
) -> PrivateStep:
    """Builds one training step out of the mechanism's description.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``.
      optimizer: any optax optimiser; it sees the noisy sum over the expected batch size.
      mechanism: says how to sample, what to clip to, how much noise to add, and how often.
      key: split into the sampler's and the noise's.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.

    Privacy:
      Each update releases new parameters through one step of ``mechanism``; past its
      ``num_steps`` the parameters become NaN. `StepInfo` is not released.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(PoissonSampling(8, 0.5), 1.0, 1.0, 10, "add_remove")
    >>> loss = lambda w, x: jnp.sum((w - x) ** 2)
    >>> step = private_step(loss, optax.sgd(0.1), mechanism, jax.random.key(0))
    >>> state, info = jax.jit(step.update)(step.init(jnp.zeros(2)), jnp.ones((8, 2)))
    >>> int(state.num_releases)
    1
    """
    sampling = mechanism.sampling
    clipped_sum = clipped_grad(
        loss_fn, mechanism.l2_clip, method=method, microbatch_size=microbatch_size
    )
    sampler_key, noise_key = jax.random.split(as_key(key))
    private_optimizer = mechanism.private_optimizer(optimizer, noise_key)

    def init(params: Any) -> TrainState:
        state = TrainState(params, private_optimizer.init(params), sampling.init(sampler_key))
        return jax.tree.map(jnp.array, state)  # its own copies: a loop may donate them

    def update(state: TrainState, data: Any) -> tuple[TrainState, StepInfo]:
        check_data(sampling, data)
        draw, sampler = sampling.draw(state.sampler)
        summed, info = sum_over_draw(clipped_sum, sampling, draw, state.params, data)
        updates, opt_state = private_optimizer.update(summed, state.optimizer, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state, sampler), info

    return PrivateStep(init, update)


def sum_over_draw(
    clipped_sum: ClippedSumFn, sampling: Sampling, draw: Any, params: Any, data: Any
) -> tuple[Any, StepInfo]:
    """The clipped sum over all physical batches of a draw, however many it takes.

    Args:
      clipped_sum: as `clipped_grad` makes it.
      sampling: the scheme that drew.
      draw: one draw of it.
      params: where gradients are taken.
      data: all records, a tree of arrays with a leading axis of ``sampling.num_examples``.

    Returns:
      The sum, shaped like ``params``, and a `StepInfo`. **Both are private values**: nothing is
      noised here.
    """

    def over(part: Any) -> tuple[Any, StepInfo]:
        batch = sampling.batch(draw, part)
        summed, info = clipped_sum(params, gather(data, batch.indices), batch.mask)
        return summed, _step_info(info, batch.mask)

    def add(summed: Any, part: Any) -> tuple[Any, StepInfo]:
        more, info = over(part)
        return jax.tree.map(jnp.add, summed, more), info

    usual = sampling.usual_batches
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(over, 0)[0])
    parts = jnp.arange(usual, dtype=jnp.int32)
    summed, infos = jax.lax.scan(add, zeros, parts, unroll=0 if usual <= _UNROLLED else 1)
    info = _end_to_end(infos)
    num_batches = sampling.num_batches(draw)
    if isinstance(num_batches, int):
        return summed, info

    def add_next(carry: Any) -> Any:
        part, summed, info = carry
        more, more_info = over(part)
        return part + 1, jax.tree.map(jnp.add, summed, more), _add_counts(info, more_info)

    start = (jnp.int32(sampling.usual_batches), summed, info)
    return jax.lax.while_loop(lambda carry: carry[0] < num_batches, add_next, start)[1:]


def _step_info(info: ClippedGradInfo, mask: jax.Array) -> StepInfo:
    drawn = jnp.sum(mask, dtype=jnp.int32)
    finite_losses = jnp.where(jnp.isfinite(info.losses), info.losses, 0)
    return StepInfo(drawn, finite_losses.sum(), info.num_nonfinite, info.norms, mask)


def _end_to_end(infos: StepInfo) -> StepInfo:
    """One info for stacked ones: counts added up, norms and masks laid end to end."""
    batch_size, loss_sum, num_nonfinite = [jnp.sum(leaf, dtype=leaf.dtype) for leaf in infos[:3]]
    norms, mask = jax.tree.map(jnp.ravel, (infos.norms, infos.mask))
    return StepInfo(batch_size, loss_sum, num_nonfinite, norms, mask)


def _add_counts(info: StepInfo, more: StepInfo) -> StepInfo:
    return info._replace(
        batch_size=info.batch_size + more.batch_size,
        loss_sum=info.loss_sum + more.loss_sum,
        num_nonfinite=info.num_nonfinite + more.num_nonfinite,
    )
