"""Bayesian linear regression from released sufficient statistics."""

from dpjax.bayes.regression.mechanisms import (
    AdaSSP,
    AdaSSPRelease,
    AssumedModel,
    PerturbedStatistics,
    adaptive_ridge,
    optimal_budget_shares,
)
from dpjax.bayes.regression.noise_aware import (
    FeaturePrior,
    RegressionDraws,
    coefficient_interval,
    noise_aware_posterior,
    prediction_interval,
    released_regression,
)
from dpjax.bayes.regression.posterior import (
    Prediction,
    RegressionPosterior,
    known_noise_posterior,
    largest_noise_eigenvalue,
    repair,
    unknown_noise_posterior,
)
from dpjax.bayes.regression.private_bounds import HistogramBounds, PrivateBounds
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    statistics_sensitivities,
    sufficient_statistics,
)
from dpjax.bayes.regression.wishart import WishartNoise

__all__ = [
    "AdaSSP",
    "AdaSSPRelease",
    "AssumedModel",
    "FeaturePrior",
    "HistogramBounds",
    "PerturbedStatistics",
    "Prediction",
    "PrivateBounds",
    "RegressionBounds",
    "RegressionDraws",
    "RegressionPosterior",
    "RegressionStatistics",
    "WishartNoise",
    "adaptive_ridge",
    "coefficient_interval",
    "known_noise_posterior",
    "largest_noise_eigenvalue",
    "noise_aware_posterior",
    "optimal_budget_shares",
    "prediction_interval",
    "released_regression",
    "repair",
    "statistics_sensitivities",
    "sufficient_statistics",
    "unknown_noise_posterior",
]
