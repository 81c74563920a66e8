"""Private and non-private SGD steps in JAX: dpjax, optax and jax-privacy."""

import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import optax

import dpjax
from dpjax._typing import LossFn, PRNGKey, PyTree

L2_CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.1, 0.1
PLAIN, NOISY, PRIVATE = "plain", "plain + noise", "dpjax"
# Microbatch size.
PART = 8


class Method(NamedTuple):
    """One implementation of a step."""

    name: str
    gradient: Callable[[PyTree, PyTree], PyTree]  # (params, batch) -> updates
    transform: optax.GradientTransformation  # applied to the updates before the optimiser
    per_example: bool = False  # whether it materialises per-example gradients


def jax_methods(loss: LossFn, key: PRNGKey) -> Iterator[Method]:
    """Yields the methods, the non-private one first, with jax-privacy if it is installed."""

    def mean_loss(params: PyTree, batch: PyTree) -> jax.Array:
        return jax.vmap(loss, (None, 0))(params, batch).mean()

    def clipped(method: str, microbatch_size: int | None = None) -> Callable[..., PyTree]:
        clipped_grad = dpjax.clipped_grad(
            loss, L2_CLIP, method=method, microbatch_size=microbatch_size
        )
        return lambda params, batch: clipped_grad(params, batch, None)[0]

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
    if not import_error("jax_privacy"):
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


def import_error(module: str) -> str:
    """Returns the error of importing a module, or an empty string.

    >>> import_error("jax"), import_error("no_such_module")
    ('', "No module named 'no_such_module'")
    """
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken installation can raise any exception
        return str(error) or type(error).__name__
    return ""
