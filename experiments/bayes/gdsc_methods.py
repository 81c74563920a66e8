"""Private linear regressions of the drug-sensitivity experiment, on records within unit bounds.

Sufficient statistics with Gaussian noise, and two baselines: output and objective perturbation of
ridge regression. The baselines restrict coefficients to a ball, where the gradient of a record's
loss (y - x^T b)^2 / 2 has norm at most G = R (B + R radius), for features of norm R and targets of
size B. Neighbours replace one record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from scipy.special import ndtri

from dpjax._checks import as_key, check, check_delta, check_positive
from dpjax.accounting import gdp
from dpjax.bayes.regression import (
    AssumedModel,
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
    known_noise_posterior,
    largest_noise_eigenvalue,
    repair,
)
from dpjax.mechanisms import Composition, Gaussian
from dpjax.sensitivity import Sensitivity

# Rank correlation does not depend on the scale of the records.
UNIT = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
_ONE = Sensitivity(1.0, "l2", "replace_one")
# Public assumption, in units of the bounds, for which the budget split is optimised.
_GUESS = AssumedModel(coefficient_norm=0.5, noise_std=0.7, noise_known=True)
_RADIUS, _HALVINGS = 1.0, 40
_UNIT_OF_PRIVACY = "one cell line's features and response to one drug"


@dataclass(frozen=True)
class BallRidge:
    """Ridge regression constrained to a ball: summed losses plus ``ridge`` / 2 ||b||^2.

    Raises:
      ValueError: ``ridge`` or ``radius`` is not above zero.
    """

    bounds: RegressionBounds  # public clipping bounds
    ridge: float
    radius: float  # of the ball

    def __post_init__(self) -> None:
        check_positive("ridge", self.ridge)
        check_positive("radius", self.radius)

    @property
    def gradient_bound(self) -> float:
        """G, the largest norm of a record's gradient within the ball."""
        bounds = self.bounds
        return bounds.x_norm_bound * (bounds.y_bound + bounds.x_norm_bound * self.radius)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the minimum under replace-one: 2 G / ridge.

        The objective is ``ridge``-strongly convex, and replacing a record changes its gradient by
        at most 2 G within the ball, where both minima are (Chaudhuri, Monteleoni and Sarwate 2011,
        Lemma 7).
        """
        return 2 * self.gradient_bound / self.ridge

    @property
    def log_determinant(self) -> float:
        """The largest change of the logarithm of the Hessian's determinant by one record."""
        return math.log1p(self.bounds.x_norm_bound**2 / self.ridge)

    def solve(self, statistics: RegressionStatistics) -> jax.Array:
        """Returns the exact coefficients ``(d,)``, which are not private.

        On the boundary of the ball they are those of a larger ridge, found by bisection.
        """
        values, vectors = jnp.linalg.eigh(statistics.xtx)
        rotated = vectors.T @ statistics.xty
        curvature = jnp.maximum(values, 0.0) + self.ridge

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            middle = (ends[0] + ends[1]) / 2
            outside = jnp.linalg.norm(rotated / (curvature + middle)) > self.radius
            low, high = jnp.where(outside, middle, ends[0]), jnp.where(outside, ends[1], middle)
            return low, high

        most = jnp.linalg.norm(rotated) / self.radius
        _, more = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(most), most))
        inside = jnp.linalg.norm(rotated / curvature) <= self.radius
        return vectors @ (rotated / (curvature + jnp.where(inside, 0.0, more)))


def output_perturbation(
    ridge: BallRidge, num_features: int, mu: float, unit: str = "one record"
) -> Gaussian:
    """Returns the mu-GDP Gaussian mechanism of the minimum ``(num_features,)``."""
    moves = Sensitivity(ridge.sensitivity, "l2", "replace_one", shape=(num_features,))
    return Gaussian(moves, moves.value / mu, unit)


@dataclass(frozen=True)
class ObjectivePerturbation:
    """Objective perturbation: the minimum of the objective plus N(0, scale^2 I)^T b.

    Privacy:
      The release is ``(epsilon(delta), delta)``-DP under replacement. First extend the losses
      beyond the ball with slope at most G, so that b is unconstrained. A release b then determines
      the noise, minus the objective's gradient at b. Between neighbours

      - the Jacobians' determinants differ by a factor of at most 1 + R^2 / ridge, for the Hessians
        share all records but one and that one's has rank one;
      - the noise differs by two records' gradients, each of a fixed direction and a length of at
        most G. Along either, the noise is beyond t scale, with t = Phi^-1(1 - delta / 4), with
        probability delta / 2. Else the densities differ by a factor of at most
        exp(2 G t / scale + (2 G)^2 / (2 scale^2)).

      So epsilon = log(1 + R^2 / ridge) + 2 G t / scale + 2 G^2 / scale^2. The constraint to the
      ball is the limit of increasing penalties outside it, which do not depend on the data, and
      limits of private mechanisms are private.

    Source: Kifer, Smith and Thakurta (2012), Theorems 2 and 4, with the constants of a rank-one
    Hessian and of replacement.
    """

    model: BallRidge
    scale: float  # standard deviation of each entry of the noise

    @classmethod
    def from_epsilon(cls, model: BallRidge, epsilon: float, delta: float) -> Self:
        """Returns the mechanism with the least noise at (epsilon, delta).

        Raises:
          ValueError: ``epsilon`` is at most the log-determinant term; use a larger ridge.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        left, quantile = epsilon - model.log_determinant, -float(ndtri(delta / 4))
        check(left > 0, "epsilon", epsilon, f"above {model.log_determinant:.4g}")
        root = 2 * left / (quantile + math.sqrt(quantile**2 + 2 * left))
        return cls(model, 2 * model.gradient_bound / root)

    def epsilon(self, delta: float) -> float:
        """Returns the certified epsilon at ``delta``."""
        check_delta(delta)
        ratio, quantile = 2 * self.model.gradient_bound / self.scale, -float(ndtri(delta / 4))
        return self.model.log_determinant + quantile * ratio + ratio**2 / 2

    def with_privacy_factor(self, factor: Any) -> Self:
        """Returns the mechanism with ``scale`` times ``factor``."""
        return replace(self, scale=self.scale * factor)

    def release(self, key: jax.Array, statistics: RegressionStatistics) -> jax.Array:
        """Releases private coefficients ``(d,)``; works under jit and vmap.

        Args:
          key: a JAX key; must be kept secret.
          statistics: of records clipped to the model's bounds.
        """
        xty = jnp.asarray(statistics.xty)
        noise = self.scale * jax.random.normal(as_key(key), xty.shape, xty.dtype)
        return self.model.solve(statistics._replace(xty=xty + noise))


@dataclass(frozen=True)
class Settings:
    """Settings of one method; epsilon and delta are those of one drug's model."""

    method: str  # a key of METHODS, or "none" for no noise
    num_genes: int = 5  # number of gene features
    num_tissues: int = 5  # number of tissue features
    x_norm: float | None = 1.0  # bound on the features; None for the data's maximum
    y_size: float | None = 1.5  # bound on centred responses; None for the data's maximum
    y_range: tuple[float, float] = (-7.0, 7.0)  # of responses, in ln micromoles
    mean_share: float = 0.1  # share of the budget (mu^2 or epsilon) for the mean
    ridge: float = 10.0  # added to X^T X, in units of the bounds
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    sizes: tuple[int, ...] = (100, 200, 400, 600, 800)  # numbers of training lines
    delta: float = 1e-5
    num_repeats: int = 10  # number of random splits
    seed: int = 0


class Guarantee(NamedTuple):
    """Certified (ε, δ) of one drug's model, and of those of all drugs together."""

    one: float  # epsilon of one drug, at the settings' delta
    every: float  # epsilon of all drugs
    delta: float  # at which every holds
    certificate: str  # text for one drug


@dataclass(frozen=True)
class Method:
    """A private regression on records within unit bounds, and a private mean."""

    mean: Gaussian  # releases the sum of responses over their range
    fit: Any  # the mechanism behind the coefficients
    # from key, fit and exact statistics to coefficients (d,)
    solve: Callable[[jax.Array, Any, RegressionStatistics], jax.Array]

    @property
    def scales(self) -> tuple[float, float]:
        """Noise scales of the mean and of the coefficients."""
        of_statistics = isinstance(self.fit, PerturbedStatistics)
        return self.mean.scale, self.fit.scales.xty if of_statistics else self.fit.scale

    def guarantee(self, delta: float, num_drugs: int) -> Guarantee:
        """Returns the guarantee for public bounds and range.

        Gaussian mechanisms compose exactly; objective perturbation by summed epsilon and delta.
        """
        if isinstance(self.fit, ObjectivePerturbation):
            one = gdp.epsilon(self.mean.mu, delta / 2) + self.fit.epsilon(delta / 2)
            words = f"(ε, δ) = ({one:.4g}, {delta:g}), by the derivation in the code"
            return Guarantee(one, num_drugs * one, num_drugs * delta, words)
        both = Composition((self.mean, self.fit))
        mu = math.sqrt(num_drugs) * gdp.mu_of_event(both.event, "replace_one")
        certificate = both.certificate(delta)
        return Guarantee(certificate.epsilon, gdp.epsilon(mu, delta), delta, str(certificate))


def ridge_solution(statistics: RegressionStatistics, ridge: float) -> jax.Array:
    """Returns the posterior mean of the coefficients, ``(d,)``."""
    posterior = known_noise_posterior(statistics, prior_precision=ridge, noise_precision=1.0)
    return posterior.mean


def _by_statistics(settings: Settings, dim: int, epsilon: float) -> Method:
    mean, mu = _mean_and_rest(settings, epsilon)
    fit = PerturbedStatistics.from_epsilon(
        UNIT,
        epsilon=gdp.epsilon(mu, settings.delta),
        delta=settings.delta,
        adjacency="replace_one",
        num_features=dim,
        split=_GUESS,
        unit=_UNIT_OF_PRIVACY,
    )

    def solve(key: jax.Array, fit: PerturbedStatistics, exact: RegressionStatistics) -> jax.Array:
        floor = largest_noise_eigenvalue(fit.noise_scales.xtx)
        return ridge_solution(repair(fit.release(key, exact), floor), settings.ridge)

    return Method(mean, fit, solve)


def _by_output(settings: Settings, dim: int, epsilon: float) -> Method:
    mean, mu = _mean_and_rest(settings, epsilon)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = output_perturbation(ridge, dim, mu, _UNIT_OF_PRIVACY)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, ridge.solve(exact)))


def _by_objective(settings: Settings, dim: int, epsilon: float) -> Method:
    share, delta = settings.mean_share, settings.delta / 2
    mean = Gaussian.from_epsilon(_ONE, epsilon=share * epsilon, delta=delta, unit=_UNIT_OF_PRIVACY)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = ObjectivePerturbation.from_epsilon(ridge, (1 - share) * epsilon, delta)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, exact))


def _mean_and_rest(settings: Settings, epsilon: float) -> tuple[Gaussian, float]:
    """Returns the mechanism of the mean, and mu of the regression."""
    mu = Gaussian.from_epsilon(_ONE, epsilon=epsilon, delta=settings.delta).mu
    mean = Gaussian(_ONE, 1 / (mu * math.sqrt(settings.mean_share)), _UNIT_OF_PRIVACY)
    return mean, mu * math.sqrt(1 - settings.mean_share)


METHODS: dict[str, Callable[[Settings, int, float], Method]] = {
    "statistics": _by_statistics,
    "output": _by_output,
    "objective": _by_objective,
}
