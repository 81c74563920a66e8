"""Private training as composable optax transformations: clip, noise, step."""

from dpjax.transforms.aggregate import (
    DifferentiallyPrivateAggregateState,
    differentially_private_aggregate,
)
from dpjax.transforms.chains import noisy_adam, noisy_sgd
from dpjax.transforms.clip import clip_per_example
from dpjax.transforms.description import NoiseDescription, PrivateTransformation
from dpjax.transforms.noise import AddNoiseState, add_noise

__all__ = [
    "AddNoiseState",
    "DifferentiallyPrivateAggregateState",
    "NoiseDescription",
    "PrivateTransformation",
    "add_noise",
    "clip_per_example",
    "differentially_private_aggregate",
    "noisy_adam",
    "noisy_sgd",
]
