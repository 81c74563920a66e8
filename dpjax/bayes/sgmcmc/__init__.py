"""Private SG-MCMC whose injected noise is the DP noise, and exact posterior samples."""

from dpjax.bayes.sgmcmc.calibration import (
    calibrate_min_noise,
    calibrate_step_size,
    hybrid,
)
from dpjax.bayes.sgmcmc.chains import ChainResult, private_chains, sample
from dpjax.bayes.sgmcmc.langevin import (
    POSTERIOR_TEMPERATURE,
    PUBLISHED_TEMPERATURE,
    CyclicalCosine,
    Langevin,
    PolynomialDecay,
    injected_noise_multiplier,
)
from dpjax.bayes.sgmcmc.one_posterior_sample import (
    OnePosteriorSample,
    PosteriorDraw,
    beta_sample,
    rejection_sample,
)
from dpjax.bayes.sgmcmc.samplers import PSGLD, SGHMC, SGLD, RMSProp, psgld, sghmc, sgld

__all__ = [
    "POSTERIOR_TEMPERATURE",
    "PSGLD",
    "PUBLISHED_TEMPERATURE",
    "SGHMC",
    "SGLD",
    "ChainResult",
    "CyclicalCosine",
    "Langevin",
    "OnePosteriorSample",
    "PolynomialDecay",
    "PosteriorDraw",
    "RMSProp",
    "beta_sample",
    "calibrate_min_noise",
    "calibrate_step_size",
    "hybrid",
    "injected_noise_multiplier",
    "private_chains",
    "psgld",
    "rejection_sample",
    "sample",
    "sghmc",
    "sgld",
]
