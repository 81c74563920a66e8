"""One step of private training: sample, clip, sum, add noise, update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey
from dpjax._validation import as_key
from dpjax.gradients.clipped_grad import ClippedSumFn, clipped_grad
from dpjax.gradients.summation import CompensatedSum
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import Sampling, check_data, gather

# XLA's CPU backend runs loop bodies slower, but each copy of the body is compiled: the loop over
# up to this many physical batches is unrolled.
_UNROLLED = 16
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

    params: Any  # the structure that the caller gave
    optimizer: optax.OptState
    sampler: Any
    loss_key: PRNGKey | None = None

    @property
    def num_releases(self) -> jax.Array:
        """Number of noisy sums released, as counted by the noise transformation."""
        return self.optimizer[0].num_releases


class StepInfo(NamedTuple):
    """Batch statistics of one step. **Private values**: not part of the release.

    Attributes:
      batch_size: records drawn, int32.
      loss_sum: sum of their losses.
      num_nonfinite: records set to zero because their gradient was not finite, int32.
      norms: unclipped norms as `ClippedGradInfo`'s, ``(slots,)``: of every drawn record, or, where
        the draw exceeds the sampler's ``usual_batches`` (about one in some hundred), of a
        uniformly random subset of ``mask.sum()`` of the ``batch_size`` drawn.
      mask: which of those slots hold a drawn record, bool ``(slots,)``.
    """

    batch_size: jax.Array
    loss_sum: jax.Array
    num_nonfinite: jax.Array
    norms: ArrayTree
    mask: jax.Array


class PrivateStep(NamedTuple):
    """A step of private training as two jittable functions.

    Attributes:
      init: ``init(params) -> state``.
      update: ``update(state, data) -> (state, info)``: one release.
    """

    init: Callable[[Any], TrainState]
    update: Callable[[TrainState, ArrayTree], tuple[TrainState, StepInfo]]


def private_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mechanism: SubsampledGaussian,
    *,
    key: PRNGKey,
    loss_takes_key: bool = False,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
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
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.

    Returns:
      ``init(params) -> TrainState`` and ``update(state, data) -> (TrainState, StepInfo)``, where
      ``data`` holds all records, on the leading axis of every array.

    Privacy:
      Each update releases new parameters through one step of ``mechanism``; past its
      ``num_steps`` the parameters become NaN. `StepInfo` is not released. The keys of the loss are
      independent of the sampler, the noise and the records, so with them the guarantee is the same;
      like all keys they are secrets.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(8, 0.5), l2_clip=1.0, noise_multiplier=1.0, num_steps=10,
    ...     adjacency="add_remove"
    ... )
    >>> loss = lambda w, x: jnp.sum((w - x) ** 2)
    >>> step = private_step(loss, optax.sgd(0.1), mechanism, key=jax.random.key(0))
    >>> state, info = jax.jit(step.update)(step.init(jnp.zeros(2)), jnp.ones((8, 2)))
    >>> int(state.num_releases)
    1
    """
    sampling = mechanism.sampling
    clipped_sum = clipped_grad(
        loss_fn,
        mechanism.l2_clip,
        method=method,
        microbatch_size=microbatch_size,
        max_batch_size=sampling.usual_batches * sampling.physical_batch_size,
    )
    key = as_key(key)
    sampler_key, noise_key = jax.random.split(key)
    loss_key = jax.random.fold_in(key, _LOSS_STREAM) if loss_takes_key else None
    private_optimizer = mechanism.private_optimizer(optimizer, key=noise_key)

    def init(params: ArrayTree) -> TrainState:
        optimizer_state, sampler = private_optimizer.init(params), sampling.init(sampler_key)
        state = TrainState(params, optimizer_state, sampler, loss_key)
        return jax.tree.map(jnp.array, state)  # its own copies: a loop may donate them

    def update(state: TrainState, data: ArrayTree) -> tuple[TrainState, StepInfo]:
        check_data(sampling, data)
        draw, sampler = sampling.draw(state.sampler)
        step_key = None
        if state.loss_key is not None:
            step_key = jax.random.fold_in(state.loss_key, state.num_releases)
        summed, info = sum_over_draw(clipped_sum, sampling, draw, state.params, data, step_key)
        updates, opt_state = private_optimizer.update(summed, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, sampler, state.loss_key), info

    return PrivateStep(init, update)


def sum_over_draw(
    clipped_sum: ClippedSumFn,
    sampling: Sampling,
    draw: Any,
    params: ArrayTree,
    data: ArrayTree,
    key: PRNGKey | None = None,
) -> tuple[Any, StepInfo]:
    """The clipped sum over all physical batches of a draw.

    Args:
      clipped_sum: a function returned by `clipped_grad`.
      sampling: the sampler.
      draw: one draw of it.
      params: where gradients are taken.
      data: all records, a tree of arrays with a leading axis of ``sampling.num_examples``.
      key: for losses that take one: that of the example in slot i of physical batch j is
        ``fold_in(fold_in(key, j), i)``.

    Returns:
      The sum, shaped like ``params``, and a `StepInfo`. **Both are private values**: no noise
      is added here.
    """

    def sum_of_part(part: jax.Array) -> tuple[Any, StepInfo]:
        batch = sampling.batch(draw, part)
        part_key = None if key is None else jax.random.fold_in(key, part)
        examples = gather(data, batch.indices)
        summed, info = clipped_sum(params, examples, batch.mask, key=part_key)
        drawn = jnp.sum(batch.mask, dtype=jnp.int32)
        finite_losses = jnp.where(jnp.isfinite(info.losses), info.losses, 0)
        loss_sum = finite_losses.sum()
        return summed, StepInfo(drawn, loss_sum, info.num_nonfinite, info.norms, batch.mask)

    def add(summed: CompensatedSum, part: jax.Array) -> tuple[CompensatedSum, StepInfo]:
        more, info = sum_of_part(part)
        return summed.add(more), info

    usual = sampling.usual_batches
    zero = CompensatedSum.zero(jax.eval_shape(sum_of_part, 0)[0])
    parts = jnp.arange(usual, dtype=jnp.int32)
    summed, infos = jax.lax.scan(add, zero, parts, unroll=0 if usual <= _UNROLLED else 1)
    batch_size, loss_sum, num_nonfinite = (jnp.sum(leaf, dtype=leaf.dtype) for leaf in infos[:3])
    norms, mask = jax.tree.map(jnp.ravel, (infos.norms, infos.mask))
    info = StepInfo(batch_size, loss_sum, num_nonfinite, norms, mask)
    num_batches = sampling.num_batches(draw)
    if isinstance(num_batches, int):
        return summed.value(), info

    def add_next(carry: Any) -> Any:
        part, summed, info = carry
        more, more_info = sum_of_part(part)
        info = info._replace(
            batch_size=info.batch_size + more_info.batch_size,
            loss_sum=info.loss_sum + more_info.loss_sum,
            num_nonfinite=info.num_nonfinite + more_info.num_nonfinite,
        )
        return part + 1, summed.add(more), info

    start = (jnp.int32(usual), summed, info)
    end = jax.lax.while_loop(lambda carry: carry[0] < num_batches, add_next, start)
    return end[1].value(), end[2]
