"""AdaSSP: sufficient statistics perturbation with an adaptive ridge."""

import functools
import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import check, check_delta, check_positive, check_type
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
from dpjax.bayes.regression.release import StatisticsMechanism
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    check_setting,
    describe_clipping,
    statistics_sensitivities,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, derive
from dpjax.mechanisms.additive import Gaussian, mirror, upper_triangle
from dpjax.mechanisms.composition import Composition
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity


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
      bounds: public clipping bounds, which determine the sensitivities.
      num_features: d, with the intercept.
      mu: of Gaussian differential privacy; each of the three parts has a third of mu^2.
      delta: determines how far the noisy eigenvalue is lowered, as in the source.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.
      failure_probability: rho, the probability of a ridge that is too small.

    Privacy:
      The result of ``release`` is released; the ridge is post-processing. One record changes the
      smallest eigenvalue by at most ``x_norm``^2 under every adjacency (Weyl).

    Raises:
      ValueError: a number out of range.

    Source: Wang (2018), Algorithm 2. There each part has a third of epsilon and of delta, by the
    classical Gaussian calibration; here a third of mu^2, which is as private with less noise.

    >>> bounds = RegressionBounds(x_norm=1.0, y_size=1.0)
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
        found = statistics_sensitivities(
            self.bounds, self.num_features, norm="l2", adjacency=self.adjacency
        )
        eigenvalue = Sensitivity(self.bounds.x_norm**2, "l2", self.adjacency)
        xtx, xty, smallest = (
            Gaussian(moves, math.sqrt(3) * moves.value / self.mu, self.unit)
            for moves in (found.xtx, found.xty, eigenvalue)
        )
        return xtx, xty, smallest

    def add_noise(
        self, key_bits: npt.NDArray[np.uint32], arrays: list[Array], *, rounding: float = 0.0
    ) -> list[Array]:
        """Returns noisy xtx, xty and smallest eigenvalue, as `StatisticsMechanism.add_noise`."""
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
        lower_bound = jnp.maximum(smallest - margin, 0.0)
        ridge = jnp.maximum(self.noise_eigenvalue_bound - lower_bound, 0.0)
        return AdaSSPRelease(RegressionStatistics(xtx, xty, None), lower_bound, ridge)

    @property
    def noise_eigenvalue_bound(self) -> float:
        """Upper bound on the eigenvalues of the noise on xtx, but for ``failure_probability``."""
        d = self.num_features
        log = math.log(2 * d**2 / self.failure_probability)
        return self.parts[0].scale * math.sqrt(d * log)

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
        """Returns the mechanism with every noise scale times ``factor``."""
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

    >>> bounds = RegressionBounds(x_norm=1.0, y_size=1.0)
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
    d = mechanism.num_features
    spread = math.sqrt(d * math.log(2 * d**2 / failure_probability))
    bound = float(np.max(mechanism.noise_scales.xtx)) * spread
    smallest = jnp.maximum(jnp.linalg.eigvalsh(released.xtx)[0] - bound, 0.0)
    ridge = jnp.maximum(bound - smallest, 0.0)
    return AdaSSPRelease(released._replace(yty=None), smallest, ridge)
