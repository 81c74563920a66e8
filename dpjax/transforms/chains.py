"""NoisySGD and NoisyAdam: optimisers that take per-example gradients."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_numbers, check, check_positive, check_type
from dpjax._typing import ClipBound, PRNGKey
from dpjax.gradients.clip_rules import AdaptiveClip, GradientAndSlots
from dpjax.gradients.clipping import clip_and_sum, sum_of_slots
from dpjax.transforms.clip import check_per_example, clip_per_example, mask_argument
from dpjax.transforms.inspect_state import check_no_dpjax
from dpjax.transforms.noise import PrivateTransformation, add_gaussian_noise


class FollowClipBoundState(NamedTuple):
    """State of `follow_clip_bound`.

    Attributes:
      bound: the clip bound of the next step, a released value: float32 scalar.
    """

    bound: jax.Array


def follow_clip_bound(
    rule: AdaptiveClip, expected_batch_size: float
) -> optax.GradientTransformation:
    """Turns noisy sums of `GradientAndSlots` into mean gradients, and moves the clip bound.

    Args:
      rule: how the bound follows the slots.
      expected_batch_size: the public constant that sums are divided by.

    Returns:
      An optax transformation, directly after `add_gaussian_noise` with the same rule. It returns
      the gradient part times the bound over ``expected_batch_size``; its state has the bound that
      `clipped_grad` needs in the next step.

    Privacy:
      Post-processing of the noisy sums.

    Source: Andrew et al. (2021), Algorithm 1.

    >>> from dpjax.gradients import GradientAndSlots, QuantileClip
    >>> follow = follow_clip_bound(QuantileClip(2.0, step_size=0.2), 10.0)
    >>> summed = GradientAndSlots(gradient=jnp.array([5.0]), slots=jnp.array([-1.0]))
    >>> mean, state = follow.update(summed, follow.init(jnp.zeros(1)))
    >>> round(float(mean[0]), 3), round(float(state.bound), 3)
    (1.005, 2.21)
    """
    check_positive("expected_batch_size", expected_batch_size)
    check_type("rule", rule, AdaptiveClip, "a QuantileClip or SlackClip")

    def init(params: optax.Params) -> FollowClipBoundState:
        del params
        return FollowClipBoundState(jnp.float32(rule.initial))

    def update(
        updates: optax.Updates,
        state: FollowClipBoundState,
        params: optax.Params | None = None,
    ) -> tuple[optax.Updates, FollowClipBoundState]:
        del params
        check_type("updates", updates, GradientAndSlots, "GradientAndSlots of clipped_grad")
        scale = state.bound / (rule.gradient_norm * expected_batch_size)
        mean = jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), updates.gradient)
        bound = rule.next_bound(state.bound, updates.slots, expected_batch_size)
        return mean, FollowClipBoundState(bound)

    return optax.GradientTransformation(init, update)


def noisy_sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    l2_clip: ClipBound,
    noise_multiplier: optax.ScalarOrSchedule,
    expected_batch_size: float,
    key: PRNGKey,
) -> PrivateTransformation:
    """NoisySGD: clip, sum, add noise, divide by the *expected* batch size, step.

    Args:
      learning_rate: step size, or a schedule of it.
      l2_clip: bound on one example's gradient (a number, or per-layer bounds), a rule that stands
        for it, or a bound that adapts (`QuantileClip`, `SlackClip`).
      noise_multiplier: noise standard deviation over the clip bound, or a schedule of it.
      expected_batch_size: the public constant that the noisy sum is divided by; under Poisson
        sampling ``sampling_rate * num_examples``, never the size that was drawn.
      key: a JAX key for the noise.

    Returns:
      An optax transformation whose updates are per-example gradients, and whose ``update`` needs
      the keyword ``mask`` (see `clip_per_example`).

    Privacy:
      One Gaussian release for each update; the rest is post-processing.

    Source: Bu, Dong, Long, Su (2020), Algorithm 1, with the expected batch size as divisor.

    >>> optimizer = noisy_sgd(
    ...     0.5, l2_clip=1.0, noise_multiplier=0.0, expected_batch_size=2, key=jax.random.key(0))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.array([[3.0, 4.0], [0.0, 0.0]]), state, mask=None)
    >>> updates.round(3).tolist()
    [-0.15, -0.2]
    """
    arguments = l2_clip, noise_multiplier, expected_batch_size, key
    return _noisy(optax.sgd, learning_rate, *arguments)


def noisy_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    l2_clip: ClipBound,
    noise_multiplier: optax.ScalarOrSchedule,
    expected_batch_size: float,
    key: PRNGKey,
    **adam_options: Any,
) -> PrivateTransformation:
    """NoisyAdam: the noisy mean gradient of `noisy_sgd` through Adam, at the same privacy cost.

    Args:
      learning_rate: step size, or a schedule of it.
      l2_clip: as in `noisy_sgd`.
      noise_multiplier: as in `noisy_sgd`.
      expected_batch_size: as in `noisy_sgd`.
      key: a JAX key for the noise.
      **adam_options: passed to `optax.adam` (``b1``, ``b2``, ``eps``, ...).

    Returns:
      An optax transformation as of `noisy_sgd`.

    Privacy:
      As `noisy_sgd`: Adam sees released values only.

    Source: Bu, Dong, Long, Su (2020), Algorithm 2.

    >>> optimizer = noisy_adam(
    ...     0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=2, key=jax.random.key(0))
    >>> state = optimizer.init(jnp.zeros(3))
    >>> optimizer.update(jnp.ones((2, 3)), state, mask=None)[0].shape
    (3,)
    """
    arguments = l2_clip, noise_multiplier, expected_batch_size, key
    return _noisy(partial(optax.adam, **adam_options), learning_rate, *arguments)


def step_on_sum(
    noise: PrivateTransformation,
    expected_batch_size: float,
    optimizer: optax.GradientTransformation,
    l2_clip: ClipBound,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation of clipped sums: noise, division by a constant, ``optimizer``.

    With an `AdaptiveClip` its second state has the bound of the next step. Its ``init`` raises
    ValueError for an optimiser with noise or clipping of dpjax's own.
    """
    check_positive("expected_batch_size", expected_batch_size)
    check_type(
        "optimizer",
        optimizer,
        optax.GradientTransformation,
        "an optax optimiser such as optax.adam(1e-3)",
    )

    # In the dtypes of the parameters.
    @optax.stateless
    def like_params(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        if params is None:
            return updates
        return jax.tree.map(lambda update, p: update.astype(p.dtype), updates, params)

    average = optax.scale(1 / expected_batch_size)
    if isinstance(l2_clip, AdaptiveClip):
        average = follow_clip_bound(l2_clip, expected_batch_size)
    chain = optax.chain(noise, average, like_params, optimizer)

    def init(params: optax.Params) -> optax.OptState:
        state = chain.init(params)
        check_no_dpjax(state[-1])
        return state

    return optax.GradientTransformationExtraArgs(init, chain.update)


def _noisy(
    optimizer: Callable[[optax.ScalarOrSchedule], optax.GradientTransformation],
    learning_rate: optax.ScalarOrSchedule,
    l2_clip: ClipBound,
    noise_multiplier: optax.ScalarOrSchedule,
    expected_batch_size: float,
    key: PRNGKey,
) -> PrivateTransformation:
    if not callable(learning_rate):
        number = as_numbers(learning_rate, "learning_rate")
        check(number.ndim == 0, "learning_rate", number.shape, "a number or a schedule")
    noise = add_gaussian_noise(noise_multiplier=noise_multiplier, l2_clip=l2_clip, key=key)
    on_sum = step_on_sum(noise, expected_batch_size, optimizer(learning_rate), l2_clip)
    description = dataclasses.replace(noise.description, divisor="public constant")
    if not isinstance(l2_clip, AdaptiveClip):
        chain = optax.chain(clip_per_example(l2_clip), on_sum)
        return PrivateTransformation.of(chain.init, chain.update, description)

    # The bound is in the state of what follows the noise.
    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        check_per_example(updates, params)
        usable, bound = mask_argument(updates, extra_args), state[1].bound
        summed, clipping = clip_and_sum(updates, l2_clip.at(bound), usable)
        slots = sum_of_slots(l2_clip, clipping.norms, usable, bound)
        return on_sum.update(GradientAndSlots(summed, slots), state, params)

    return PrivateTransformation.of(on_sum.init, update, description)
