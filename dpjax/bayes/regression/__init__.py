"""Bayesian linear regression from released sufficient statistics."""

from dpjax.bayes.regression.adassp import AdaSSP, AdaSSPRelease, adaptive_ridge
from dpjax.bayes.regression.budget_allocation import AssumedModel, optimal_budget_shares
from dpjax.bayes.regression.noise_aware import (
    RegressionDraws,
    coefficient_interval,
    noise_aware_posterior,
    prediction_interval,
)
from dpjax.bayes.regression.observation_model import FeaturePrior, released_regression
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
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
