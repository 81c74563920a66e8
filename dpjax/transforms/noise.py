"""``add_noise``: the Gaussian mechanism as an optax transformation, on a clipped sum."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._random import normal
from dpjax._validation import as_key, check_non_negative
from dpjax.gradients.clipping import accumulator, total_l2_clip
from dpjax.transforms.description import NoiseDescription, PrivateTransformation


@jax.tree_util.register_static
class _Shapes(tuple[tuple[int, ...], ...]):
    """The parameters' shapes, fixed at ``init``: what an update must look like."""


class AddNoiseState(NamedTuple):
    """State of `add_noise`. **The key is a secret**: who knows it can take the noise away.

    Attributes:
      key: what the next noise is drawn from; each update consumes it.
      num_releases: how many noisy sums were released so far, int32.
      shapes: the shapes that every update must have (no arrays).
    """

    key: jax.Array
    num_releases: jax.Array
    shapes: _Shapes


def add_noise(noise_multiplier: Any, l2_clip: Any, key: jax.Array) -> PrivateTransformation:
    """Adds Gaussian noise of standard deviation ``noise_multiplier * l2_clip`` to a **sum**.

    Args:
      noise_multiplier: standard deviation over the clip bound; a number, or a schedule
        ``num_releases -> noise_multiplier``.
      l2_clip: the bound on one example's contribution, as given to what clipped it; for per-layer
        bounds the noise follows the total bound, the same on every coordinate.
      key: a JAX key. It is state, consumed by each update: no noise is used twice.

    Returns:
      An optax transformation on trees shaped like the parameters. A per-example tree, with its
      extra axis, is refused before any noise is drawn. Leaves keep their dtype, but the noise of
      half-precision leaves is drawn and added in float32.

    Privacy:
      Each update is one Gaussian release: noise multiplier ``noise_multiplier`` under add/remove,
      half of it under replace one (dpjax's accountants know). What comes after it in a chain is
      post-processing; what it was given must be a sum of examples clipped to ``l2_clip``, not a
      mean. Floating-point noise: see the README on what is not guaranteed.

    Source: Abadi et al. (2016), Algorithm 1; Mironov, Talwar, Zhang (2019) for the accounting.

    >>> noise = add_noise(2.0, l2_clip=0.5, key=jax.random.key(0))
    >>> state = noise.init({"w": jnp.zeros(10_000)})
    >>> noisy, state = noise.update({"w": jnp.zeros(10_000)}, state)
    >>> round(float(noisy["w"].std()), 1), int(state.num_releases)
    (1.0, 1)
    """
    if not callable(noise_multiplier):
        check_non_negative("noise_multiplier", noise_multiplier)
    bound, key = total_l2_clip(l2_clip), as_key(key)

    def init(params: optax.Params) -> AddNoiseState:
        return AddNoiseState(key, jnp.zeros((), jnp.int32), _shapes(params))

    def update(
        updates: optax.Updates, state: AddNoiseState, params: Any = None, **extra_args: Any
    ) -> tuple[optax.Updates, AddNoiseState]:
        del params, extra_args
        _check_shapes(updates, state.shapes)
        multiplier = (
            noise_multiplier(state.num_releases) if callable(noise_multiplier) else noise_multiplier
        )
        next_key, noise_key = jax.random.split(state.key)
        noisy = gaussian_like(noise_key, updates, multiplier * bound)
        return noisy, AddNoiseState(next_key, state.num_releases + 1, state.shapes)

    return PrivateTransformation.of(init, update, NoiseDescription(l2_clip, noise_multiplier))


def gaussian_like(key: jax.Array, tree: Any, standard_deviation: Any) -> Any:
    """Returns ``tree`` plus independent Gaussian noise of this standard deviation everywhere."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(len(leaves), 1))
    noisy = [_noisy(k, leaf, standard_deviation) for k, leaf in zip(keys, leaves, strict=False)]
    return jax.tree.unflatten(treedef, noisy)


def _noisy(key: jax.Array, leaf: Any, standard_deviation: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    dtype = accumulator(leaf)
    noise = normal(key, leaf.shape, dtype) * jnp.asarray(standard_deviation, dtype)
    return (leaf.astype(dtype) + noise).astype(leaf.dtype)


def _shapes(tree: Any) -> _Shapes:
    return _Shapes(jnp.shape(leaf) for leaf in jax.tree.leaves(tree))


def _check_shapes(updates: Any, expected: _Shapes) -> None:
    found = _shapes(updates)
    if found != expected:
        raise ValueError(
            "updates must be one clipped sum, shaped like the parameters given to init"
            f" {list(expected)}, got shapes {list(found)}: per-example gradients are clipped and"
            " summed first, by clip_per_example or clipped_grad"
        )
