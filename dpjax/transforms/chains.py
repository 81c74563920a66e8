"""NoisySGD and NoisyAdam: optimisers that take per-example gradients."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

from dpjax._checks import as_numbers, check, check_positive, check_type
from dpjax._typing import ClipBound, PRNGKey
from dpjax.transforms.clip import clip_per_example
from dpjax.transforms.inspect_state import check_no_dpjax
from dpjax.transforms.noise import PrivateTransformation, add_gaussian_noise


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
      l2_clip: bound on one example's gradient (a number, or per-layer bounds).
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

    >>> import jax.numpy as jnp
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

    >>> import jax.numpy as jnp
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
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation of clipped sums: noise, division by a constant, ``optimizer``.

    Its ``init`` raises ValueError for an optimiser with noise or clipping of dpjax's own.
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

    chain = optax.chain(noise, optax.scale(1 / expected_batch_size), like_params, optimizer)

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
    on_sum = step_on_sum(noise, expected_batch_size, optimizer(learning_rate))
    chain = optax.chain(clip_per_example(l2_clip), on_sum)
    description = dataclasses.replace(noise.description, divisor="public constant")
    return PrivateTransformation.of(chain.init, chain.update, description)
