"""Clipped gradient sums of a holder's own random batches."""

from collections.abc import Callable
from dataclasses import replace

import jax
from jax.flatten_util import ravel_pytree

from dpjax._typing import ArrayTree, LossFn, PRNGKey
from dpjax._validation import as_key, check_count
from dpjax.gradients.clipped_grad import clipped_grad
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import check_data
from dpjax.sampling.poisson import PoissonSampling
from dpjax.training.step import sum_over_draw

# From a key, parameters and all records of the holder to the clipped sum as a vector.
HolderGradient = Callable[[PRNGKey, ArrayTree, ArrayTree], jax.Array]


def holder_gradient(
    loss_fn: LossFn, mechanism: SubsampledGaussian, *, num_examples: int, method: str = "auto"
) -> HolderGradient:
    """Returns a function for the clipped gradient sum of one Poisson batch of a holder.

    Batches that holders draw independently at one rate are together a Poisson batch of all records,
    so the event of the steps is the mechanism's, whatever the numbers of records.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, the same at every holder.
      mechanism: clip bound, noise, steps and the Poisson sampler whose rate is used.
      num_examples: of the holder.
      method: see `clipped_grad`.

    Returns:
      ``gradient(key, params, data) -> (num_parameters,)``, compiled. The key is the holder's
      secret, a new one in each step: it decides which records are in the batch. ``data`` holds all
      records of the holder on the leading axis of every array. The vector is what
      ``plan.mechanism.sum_records`` takes; it is in the order of `jax.flatten_util.ravel_pytree`.

    Privacy:
      The sum is private, and not released here. One record moves it by at most the clip bound (by
      twice that if it is replaced), the rounding included.

    Raises:
      ValueError: another sampler than `PoissonSampling`, or a number out of range.

    >>> import jax.numpy as jnp
    >>> steps = SubsampledGaussian(
    ...     PoissonSampling(1000, 1.0), l2_clip=10.0, noise_multiplier=2.0, num_steps=10,
    ...     adjacency="zero_out"
    ... )
    >>> gradient = holder_gradient(lambda w, x: w @ x, steps, num_examples=3)
    >>> gradient(jax.random.key(0), jnp.zeros(2), jnp.eye(3, 2)).round(3).tolist()
    [1.0, 1.0]
    """
    sampling = mechanism.sampling
    if not isinstance(sampling, PoissonSampling):
        raise ValueError(f"mechanism's sampling must be PoissonSampling, got {sampling!r}")
    check_count("num_examples", num_examples)
    own = replace(sampling, num_examples=num_examples, physical_batch_size=0)
    most = own.usual_batches * own.physical_batch_size
    clipped = clipped_grad(loss_fn, mechanism.l2_clip, method=method, max_batch_size=most)

    @jax.jit
    def compiled(key: PRNGKey, params: ArrayTree, data: ArrayTree) -> jax.Array:
        draw, _ = own.draw(own.init(key))
        return ravel_pytree(sum_over_draw(clipped, own, draw, params, data)[0])[0]

    def gradient(key: PRNGKey, params: ArrayTree, data: ArrayTree) -> jax.Array:
        check_data(own, data)
        return compiled(as_key(key), params, data)

    return gradient
