"""BDP cost of the steps of a Poisson-subsampled Gaussian, from per-example gradient norms."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import jax
import numpy as np
import numpy.typing as npt
from dp_accounting import NonPrivateDpEvent

from dpjax._checks import as_float64, check, check_count, check_positive, check_text, check_type
from dpjax._typing import ArrayTree, ClipBound
from dpjax.accounting.log_moments import gaussian_log_moments, subsampled_gaussian_log_moments
from dpjax.accounting.loss_distribution import Array
from dpjax.gradients.clipping import total_l2_clip
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.poisson import PoissonSampling


@dataclass(frozen=True)
class UnclippedGaussian(Mechanism):
    """Gaussian noise on sums over Poisson batches without clipping: **no differential privacy**.

    Its DP epsilon is infinite, which every certificate states; only its BDP epsilon is finite.

    Attributes:
      sampling: the Poisson sampling of batches.
      noise_std: standard deviation of the noise, in the units of the sum.
      num_steps: the number of noisy sums that are released.
      unit: description of the unit of privacy.

    >>> mechanism = UnclippedGaussian(PoissonSampling(1_000, 0.05), noise_std=2.0, num_steps=10)
    >>> mechanism.certificate(1e-5).epsilon
    inf
    """

    sampling: PoissonSampling
    _: KW_ONLY
    noise_std: float
    num_steps: int
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_type("sampling", self.sampling, PoissonSampling, "a PoissonSampling")
        check_text("unit", self.unit)
        check_positive("noise_std", self.noise_std)
        check_count("num_steps", self.num_steps)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            event=NonPrivateDpEvent(),
            adjacency="add_remove",
            unit=self.unit,
            num_releases=self.num_steps,
            description={
                "sampling": self.sampling.describe("add_remove"),
                "clipping": "none: one record can move a sum by any amount",
                "noise": f"Gaussian of standard deviation {self.noise_std:.4g} on every entry of a"
                " sum",
            },
            size_constants=self.sampling.size_constants,
        )

    def first_steps(self, num_steps: int) -> "UnclippedGaussian":
        """Returns the mechanism truncated to its first ``num_steps`` steps."""
        check_count("num_steps", num_steps)
        check(num_steps <= self.num_steps, "num_steps", num_steps, f"at most {self.num_steps}")
        return dataclasses.replace(self, num_steps=num_steps)

    def with_privacy_factor(self, factor: float) -> "UnclippedGaussian":
        """Returns the mechanism with its noise standard deviation times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(self, noise_std=factor * self.noise_std)


@dataclass(frozen=True)
class SubsampledGaussianSteps:
    """Log moments of the steps of a Poisson-subsampled Gaussian under add/remove or zero-out.

    Attributes:
      sampling_rate: q.
      noise_std: standard deviation of each step's noise in the units of the sum, ``(num_steps,)``.
      l2_clip: clip bound on one contribution: a number, per-layer bounds, or infinity.
    """

    sampling_rate: float
    noise_std: Array
    l2_clip: ClipBound

    def clip_norms(self, norms: ArrayTree) -> Array:
        """Returns the norms after clipping; zero for those that are not finite.

        Raises:
          ValueError: ``norms`` is a tree of another structure than ``l2_clip``, or a norm is not
            finite and there is no clipping, which would set that example to zero.
        """
        bounds, groups = jax.tree.leaves(self.l2_clip), jax.tree.leaves(norms)
        found, wanted = map(str, map(jax.tree.structure, (norms, self.l2_clip)))
        check(found == wanted, "norms", found, f"one array for each clip bound, {wanted}")
        arrays = [as_float64(group, "norms") for group in groups]
        usable = np.all([np.isfinite(array) for array in arrays], axis=0)
        every = usable.all() or np.all(np.isfinite(bounds))
        check(bool(every), "norms", "one that is not finite", "finite where nothing is clipped")
        squares = [np.minimum(a, c) ** 2 for a, c in zip(arrays, bounds, strict=True)]
        return np.where(usable, np.sqrt(sum(squares)), 0.0)

    def log_moments(
        self, orders: Sequence[int], norms: Array, steps: npt.NDArray[np.intp]
    ) -> Array:
        """Returns lambda D_(lambda + 1), ``(steps, draws, orders)``, of clipped norms."""
        noise_std = self.noise_std[steps][:, None]
        if self.sampling_rate == 1:
            return gaussian_log_moments(orders, norms, noise_std=noise_std)
        return subsampled_gaussian_log_moments(
            orders, norms, sampling_rate=self.sampling_rate, noise_std=noise_std
        )

    def worst_case_log_moments(self, orders: Sequence[int], steps: npt.NDArray[np.intp]) -> Array:
        """Returns the log moments, ``(steps, orders)``, of a record at the clip bound."""
        if not np.all(np.isfinite(jax.tree.leaves(self.l2_clip))):
            return np.full((len(steps), len(orders)), np.inf)
        bound = total_l2_clip(self.l2_clip)
        return self.log_moments(orders, np.full((len(steps), 1), bound), steps)[:, 0]


def subsampled_gaussian_steps(mechanism: Mechanism) -> SubsampledGaussianSteps:
    """Returns the log moments of the steps of ``mechanism``, as functions of gradient norms.

    Raises:
      ValueError: ``mechanism`` is of another kind or not Poisson-sampled, or its adjacency is
        replace-one, where the cost is not a function of the norms.
    """
    match mechanism:
        case UnclippedGaussian(sampling=PoissonSampling(sampling_rate=rate)):
            noise_std = np.full(mechanism.num_steps, mechanism.noise_std)
            return SubsampledGaussianSteps(rate, noise_std, np.inf)
        case SubsampledGaussian(sampling=PoissonSampling(sampling_rate=rate)):
            check(
                mechanism.adjacency != "replace_one",
                "mechanism's adjacency",
                mechanism.adjacency,
                "'add_remove' or 'zero_out', as the cost of replacing a record depends on the angle"
                " between two gradients (use update_from_log_moments and replace_one_log_moments)",
            )
            multipliers = np.broadcast_to(mechanism.noise_multiplier, mechanism.num_steps)
            noise_std = multipliers * float(total_l2_clip(mechanism.l2_clip))
            check(noise_std.min() > 0, "mechanism's noise", noise_std.min(), "above zero")
            return SubsampledGaussianSteps(rate, noise_std, mechanism.l2_clip)
        case _:
            raise ValueError(
                "mechanism must be a SubsampledGaussian with PoissonSampling for its cost to be a"
                f" function of the gradient norms, got {mechanism!r}; use update_from_log_moments"
            )
