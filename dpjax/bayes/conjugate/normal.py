"""Conjugate families of normal records, and the sensitivity of their first two moments."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from dpjax._checks import as_finite, check, check_choice, check_positive
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.bayes.conjugate.family import BoundedSum, ConjugateFamily, Encoding, Sums, clip_records
from dpjax.bayes.conjugate.posteriors import Array, NormalInverseGammaPosterior, NormalPosterior
from dpjax.sensitivity import Norm, Sensitivity, checked_bounds

MomentNorm = Literal["l1", "l2"]


@dataclass(frozen=True)
class NormalKnownVariance(BoundedSum):
    """Records from N(theta, ``variance``), with theta ~ N(``prior_mean``, ``prior_variance``).

    Records are clipped to ``bounds``; NaN becomes the lower bound. The statistic is
    (x - low) / (high - low). Its sum is released and, where the number n of records is private, n
    less the sum.

    Attributes:
      bounds: ``(low, high)``, public, which should contain nearly all records.
      variance: of the records, known and public.
      prior_mean: of theta.
      prior_variance: of theta.

    Raises:
      ValueError: bounds out of order, a number that is not finite, or a variance not above zero.

    >>> family = NormalKnownVariance(
    ...     (0.0, 60.0), variance=25.0, prior_mean=30.0, prior_variance=100.0
    ... )
    >>> round(float(family.exact_posterior(jnp.array([40.0, 42.0])).mean), 2)
    39.78
    """

    bounds: tuple[float, float]
    _: KW_ONLY
    variance: float
    prior_mean: float
    prior_variance: float

    def __post_init__(self) -> None:
        _check_bounds_and_mean(self.bounds, self.prior_mean)
        check_positive("variance", self.variance)
        check_positive("prior_variance", self.prior_variance)

    @property
    def description(self) -> str:
        """The bounds, as text."""
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}"

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the clipped records, scaled from the bounds to [0, 1], ``(n, 1)``."""
        low, high = self.bounds
        units = (clip_records(records, self.bounds) - low) / (high - low)
        return jnp.clip(units, 0, 1)[:, None]

    def posterior(self, sums: Sums) -> NormalPosterior:
        """Returns the normal posterior, by adding precisions."""
        (low, high), n = self.bounds, sums.num_examples
        total = (high - low) * sums.total[..., 0] + n * low
        precision = 1 / self.prior_variance + n / self.variance
        weighted = self.prior_mean / self.prior_variance + total / self.variance
        return NormalPosterior(weighted / precision, 1 / precision)

    def log_evidence(self, sums: Sums) -> Array:
        """Returns the normal log density."""
        (low, high), n = self.bounds, sums.num_examples
        mean = n * (self.prior_mean - low) / (high - low)
        variance = (n * self.variance + n**2 * self.prior_variance) / (high - low) ** 2
        return -((sums.total[..., 0] - mean) ** 2) / (2 * variance) - np.log(variance) / 2


@dataclass(frozen=True)
class NormalUnknownVariance(ConjugateFamily):
    """Records from N(mean, variance), both unknown, with a normal-inverse-gamma prior.

    The variance is inverse gamma of ``prior_shape`` and ``prior_scale``; given it, the mean is
    N(``prior_mean``, variance / ``prior_strength``). Records are clipped to ``bounds``; NaN becomes
    the lower bound. With u = (x - centre) / (half the width) in [-1, 1], the statistic is (u, u^2).
    Both sums are released and, where the number n of records is private, n less the sum of u^2.

    Attributes:
      bounds: ``(low, high)``, public, which should contain nearly all records.
      prior_mean: of the mean.
      prior_strength: number of records that the prior mean counts as.
      prior_shape: of the variance, whose prior mean is finite above one.
      prior_scale: of the variance, in its units.

    Raises:
      ValueError: bounds out of order, a number that is not finite, or a prior parameter other than
        the mean not above zero.

    >>> family = NormalUnknownVariance(
    ...     (0.0, 10.0), prior_mean=5.0, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
    ... )
    >>> family.exact_posterior(jnp.array([4.0, 5.0, 6.0])).mean.round(3).tolist()
    [5.0, 0.8]
    >>> family.sensitivity(norm="l1", adjacency="replace_one").value
    2.25
    """

    bounds: tuple[float, float]
    _: KW_ONLY
    prior_mean: float
    prior_strength: float
    prior_shape: float
    prior_scale: float
    # Of u and of its square.
    statistic_bounds: ClassVar[tuple[Array, Array]] = (np.array([-1.0, 0.0]), np.ones(2))

    def __post_init__(self) -> None:
        _check_bounds_and_mean(self.bounds, self.prior_mean)
        for name in ("prior_strength", "prior_shape", "prior_scale"):
            check_positive(name, getattr(self, name))

    @property
    def description(self) -> str:
        """The bounds, as text."""
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}, with their squares"

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns u and u^2, ``(n, 2)``."""
        low, high = self.bounds
        units = (clip_records(records, self.bounds) - (low + high) / 2) / ((high - low) / 2)
        units = jnp.clip(units, -1, 1)
        return jnp.stack([units, units**2], axis=-1)

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Returns both sums and, where n is private, n less the second."""
        size = 2 if is_size_public(adjacency) else 3
        matrix = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        return Encoding(matrix[:size], np.array([0.0, 0.0, 1.0])[:size])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Returns the exact sensitivity of (u, u^2), or of (u, u^2, 1 - u^2) where n is private.

        The latter has the L1 norm 1 + |u| and the squared L2 norm 1 - u^2 + 2 u^4, both largest at
        |u| = 1.
        """
        check_choice("norm", norm, ("l1", "l2"))
        if not is_size_public(adjacency):
            value = 2.0 if norm == "l1" else math.sqrt(2)
            return Sensitivity(value, norm, adjacency, shape=(3,))
        return of_first_two_moments((-1, 1), norm=cast(MomentNorm, norm), adjacency=adjacency)

    def repair(self, sums: Sums) -> Sums:
        """Returns sums within the bounds, whose second moment is at least the squared mean."""
        total, n = super().repair(sums)
        least = total[..., 0] ** 2 / n
        return Sums(np.stack([total[..., 0], np.maximum(total[..., 1], least)], axis=-1), n)

    def posterior(self, sums: Sums) -> NormalInverseGammaPosterior:
        """Returns the posterior from the sum and the sum of squared deviations from the mean."""
        total, squares, n = self._in_record_units(sums)
        strength = self.prior_strength + n
        deviation = (total - n * self.prior_mean) ** 2 / np.maximum(n, 1e-300)
        shrunk = deviation * self.prior_strength / strength
        return NormalInverseGammaPosterior(
            centre=(self.prior_strength * self.prior_mean + total) / strength,
            strength=strength,
            shape=self.prior_shape + n / 2,
            scale=self.prior_scale + (squares + shrunk) / 2,
        )

    def log_evidence(self, sums: Sums) -> Array:
        """Returns the log density of sum and squares: of the records, times that of equal sums.

        The volume is proportional to the sum of squared deviations to the power (n - 3) / 2. Fewer
        than two records, or deviations of zero, are counted as impossible.
        """
        _, squares, n = self._in_record_units(sums)
        after = self.posterior(sums)
        prior = self.prior_shape * math.log(self.prior_scale) - gammaln(self.prior_shape)
        update = gammaln(after.shape) - after.shape * np.log(after.scale) + prior
        update = update - np.log(after.strength) / 2 - n * math.log(2) / 2
        volume = xlogy((n - 3) / 2, squares) - gammaln((n - 1) / 2) - np.log(n) / 2
        return np.where((squares > 0) & (n > 1), update + volume, -math.inf)

    def _in_record_units(self, sums: Sums) -> tuple[Array, Array, Array]:
        """The sum of the records, the sum of squares around their mean, and their number."""
        first, second, n = sums.total[..., 0], sums.total[..., 1], sums.num_examples
        around = second - first**2 / np.maximum(n, 1e-300)
        centre, half = (self.bounds[0] + self.bounds[1]) / 2, (self.bounds[1] - self.bounds[0]) / 2
        return half * first + n * centre, half**2 * around, n


def _check_bounds_and_mean(bounds: tuple[float, float], prior_mean: float) -> None:
    ordered = isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] < bounds[1]
    fine = ordered and math.isfinite(bounds[0]) and math.isfinite(bounds[1])
    check(fine, "bounds", bounds, "a tuple (low, high) of finite numbers with low < high")
    as_finite(prior_mean, "prior_mean", "a finite number")


def of_first_two_moments(
    bounds: tuple[float, float], *, norm: MomentNorm, adjacency: Adjacency
) -> Sensitivity:
    """Returns the sensitivity of (sum of x, sum of x^2) over numbers x within closed bounds.

    Adding x changes it by (x, x^2), most at the bound farther from zero. Replacing x by z changes
    it by |x - z| times (1, x + z). For fixed x - z, |x + z| is largest where one of the two is at a
    bound. As a function of the other the distance is then largest at the other bound, at the kink
    x + z = 0, or where the derivative vanishes: at -1/2 or 1/2 in L1, and in L2, with one at the
    bound b, where 2 z (b + z) = -1.

    Args:
      bounds: ``(low, high)``, two numbers.
      norm: ``"l1"`` or ``"l2"``.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      The exact sensitivity, attained by numbers between the bounds.

    Raises:
      ValueError: bounds that are not finite, out of order or equal to zero; another norm
        or adjacency.

    >>> of_first_two_moments((-1, 1), norm="l1", adjacency="replace_one").value
    2.25
    >>> of_first_two_moments((0, 100), norm="l1", adjacency="add_remove").value
    10100.0
    """
    check_choice("norm", norm, ("l1", "l2"))
    check_adjacency(adjacency)
    ends = checked_bounds(bounds)
    check(ends[0].ndim == 0, "bounds", bounds, "two numbers")
    low, high = (float(end) for end in ends)
    pairs = [(low, 0.0), (high, 0.0)]
    if adjacency == "replace_one":
        pairs = []
        for end in (low, high):
            root = math.sqrt(max(end**2 - 2, 0.0))
            stationary = (-0.5, 0.5) if norm == "l1" else ((-end + root) / 2, (-end - root) / 2)
            pairs += [(end, min(max(z, low), high)) for z in (low, high, -end, *stationary)]
    order = 1 if norm == "l1" else 2
    largest = max(float(np.linalg.norm([x - z, (x - z) * (x + z)], order)) for x, z in pairs)
    monotone = adjacency != "replace_one" and low >= 0
    return Sensitivity(largest, norm, adjacency, monotone, shape=(2,))
