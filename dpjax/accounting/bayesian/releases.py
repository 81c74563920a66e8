"""What a step of a mechanism releases of one record: from its norms to its log moments."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, NonPrivateDpEvent

from dpjax._validation import check, check_count, check_positive
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.bayesian import divergences
from dpjax.gradients.clipping import total_l2_clip
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.poisson import PoissonSampling

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class UnclippedGaussian(Mechanism):
    """Noisy sums of Poisson batches whose terms have no bound: **no differential privacy at all**.

    Only the Bayesian account of it is finite, and that of a heavy tail need not be of use. Its
    differential epsilon is infinite, and every certificate says so.

    Attributes:
      sampling: how batches are drawn.
      noise_std: standard deviation of the noise, in the units of the sum.
      num_steps: how many noisy sums are released.
      unit: the unit of privacy, in words.

    >>> mechanism = UnclippedGaussian(PoissonSampling(1_000, 0.05), noise_std=2.0, num_steps=10)
    >>> mechanism.certificate(1e-5).epsilon
    inf
    """

    sampling: PoissonSampling
    noise_std: float
    num_steps: int
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_positive("noise_std", self.noise_std)
        check_count("num_steps", self.num_steps)

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """Add or remove one record."""
        return "add_remove"

    @property
    def num_releases(self) -> int:
        """One noisy sum for each step."""
        return self.num_steps

    @property
    def event(self) -> DpEvent:
        """Not private: one record can move the sum by any amount."""
        return NonPrivateDpEvent()

    def prefix(self, num_steps: int) -> "UnclippedGaussian":
        """The same mechanism stopped after its first ``num_steps`` steps."""
        check_count("num_steps", num_steps)
        check(num_steps <= self.num_steps, "num_steps", num_steps, f"at most {self.num_steps}")
        return dataclasses.replace(self, num_steps=num_steps)

    def scale_noise(self, factor: float) -> "UnclippedGaussian":
        """The same mechanism with its noise times ``factor``."""
        return dataclasses.replace(self, noise_std=factor * self.noise_std)

    def describe(self) -> Mapping[str, str]:
        """Sampling and noise in words."""
        return {
            "sampling": self.sampling.describe(),
            "clipping": "none: one record can move a sum by any amount",
            "noise": f"Gaussian of standard deviation {self.noise_std:.4g} on every entry of a sum",
        }


@dataclass(frozen=True)
class SampledRelease:
    """The steps of a Poisson-sampled Gaussian under add/remove.

    Attributes:
      sampling_rate: q.
      noise_std: of each step's noise in the units of the sum, ``(num_steps,)``.
      l2_clip: bound on one contribution: a number, per-layer bounds, or infinity.
    """

    sampling_rate: float
    noise_std: Array
    l2_clip: Any

    def contributions(self, norms: Any) -> Array:
        """Returns the norm of each example's contribution: clipped, and zero if not finite.

        Raises:
          ValueError: a tree of other groups than the clip bounds', or a norm that is not finite
            where nothing is clipped: nothing leaves such an example out.
        """
        bounds, groups = self._bounds, jax.tree.leaves(norms)
        found, wanted = map(str, map(jax.tree.structure, (norms, self.l2_clip)))
        check(found == wanted, "norms", found, f"one array for each clip bound, {wanted}")
        arrays = [np.asarray(group, float) for group in groups]
        usable = np.all([np.isfinite(array) for array in arrays], axis=0)
        every = usable.all() or np.all(np.isfinite(self._bounds))
        check(bool(every), "norms", "one that is not finite", "finite where nothing is clipped")
        squares = [np.minimum(a, c) ** 2 for a, c in zip(arrays, bounds, strict=True)]
        return np.where(usable, np.sqrt(sum(squares)), 0.0)

    def log_moments(self, orders: Sequence[int], contributions: Array, steps: Any) -> Array:
        """Returns lambda D_(lambda + 1) of contributions ``(steps, draws)``, orders last."""
        noise_std = self.noise_std[steps][:, None]
        if self.sampling_rate == 1:
            return divergences.gaussian(orders, contributions, noise_std=noise_std)
        return divergences.sampled_gaussian(
            orders, contributions, sampling_rate=self.sampling_rate, noise_std=noise_std
        )

    def log_moments_at_bound(self, orders: Sequence[int], steps: Any) -> Array:
        """Returns the log moments of a record whose contribution is as large as the bound."""
        bound = total_l2_clip(self.l2_clip) if np.all(np.isfinite(self._bounds)) else np.inf
        if np.isinf(bound):
            return np.full((len(steps), len(orders)), np.inf)
        return self.log_moments(orders, np.full((len(steps), 1), bound), steps)[:, 0]

    @property
    def _bounds(self) -> list[Any]:
        return jax.tree.leaves(self.l2_clip)


def release_of(mechanism: Mechanism) -> SampledRelease:
    """Returns what the steps of ``mechanism`` release, for an account from norms alone.

    Raises:
      ValueError: a mechanism of another kind, another sampler than Poisson's, or replace-one, where
        norms do not tell how far a record and its replacement are apart.
    """
    match mechanism:
        case UnclippedGaussian(sampling=PoissonSampling(sampling_rate=rate)):
            return SampledRelease(rate, np.full(mechanism.num_steps, mechanism.noise_std), np.inf)
        case SubsampledGaussian(sampling=PoissonSampling(sampling_rate=rate)):
            _check_add_remove(mechanism)
            multipliers = np.broadcast_to(mechanism.noise_multiplier, mechanism.num_steps)
            noise_std = multipliers * float(total_l2_clip(mechanism.l2_clip))
            check(noise_std.min() > 0, "mechanism's noise", noise_std.min(), "above zero")
            return SampledRelease(rate, noise_std, mechanism.l2_clip)
        case _:
            raise ValueError(
                "mechanism must be a SubsampledGaussian with PoissonSampling to be counted from"
                f" norms, got {mechanism!r}: count others by update_with"
            )


def _check_add_remove(mechanism: Mechanism) -> None:
    if mechanism.adjacency != "add_remove":
        raise ValueError(
            "mechanism's adjacency must be 'add_remove' to be counted from norms, got"
            f" {mechanism.adjacency!r}: the cost of replacing a record depends on the angle between"
            " two gradients; count pairs by update_with and replaced_sampled_gaussian"
        )
