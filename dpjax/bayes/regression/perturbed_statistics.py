"""Sufficient statistics perturbation: Gaussian or Laplace noise on a regression's statistics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent

from dpjax._validation import as_numbers, check, check_choice, check_positive
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.budget_allocation import (
    AssumedModel,
    NoiseDistribution,
    check_shares,
    optimal_budget_shares,
)
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    check_features,
    check_records,
    check_statistics,
    clipped_statistics,
    describe_clipping,
    statistics_sensitivities,
)
from dpjax.mechanisms.additive import mirror, upper_triangle
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.composition import Composition
from dpjax.mechanisms.exact_sampling import derive
from dpjax.mechanisms.gaussian import Gaussian
from dpjax.mechanisms.host import Array, call_on_host, float_dtype
from dpjax.mechanisms.laplace import Laplace
from dpjax.sensitivity import Sensitivity
from dpjax.sensitivity.sums import SUM_ROUNDING

# The float below sqrt(2).
_ROOT_TWO = math.nextafter(math.sqrt(2), 0.0)


_MECHANISMS: Mapping[NoiseDistribution, type[Gaussian] | type[Laplace]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
}


@dataclass(frozen=True)
class PerturbedStatistics(Mechanism):
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

    Source: Foulds et al. (2016) for the perturbation; Balle & Wang (2018), Theorem 8, for Gaussian
    noise; Gaussian releases compose exactly, by adding mu^2.

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
        check_choice("noise_distribution", self.noise_distribution, tuple(_MECHANISMS))
        for scale in self.scales[: 3 if self.scales.yty is not None else 2]:
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
        """
        noise_distribution: NoiseDistribution = "gaussian" if delta else "laplace"
        if delta:
            budget = Gaussian.from_epsilon(
                Sensitivity(1.0, "l2", adjacency), epsilon=epsilon, delta=delta
            ).mu
        else:
            check_positive("epsilon", epsilon)
            budget = epsilon
        scales = _scales(bounds, num_features, budget, noise_distribution, adjacency, split)
        return cls(bounds, num_features, scales, noise_distribution, adjacency, unit)

    @property
    def parts(self) -> RegressionStatistics:
        """The mechanism of each statistic; ``None`` for an omitted yty."""
        mechanisms = [
            None
            if scale is None
            else _MECHANISMS[self.noise_distribution](sensitivity, scale, self.unit)
            for sensitivity, scale in zip(self._sensitivities, self.scales, strict=True)
        ]
        return RegressionStatistics(*mechanisms)

    @property
    def noise_scales(self) -> RegressionStatistics:
        """Standard deviation of the noise on every entry: ``(d, d)``, a number for xty and yty.

        The noise on xtx is symmetric. ``None`` for an omitted yty.
        """
        stds = _each(lambda part: part.standard_deviation, self.parts)
        return stds._replace(xtx=stds.xtx / self._weights)

    def release(self, key: jax.Array, statistics: RegressionStatistics) -> RegressionStatistics:
        """Returns noisy statistics; xtx is symmetric and may be indefinite: see `repair`.

        A pure function that works under jit and vmap.

        Args:
          key: a JAX key, split for the parts; a secret.
          statistics: of records clipped to ``bounds``.
        """
        given = statistics if self.scales.yty is not None else statistics._replace(yty=None)
        missing = given.yty is None and self.scales.yty is not None
        check(not missing, "statistics.yty", None, "given, as its noise has a scale")
        check_statistics(given, self.num_features)
        return self._release(key, [part for part in given if part is not None], self.add_noise)

    def release_records(self, key: jax.Array, x: Any, y: Any) -> RegressionStatistics:
        """Returns the noisy statistics of records, clipped and summed here.

        Args:
          key: a JAX key; a secret.
          x: features ``(n, num_features)``, of any size.
          y: targets ``(n,)``, of any size.
        """
        check_records(jnp.shape(x), jnp.shape(y))
        check_features(x, self.num_features)
        return self._release(key, [x, y], self._noisy_records)

    def _release(self, key: jax.Array, values: list[Any], noisy: Any) -> RegressionStatistics:
        d, count = self.num_features, len(self._stated_scales)
        dtype = float_dtype(values[0])
        shapes = [(d, d), (d,), ()][:count]
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        numbers = [as_numbers(value) for value in (*values, *self._stated_scales)]
        released = map(jnp.asarray, call_on_host(noisy, key, numbers, results))
        return RegressionStatistics(*released, *[None] * (3 - count))

    def _noisy_records(self, words: Any, arrays: list[Array]) -> list[Array]:
        x, y, *scales = arrays
        exact = clipped_statistics(self.bounds, x, y)[: len(scales)]
        return self.add_noise(words, [*exact, *scales], rounding=SUM_ROUNDING)

    def add_noise(self, words: Any, arrays: list[Array], *, rounding: float = 0.0) -> list[Array]:
        """Returns noisy statistics: what ``release`` computes on the host.

        Args:
          words: a key for each release, uint32 ``(*batch, 2)``.
          arrays: xtx, xty and yty, without yty if it is omitted, then the scale of each.
          rounding: relative increase of the sensitivities by rounding of the sums.
        """
        count = len(arrays) // 2
        exact, scales = arrays[:count], arrays[count:]
        exact = [upper_triangle(exact[0]), *exact[1:]]
        parts = [part for part in self._unit_parts if part is not None]
        weights = [upper_triangle(self._weights), None, None]
        noisy = [
            part.add_noise(key, [value], scale=scale, weights=weight, rounding=rounding)[0]
            for part, key, value, scale, weight in zip(
                parts, derive(words, count), exact, scales, weights[:count], strict=True
            )
        ]
        return [mirror(noisy[0]), *noisy[1:]]

    @property
    def _stated_scales(self) -> list[Any]:
        return [scale for scale in self.scales if scale is not None]

    @property
    def _unit_parts(self) -> list[Any]:
        """The mechanisms with scale one, for noise whose scale is traced."""
        pairs = zip(self._sensitivities, self.scales, strict=True)
        return [
            _MECHANISMS[self.noise_distribution](moves, 1.0)
            for moves, scale in pairs
            if scale is not None
        ]

    @property
    def has_exact_noise(self) -> bool:
        """Whether all parts have."""
        return self.composition.has_exact_noise

    @property
    def num_releases(self) -> int:
        """Two, or three with yty."""
        return self.composition.num_releases

    @property
    def event(self) -> DpEvent:
        """The parts' events, composed."""
        return self.composition.event

    @property
    def composition(self) -> Composition:
        """The parts that are released, on the same records."""
        return Composition(tuple(part for part in self.parts if part is not None))

    def scale_noise(self, factor: float) -> Self:
        """Returns the mechanism with every noise scale times ``factor``."""
        return replace(self, scales=_each(lambda scale: scale * factor, self.scales))

    def describe(self) -> Mapping[str, str]:
        """Returns records, clipping and parts as text for certificates."""
        words = {"records": describe_clipping(self.bounds, self.num_features)}
        if self.noise_distribution == "gaussian":
            words["weights"] = "the noise on X^T X is smaller by sqrt(2) off the diagonal"
        return {**words, **self.composition.describe()}

    @property
    def _weights(self) -> np.ndarray:
        """Divisors of the noise on the entries of xtx.

        The L2 sensitivity of the upper triangle is attained on the diagonal alone. Weighting the
        other entries by sqrt(2), rounded down, gives the Frobenius norm of the whole matrix, which
        has the same bound, so these entries get less noise.
        """
        d = self.num_features
        return np.where(
            np.eye(d) > 0, 1.0, _ROOT_TWO if self.noise_distribution == "gaussian" else 1.0
        )

    @property
    def _sensitivities(self) -> RegressionStatistics:
        return _sensitivities(
            self.bounds, self.num_features, self.noise_distribution, self.adjacency
        )


def _sensitivities(
    bounds: RegressionBounds,
    num_features: int,
    noise_distribution: NoiseDistribution,
    adjacency: Adjacency,
) -> RegressionStatistics:
    return statistics_sensitivities(
        bounds, num_features, norm=_MECHANISMS[noise_distribution].norm, adjacency=adjacency
    )


def _scales(
    bounds: RegressionBounds,
    num_features: int,
    budget: float,
    noise_distribution: NoiseDistribution,
    adjacency: Adjacency,
    split: RegressionStatistics | AssumedModel | None,
) -> RegressionStatistics:
    """Returns the noise scales that spend a budget of mu, or of epsilon for Laplace noise."""
    sensitivities = _sensitivities(bounds, num_features, noise_distribution, adjacency)
    sizes = _each(lambda sensitivity: sensitivity.value, sensitivities)
    if isinstance(split, RegressionStatistics):
        check_shares(split)
        shares = split
    else:
        model = AssumedModel.from_bounds(bounds, num_features) if split is None else split
        shares = optimal_budget_shares(
            sizes,
            model,
            x_norm=bounds.x_norm,
            num_features=num_features,
            noise_distribution=noise_distribution,
        )
    # Shares of a Gaussian budget are of mu^2.
    parts = _each(math.sqrt, shares) if noise_distribution == "gaussian" else shares
    scales = [
        None if part is None else size / (part * budget)
        for size, part in zip(sizes, parts, strict=True)
    ]
    return RegressionStatistics(*scales)


def _each(change: Any, values: RegressionStatistics) -> RegressionStatistics:
    return RegressionStatistics(*(None if value is None else change(value) for value in values))
