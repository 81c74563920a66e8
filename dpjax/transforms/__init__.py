"""Differentially private optax transformations: clipping, Gaussian noise, NoisySGD, NoisyAdam."""

from dpjax.transforms.aggregate import (
    DifferentiallyPrivateAggregateState,
    differentially_private_aggregate,
)
from dpjax.transforms.chains import noisy_adam, noisy_sgd
from dpjax.transforms.clip import ClipDescription, ClipPerExampleState, clip_per_example
from dpjax.transforms.noise import (
    AddGaussianNoiseState,
    NoiseDescription,
    PrivateTransformation,
    add_gaussian_noise,
)

__all__ = [
    "AddGaussianNoiseState",
    "ClipDescription",
    "ClipPerExampleState",
    "DifferentiallyPrivateAggregateState",
    "NoiseDescription",
    "PrivateTransformation",
    "add_gaussian_noise",
    "clip_per_example",
    "differentially_private_aggregate",
    "noisy_adam",
    "noisy_sgd",
]
