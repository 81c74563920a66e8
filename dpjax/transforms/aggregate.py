"""A drop-in for ``optax.contrib.differentially_private_aggregate``."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax._checks import (
    as_key,
    as_seed,
    batch_length,
    check,
    check_non_negative,
    check_positive,
)
from dpjax._typing import Numeric, PRNGKey
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clipping import clip_and_sum
from dpjax.gradients.shard_map import check_same_on_devices
from dpjax.transforms.clip import check_per_example
from dpjax.transforms.noise import (
    LeafShapes,
    NoiseDescription,
    PrivateTransformation,
    check_description,
    check_noise_scale,
    gaussian_like,
)


class DifferentiallyPrivateAggregateState(NamedTuple):
    """State of `differentially_private_aggregate`, as in ``optax.contrib`` plus static metadata.

    Attributes:
      rng_key: the key of the next noise, a secret.
      shapes: shapes of the parameters (static).
      description: clip bound and noise multiplier as `dpjax.mechanism_of` reads them (static).
    """

    rng_key: PRNGKey
    shapes: LeafShapes
    description: NoiseDescription


def differentially_private_aggregate(
    l2_norm_clip: Numeric, noise_multiplier: Numeric, key: PRNGKey | int
) -> PrivateTransformation:
    """Clipped, noisy **mean** of per-example gradients, for batches of one fixed size.

    Arguments, chaining and state are those of the function of this name in ``optax.contrib``, with
    three corrections: an example that is not finite contributes zero (there every parameter becomes
    NaN), an empty batch returns noise (there: a division by zero), and the key has no default.

    Args:
      l2_norm_clip: bound on the L2 norm of one example's gradient.
      noise_multiplier: noise standard deviation on the sum, over the bound.
      key: a JAX key, or an integer seed (reproducible noise, for experiments).

    Returns:
      An optax transformation on per-example gradients, first in its chain.

    Privacy:
      One Gaussian release for each update. The noisy sum is divided by the length of the leading
      axis: where that length is drawn at random (Poisson sampling) it is itself private, so
      `mechanism_of` refuses this transformation under Poisson sampling. Use `noisy_sgd` there.

    >>> aggregate = differentially_private_aggregate(1.0, 0.0, key=0)
    >>> state = aggregate.init(jnp.zeros(2))
    >>> aggregate.update(jnp.array([[2.0, 0.0], [0.0, 0.0]]), state)[0].tolist()
    [0.5, 0.0]
    """
    check_positive("l2_norm_clip", l2_norm_clip)
    check_non_negative("noise_multiplier", noise_multiplier)
    check_noise_scale(noise_multiplier, total_l2_clip(l2_norm_clip))
    if isinstance(key, int | np.integer):
        check(abs(key) < 2**63, "key", key, "a key, or a seed below 2^63")
        key = jax.random.key(as_seed(key, "key"))
    key = as_key(key)
    description = NoiseDescription(l2_norm_clip, noise_multiplier, divisor="batch length")

    def init(params: optax.Params) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(key, LeafShapes.of(params), description)

    def update(
        updates: optax.Updates,
        state: DifferentiallyPrivateAggregateState,
        params: optax.Params | None = None,
        **extra_args: object,
    ) -> tuple[optax.Updates, DifferentiallyPrivateAggregateState]:
        del extra_args
        check_description(state.description, description)
        check_per_example(updates, params)
        check_same_on_devices("updates", updates)
        size = batch_length(updates, "updates")
        next_key, noise_key = jax.random.split(state.rng_key)
        summed, _ = clip_and_sum(updates, l2_norm_clip, jnp.ones(size, bool))
        noisy = gaussian_like(noise_key, summed, l2_norm_clip * noise_multiplier)
        mean = jax.tree.map(
            lambda total, leaf: (total / max(size, 1)).astype(leaf.dtype), noisy, updates
        )
        return mean, state._replace(rng_key=next_key)

    return PrivateTransformation.of(init, update, description)
