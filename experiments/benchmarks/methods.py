"""Methods of making one step of SGD in JAX, private and plain: dpjax, optax and jax-privacy."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import optax

import dpjax
from dpjax._typing import LossFn, PRNGKey

L2_CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.1, 0.1
PLAIN, NOISY, PRIVATE = "plain", "plain + noise", "dpjax"
# Microbatch size, which suits jax-privacy and networks with many outputs.
PART = 8


class Method(NamedTuple):
    """One method of making a step.

    Attributes:
      name: for readers.
      gradient: ``(params, batch) -> updates``.
      transform: what changes the updates before they are applied.
      per_example: whether every example's gradient is in memory at once.
    """

    name: str
    gradient: Callable[[Any, Any], Any]
    transform: optax.GradientTransformation
    per_example: bool = False


def jax_methods(loss: LossFn, key: PRNGKey) -> Iterator[Method]:
    """Yields every method, the plain one first; jax-privacy's only where it is installed.

    Args:
      loss: of one example, ``(params, example) -> scalar``.
      key: for the noise.
    """

    def mean_loss(params: Any, batch: Any) -> jax.Array:
        return jax.vmap(loss, (None, 0))(params, batch).mean()

    def clipped(method: str, microbatch_size: int | None = None) -> Callable[[Any, Any], Any]:
        clipped_grad = dpjax.clipped_grad(
            loss, L2_CLIP, method=method, microbatch_size=microbatch_size
        )
        return lambda params, batch: clipped_grad(params, batch)[0]

    noise = dpjax.add_gaussian_noise(noise_multiplier=NOISE_MULTIPLIER, l2_clip=L2_CLIP, key=key)
    yield Method(PLAIN, jax.grad(mean_loss), optax.identity())
    yield Method(NOISY, jax.grad(mean_loss), noise)
    yield Method(PRIVATE, clipped("auto"), noise)
    yield Method(f"dpjax, by {PART}", clipped("auto", PART), noise)
    yield Method("dpjax, clipping alone", clipped("auto"), optax.identity())
    yield Method("dpjax, vmap reference", clipped("vmap"), noise, per_example=True)
    aggregate = optax.contrib.differentially_private_aggregate(L2_CLIP, NOISE_MULTIPLIER, key)
    gradients = jax.vmap(jax.grad(loss), (None, 0))
    yield Method("optax.contrib", gradients, aggregate, per_example=True)
    if not why_missing("jax_privacy"):
        yield from _jax_privacy_methods(loss, key)


def _jax_privacy_methods(loss: LossFn, key: PRNGKey) -> Iterator[Method]:
    jax_privacy = importlib.import_module("jax_privacy")
    noise = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * L2_CLIP, prng_key=key
    )
    for size, name in ((None, "jax-privacy"), (PART, f"jax-privacy, by {PART}")):
        gradient = jax_privacy.clipping.clipped_grad(
            loss, l2_clip_norm=L2_CLIP, keep_batch_dim=False, microbatch_size=size
        )
        yield Method(name, gradient, noise, per_example=size is None)


def why_missing(module: str) -> str:
    """Returns why a module cannot be imported; an empty text where it can.

    >>> why_missing("jax"), why_missing("no_such_module")
    ('', "No module named 'no_such_module'")
    """
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation may raise anything
        return str(error) or type(error).__name__
    return ""
