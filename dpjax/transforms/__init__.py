"""Differentially private optax transformations: clipping, noise, NoisySGD, NoisyAdam, EMA."""

from dpjax.transforms.aggregate import differentially_private_aggregate
from dpjax.transforms.average import ParamsEmaState, params_ema
from dpjax.transforms.chains import FollowClipBoundState, follow_clip_bound, noisy_adam, noisy_sgd
from dpjax.transforms.clip import clip_per_example
from dpjax.transforms.correlation import (
    BLT,
    BandedToeplitz,
    Correlation,
    CorrelationReport,
    Dense,
    InverseSquareRoot,
    LambdaCGD,
)
from dpjax.transforms.noise import (
    AddGaussianNoiseState,
    PrivateTransformation,
    add_gaussian_noise,
)

__all__ = [
    "BLT",
    "AddGaussianNoiseState",
    "BandedToeplitz",
    "Correlation",
    "CorrelationReport",
    "Dense",
    "FollowClipBoundState",
    "InverseSquareRoot",
    "LambdaCGD",
    "ParamsEmaState",
    "PrivateTransformation",
    "add_gaussian_noise",
    "clip_per_example",
    "differentially_private_aggregate",
    "follow_clip_bound",
    "noisy_adam",
    "noisy_sgd",
    "params_ema",
]
