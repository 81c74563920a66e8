"""Conjugate families of normal records, and the sensitivity of their first two moments."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, xlogy

from dpjax._validation import as_floats, check, check_choice, check_positive
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.bayes.conjugate.family import BoundedSum, ConjugateFamily, Encoding, Sums
from dpjax.bayes.conjugate.posteriors import Array, NormalInverseGammaPosterior, NormalPosterior
from dpjax.sensitivity import Norm, Sensitivity, clip_to
from dpjax.sensitivity.statistics import checked_bounds

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
        _check_bounds(self.bounds)
        check_positive("variance", self.variance)
        _check_finite("prior_mean", self.prior_mean)
        check_positive("prior_variance", self.prior_variance)

    @property
    def description(self) -> str:
        """The bounds."""
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}"

    @property
    def upper_bound(self) -> float:
        """One."""
        return 1.0

    def statistic(self, records: Any) -> jax.Array:
        """The clipped records, scaled from the bounds to [0, 1], ``(n, 1)``."""
        return jnp.clip(_in_units(records, self.bounds, self.bounds[0], self._width), 0, 1)[:, None]

    def posterior(self, sums: Sums) -> NormalPosterior:
        """Normal posterior, by adding precisions."""
        n = sums.num_examples
        total = self._width * sums.total[..., 0] + n * self.bounds[0]
        precision = 1 / self.prior_variance + n / self.variance
        weighted = self.prior_mean / self.prior_variance + total / self.variance
        return NormalPosterior(weighted / precision, 1 / precision)

    def log_evidence(self, sums: Sums) -> Array:
        """Normal log density."""
        n = sums.num_examples
        mean = n * (self.prior_mean - self.bounds[0]) / self._width
        variance = (n * self.variance + n**2 * self.prior_variance) / self._width**2
        return -((sums.total[..., 0] - mean) ** 2) / (2 * variance) - np.log(variance) / 2

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]


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

    def __post_init__(self) -> None:
        _check_bounds(self.bounds)
        _check_finite("prior_mean", self.prior_mean)
        for name in ("prior_strength", "prior_shape", "prior_scale"):
            check_positive(name, getattr(self, name))

    @property
    def description(self) -> str:
        """The bounds."""
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}, with their squares"

    @property
    def statistic_bounds(self) -> tuple[Array, Array]:
        """-1 and 1 for u, 0 and 1 for its square."""
        return np.array([-1.0, 0.0]), np.ones(2)

    def statistic(self, records: Any) -> jax.Array:
        """u and u^2, ``(n, 2)``."""
        units = jnp.clip(_in_units(records, self.bounds, self._centre, self._half), -1, 1)
        return jnp.stack([units, units**2], axis=-1)

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Both sums and, where n is private, n less the second."""
        check_adjacency(adjacency)
        size = 2 if is_size_public(adjacency) else 3
        matrix = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        return Encoding(matrix[:size], np.array([0.0, 0.0, 1.0])[:size])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Exact sensitivity of the first two moments over [-1, 1], or of (u, u^2, 1 - u^2).

        The latter has the L1 norm 1 + |u| and the squared L2 norm 1 - u^2 + 2 u^4, both largest at
        |u| = 1.
        """
        check_choice("norm", norm, ("l1", "l2"))
        if not is_size_public(adjacency):
            return Sensitivity(2.0 if norm == "l1" else math.sqrt(2), norm, adjacency)
        return of_first_two_moments((-1, 1), norm=cast(MomentNorm, norm), adjacency=adjacency)

    def repair(self, sums: Sums) -> Sums:
        """Clips to the bounds, and raises the second moment to at least the squared mean."""
        total, n = super().repair(sums)
        least = total[..., 0] ** 2 / n
        return Sums(np.stack([total[..., 0], np.maximum(total[..., 1], least)], axis=-1), n)

    def posterior(self, sums: Sums) -> NormalInverseGammaPosterior:
        """Normal-inverse-gamma posterior, from the sum and the sum of squared deviations."""
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
        """Log density of sum and squares: that of the records times the volume of equal sums.

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
        return self._half * first + n * self._centre, self._half**2 * around, n

    @property
    def _centre(self) -> float:
        return (self.bounds[0] + self.bounds[1]) / 2

    @property
    def _half(self) -> float:
        return (self.bounds[1] - self.bounds[0]) / 2


def _in_units(records: Any, bounds: Any, origin: float, unit: float) -> jax.Array:
    records = as_floats(records)
    check(records.ndim == 1, "records", records.shape, "of shape (n,)")
    return (clip_to(records, bounds) - origin) / unit


def _check_bounds(bounds: Any) -> None:
    ordered = isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] < bounds[1]
    fine = ordered and math.isfinite(bounds[0]) and math.isfinite(bounds[1])
    check(fine, "bounds", bounds, "a tuple (low, high) of finite numbers with low < high")


def _check_finite(name: str, value: Any) -> None:
    check(math.isfinite(value), name, value, "a finite number")


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
    order = 1 if norm == "l1" else 2
    if adjacency != "replace_one":
        largest = max(_distance(x, 0.0, order) for x in (low, high))
        return Sensitivity(largest, norm, adjacency, low >= 0)
    pairs = [(end, z) for end in (low, high) for z in _candidates(end, norm)]
    largest = max(_distance(end, min(max(z, low), high), order) for end, z in pairs)
    return Sensitivity(largest, norm, adjacency)


def _distance(x: float, z: float, order: int) -> float:
    return float(np.linalg.norm([x - z, x * x - z * z], order))


def _candidates(end: float, norm: str) -> list[float]:
    """Where the distance from ``end`` can be largest; infinities stand for the bounds."""
    stationary = [-0.5, 0.5] if norm == "l1" else _roots(end)
    return [-math.inf, math.inf, -end, *stationary]


def _roots(end: float) -> list[float]:
    """The solutions z of 2 z (end + z) = -1."""
    root = math.sqrt(max(end**2 - 2, 0.0))
    return [(-end + root) / 2, (-end - root) / 2]
