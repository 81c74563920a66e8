"""How the drug-sensitivity experiment fits one drug, by each of its private methods.

Records are scaled to unit bounds first: the rank correlation does not see the scale.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

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
from experiments.bayes.gdsc_baselines import BallRidge, ObjectivePerturbation, output_perturbation

UNIT = RegressionBounds(x_norm=1.0, y_size=1.0)
_ONE = Sensitivity(1.0, "l2", "replace_one")
# In units of the bounds; a public guess, which the split of the budget is optimised for.
_GUESS = AssumedModel(coefficient_norm=0.5, noise_std=0.7, noise_known=True)
_RADIUS = 1.0
_UNIT_OF_PRIVACY = "one cell line's features and response to one drug"


@dataclass(frozen=True)
class Settings:
    """How one method is run on every drug.

    Attributes:
      method: a key of ``METHODS``, or ``"none"`` for no noise.
      num_genes: features, the genes most often mutated.
      num_tissues: features, the tissues with most lines.
      x_norm: on the features of a line; None reads it off the data.
      y_size: on a response less the drug's mean; None reads it and the range off the data.
      y_range: in which responses are summed for their mean, in ln micromoles.
      mean_share: of the budget, for the mean: of mu^2, or of epsilon.
      ridge: added to X^T X, in units of the bounds.
      epsilons: of one drug's model.
      sizes: numbers of training lines, those without a response among them.
      delta: of one drug's model.
      num_repeats: random splits.
      seed: of splits and noise.
    """

    method: str
    num_genes: int = 5
    num_tissues: int = 5
    x_norm: float | None = 1.0
    y_size: float | None = 1.5
    y_range: tuple[float, float] = (-7.0, 7.0)
    mean_share: float = 0.1
    ridge: float = 10.0
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    sizes: tuple[int, ...] = (100, 200, 400, 600, 800)
    delta: float = 1e-5
    num_repeats: int = 10
    seed: int = 0


class Guarantee(NamedTuple):
    """What holds for one drug's model, and for those of all drugs together.

    Attributes:
      one: epsilon of one drug, at the settings' delta.
      every: epsilon of all drugs.
      delta: at which ``every`` holds.
      certificate: of one drug, in words.
    """

    one: float
    every: float
    delta: float
    certificate: str


@dataclass(frozen=True)
class Method:
    """A private regression on records within unit bounds, beside a private mean.

    Attributes:
      mean: releases the sum of the responses over the length of their range.
      fit: the mechanism behind the coefficients.
      solve: from key, ``fit`` and exact statistics to coefficients ``(d,)``.
    """

    mean: Gaussian
    fit: Any
    solve: Callable[[jax.Array, Any, RegressionStatistics], jax.Array]

    @property
    def scales(self) -> tuple[float, float]:
        """Of the mean's noise, and of the coefficients'."""
        of_statistics = isinstance(self.fit, PerturbedStatistics)
        return self.mean.scale, self.fit.scales.xty if of_statistics else self.fit.scale

    def guarantee(self, delta: float, num_drugs: int) -> Guarantee:
        """Returns what holds if bounds and range are public.

        Gaussian mechanisms compose exactly. Of the objective's no more than (epsilon, delta) is
        known, and both are added up over parts and drugs.
        """
        if isinstance(self.fit, ObjectivePerturbation):
            one = self.mean_epsilon(delta / 2) + self.fit.epsilon(delta / 2)
            words = f"(ε, δ) = ({one:.4g}, {delta:g}), by the derivation in the code"
            return Guarantee(one, num_drugs * one, num_drugs * delta, words)
        both = Composition((self.mean, self.fit))
        mu = math.sqrt(num_drugs) * gdp.mu_of_event(both.event, "replace_one")
        certificate = both.certificate(delta)
        return Guarantee(certificate.epsilon, gdp.epsilon(mu, delta), delta, str(certificate))

    def mean_epsilon(self, delta: float) -> float:
        """Of the mean alone."""
        return gdp.epsilon(self.mean.mu, delta)


def ridge_solution(statistics: RegressionStatistics, ridge: float) -> jax.Array:
    """Returns the posterior mean of the coefficients, ``(d,)``."""
    posterior = known_noise_posterior(statistics, prior_precision=ridge, noise_precision=1.0)
    return posterior.mean


def _by_statistics(settings: Settings, dim: int, epsilon: float) -> Method:
    mean_mu, mu = _split(settings, epsilon)
    rest = gdp.epsilon(mu, settings.delta)
    fit = PerturbedStatistics.from_epsilon(
        UNIT,
        epsilon=rest,
        delta=settings.delta,
        adjacency="replace_one",
        num_features=dim,
        split=_GUESS,
        unit=_UNIT_OF_PRIVACY,
    )

    def solve(key: jax.Array, fit: PerturbedStatistics, exact: RegressionStatistics) -> jax.Array:
        floor = largest_noise_eigenvalue(fit.noise_scales.xtx)
        return ridge_solution(repair(fit.release(key, exact), floor), settings.ridge)

    return Method(_mean(mean_mu), fit, solve)


def _by_output(settings: Settings, dim: int, epsilon: float) -> Method:
    mean_mu, mu = _split(settings, epsilon)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)

    def solve(key: jax.Array, fit: Gaussian, exact: RegressionStatistics) -> jax.Array:
        return fit.release(key, ridge.solve(exact))

    return Method(_mean(mean_mu), output_perturbation(ridge, mu, _UNIT_OF_PRIVACY), solve)


def _by_objective(settings: Settings, dim: int, epsilon: float) -> Method:
    share, delta = settings.mean_share, settings.delta / 2
    mean = Gaussian.from_epsilon(_ONE, epsilon=share * epsilon, delta=delta, unit=_UNIT_OF_PRIVACY)
    ridge = BallRidge(UNIT, settings.ridge, _RADIUS)
    fit = ObjectivePerturbation.from_epsilon(ridge, (1 - share) * epsilon, delta)
    return Method(mean, fit, lambda key, fit, exact: fit.release(key, exact))


def _split(settings: Settings, epsilon: float) -> tuple[float, float]:
    """Returns mu for the mean and for the regression, whose squares add up to the budget's."""
    mu = Gaussian.from_epsilon(_ONE, epsilon=epsilon, delta=settings.delta).mu
    return mu * math.sqrt(settings.mean_share), mu * math.sqrt(1 - settings.mean_share)


def _mean(mu: float) -> Gaussian:
    return Gaussian(_ONE, 1 / mu, _UNIT_OF_PRIVACY)


METHODS: dict[str, Callable[[Settings, int, float], Method]] = {
    "statistics": _by_statistics,
    "output": _by_output,
    "objective": _by_objective,
}
