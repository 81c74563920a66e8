"""Clipped gradient sums of batches that each holder draws by itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from dpjax._checks import as_float64, as_key, check, check_count, check_positive, check_type
from dpjax._typing import ArrayTree, LossFn, PRNGKey
from dpjax.gradients import clipped_grad
from dpjax.gradients.clipping import total_l2_clip
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.additive import Gaussian
from dpjax.mechanisms.record_sum import RecordSum, SumPart
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import check_data
from dpjax.sampling.poisson import PoissonSampling
from dpjax.sensitivity import Sensitivity
from dpjax.training.batch_gradient import sum_over_draw

# From a key, parameters and all records of the holder to the clipped sum as a vector.
HolderGradient = Callable[[PRNGKey, ArrayTree, ArrayTree], jax.Array]


@dataclass(frozen=True)
class ClippedGradientSum(RecordSum):
    """One step of a `SubsampledGaussian` as a sum over the records of a batch.

    Attributes:
      mechanism: sampler, clip bound, noise and number of steps, with one noise multiplier.
      num_parameters: entries of the gradient.

    Privacy:
      The event is that of all steps. Each holder of records draws its own batch at the sampler's
      rate, and clips to the mechanism's bound.

    Raises:
      ValueError: several noise multipliers, or no noise.

    >>> from dpjax.sampling import PoissonSampling
    >>> steps = SubsampledGaussian(
    ...     PoissonSampling(1000, 0.1), l2_clip=1.0, noise_multiplier=2.0, num_steps=10,
    ...     adjacency="zero_out"
    ... )
    >>> ClippedGradientSum(steps, 5).event == steps.event
    True
    """

    mechanism: SubsampledGaussian
    num_parameters: int

    def __post_init__(self) -> None:
        check_count("num_parameters", self.num_parameters)
        check_type("mechanism", self.mechanism, SubsampledGaussian, "a SubsampledGaussian")
        noise = self.mechanism.noise_multiplier
        check(not isinstance(noise, tuple), "mechanism", noise, "of one noise multiplier")
        check_positive("noise_multiplier", noise)

    @property
    def guarantee(self) -> Guarantee:
        return self.mechanism.guarantee

    @property
    def num_rounds(self) -> int:
        return self.mechanism.num_steps

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the same steps with the noise multiplier times ``factor``."""
        check_positive("factor", factor)
        return replace(self, mechanism=self.mechanism.with_privacy_factor(factor))

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        """The whole gradient, of the sensitivity of one step."""
        used = self.mechanism
        shape = (self.num_parameters,)
        moves = Sensitivity(float(used.sensitivity), "l2", used.adjacency, shape=shape)
        assert not isinstance(used.noise_multiplier, tuple)
        scale = float(used.noise_multiplier * total_l2_clip(used.l2_clip))
        return (SumPart(Gaussian(moves, scale, used.unit), np.ones(shape)),)

    def sum_records(self, *records: npt.ArrayLike | ArrayTree) -> npt.NDArray[np.float64]:
        """Returns the clipped sum of a batch as a vector.

        Args:
          *records: the clipped sum itself, as of `clipped_grad`: a tree of arrays with
            ``num_parameters`` numbers.

        Raises:
          ValueError: another number of them.
        """
        leaves = [as_float64(leaf, "records").ravel() for leaf in jax.tree.leaves(records)]
        vector = np.concatenate(leaves) if leaves else np.zeros(0)
        allowed = f"num_parameters = {self.num_parameters} numbers"
        check(vector.size == self.num_parameters, "records", vector.size, allowed)
        return vector

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> jax.Array:
        """Returns the noisy gradient sum as a JAX array."""
        return jnp.asarray(noisy)


def holder_gradient(
    loss_fn: LossFn, mechanism: SubsampledGaussian, *, num_examples: int, method: str = "auto"
) -> HolderGradient:
    """Returns a function that computes the clipped gradient sum of a holder's Poisson batch.

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
    check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
    sampling = mechanism.sampling
    if not isinstance(sampling, PoissonSampling):
        raise ValueError(f"mechanism's sampling must be PoissonSampling, got {sampling!r}")
    check_count("num_examples", num_examples)
    own = replace(sampling, num_examples=num_examples, physical_batch_size=0)
    most = own.num_static_batches * own.physical_batch_size
    clipped = clipped_grad(loss_fn, mechanism.l2_clip, method=method, max_batch_size=most)

    @jax.jit
    def compiled(key: PRNGKey, params: ArrayTree, data: ArrayTree) -> jax.Array:
        draw, _ = own.draw(own.init(key))
        return ravel_pytree(sum_over_draw(clipped, own, draw, params, data)[0])[0]

    def gradient(key: PRNGKey, params: ArrayTree, data: ArrayTree) -> jax.Array:
        check_data(own, data)
        return compiled(as_key(key), params, data)

    return gradient
