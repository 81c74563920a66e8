"""dpjax: differentially private Bayesian and deep learning in JAX, its guarantees checked.

Two rivers meet in one object. Data flow through a sampler, per-example gradients, a clipped sum and
noise into an optimiser; privacy flows from what was sampled, clipped and noised through an event
and an accountant to a certificate. A `Mechanism` describes both at once.
"""

from dpjax import accounting, bayes, datasets, sensitivity
from dpjax.accounting import bayesian, calibrate
from dpjax.bayes.sgmcmc import sghmc, sgld
from dpjax.gradients import clipped_grad, explain, l2_sensitivity, total_l2_clip
from dpjax.keys import release_key
from dpjax.mechanisms import (
    Composition,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    Mechanism,
    NoisyMax,
    RandomizedResponse,
    SubsampledGaussian,
    mechanism_of,
)
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.sensitivity import Sensitivity
from dpjax.training import Budget, private_step, train
from dpjax.transforms import (
    add_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_adam,
    noisy_sgd,
)

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Composition",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExponentialMechanism",
    "FixedSizeSampling",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NoisyMax",
    "PoissonSampling",
    "RandomizedResponse",
    "Sensitivity",
    "ShuffledEpochs",
    "SubsampledGaussian",
    "TruncatedPoissonSampling",
    "accounting",
    "add_noise",
    "bayes",
    "bayesian",
    "calibrate",
    "clip_per_example",
    "clipped_grad",
    "datasets",
    "differentially_private_aggregate",
    "explain",
    "l2_sensitivity",
    "mechanism_of",
    "noisy_adam",
    "noisy_sgd",
    "private_step",
    "release_key",
    "sensitivity",
    "sghmc",
    "sgld",
    "total_l2_clip",
    "train",
]
