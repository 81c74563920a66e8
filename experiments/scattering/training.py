"""Private training of a linear model on scattering features, their normalisation included."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax

import dpjax
from dpjax._typing import PRNGKey
from experiments.data import Dataset, Split
from experiments.lib.training import Training, classification, train
from experiments.scattering.features import (
    moments_mechanism,
    normalize_channels,
    normalize_groups,
    release_moments,
)

GROUPS, CHANNELS = "group normalisation", "private normalisation"
CURVES = "accuracy % by epoch, each seed"
UNIT = "one image"
# Noise multiplier of each of the source's two releases for the normalisation.
MOMENTS_NOISE = 8.0
MODEL = nn.Dense(10, kernel_init=nn.initializers.zeros)
_PHYSICAL_BATCH_SIZE = 1024


@dataclass(frozen=True)
class Settings:
    """Settings of one row: DP-SGD with momentum on normalised features, one run for each seed."""

    data: str
    normalization: str
    epsilon: float  # target, the normalisation included
    learning_rate: float
    sampling_rate: float
    noise_multiplier: float  # published; scaled to reach the target
    epochs: int
    num_train: int
    num_test: int
    num_groups: int = 27
    l2_clip: float = 0.1
    momentum: float = 0.9
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2)

    def training(self, num_examples: int) -> dpjax.SubsampledGaussian:
        """Returns the mechanism of training with the published noise, on Poisson batches."""
        return dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(
                num_examples,
                self.sampling_rate,
                physical_batch_size=min(_PHYSICAL_BATCH_SIZE, num_examples),
            ),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            # The source drops the last, incomplete batch of an epoch.
            num_steps=self.epochs * int(1 / self.sampling_rate),
            adjacency="zero_out",
            unit=UNIT,
        )

    def mechanism(self, num_examples: int, num_channels: int) -> dpjax.Composition:
        """Returns the training, preceded by the release of moments for private normalisation.

        The noise of both is scaled by one factor, so that the certified ε is at most ``epsilon``.
        """
        parts: tuple[Any, ...] = (self.training(num_examples),)
        if self.normalization == CHANNELS:
            parts = (moments_mechanism(num_channels, MOMENTS_NOISE, UNIT), *parts)
        return dpjax.calibrate(dpjax.Composition(parts), epsilon=self.epsilon, delta=self.delta)

    def optimizer(self, num_steps: int) -> optax.GradientTransformation:
        """Returns SGD with momentum; the learning rate decays to zero in the second half."""
        constant = num_steps // 2
        schedule = optax.linear_schedule(self.learning_rate, 0.0, num_steps - constant, constant)
        return optax.sgd(schedule, self.momentum)


def fit(
    settings: Settings, data: Dataset, mechanism: dpjax.Composition, folder: Path
) -> list[Training]:
    """Trains the linear model once for each seed; resumes from ``folder``.

    Args:
      settings: of the row.
      data: features ``(n, channels, height, width)``.
      mechanism: of ``settings``, for these features.
      folder: for checkpoints.
    """
    moments: Any
    training: Any
    moments, training = mechanism.parts[0], mechanism.parts[-1]
    runs = []
    for seed in settings.seeds:
        train_key, moments_key, init_key = jax.random.split(jax.random.key(seed), 3)
        if settings.normalization == CHANNELS:
            normalized = normalize_by_release(data, moments, moments_key)
        else:
            normalized = _normalize(data, partial(normalize_groups, num_groups=settings.num_groups))
        params = MODEL.init(init_key, normalized.train.x[:1])["params"]
        task = classification(MODEL, normalized, settings.optimizer(training.num_steps))
        runs.append(train(train_key, task, params, training, folder=folder / str(seed)))
    return runs


def normalize_by_release(data: Dataset, mechanism: dpjax.Gaussian, key: PRNGKey) -> Dataset:
    """Returns features standardised by the moments that ``mechanism`` releases."""
    moments = release_moments(key, mechanism, data.train.x)
    return _normalize(data, partial(normalize_channels, moments=moments))


def _normalize(data: Dataset, normalize: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    # On the device once, so that no copy is made for training.
    train, test = (Split(jax.device_put(normalize(p.x)), p.y) for p in (data.train, data.test))
    return dataclasses.replace(data, train=train, test=test)
