"""The ways to make one step in JAX, private ones and plain ones: dpjax, optax and jax-privacy."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import optax

import dpjax

L2_CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.1, 0.1
PLAIN, NOISY, PRIVATE = "plain", "plain + noise", "dpjax"
# Of a batch that is worked off in parts, which suits jax-privacy and networks with many outputs.
PART = 8

LossFn = Callable[[Any, Any], jax.Array]


class Way(NamedTuple):
    """One way to make a step of SGD.

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


def jax_ways(loss: LossFn, key: jax.Array) -> Iterator[Way]:
    """Yields every way, the plain one first; jax-privacy's only where it is installed.

    Args:
      loss: of one example, ``(params, example) -> scalar``.
      key: for the noise.
    """

    def mean_loss(params: Any, batch: Any) -> jax.Array:
        return jax.vmap(loss, (None, 0))(params, batch).mean()

    noise = dpjax.add_gaussian_noise(noise_multiplier=NOISE_MULTIPLIER, l2_clip=L2_CLIP, key=key)
    yield Way(PLAIN, jax.grad(mean_loss), optax.identity())
    yield Way(NOISY, jax.grad(mean_loss), noise)
    yield Way(PRIVATE, _clipped(loss, "auto"), noise)
    yield Way(f"dpjax, by {PART}", _clipped(loss, "auto", PART), noise)
    yield Way("dpjax, clipping alone", _clipped(loss, "auto"), optax.identity())
    yield Way("dpjax, vmap reference", _clipped(loss, "vmap"), noise, per_example=True)
    yield _optax_way(loss, key)
    if not why_missing("jax_privacy"):
        yield _jax_privacy_way(loss, key, None)
        yield _jax_privacy_way(loss, key, PART)


def _clipped(
    loss: LossFn, method: str, microbatch_size: int | None = None
) -> Callable[[Any, Any], Any]:
    clipped_grad = dpjax.clipped_grad(loss, L2_CLIP, method=method, microbatch_size=microbatch_size)
    return lambda params, batch: clipped_grad(params, batch)[0]


def _optax_way(loss: LossFn, key: jax.Array) -> Way:
    aggregate = optax.contrib.differentially_private_aggregate(L2_CLIP, NOISE_MULTIPLIER, key)
    return Way("optax.contrib", jax.vmap(jax.grad(loss), (None, 0)), aggregate, per_example=True)


def _jax_privacy_way(loss: LossFn, key: jax.Array, microbatch_size: int | None) -> Way:
    jax_privacy = importlib.import_module("jax_privacy")
    gradient = jax_privacy.clipping.clipped_grad(
        loss, l2_clip_norm=L2_CLIP, keep_batch_dim=False, microbatch_size=microbatch_size
    )
    noise = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * L2_CLIP, prng_key=key
    )
    name = "jax-privacy" if microbatch_size is None else f"jax-privacy, by {microbatch_size}"
    return Way(name, gradient, noise, per_example=microbatch_size is None)


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
