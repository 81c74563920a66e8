"""The subsampled Gaussian mechanism: many noisy sums of clipped contributions of random batches."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from dp_accounting import DpEvent

from dpjax._validation import check, check_count, check_non_negative, check_positive
from dpjax.accounting.adjacency import Adjacency
from dpjax.gradients.clipping import l2_sensitivity, total_l2_clip
from dpjax.mechanisms.base import Mechanism
from dpjax.sampling.base import Sampling
from dpjax.transforms.chains import step_on_sum
from dpjax.transforms.description import PrivateTransformation
from dpjax.transforms.noise import add_noise


@dataclass(frozen=True)
class SubsampledGaussian(Mechanism):
    """NoisySGD's mechanism, described once: sampler, noise, number of releases and event.

    Each of ``num_steps`` steps draws a batch, sums contributions clipped to ``l2_clip`` and
    releases the sum plus Gaussian noise of standard deviation ``noise_multiplier * l2_clip``.

    Attributes:
      sampling: how batches are drawn (`PoissonSampling`, `FixedSizeSampling`, ...).
      l2_clip: bound on one example's contribution in L2: a number, or per-layer bounds.
      noise_multiplier: noise standard deviation over the total clip bound, whatever the adjacency:
        a number, or a tuple with one for each step.
      num_steps: how many noisy sums are released.
      adjacency: ``"add_remove"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy, in words.

    Raises:
      ValueError: for numbers out of range, a tuple of another length than ``num_steps``, or an
        adjacency that the sampler's event says nothing about.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(60_000, 256 / 60_000), l2_clip=1.5, noise_multiplier=1.3,
    ...     num_steps=3515, adjacency="add_remove", unit="one image")
    >>> round(mechanism.certificate(delta=1e-5).epsilon, 2)
    0.86
    """

    sampling: Sampling
    l2_clip: Any
    noise_multiplier: float | tuple[float, ...]
    num_steps: int
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        self.sampling.check_adjacency(self.adjacency)
        check_positive("l2_clip", total_l2_clip(self.l2_clip))
        for sigma, _ in self._noise_by_runs():
            check_non_negative("noise_multiplier", sigma)

    @property
    def num_releases(self) -> int:
        """One noisy sum for each step."""
        return self.num_steps

    @property
    def event(self) -> DpEvent:
        """The sampler's event of all steps with their noise."""
        return self.sampling.event(self._noise_by_runs())

    @property
    def sensitivity(self) -> float:
        """How far one record moves one step's sum, in L2, under the stated adjacency."""
        return l2_sensitivity(self.l2_clip, self.adjacency)

    def noise(self, key: jax.Array) -> PrivateTransformation:
        """The noise as an optax transformation on clipped sums (see `add_noise`).

        Past ``num_steps`` releases it returns NaN: what was not described is not released.
        """
        multipliers = jnp.asarray(self.noise_multiplier, jnp.float32)

        def schedule(num_releases: jax.Array) -> jax.Array:
            index = jnp.minimum(num_releases, self.num_steps - 1)
            multiplier = multipliers[index] if multipliers.ndim else multipliers
            return jnp.where(num_releases < self.num_steps, multiplier, jnp.nan)

        return add_noise(schedule, self.l2_clip, key)

    def private_optimizer(
        self, optimizer: optax.GradientTransformation, key: jax.Array
    ) -> optax.GradientTransformationExtraArgs:
        """Noise, division by the expected batch size, then ``optimizer``: from sums to updates."""
        return step_on_sum(self.noise(key), self.sampling.expected_batch_size, optimizer)

    def prefix(self, num_steps: int) -> "SubsampledGaussian":
        """The same mechanism stopped after its first ``num_steps`` steps."""
        check_count("num_steps", num_steps)
        check(num_steps <= self.num_steps, "num_steps", num_steps, f"at most {self.num_steps}")
        noise = self.noise_multiplier
        noise = noise[:num_steps] if isinstance(noise, tuple) else noise
        return dataclasses.replace(self, num_steps=num_steps, noise_multiplier=noise)

    def scale_noise(self, factor: float) -> "SubsampledGaussian":
        """The same mechanism with every noise multiplier times ``factor``."""
        noise = self.noise_multiplier
        scaled = tuple(factor * s for s in noise) if isinstance(noise, tuple) else factor * noise
        return dataclasses.replace(self, noise_multiplier=scaled)

    def describe(self) -> Mapping[str, str]:
        """Sampling, clipping and noise in words."""
        sigmas = [sigma for sigma, _ in self._noise_by_runs()]
        noise = f"{min(sigmas):.4g}" + (f" to {max(sigmas):.4g}" if len(sigmas) > 1 else "")
        bound = total_l2_clip(self.l2_clip)
        layers = "" if len(jax.tree.leaves(self.l2_clip)) == 1 else ", shared by layers"
        return {
            "sampling": self.sampling.describe(),
            "clipping": f"each contribution to L2 norm {bound:.4g}{layers}; only sums are noised",
            "noise": f"Gaussian, noise multiplier {noise} (standard deviation over the clip bound)",
        }

    def _noise_by_runs(self) -> list[tuple[float, int]]:
        """Noise multipliers, each with the number of steps in a row that have it."""
        if not isinstance(self.noise_multiplier, tuple):
            return [(self.noise_multiplier, self.num_steps)]
        check(
            len(self.noise_multiplier) == self.num_steps,
            "noise_multiplier",
            f"{len(self.noise_multiplier)} values",
            f"a number, or a tuple of num_steps = {self.num_steps} numbers",
        )
        runs = itertools.groupby(self.noise_multiplier)
        return [(sigma, len(list(run))) for sigma, run in runs]


def mechanism_of(
    transformation: optax.GradientTransformation,
    *,
    sampling: Sampling,
    num_steps: int,
    adjacency: Adjacency,
    unit: str = "one record",
) -> SubsampledGaussian:
    """The mechanism that an optax chain of dpjax runs, read off the transformation itself.

    For loops of one's own: clip bound and noise are taken from what `noisy_sgd`, `noisy_adam`,
    `add_noise` or `differentially_private_aggregate` returned, so they are not typed twice.

    Args:
      transformation: what one of those functions returned (not wrapped in a further chain, which
        forgets the description; with a schedule of the noise, a callable, it is evaluated).
      sampling: how the loop draws its batches.
      num_steps: how many updates the loop makes.
      adjacency: ``"add_remove"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

    Raises:
      ValueError: if the transformation has no description, or divides by the drawn batch's length
        although the sampler draws it at random.

    >>> from dpjax.sampling import PoissonSampling
    >>> from dpjax.transforms import differentially_private_aggregate, noisy_sgd
    >>> optimizer = noisy_sgd(0.1, 1.0, 1.1, expected_batch_size=100, key=jax.random.key(0))
    >>> sampling = PoissonSampling(1000, 0.1)
    >>> mechanism_of(optimizer, sampling=sampling, num_steps=5, adjacency="add_remove").l2_clip
    1.0
    >>> aggregate = differentially_private_aggregate(1.0, 1.1, key=0)
    >>> mechanism_of(aggregate, sampling=sampling, num_steps=5, adjacency="add_remove")
    Traceback (most recent call last):
    ValueError: transformation divides by the length of the drawn batch, which is private under ...
    """
    if not isinstance(transformation, PrivateTransformation):
        raise ValueError(
            "transformation must be what add_noise, noisy_sgd, noisy_adam or"
            f" differentially_private_aggregate returned, got {transformation!r}"
        )
    description = transformation.description
    if description.divisor == "batch length" and not sampling.has_public_batch_size:
        raise ValueError(
            "transformation divides by the length of the drawn batch, which is private under"
            f" {type(sampling).__name__}: use noisy_sgd, which divides by the expected size, or a"
            " sampler with batches of one fixed size"
        )
    schedule = description.noise_multiplier
    noise = tuple(float(schedule(t)) for t in range(num_steps)) if callable(schedule) else schedule
    return SubsampledGaussian(sampling, description.l2_clip, noise, num_steps, adjacency, unit)
