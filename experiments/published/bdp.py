"""Releases of Triastcyn & Faltings (2020) that are not private, or only under an assumption.

`UnclippedGaussian` has a finite BDP epsilon and no DP epsilon.

`worst_case_log_moments` bounds the Rényi divergence of the estimator's mean and variance when one
sample changes. A BDP epsilon is computed from the mean M and the standard deviation S of N samples,
one for each record, so publishing it leaks about each record. Section 4.4.3 bounds this leakage
*under an assumption*: that M and S are distributed as those of N normal samples with the mean and
the variance of the given ones. Then M is normal with variance S^2 / N, N S^2 is a scaled chi-square
with N - 1 degrees of freedom, and both are independent. No noise is added, so **without the
assumption there is no bound**: the other N - 1 samples and M determine the last sample exactly. A
BDP epsilon should therefore not be published, or only with added noise.

Samples, ranges and standard deviations are in the same, arbitrary unit.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
from dp_accounting import NonPrivateDpEvent
from scipy.stats import binom

from dpjax._checks import check, check_count, check_positive, check_text, check_type
from dpjax.accounting.log_moments import check_scales, diagonal_gaussian_log_moments
from dpjax.accounting.loss_distribution import Array
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism
from dpjax.sampling.poisson import PoissonSampling


def published_reverse_log_moments(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: float,
) -> npt.NDArray[np.float64]:
    """Returns the published upper bound c^R on the log moments log E_Q[(Q / P)^lambda].

    It follows from convexity and is loose: at q = 0.01, lambda = s = d = 1 it is 0.0170, and the
    moment that it bounds is 0.00016. `dpjax.bdp.subsampled_gaussian_log_moments` has the other
    direction and the roles of P and Q.

    Args:
      orders: whole numbers lambda >= 1.
      distances: between the two values, of any shape.
      sampling_rate: q, the probability with which a record is drawn.
      noise_std: standard deviation of the noise.

    Source: Triastcyn & Faltings (2020), Theorem 3 (c^R).

    >>> published_reverse_log_moments((1,), 1.0, sampling_rate=0.01, noise_std=1.0)
    array([0.0170])
    """
    squares = np.square(np.asarray(distances, float) / noise_std)[..., None, None]
    numbers = np.asarray(orders, float)
    k = np.arange(1, numbers.max() + 1)
    excesses = np.expm1(k * (k + 1) / 2 * squares)
    return np.log1p(np.sum(binom.pmf(k, numbers[:, None], sampling_rate) * excesses, axis=-1))


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


def worst_case_log_moments(
    orders: Sequence[int], num_draws: int, width: npt.ArrayLike, std: npt.ArrayLike
) -> Array:
    """Returns an upper bound on the log moments of mean and variance when any one value changes.

    All values are in a range of the given ``width``, by clipping. So the mean changes by at most
    width / N and the variance by at most (N - 1) width^2 / N^2; the largest log moment is at the
    largest changes, in either direction. It is infinite where one value can account for all of the
    variance, and decreases as 1 / N for large N. It assumes that the samples are normal, see this
    module, and is for the statistics of one step.

    Args:
      orders: whole numbers lambda >= 1.
      num_draws: N, at least 2.
      width: width > 0 of the range of a value.
      std: standard deviation > 0 of the sample; the two arrays broadcast.

    Returns:
      Numbers >= 0 or infinity, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    Source: Triastcyn & Faltings (2020), Section 4.4.3; Gil, Alajaji & Linder (2013), Table 2.

    >>> worst_case_log_moments((1, 4), num_draws=10_000, width=5.0, std=1.0)
    array([0.0339..., 0.3409...])
    """
    check_count("num_draws", num_draws, 2)
    reach = check_scales("width", width) / check_scales("std", std)
    change = np.square(reach) * (num_draws - 1) / num_draws**2
    one, wide = np.ones_like(reach), np.sqrt(1 + change)
    narrow = np.sqrt(np.where(change < 1, 1 - change, 1.0))

    # N S^2 is the sum of the squares of N - 1 normal variables.
    cases = [
        _normal_log_moments(orders, reach / np.sqrt(num_draws), first, second)
        + (num_draws - 1) * _normal_log_moments(orders, np.zeros_like(reach), first, second)
        for first, second in ((one, narrow), (narrow, one), (one, wide), (wide, one))
    ]
    return np.where((change < 1)[..., None], np.max(cases, axis=0), np.inf)


def _normal_log_moments(orders: Sequence[int], shift: Array, std: Array, other_std: Array) -> Array:
    """Returns the log moments of two normal variables whose means differ by ``shift``."""
    return diagonal_gaussian_log_moments(
        orders, np.zeros(1), std[..., None], shift[..., None], other_std[..., None]
    )
