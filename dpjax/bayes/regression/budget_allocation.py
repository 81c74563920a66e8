"""Allocation of a privacy budget to the sufficient statistics of a linear regression."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpjax._checks import check, check_choice, check_count, check_positive, check_type
from dpjax.bayes.regression.statistics import RegressionBounds, RegressionStatistics

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

        >>> AssumedModel.from_bounds(RegressionBounds(x_norm=2.0, y_size=1.0), num_features=4)
        AssumedModel(coefficient_norm=0.5, noise_std=0.5, noise_known=False)
        """
        check_type("bounds", bounds, RegressionBounds, "RegressionBounds")
        check_count("num_features", num_features)
        half = bounds.y_size / 2
        return cls(coefficient_norm=math.sqrt(num_features) * half / bounds.x_norm, noise_std=half)


def optimal_budget_shares(
    sensitivities: RegressionStatistics,
    model: AssumedModel,
    *,
    x_norm: float,
    num_features: int,
    noise_distribution: NoiseDistribution,
) -> RegressionStatistics:
    """Returns the budget shares with the smallest expected prediction loss, from public values.

    The loss is the expected increase of the Kullback-Leibler divergence between the distribution of
    the data and the fitted normal one, to second order in the noise, for isotropic features of norm
    ``x_norm``. With d features of norm R, coefficients of norm b, noise of variance v and n records
    it is

        d^2 (s_xty^2 + b^2 s_xtx^2) / (2 R^2 v) + (s_yty^2 + 4 b^2 s_xty^2 + b^4 s_xtx^2) / (4 v^2)

    over n^2, where s are the noise scales, with s_xtx^2 averaged over xtx. The first term is the
    error of the coefficients, the second that of the variance, omitted where it is known.

    Args:
      sensitivities: one number for each statistic.
      model: the assumed model.
      x_norm: R.
      num_features: d.
      noise_distribution: the shares are of mu^2 for ``"gaussian"`` and of epsilon for
        ``"laplace"``.

    Returns:
      Shares that add up to one; that of yty is ``None`` where the variance is known.

    >>> ones = RegressionStatistics(1.0, 1.0, 1.0)
    >>> shares = optimal_budget_shares(
    ...     ones, AssumedModel(coefficient_norm=0.5, noise_std=0.5), x_norm=1.0, num_features=12,
    ...     noise_distribution="gaussian"
    ... )
    >>> [round(share, 2) for share in shares]
    [0.25, 0.67, 0.08]
    """
    check_type("sensitivities", sensitivities, RegressionStatistics, "RegressionStatistics")
    check_type("model", model, AssumedModel, "an AssumedModel")
    check_positive("x_norm", x_norm)
    check_count("num_features", num_features)
    check_choice("noise_distribution", noise_distribution, tuple(_POWERS))
    # Increase of the loss per unit of noise variance in each statistic, times n^2.
    variance, signal = model.noise_std**2, model.coefficient_norm**2
    of_coefficients = num_features**2 / (2 * x_norm**2 * variance)
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
    weights = costs * np.square(np.array(sensitivities, float))
    roots = weights ** (1 / (_POWERS[noise_distribution] + 1))
    xtx, xty, yty = (float(share) for share in roots / roots.sum())
    return RegressionStatistics(xtx, xty, None if model.noise_known else yty)


def check_shares(shares: RegressionStatistics) -> None:
    """Raises ``ValueError`` unless shares are positive and add up to one; yty may be ``None``."""
    given = [share for share in shares if share is not None]
    for share in (shares.xtx, shares.xty, *given):
        check_positive("shares", share)
    check(abs(sum(given) - 1) < 1e-9, "shares", shares, "numbers that add up to one")
