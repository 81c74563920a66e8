"""Conjugate families: private release of sufficient statistics, and posteriors given it."""

from dpjax.bayes.conjugate.families import (
    BetaBinomial,
    ConjugateFamily,
    DirichletMultinomial,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    SufficientStatistics,
    of_first_two_moments,
)
from dpjax.bayes.conjugate.noise_aware import noise_aware_posterior
from dpjax.bayes.conjugate.posteriors import (
    BetaPosterior,
    DirichletPosterior,
    GammaPosterior,
    Mixture,
    NormalInverseGammaPosterior,
    NormalPosterior,
    Posterior,
)
from dpjax.bayes.conjugate.release import SufficientStatisticsMechanism, naive_posterior

__all__ = [
    "BetaBinomial",
    "BetaPosterior",
    "ConjugateFamily",
    "DirichletMultinomial",
    "DirichletPosterior",
    "GammaPoisson",
    "GammaPosterior",
    "Mixture",
    "NormalInverseGammaPosterior",
    "NormalKnownVariance",
    "NormalPosterior",
    "NormalUnknownVariance",
    "Posterior",
    "SufficientStatistics",
    "SufficientStatisticsMechanism",
    "naive_posterior",
    "noise_aware_posterior",
    "of_first_two_moments",
]
