"""Sufficient statistics perturbation: additive noise, its budget shares, and an adaptive ridge."""

import functools
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    check,
    check_choice,
    check_count,
    check_delta,
    check_non_negative,
    check_positive,
    check_type,
)
from dpjax._typing import Numeric
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    StatisticsMechanism,
    check_features,
    check_setting,
    clipped_statistics,
    describe_clipping,
    features_and_targets,
    statistics_sensitivities,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, derive
from dpjax.mechanisms.additive import Gaussian, Laplace, mirror, upper_triangle
from dpjax.mechanisms.base import Composition
from dpjax.mechanisms.record_sum import RecordSum, SumPart
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity

NoiseDistribution = Literal["gaussian", "laplace"]

# A variance falls with the share of mu^2, or with the square of the share of epsilon; the shares
# that minimise the sum of coefficient * sensitivity^2 / share^p are its (p + 1)-th roots.
_POWERS = {"gaussian": 1, "laplace": 2}


@dataclass(frozen=True, kw_only=True)
class AssumedModel:
    """Publicly assumed regression model, for which the budget shares are optimised.

    A wrong assumption costs accuracy, not privacy. It must not be taken from the private data.

    Attributes:
      coefficient_norm: the L2 norm of the coefficients.
      noise_std: the standard deviation of the targets around their means.
      noise_known: whether that is known: then yty is not needed, and not released.

    Raises:
      ValueError: ``coefficient_norm`` or ``noise_std`` is not a finite number above zero.
    """

    coefficient_norm: float
    noise_std: float
    noise_known: bool = False

    def __post_init__(self) -> None:
        check_positive("coefficient_norm", self.coefficient_norm)
        check_positive("noise_std", self.noise_std)

    @classmethod
    def from_bounds(cls, bounds: RegressionBounds, num_features: int) -> "AssumedModel":
        """Returns the default: signal and noise of half the targets' bound each.

        The signal is that of coefficients of random direction at features of the largest norm.

        Args:
          bounds: public.
          num_features: d, with the intercept.

        >>> bounds = RegressionBounds(x_norm_bound=2.0, y_bound=1.0)
        >>> AssumedModel.from_bounds(bounds, num_features=4)
        AssumedModel(coefficient_norm=0.5, noise_std=0.5, noise_known=False)
        """
        check_type("bounds", bounds, RegressionBounds, "RegressionBounds")
        check_count("num_features", num_features)
        half = bounds.y_bound / 2
        return cls(
            coefficient_norm=math.sqrt(num_features) * half / bounds.x_norm_bound, noise_std=half
        )


def optimal_budget_shares(
    sensitivities: RegressionStatistics,
    model: AssumedModel,
    *,
    x_norm_bound: float,
    num_features: int,
    noise_distribution: NoiseDistribution,
) -> RegressionStatistics:
    """Returns the budget shares with the smallest expected prediction loss, from public values.

    The loss is the expected increase of the Kullback-Leibler divergence between the distribution of
    the data and the fitted normal one, to second order in the noise, for isotropic features of norm
    ``x_norm_bound``. With d features of norm R, coefficients of norm b, noise of variance v and n
    records it is

        d^2 (s_xty^2 + b^2 s_xtx^2) / (2 R^2 v) + (s_yty^2 + 4 b^2 s_xty^2 + b^4 s_xtx^2) / (4 v^2)

    over n^2, where s are the noise scales, with s_xtx^2 averaged over xtx. The first term is the
    error of the coefficients, the second that of the variance, omitted where it is known.

    Args:
      sensitivities: one number for each statistic.
      model: the assumed model.
      x_norm_bound: R.
      num_features: d.
      noise_distribution: the shares are of mu^2 for ``"gaussian"`` and of epsilon for
        ``"laplace"``.

    Returns:
      Shares that add up to one; that of yty is ``None`` where the variance is known.

    >>> ones = RegressionStatistics(1.0, 1.0, 1.0)
    >>> shares = optimal_budget_shares(
    ...     ones, AssumedModel(coefficient_norm=0.5, noise_std=0.5), x_norm_bound=1.0,
    ...     num_features=12, noise_distribution="gaussian"
    ... )
    >>> [round(share, 2) for share in shares]
    [0.25, 0.67, 0.08]
    """
    check_type("sensitivities", sensitivities, RegressionStatistics, "RegressionStatistics")
    check_type("model", model, AssumedModel, "an AssumedModel")
    check_positive("x_norm_bound", x_norm_bound)
    check_count("num_features", num_features)
    check_choice("noise_distribution", noise_distribution, tuple(_POWERS))

    # Increase of the loss per unit of noise variance in each statistic, times n^2.
    variance, signal = model.noise_std**2, model.coefficient_norm**2
    of_coefficients = num_features**2 / (2 * x_norm_bound**2 * variance)
    of_variance = 0.0 if model.noise_known else 1 / (4 * variance**2)
    costs = np.array(
        [
            of_coefficients * signal + of_variance * signal**2,
            of_coefficients + of_variance * 4 * signal,
            of_variance,
        ]
    )
    if noise_distribution == "gaussian":  # off the diagonal of xtx half the variance
        costs[0] *= (1 + 1 / num_features) / 2

    # The shares that minimise the sum of cost * sensitivity^2 / share^p.
    weights = costs * np.square(np.array(sensitivities, float))
    roots = weights ** (1 / (_POWERS[noise_distribution] + 1))
    xtx, xty, yty = (float(share) for share in roots / roots.sum())
    return RegressionStatistics(xtx, xty, None if model.noise_known else yty)


def check_shares(shares: RegressionStatistics) -> None:
    """Raises ``ValueError`` unless shares are positive and add up to one; yty may be ``None``."""
    released = shares[:2] if shares.yty is None else shares
    for share in released:
        check_positive("shares", share)
    check(abs(sum(released) - 1) < 1e-9, "shares", shares, "numbers that add up to one")


# The float below sqrt(2).
_ROOT_TWO = math.nextafter(math.sqrt(2), 0.0)
_MECHANISMS: Mapping[NoiseDistribution, type[Gaussian] | type[Laplace]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
}


@dataclass(frozen=True)
class PerturbedStatistics(StatisticsMechanism[RegressionStatistics], RecordSum):
    """Releases X^T X, X^T y and optionally y^T y of clipped records with independent noise.

    Attributes:
      scales: noise scales on xtx's diagonal and on the entries of xty and yty, in their own units;
        ``None`` for yty omits it. Off the diagonal Gaussian noise is smaller by sqrt(2).
      noise_distribution: ``"gaussian"`` or ``"laplace"``.

    Privacy:
      The result of ``release`` is released. The number of records is not: it is public, or under
      add/remove can be estimated from the released xtx entry of an intercept, which is too small
      where rows were clipped.

    Raises:
      ValueError: a scale that is not a finite number above zero, or another distribution.

    Source: Foulds et al. (2016) for the perturbation; Balle & Wang (2018), Theorem 8, for Gaussian
    noise; Gaussian releases compose exactly, by adding mu^2.

    >>> import jax, jax.numpy as jnp
    >>> bounds = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    >>> mechanism = PerturbedStatistics.from_epsilon(
    ...     bounds, epsilon=1.0, delta=1e-4, adjacency="add_remove", num_features=3
    ... )
    >>> x, y = jnp.ones((50, 3)), jnp.ones(50)
    >>> mechanism.release_records(jax.random.key(0), x, y).xtx.shape
    (3, 3)
    >>> round(mechanism.certificate(1e-4).epsilon, 3)
    1.0
    """

    bounds: RegressionBounds
    num_features: int
    scales: RegressionStatistics
    noise_distribution: NoiseDistribution
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_setting(self.bounds, self.num_features, self.adjacency, self.unit)
        check_type("scales", self.scales, RegressionStatistics, "RegressionStatistics")
        check_choice("noise_distribution", self.noise_distribution, tuple(_MECHANISMS))
        for scale in self._scales:
            check_positive("scales", scale)

    @classmethod
    def from_epsilon(
        cls,
        bounds: RegressionBounds,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        num_features: int,
        split: RegressionStatistics | AssumedModel | None = None,
        unit: str = "one record",
    ) -> Self:
        """Returns the (epsilon, delta)-private mechanism that spends the whole budget.

        Args:
          bounds: public.
          epsilon: any finite number above zero.
          delta: in (0, 1) for Gaussian noise; zero for Laplace noise, which is purely private.
          adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
          num_features: d, with the intercept.
          split: the shares of the three statistics, of mu^2 or of epsilon, which add up to one; or
            an assumed model that the shares are optimised for, by default
            ``AssumedModel.from_bounds``.
          unit: the unit of privacy, in words.

        Raises:
          ValueError: a number out of range, or shares that are not positive or do not add up to
            one.
        """
        check_setting(bounds, num_features, adjacency, unit)
        check_non_negative("delta", delta)
        allowed = "RegressionStatistics of shares, or an AssumedModel"
        check_type("split", split, RegressionStatistics | AssumedModel | None, allowed)

        # The whole budget: mu of Gaussian noise, epsilon of Laplace noise.
        noise_distribution: NoiseDistribution = "gaussian" if delta else "laplace"
        if delta:
            budget = Gaussian.from_epsilon(
                Sensitivity(1.0, "l2", adjacency), epsilon=epsilon, delta=delta
            ).mu
        else:
            check_positive("epsilon", epsilon)
            budget = epsilon

        # The share of each statistic.
        sensitivities = statistics_sensitivities(
            bounds, num_features, norm=_MECHANISMS[noise_distribution].norm, adjacency=adjacency
        )
        sizes = RegressionStatistics(*(sensitivity.value for sensitivity in sensitivities))
        if not isinstance(split, RegressionStatistics):
            model = AssumedModel.from_bounds(bounds, num_features) if split is None else split
            split = optimal_budget_shares(
                sizes,
                model,
                x_norm_bound=bounds.x_norm_bound,
                num_features=num_features,
                noise_distribution=noise_distribution,
            )
        check_shares(split)

        # Shares of a Gaussian budget are of mu^2.
        scales = (
            None if share is None else size / ((math.sqrt(share) if delta else share) * budget)
            for size, share in zip(sizes, split, strict=True)
        )
        return cls(
            bounds, num_features, RegressionStatistics(*scales), noise_distribution, adjacency, unit
        )

    @property
    def parts(self) -> RegressionStatistics:
        """The mechanism of each statistic; ``None`` for an omitted yty."""
        return RegressionStatistics(
            *(
                None if scale is None else replace(part, scale=scale, unit=self.unit)
                for part, scale in zip(self._unit_parts, self.scales, strict=True)
            )
        )

    @property
    def noise_scales(self) -> RegressionStatistics:
        """Standard deviation of the noise on every entry: ``(d, d)``, a number for xty and yty.

        The noise on xtx is symmetric. ``None`` for an omitted yty.
        """
        xtx, xty, yty = (None if part is None else part.standard_deviation for part in self.parts)
        return RegressionStatistics(xtx / self._weights, xty, yty)

    def add_noise(
        self, key_bits: npt.NDArray[np.uint32], arrays: list[Array], *, rounding: float = 0.0
    ) -> list[Array]:
        count = len(arrays) // 2
        exact, scales = [upper_triangle(arrays[0]), *arrays[1:count]], arrays[count:]
        weights = [upper_triangle(self._weights), None, None]
        keys = derive(key_bits, count)
        noisy = [
            part.add_noise(key, [value], scale=scale, weights=weight, rounding=rounding)[0]
            for part, key, value, scale, weight in zip(
                self._unit_parts[:count], keys, exact, scales, weights, strict=False
            )
        ]
        return [mirror(noisy[0]), *noisy[1:]]

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        """The released sums as Gaussian mechanisms: upper triangle of xtx, then xty, then yty."""
        weights = (upper_triangle(self._weights), np.ones(self.num_features), np.ones(1))
        released = zip(self.parts, weights, strict=True)
        return tuple(SumPart(part, weight) for part, weight in released if part is not None)

    def sum_records(self, *records: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the statistics of clipped records as one vector, in the order of ``sum_parts``.

        Args:
          *records: features ``(n, num_features)`` and targets ``(n,)``.

        Raises:
          ValueError: features or targets of other shapes, or not of real numbers.
        """
        x, y = features_and_targets(records)
        check_features(x, self.num_features)
        xtx, xty, yty = clipped_statistics(self.bounds, x, y)
        parts = [upper_triangle(xtx), xty, yty[None]][: self._num_statistics]
        return np.concatenate(parts)

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> RegressionStatistics:
        """Returns the statistics of a noisy vector in the order of ``sum_parts``.

        Args:
          noisy: ``(d (d + 1) / 2 + d + 1,)``, one less without yty.
        """
        d = self.num_features
        triangle, xty, yty = np.split(noisy, [d * (d + 1) // 2, d * (d + 3) // 2])
        xtx = jnp.asarray(mirror(triangle))
        return RegressionStatistics(
            xtx, jnp.asarray(xty), jnp.asarray(yty[0]) if len(yty) else None
        )

    @property
    def _num_statistics(self) -> int:  # type: ignore[override]
        return 2 if self.scales.yty is None else 3

    _num_values = _num_statistics

    @property
    def _scales(self) -> tuple[Numeric, ...]:  # type: ignore[override]
        return self.scales[: self._num_statistics]

    @property
    def _unit_parts(self) -> list[Gaussian | Laplace]:
        """The mechanisms of the three statistics with scale one, for scales that are traced."""
        mechanism = _MECHANISMS[self.noise_distribution]
        sensitivities = statistics_sensitivities(
            self.bounds, self.num_features, norm=mechanism.norm, adjacency=self.adjacency
        )
        return [mechanism(sensitivity, 1.0) for sensitivity in sensitivities]

    @property
    def composition(self) -> Composition:
        """Composition of the released statistics, on the same records."""
        return Composition(tuple(part for part in self.parts if part is not None))

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        scales = (None if scale is None else scale * factor for scale in self.scales)
        return replace(self, scales=RegressionStatistics(*scales))

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        first = {"records": describe_clipping(self.bounds, self.num_features)}
        if self.noise_distribution == "gaussian":
            first["weights"] = "the noise on X^T X is smaller by sqrt(2) off the diagonal"
        return self.composition.guarantee.with_description(first)

    @property
    def _weights(self) -> np.ndarray:
        """Divisors of the noise on the entries of xtx.

        The L2 sensitivity of the upper triangle is attained on the diagonal alone. Weighting the
        other entries by sqrt(2), rounded down, gives the Frobenius norm of the whole matrix, which
        has the same bound, so these entries get less noise.
        """
        weight = _ROOT_TWO if self.noise_distribution == "gaussian" else 1.0
        return np.where(np.eye(self.num_features) > 0, 1.0, weight)


class AdaSSPRelease(NamedTuple):
    """Released statistics of AdaSSP, and the ridge computed from them.

    Attributes:
      statistics: with noise; yty is ``None``.
      smallest_eigenvalue: lower confidence bound on the smallest eigenvalue of xtx; at least zero.
      ridge: makes xtx positive definite but for the failure probability; at least zero.
    """

    statistics: RegressionStatistics
    smallest_eigenvalue: jax.Array
    ridge: jax.Array

    @property
    def ridged(self) -> RegressionStatistics:
        """The statistics with the ridge added to xtx, for the fit of the coefficients."""
        identity = jnp.eye(self.statistics.xty.shape[0], dtype=self.statistics.xtx.dtype)
        return self.statistics._replace(xtx=self.statistics.xtx + self.ridge * identity)


@dataclass(frozen=True)
class AdaSSP(StatisticsMechanism[AdaSSPRelease]):
    """Releases X^T X, X^T y and the smallest eigenvalue of X^T X with Gaussian noise.

    With s for the noise on an entry of xtx and s_e for that on the eigenvalue, the eigenvalue is
    lowered by s_e sqrt(log(6 / delta)), and the ridge is the difference to
    s sqrt(d log(2 d^2 / rho)), at least zero.

    Attributes:
      mu: of Gaussian differential privacy; each of the three parts has a third of mu^2.
      delta: determines how far the noisy eigenvalue is lowered, as in the source.
      failure_probability: rho, the probability of a ridge that is too small.

    Privacy:
      The result of ``release`` is released; the ridge is post-processing. One record changes the
      smallest eigenvalue by at most ``x_norm_bound``^2 under every adjacency (Weyl).

    Raises:
      ValueError: a number out of range.

    Source: Wang (2018), Algorithm 2. There each part has a third of epsilon and of delta, by the
    classical Gaussian calibration; here a third of mu^2, which is as private with less noise.

    >>> bounds = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    >>> mechanism = AdaSSP.from_epsilon(
    ...     bounds, epsilon=1.0, delta=1e-4, adjacency="add_remove", num_features=3
    ... )
    >>> released = mechanism.release_records(jax.random.key(0), jnp.eye(3), jnp.ones(3))
    >>> bool((jnp.linalg.eigvalsh(released.ridged.xtx) > 0).all())
    True
    """

    bounds: RegressionBounds
    num_features: int
    _: KW_ONLY
    mu: float
    delta: float
    adjacency: Adjacency
    unit: str = "one record"
    failure_probability: float = 0.05
    _num_statistics: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_setting(self.bounds, self.num_features, self.adjacency, self.unit)
        check_positive("mu", self.mu)
        check_delta(self.delta)
        check_delta(self.failure_probability, "failure_probability")

    @classmethod
    def from_epsilon(
        cls,
        bounds: RegressionBounds,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        num_features: int,
        unit: str = "one record",
    ) -> Self:
        """Returns the mechanism that is (epsilon, delta)-private.

        Args:
          bounds: public.
          epsilon: any finite number above zero.
          delta: in (0, 1).
          adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
          num_features: d, with the intercept.
          unit: the unit of privacy, in words.

        Raises:
          ValueError: a number out of range.
        """
        whole = Gaussian.from_epsilon(
            Sensitivity(1.0, "l2", adjacency), epsilon=epsilon, delta=delta
        )
        return cls(bounds, num_features, mu=whole.mu, delta=delta, adjacency=adjacency, unit=unit)

    @property
    def parts(self) -> tuple[Gaussian, Gaussian, Gaussian]:
        """The mechanisms of xtx, xty and the smallest eigenvalue."""
        of_xtx, of_xty, _ = statistics_sensitivities(
            self.bounds, self.num_features, norm="l2", adjacency=self.adjacency
        )
        of_smallest = Sensitivity(self.bounds.x_norm_bound**2, "l2", self.adjacency)
        xtx, xty, smallest = (
            Gaussian(sensitivity, math.sqrt(3) * sensitivity.value / self.mu, self.unit)
            for sensitivity in (of_xtx, of_xty, of_smallest)
        )
        return xtx, xty, smallest

    def add_noise(
        self, key_bits: npt.NDArray[np.uint32], arrays: list[Array], *, rounding: float = 0.0
    ) -> list[Array]:
        xtx, xty = arrays
        # In float64 its error is below d 2^-50 times the largest one: far below SUM_ROUNDING.
        smallest = np.linalg.eigvalsh(np.where(np.isfinite(xtx), xtx, 0.0), UPLO="U")[..., 0]
        keys = derive(key_bits, 3)
        of_xtx, of_xty, of_smallest = self.parts
        triangle = of_xtx.add_noise(keys[0], [upper_triangle(xtx)], rounding=rounding)[0]
        return [
            mirror(triangle),
            *of_xty.add_noise(keys[1], [xty], rounding=rounding),
            *of_smallest.add_noise(keys[2], [smallest], rounding=SUM_ROUNDING),
        ]

    def _as_release(self, values: list[jax.Array]) -> AdaSSPRelease:
        xtx, xty, smallest = values
        margin = self.parts[2].scale * math.sqrt(math.log(6 / self.delta))
        statistics = RegressionStatistics(xtx, xty, None)
        noise_bound = _noise_eigenvalue_bound(
            self.parts[0].scale, self.num_features, self.failure_probability
        )
        return _with_ridge(statistics, smallest - margin, noise_bound)

    @property
    def noise_scales(self) -> RegressionStatistics:
        """Standard deviation of the noise: ``(d, d)``, a number for xty, ``None`` for yty."""
        xtx, xty, _ = self.parts
        every = np.full((self.num_features, self.num_features), xtx.standard_deviation)
        return RegressionStatistics(every, xty.standard_deviation, None)

    @property
    def composition(self) -> Composition:
        """Composition of the three released statistics, on the same records."""
        return Composition(self.parts)

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return replace(self, mu=self.mu / factor)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        records = describe_clipping(self.bounds, self.num_features)
        return self.composition.guarantee.with_description({"records": records})


def adaptive_ridge(
    mechanism: PerturbedStatistics,
    released: RegressionStatistics,
    *,
    failure_probability: float = 0.05,
) -> AdaSSPRelease:
    """Returns the ridge of AdaSSP for a noisy X^T X, whose own eigenvalue bounds the smallest one.

    No eigenvalue is released beside the statistics, so it works on sums over several holders and
    spends the whole budget on them. With probability 1 - ``failure_probability`` no eigenvalue of
    the noise is larger in size than the bound B of `AdaSSP`; then the smallest eigenvalue of X^T X
    is at least that of the noisy matrix less B, and the ridge is what that lacks to B.

    Privacy:
      Post-processing of the release.

    Args:
      mechanism: the mechanism of the release, with Gaussian noise.
      released: its result, without `repair`.
      failure_probability: of a ridge that is too small, in (0, 1).

    Returns:
      The statistics without yty, the lower bound on the smallest eigenvalue, and the ridge.

    Raises:
      ValueError: Laplace noise, or a probability out of range.

    >>> bounds = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    >>> mechanism = PerturbedStatistics.from_epsilon(
    ...     bounds, epsilon=1.0, delta=1e-4, adjacency="add_remove", num_features=2
    ... )
    >>> many = RegressionStatistics(1e4 * jnp.eye(2), jnp.ones(2), None)
    >>> float(adaptive_ridge(mechanism, many).ridge)
    0.0
    """
    check_type("mechanism", mechanism, PerturbedStatistics, "PerturbedStatistics")
    check_type("released", released, RegressionStatistics, "RegressionStatistics")
    distribution = mechanism.noise_distribution
    check(distribution == "gaussian", "mechanism's noise", distribution, "'gaussian'")
    check_delta(failure_probability, "failure_probability")
    scale = float(np.max(mechanism.noise_scales.xtx))
    bound = _noise_eigenvalue_bound(scale, mechanism.num_features, failure_probability)
    smallest = jnp.linalg.eigvalsh(released.xtx)[0] - bound
    return _with_ridge(released._replace(yty=None), smallest, bound)


def _noise_eigenvalue_bound(scale: float, d: int, failure_probability: float) -> float:
    """Upper bound on the eigenvalues of symmetric Gaussian noise, but for the probability."""
    return scale * math.sqrt(d * math.log(2 * d**2 / failure_probability))


def _with_ridge(
    statistics: RegressionStatistics, smallest: jax.Array, noise_bound: float
) -> AdaSSPRelease:
    """The ridge that ``smallest``, a bound on the smallest eigenvalue, lacks to the noise's."""
    smallest = jnp.maximum(smallest, 0.0)
    return AdaSSPRelease(statistics, smallest, jnp.maximum(noise_bound - smallest, 0.0))
