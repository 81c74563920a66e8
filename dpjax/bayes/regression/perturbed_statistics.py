"""Sufficient statistics perturbation: Gaussian or Laplace noise on a regression's statistics."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_numbers,
    check,
    check_choice,
    check_non_negative,
    check_positive,
    check_type,
)
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.budget_allocation import (
    AssumedModel,
    NoiseDistribution,
    check_shares,
    optimal_budget_shares,
)
from dpjax.bayes.regression.release import StatisticsMechanism
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    check_features,
    check_setting,
    clipped_statistics,
    describe_clipping,
    statistics_sensitivities,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, derive
from dpjax.mechanisms.additive import Gaussian, Laplace, mirror, upper_triangle
from dpjax.mechanisms.composition import Composition
from dpjax.mechanisms.record_sum import RecordSum, SumPart
from dpjax.sensitivity import Sensitivity

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
      bounds: public clipping bounds, which determine the sensitivities.
      num_features: d, with the intercept.
      scales: noise scales on xtx's diagonal and on the entries of xty and yty, in their own units;
        ``None`` for yty omits it. Off the diagonal Gaussian noise is smaller by sqrt(2).
      noise_distribution: ``"gaussian"`` or ``"laplace"``.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

    Privacy:
      The result of ``release`` is released. The number of records is not: it is public, or under
      add/remove can be estimated from the released xtx entry of an intercept, which is too small
      where rows were clipped.

    Raises:
      ValueError: a scale that is not a finite number above zero, or another distribution.

    Source: Foulds et al. (2016) for the perturbation; Balle & Wang (2018), Theorem 8, for Gaussian
    noise; Gaussian releases compose exactly, by adding mu^2.

    >>> import jax, jax.numpy as jnp
    >>> bounds = RegressionBounds(x_norm=1.0, y_size=1.0)
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
        noise_distribution: NoiseDistribution = "gaussian" if delta else "laplace"
        if delta:
            budget = Gaussian.from_epsilon(
                Sensitivity(1.0, "l2", adjacency), epsilon=epsilon, delta=delta
            ).mu
        else:
            check_positive("epsilon", epsilon)
            budget = epsilon
        sensitivities = statistics_sensitivities(
            bounds, num_features, norm=_MECHANISMS[noise_distribution].norm, adjacency=adjacency
        )
        sizes = RegressionStatistics(*(sensitivity.value for sensitivity in sensitivities))
        if not isinstance(split, RegressionStatistics):
            model = AssumedModel.from_bounds(bounds, num_features) if split is None else split
            split = optimal_budget_shares(
                sizes,
                model,
                x_norm=bounds.x_norm,
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
        """Returns noisy statistics, as `StatisticsMechanism.add_noise`."""
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
        """The upper triangle of xtx, then xty and yty, where it is released."""
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
        check(len(records) == 2, "records", f"{len(records)} arrays", "features x and targets y")
        x, y = (
            np.asarray(as_numbers(part, name)) for part, name in zip(records, "xy", strict=True)
        )
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
    def _scales(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.scales[: self._num_statistics]

    @property
    def _unit_parts(self) -> list[Any]:
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
        """Returns the mechanism with every noise scale times ``factor``."""
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
