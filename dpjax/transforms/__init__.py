"""Differentially private optax transformations: clipping, Gaussian noise, NoisySGD, NoisyAdam."""

from dpjax.transforms.aggregate import differentially_private_aggregate
from dpjax.transforms.chains import noisy_adam, noisy_sgd
from dpjax.transforms.clip import clip_per_example
from dpjax.transforms.noise import (
    AddGaussianNoiseState,
    PrivateTransformation,
    add_gaussian_noise,
)

__all__ = [
    "AddGaussianNoiseState",
    "PrivateTransformation",
    "add_gaussian_noise",
    "clip_per_example",
    "differentially_private_aggregate",
    "noisy_adam",
    "noisy_sgd",
]
