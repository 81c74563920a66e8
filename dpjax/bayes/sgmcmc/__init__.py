"""Private SG-MCMC: Langevin chains whose own noise is counted, and exact posterior samples."""

from dpjax.bayes.sgmcmc.bounds import step_size_bound_2015, step_size_bound_slides
from dpjax.bayes.sgmcmc.budget import add_noise_for, certified_step_size, scale_steps_for
from dpjax.bayes.sgmcmc.chains import private_chains
from dpjax.bayes.sgmcmc.description import (
    PRINTED_TEMPERATURE,
    TRUE_POSTERIOR,
    Langevin,
    own_noise_multiplier,
)
from dpjax.bayes.sgmcmc.exact import beta_sample, markov_chain_sample, rejection_sample
from dpjax.bayes.sgmcmc.hybrid import hybrid
from dpjax.bayes.sgmcmc.one_sample import OnePosteriorSample, PosteriorDraw
from dpjax.bayes.sgmcmc.psgld import PSGLD, RMSProp, psgld
from dpjax.bayes.sgmcmc.sample import ChainResult, sample
from dpjax.bayes.sgmcmc.schedules import Cyclical, Decreasing
from dpjax.bayes.sgmcmc.sghmc import SGHMC, sghmc
from dpjax.bayes.sgmcmc.sgld import SGLD, sgld

__all__ = [
    "PRINTED_TEMPERATURE",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "TRUE_POSTERIOR",
    "ChainResult",
    "Cyclical",
    "Decreasing",
    "Langevin",
    "OnePosteriorSample",
    "PosteriorDraw",
    "RMSProp",
    "add_noise_for",
    "beta_sample",
    "certified_step_size",
    "hybrid",
    "markov_chain_sample",
    "own_noise_multiplier",
    "private_chains",
    "psgld",
    "rejection_sample",
    "sample",
    "scale_steps_for",
    "sghmc",
    "sgld",
    "step_size_bound_2015",
    "step_size_bound_slides",
]
