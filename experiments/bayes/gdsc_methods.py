"""Private linear regressions of the drug-sensitivity experiment, on records within unit bounds.

Statistics with Gaussian noise, and two baselines: noise on the ridge solution, or on its objective.
The baselines take coefficients from a ball, over which no record's loss (y - x^T b)^2 / 2 has a
gradient longer than G = R (B + R radius), for features of norm R and targets of size B. Neighbours
replace one record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from scipy.special import ndtri

from dpjax._validation import as_key, check, check_delta, check_positive
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

# The rank correlation does not depend on the scale of the records.
UNIT = RegressionBounds(x_norm=1.0, y_size=1.0)
_ONE = Sensitivity(1.0, "l2", "replace_one")
# In units of the bounds; a public guess, which the split of the budget is optimised for.
_GUESS = AssumedModel(coefficient_norm=0.5, noise_std=0.7, noise_known=True)
_RADIUS, _HALVINGS = 1.0, 40
_UNIT_OF_PRIVACY = "one cell line's features and response to one drug"


@dataclass(frozen=True)
class BallRidge:
    """The minimum over a ball of the summed losses plus ``ridge`` / 2 times the squared norm.

    Raises:
      ValueError: ``ridge`` or ``radius`` is not above zero.
    """

    bounds: RegressionBounds  # public, to which the records were clipped
    ridge: float  # above zero
    radius: float  # of the ball around zero that holds the coefficients

    def __post_init__(self) -> None:
        check_positive("ridge", self.ridge)
        check_positive("radius", self.radius)

    @property
    def gradient_bound(self) -> float:
        """G, the largest norm of a record's gradient within the ball."""
        bounds = self.bounds
        return bounds.x_norm * (bounds.y_size + bounds.x_norm * self.radius)

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the minimum, in L2: 2 G / ridge.

        The objective is ``ridge``-strongly convex, and replacing a record changes its gradient by
        at most 2 G within the ball, where both minima are (Chaudhuri, Monteleoni and Sarwate 2011,
        Lemma 7).
        """
        return Sensitivity(2 * self.gradient_bound / self.ridge, "l2", "replace_one")

    @property
    def log_determinant(self) -> float:
        """The largest change of the logarithm of the Hessian's determinant by one record."""
        return math.log1p(self.bounds.x_norm**2 / self.ridge)

    def solve(self, statistics: RegressionStatistics) -> jax.Array:
        """The exact coefficients ``(d,)``, which are not private.

        On the ball's surface they are those of a larger ridge, which is found by halving.
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


def output_perturbation(ridge: BallRidge, mu: float, unit: str = "one record") -> Gaussian:
    """The Gaussian mechanism, mu-GDP, for the minimum."""
    return Gaussian(ridge.sensitivity, ridge.sensitivity.value / mu, unit)


@dataclass(frozen=True)
class ObjectivePerturbation:
    """The minimum of the objective plus a random linear function, N(0, scale^2 I)^T b.

    Privacy:
      What ``release`` returns is private when one record is replaced, by ``epsilon(delta)``. First
      let the losses go on beyond the ball with slope G at most, so that b is free. A release b then
      gives away the noise, minus the objective's gradient at b. Between neighbours

      - the Jacobians' determinants differ by a factor of at most 1 + R^2 / ridge, for the Hessians
        share all records but one and that one's has rank one;
      - the noise differs by two records' gradients, each of a fixed direction and a length of at
        most G. Along either, the noise is beyond t scale, with t = Phi^-1(1 - delta / 4), with
        probability delta / 2. Else the densities differ by a factor of at most
        exp(2 G t / scale + (2 G)^2 / (2 scale^2)).

      With epsilon = log(1 + R^2 / ridge) + 2 G t / scale + 2 G^2 / scale^2 all that fails with
      probability delta. The ball is the limit of ever steeper penalties outside, which are the same
      for all data, and limits of private mechanisms are private.

    Source: Kifer, Smith and Thakurta 2012, Theorems 2 and 4, which this follows; the constants are
    those of a rank-one Hessian and of replaced records.
    """

    model: BallRidge  # the regression
    scale: float  # the standard deviation of each entry of the random function

    @classmethod
    def from_epsilon(cls, model: BallRidge, epsilon: float, delta: float) -> Self:
        """The mechanism with the least noise at (epsilon, delta).

        Raises:
          ValueError: ``epsilon`` is below what the determinants alone cost; take a larger ridge.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        left, quantile = epsilon - model.log_determinant, -float(ndtri(delta / 4))
        check(left > 0, "epsilon", epsilon, f"above {model.log_determinant:.4g}")
        root = 2 * left / (quantile + math.sqrt(quantile**2 + 2 * left))
        return cls(model, 2 * model.gradient_bound / root)

    def epsilon(self, delta: float) -> float:
        """The certified epsilon at ``delta``."""
        check_delta(delta)
        ratio, quantile = 2 * self.model.gradient_bound / self.scale, -float(ndtri(delta / 4))
        return self.model.log_determinant + quantile * ratio + ratio**2 / 2

    def scale_noise(self, factor: Any) -> Self:
        """The same mechanism with ``scale`` times ``factor``."""
        return replace(self, scale=self.scale * factor)

    def release(self, key: jax.Array, statistics: RegressionStatistics) -> jax.Array:
        """Private coefficients ``(d,)``; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          statistics: of records that were clipped to the model's bounds.
        """
        xty = jnp.asarray(statistics.xty)
        noise = self.scale * jax.random.normal(as_key(key), xty.shape, xty.dtype)
        return self.model.solve(statistics._replace(xty=xty + noise))


@dataclass(frozen=True)
class Settings:
    """Settings of one method; epsilon and delta are those of one drug's model."""

    method: str  # a key of METHODS, or "none" for no noise
    num_genes: int = 5  # features, the genes most often mutated
    num_tissues: int = 5  # features, the tissues with most lines
    x_norm: float | None = 1.0  # on the features of a line; None reads it off the data
    # on a response less the drug's mean; None reads it and the range off the data
    y_size: float | None = 1.5
    # in which responses are summed for their mean, in ln micromoles
    y_range: tuple[float, float] = (-7.0, 7.0)
    mean_share: float = 0.1  # of the budget, for the mean: of mu^2, or of epsilon
    ridge: float = 10.0  # added to X^T X, in units of the bounds
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    # numbers of training lines, those without a response among them
    sizes: tuple[int, ...] = (100, 200, 400, 600, 800)
    delta: float = 1e-5
    num_repeats: int = 10  # random splits
    seed: int = 0


class Guarantee(NamedTuple):
    """Certified (ε, δ) of one drug's model, and of those of all drugs together."""

    one: float  # epsilon of one drug, at the settings' delta
    every: float  # epsilon of all drugs
    delta: float  # at which every holds
    certificate: str  # of one drug, in words


@dataclass(frozen=True)
class Method:
    """A private regression on records within unit bounds, beside a private mean."""

    mean: Gaussian  # releases the sum of the responses over the length of their range
    fit: Any  # the mechanism behind the coefficients
    # from key, fit and exact statistics to coefficients (d,)
    solve: Callable[[jax.Array, Any, RegressionStatistics], jax.Array]

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of the mean's noise and of the coefficients'."""
        of_statistics = isinstance(self.fit, PerturbedStatistics)
        return self.mean.scale, self.fit.scales.xty if of_statistics else self.fit.scale

    def guarantee(self, delta: float, num_drugs: int) -> Guarantee:
        """The guarantee if bounds and range are public.

        Gaussian mechanisms compose exactly. Objective perturbation has an (epsilon, delta)
        guarantee alone, which is added up over parts and drugs.
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
    """The posterior mean of the coefficients, ``(d,)``."""
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
    fit = output_perturbation(ridge, mu, _UNIT_OF_PRIVACY)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, ridge.solve(exact)))


def _by_objective(settings: Settings, dim: int, epsilon: float) -> Method:
    share, delta = settings.mean_share, settings.delta / 2
    mean = Gaussian.from_epsilon(_ONE, epsilon=share * epsilon, delta=delta, unit=_UNIT_OF_PRIVACY)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = ObjectivePerturbation.from_epsilon(ridge, (1 - share) * epsilon, delta)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, exact))


def _mean_and_rest(settings: Settings, epsilon: float) -> tuple[Gaussian, float]:
    """The mean's mechanism, and mu of the regression; their squares add up to the budget's."""
    mu = Gaussian.from_epsilon(_ONE, epsilon=epsilon, delta=settings.delta).mu
    mean = Gaussian(_ONE, 1 / (mu * math.sqrt(settings.mean_share)), _UNIT_OF_PRIVACY)
    return mean, mu * math.sqrt(1 - settings.mean_share)


METHODS: dict[str, Callable[[Settings, int, float], Method]] = {
    "statistics": _by_statistics,
    "output": _by_output,
    "objective": _by_objective,
}
