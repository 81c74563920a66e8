"""Sum of clipped per-example gradients of a loss, by ``vmap`` or book-keeping."""

from functools import partial

import jax
import jax.numpy as jnp

from dpjax._checks import (
    as_mask,
    batch_length,
    check_choice,
    check_count,
    check_function,
)
from dpjax._jaxprs import is_slow_in_loops, primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn, MicrobatchSize, Params, PRNGKey
from dpjax.gradients.bookkeeping.sums import clipped_sum as sum_by_bookkeeping
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clip_rules import AdaptiveClip, GradientAndSlots
from dpjax.gradients.clipping import (
    ClippedSum,
    ClippedSumFn,
    clip_and_sum,
    clipped_grad_info,
    sum_of_clipped,
    sum_of_slots,
)
from dpjax.gradients.loss_checks import (
    LossInput,
    check_local,
    check_loss,
    check_params,
    split_params,
    with_keys,
)
from dpjax.gradients.microbatching import (
    fitting_microbatch_size,
    isolate_nonfinite,
    sum_over_microbatches,
)
from dpjax.gradients.shard_map import as_varying, check_not_explicit, one_example, varying_axes


def clipped_grad(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    *,
    wrt: object = None,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    max_batch_size: int | None = None,
) -> ClippedSumFn:
    """Returns a function for the sum of clipped per-example gradients of ``loss_fn``.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, where ``example`` is ``batch`` without its
        leading axis; ``loss_fn(params, example, key)`` where a key is given. It is called on one
        example at a time; losses that mix examples (batch normalisation, collectives, callbacks and
        functions whose batching rule gets the whole batch) are rejected. Only where a loss has
        primitives with batching rules that are not JAX's, gradients of synthetic examples are
        compared, which takes two compilations more.
      l2_clip: the bound on one example's gradient: a number (flat L2 norm over all parameters), or
        a prefix of the parameter tree with one number for each group of leaves (per-layer). For a
        number may stand `AutomaticClip` or `PSACClip`; for all, an `AdaptiveClip`, whose bound is
        part of the arguments then (see below).
      wrt: where ``params`` is a flax ``nnx.Module``, the filter for its trained variables, by
        default ``nnx.Param``. All others are constants.
      method: ``"vmap"`` computes every per-example gradient (the reference); ``"bookkeeping"``
        avoids them by ghost norms (Bu et al. 2022), leaf by leaf where that is possible and cheaper
        (see `explain`); ``"auto"`` is book-keeping. The sum is the same up to rounding, except
        where the terms of a gradient nearly cancel: there a norm may be up to 1 % above that of the
        reference, never below the true norm, and the example is clipped as much further.
      microbatch_size: scan over micro-batches of this many examples: less memory, the same sum. On
        a CPU also faster where intermediate results far exceed the caches (the logits of a language
        model). ``"auto"`` is the largest power of two, or the whole batch, with which a call takes
        at most half of the device's memory by the compiler's analysis, for which one to some four
        more programs are compiled. It depends on the machine: a run resumed on another one needs
        the number.
      max_batch_size: the largest number of examples whose clipped gradients are added up before the
        noise, if the sums of several calls are added: a public number, by default one call's batch
        length.

    Returns:
      ``f(params, batch, mask, *, key=None) -> (clipped_sum, info)``. ``params`` is a tree of
      float arrays, or an ``nnx.Module``. ``batch`` is any tree whose leaves share a leading axis of
      length B; ``mask`` is bool ``(B,)``, False for slots that hold no record (``mask`` of a
      sampler's batch), or ``None`` where every slot has one. ``key`` is for losses
      with randomness (dropout): the example in slot i has the key ``fold_in(key, i)``, and an nnx
      module's random streams start from it. ``clipped_sum`` has the shapes of ``params`` (of a
      module: an ``nnx.State`` of the variables ``wrt``, as ``nnx.grad`` returns and
      ``nnx.Optimizer`` takes) and is a **sum**: divide it by a public constant, after the noise.
      ``info`` is a `ClippedGradInfo` (norms, losses, num_nonfinite). An example whose loss or
      gradient is not finite contributes exactly zero; an empty batch gives zeros. With an
      `AdaptiveClip` ``params`` and ``clipped_sum`` are `GradientAndSlots`: parameters and bound in,
      the sums of gradients over the bound and of the slots out.

    Privacy:
      Adding or removing one example moves ``clipped_sum`` by at most ``total_l2_clip(l2_clip)`` in
      L2, replacing one by at most twice that, the rounding of the sum included: examples are
      clipped to ``l2_clip / (1 + rounding_margin(max_batch_size))`` (6e-5 less at 256 examples, 2 %
      at 10^5; see `dpjax.gradients.clipping.rounding_margin` for what of it is proven).
      Slots of padding repeat a record, which would move the sum by many clip bounds: that is why
      ``mask`` has no default. Nothing is released here: neither the sum nor ``info`` is private
      before noise is added. With ``key`` this holds for the sum's distribution as long as the key
      is secret, new in each step and independent of the noise: the slots' keys are then
      exchangeable, so adding or removing a record, which moves the others to other slots, does not
      change it.

    Raises:
      ValueError: for ``params`` without the bound of an `AdaptiveClip`, a loss that is not a
        scalar, mixes examples or has parameters that are not floats, leaves of different batch
        length, a mask of another shape, a bound <= 0, arrays that are split over explicit mesh
        axes, or a module that draws from its random streams where no key is given.

    Source: Abadi et al. (2016), Algorithm 1.

    >>> loss = lambda w, example: 0.5 * (w @ example["x"] - example["y"]) ** 2
    >>> batch = {"x": jnp.eye(3), "y": jnp.array([0.0, 1.0, 4.0])}
    >>> clipped_sum, info = clipped_grad(loss, l2_clip=2.0)(jnp.zeros(3), batch, None)
    >>> clipped_sum.tolist(), info.norms.tolist()
    ([0.0, -1.0, -2.0], [0.0, 1.0, 4.0])
    """
    check_function("loss_fn", loss_fn)
    total_l2_clip(l2_clip)
    adaptive = l2_clip if isinstance(l2_clip, AdaptiveClip) else None
    check_choice("method", method, ("auto", "bookkeeping", "vmap"))
    if microbatch_size is not None and not (
        isinstance(microbatch_size, str) and microbatch_size == "auto"
    ):
        check_count("microbatch_size", microbatch_size)
    if max_batch_size is not None:
        check_count("max_batch_size", max_batch_size)
    # Book-keeping uses vmap for the leaves that it does not support.
    method_fn = sum_by_vmap if method == "vmap" else sum_by_bookkeeping

    # Compiled as a whole even if the caller does not use jit.
    @partial(jax.jit, static_argnums=0)
    def clipped_sum_and_info(
        loss_input: LossInput,
        constants: ArrayTree,
        params: ArrayTree,
        batch: ArrayTree,
        mask: jax.Array,
        bound: jax.Array | None,
    ) -> ClippedSum:
        loss, size = loss_input.bind(loss_fn, constants), len(mask)
        num_terms = max(size, max_batch_size or 0)
        clip = l2_clip if adaptive is None or bound is None else adaptive.at(bound)
        compute = partial(method_fn, loss, clip, max_batch_size=num_terms)

        # All examples at once, if no more than a micro-batch is asked for.
        examples_at_once = microbatch_size
        if examples_at_once == "auto":
            examples_at_once = fitting_microbatch_size(compute, params, batch, mask)
        if examples_at_once is None or size <= examples_at_once:
            summed, info = compute(params, batch, mask)
        else:
            # One micro-batch after another.
            unroll = is_slow_in_loops(loss, params, jax.tree.map(one_example, batch))
            summed, info = sum_over_microbatches(
                compute, examples_at_once, params, batch, mask, unroll=unroll
            )

        # What an adaptive bound is to follow, in the same sum.
        if adaptive is not None and bound is not None:
            slots = sum_of_slots(adaptive, info.norms, mask, bound, num_terms)
            summed = GradientAndSlots(summed, slots)
        return sum_of_clipped(total_l2_clip(l2_clip), summed), info

    def clipped_sum_of(
        params: Params,
        batch: ArrayTree,
        mask: jax.Array | None,
        *,
        key: PRNGKey | None = None,
    ) -> ClippedSum:
        # The bound of this step, where it adapts.
        bound = None
        if adaptive is not None:
            if not isinstance(params, GradientAndSlots):
                raise ValueError(
                    "params must be l2_clip.with_slots(params, bound) where the clip bound adapts,"
                    f" got {type(params).__name__}"
                )
            bound = params.slots[0]
            params = params.gradient

        # The parameters that are trained, and the examples, with their keys.
        size = batch_length(batch)
        loss_input, trained, constants = split_params(params, wrt, keyed=key is not None)
        batch = batch if key is None else with_keys(batch, key, size)
        check_params(trained)
        mask = jnp.asarray(as_mask(mask, (size,)))

        # Gradients stay on the device of their examples.
        for name, tree in (("params", trained), ("batch", batch), ("mask", mask)):
            check_not_explicit(name, tree)
        trained, bound = as_varying((trained, bound), varying_axes((trained, batch, mask)))

        # The gradient of an example must depend on that example alone.
        loss = loss_input.bind(loss_fn, constants)
        check_loss(loss, trained, batch)
        fixed = l2_clip if adaptive is None else adaptive.at(adaptive.initial)
        check_local(partial(method_fn, loss, fixed), trained, batch, mask)
        return clipped_sum_and_info(loss_input, constants, trained, batch, mask, bound)

    return clipped_sum_of


def sum_by_vmap(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    max_batch_size: int | None = None,
) -> ClippedSum:
    """The reference method: per-example gradients by ``vmap``, then clip and sum.

    Memory: ``batch`` times the parameters.
    """
    num_terms = max_batch_size or len(mask)
    value_and_grad = jax.value_and_grad(loss_fn)

    def compute(params: ArrayTree, batch: ArrayTree, mask: jax.Array) -> ClippedSum:
        losses, grads = jax.vmap(value_and_grad, in_axes=(None, 0))(params, batch)
        usable = mask & jnp.isfinite(losses)
        summed, clipping = clip_and_sum(grads, l2_clip, usable, num_terms)
        return summed, clipped_grad_info(clipping.norms, losses, mask, clipping.finite)

    program = jax.make_jaxpr(loss_fn)(params, jax.tree.map(one_example, batch))
    if "conv_general_dilated" in primitive_names(program.jaxpr):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)
