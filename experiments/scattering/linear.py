"""Scattering features and a linear model (Tramèr and Boneh 2021) at certified ε = 1, 2, 3.

``python -m experiments run scattering_linear``: on two CPU cores under a minute (``quick``: a few
thousand images at ε = 3) or hours (``paper``: all images). Features are computed once and kept.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax.datasets import Dataset, Split
from experiments.gdp.classifiers import ACCURACY, summarize
from experiments.lib.figures import PALETTE, SOURCE
from experiments.lib.formatting import format_value
from experiments.lib.plots import legend_below, panel_grid
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext
from experiments.lib.training import Training, classification, initialize, train
from experiments.lib.verdicts import format_upper_bound, group_by
from experiments.scattering.features import (
    load_features,
    moments_mechanism,
    normalize_channels,
    normalize_groups,
    release_moments,
)

GROUPS, CHANNELS = "group normalisation", "channels standardised"
EPSILON, PUBLISHED_EPSILON = "ε", "ε of the source's noise"
_CURVES = "accuracy % by epoch, each seed"
_EPSILONS = (1.0, 2.0, 3.0)
_CLAIMED = 3.0
_UNIT = "one image"
_NUM_GROUPS = 27
# Noise multiplier of each of the source's two releases for the normalisation.
_MOMENTS_NOISE = 8.0
_PHYSICAL_BATCH_SIZE = 1024
_MODEL = nn.Dense(10, kernel_init=nn.initializers.zeros)


class Published(NamedTuple):
    """Settings and accuracy (%) of a linear model at the source's ε of 3."""

    load: str
    normalization: str
    learning_rate: float
    batch_size: int
    noise_multiplier: float
    epochs: int
    accuracy: float
    num_train: int


_SOURCE = {
    "MNIST": Published("mnist", CHANNELS, 8.0, 4096, 3.04, 40, 98.7, 60_000),
    "Fashion-MNIST": Published("fashion_mnist", GROUPS, 16.0, 8192, 4.05, 40, 89.7, 60_000),
    "CIFAR-10": Published("cifar10", CHANNELS, 4.0, 8192, 5.67, 60, 67.0, 50_000),
}
_QUICK_SIZES = {"MNIST": (6000, 1000), "Fashion-MNIST": (6000, 1000), "CIFAR-10": (2500, 500)}


@dataclass(frozen=True)
class Settings:
    """Settings of one row: DP-SGD with momentum on normalised features, one run for each seed."""

    data: str
    normalization: str
    epsilon: float  # target, the normalisation included
    learning_rate: float
    expected_batch_size: int
    noise_multiplier: float  # published; scaled to reach the target
    epochs: int
    num_train: int
    num_test: int
    num_groups: int = _NUM_GROUPS
    l2_clip: float = 0.1
    momentum: float = 0.9
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def training(self) -> dpjax.SubsampledGaussian:
        """The mechanism of training with the published noise, on Poisson batches."""
        rate = self.expected_batch_size / self.num_train
        return dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(
                self.num_train, rate, physical_batch_size=min(_PHYSICAL_BATCH_SIZE, self.num_train)
            ),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=int(self.epochs / rate),
            adjacency="zero_out",
            unit=_UNIT,
        )

    def mechanism(self, num_channels: int) -> dpjax.Composition:
        """Returns the training, preceded by the release of moments if channels are standardised.

        The noise of both is scaled by one factor, so that the certified ε is at most ``epsilon``.
        """
        parts: tuple[Any, ...] = (self.training,)
        if self.normalization == CHANNELS:
            parts = (moments_mechanism(num_channels, _MOMENTS_NOISE), *parts)
        return dpjax.calibrate(
            dpjax.Composition(parts), epsilon=self.epsilon, delta=self.delta
        )

    def optimizer(self) -> optax.GradientTransformation:
        """Returns SGD with momentum."""
        return optax.sgd(self.learning_rate, self.momentum)


def published_epsilon(settings: Settings, num_channels: int) -> float:
    """Returns the ε (PLD) of the published noise, if batches are Poisson samples.

    With standardised channels, two Gaussian releases of noise multiplier 8 are included.
    """
    parts: tuple[Any, ...] = (settings.training,)
    if settings.normalization == CHANNELS:
        parts = (*2 * (moments_mechanism(num_channels, _MOMENTS_NOISE),), *parts)
    return dpjax.Composition(parts).certificate(settings.delta).epsilon


def fit(
    settings: Settings, data: Dataset, mechanism: dpjax.Composition, folder: Path
) -> list[Training]:
    """Trains the linear model once for each seed on normalised features; resumes from ``folder``.

    Args:
      settings: of the row.
      data: features ``(n, channels, height, width)``.
      mechanism: of ``settings``.
      folder: for checkpoints.
    """
    *moments, training = mechanism.parts
    assert isinstance(training, dpjax.SubsampledGaussian)
    runs = []
    for seed in settings.seeds:
        moments_key = jax.random.fold_in(jax.random.key(seed), 1)
        normalize: Callable[[np.ndarray], np.ndarray]
        if settings.normalization == CHANNELS:
            released = release_moments(moments_key, moments[0], data.train.x)
            normalize = functools.partial(normalize_channels, moments=released)
        else:
            normalize = functools.partial(normalize_groups, num_groups=settings.num_groups)
        train_part, test_part = (Split(normalize(part.x), part.y) for part in (data.train, data.test))
        normalized = dataclasses.replace(data, train=train_part, test=test_part)
        key, params = initialize(_MODEL, train_part.x[:1], seed)
        task = classification(_MODEL, normalized, settings.optimizer())
        runs.append(train(key, task, params, training, folder=folder / str(seed)))
    return runs
