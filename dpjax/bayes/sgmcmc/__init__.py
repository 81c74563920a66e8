"""Private SG-MCMC whose injected noise is the DP noise, and exact posterior samples."""

from dpjax.bayes.sgmcmc.calibration import (
    calibrate_min_noise,
    calibrate_step_size,
    certified_step_size,
    hybrid,
)
from dpjax.bayes.sgmcmc.chains import private_chains
from dpjax.bayes.sgmcmc.langevin import (
    POSTERIOR_TEMPERATURE,
    PUBLISHED_TEMPERATURE,
    Langevin,
    injected_noise_multiplier,
)
from dpjax.bayes.sgmcmc.one_posterior_sample import (
    OnePosteriorSample,
    PosteriorDraw,
    beta_sample,
    rejection_sample,
)
from dpjax.bayes.sgmcmc.psgld import PSGLD, RMSProp, psgld
from dpjax.bayes.sgmcmc.sample import ChainResult, sample
from dpjax.bayes.sgmcmc.schedules import CyclicalCosine, PolynomialDecay
from dpjax.bayes.sgmcmc.sghmc import SGHMC, sghmc
from dpjax.bayes.sgmcmc.sgld import SGLD, sgld

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
    "certified_step_size",
    "hybrid",
    "injected_noise_multiplier",
    "private_chains",
    "psgld",
    "rejection_sample",
    "sample",
    "sghmc",
    "sgld",
]
