"""Trade-off functions of perfect privacy, Laplace noise and (epsilon, delta)-DP, in closed form."""

from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.special import expit

from dpjax._checks import check_non_negative, check_positive, check_share
from dpjax.accounting.tradeoff.base import Array, Symmetric
from dpjax.accounting.tradeoff.discrete import Discrete


@dataclass(frozen=True)
class Identity(Symmetric):
    """Perfect privacy: f(alpha) = 1 - alpha.

    >>> Identity()(0.25)
    0.75
    """

    def as_discrete(self) -> Discrete:
        """Returns the curve as a `Discrete`: one outcome, certain under both distributions."""
        return Discrete(np.ones(1), np.ones(1))

    def _delta_pq(self, epsilon: Array) -> Array:
        return np.zeros_like(epsilon)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        return 1.0 - alpha, alpha


@dataclass(frozen=True)
class Laplace(Symmetric):
    """T(Lap(0, 1), Lap(1 / b, 1)): exact for a Laplace release.

    Source: Dong, Roth, Su 2022, Proposition A.6 in the preprint's numbering.

    Attributes:
      noise_multiplier: b, the scale of the noise over the l1 sensitivity; 1 / b is the epsilon.

    >>> curve = Laplace(noise_multiplier=1.0)
    >>> round(curve(0.5), 3), curve.epsilon(0.0)
    (0.184, 1.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)

    def _delta_pq(self, epsilon: Array) -> Array:
        return -np.expm1(np.minimum(epsilon - 1.0 / self.noise_multiplier, 0.0) / 2)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        shift = 1.0 / self.noise_multiplier
        kept = np.exp(-shift)
        with np.errstate(all="ignore"):
            reciprocal = np.exp(-shift - np.log(4 * alpha))
            missed = np.where(alpha < 0.5, reciprocal, kept * (1.0 - alpha))
            steep = 2 * alpha < kept
            return (
                np.where(steep, 1.0 - alpha / kept, missed),
                np.where(steep, alpha / kept, 1.0 - missed),
            )


@dataclass(frozen=True)
class ApproximateDP(Symmetric):
    """f_{epsilon, delta}: exactly what (epsilon, delta)-DP guarantees.

    Source: Wasserman, Zhou 2010; Dong, Roth, Su 2022, Equation 5 in the preprint's numbering.

    Attributes:
      budget: epsilon >= 0.
      slack: delta in [0, 1].

    >>> ApproximateDP(0.0, slack=0.1)(0.25)
    0.65
    """

    budget: float
    _: KW_ONLY
    slack: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative("budget", self.budget)
        check_share("slack", self.slack)

    def _delta_pq(self, epsilon: Array) -> Array:
        # The pair has two finite losses, plus and minus the budget.
        excess = -np.expm1(np.minimum(epsilon - self.budget, 0.0))
        return self.slack + (1.0 - self.slack) * expit(self.budget) * excess

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        # Events of likelihood ratio e^budget or infinity come first.
        with np.errstate(all="ignore"):
            steep = self.slack + np.where(alpha > 0, np.exp(self.budget) * alpha, 0.0)
        flat = np.exp(-self.budget) * ((1.0 - alpha) - self.slack)
        missed = np.maximum(np.maximum(1.0 - steep, flat), 0.0)
        return missed, np.minimum(np.minimum(steep, 1.0 - flat), 1.0)

    def as_discrete(self) -> Discrete:
        """Returns the pair: infinite losses of mass delta, and finite ones at +-epsilon."""
        masses = (1.0 - self.slack) * expit(np.array([-self.budget, self.budget]))
        pair = np.concatenate([[0.0], masses, [self.slack]])
        return Discrete(pair, pair[::-1])
