"""The CNN of Bu et al. (2020) trained by NoisySGD on MNIST, for its Table 1 and its Figure 4."""

import functools
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import optax

import dpjax
from dpjax.datasets import Dataset
from experiments.lib.models import MnistCNN, accuracy_percent, cross_entropy

PUBLISHED_SIZE = 60_000
# Two of these hold nearly every draw, and each keeps XLA's buffers small.
_PHYSICAL_BATCH_SIZE = 152

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Settings:
    """One run's settings; the defaults hold for all runs.

    Attributes:
      learning_rate: constant step size.
      l2_clip: clip bound on one image's gradient.
      noise_multiplier: noise standard deviation over the clip bound.
      published_epochs: as the source trained.
      epochs: as this profile trains.
      expected_batch_size: mean of the Poisson draw.
      delta: at which epsilon is read.
      seed: of the parameters, the batches and the noise.
    """

    learning_rate: float
    l2_clip: float
    noise_multiplier: float
    published_epochs: int
    epochs: int
    expected_batch_size: int = 256
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, epochs: int) -> dpjax.SubsampledGaussian:
        """NoisySGD's mechanism: ``floor(epochs n / B)`` steps, one image the unit of privacy."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(
                num_examples,
                self.expected_batch_size / num_examples,
                physical_batch_size=_PHYSICAL_BATCH_SIZE,
            ),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=epochs * num_examples // self.expected_batch_size,
            adjacency="zero_out",
            unit="one image",
        )


@functools.cache
def load_mnist() -> Dataset:
    """Returns MNIST, or what stands in for it where it cannot be had."""
    return dpjax.datasets.load("mnist")


def train(
    settings: Settings, data: Dataset, folder: Path
) -> tuple[dpjax.training.TrainResult, Curve]:
    """Trains as the settings say; a stopped run goes on from ``folder``.

    Returns:
      The run, and the test accuracy (%) after each epoch.
    """
    model = MnistCNN(data.num_classes)
    key, init_key = jax.random.split(jax.random.key(settings.seed))
    params = model.init(init_key, data.train.x[:1])["params"]
    mechanism = settings.mechanism(len(data.train.y), settings.epochs)
    accuracy, curve_file = accuracy_percent(model), folder / "accuracy.txt"
    steps_per_epoch = len(data.train.y) // settings.expected_batch_size

    def note_accuracy(report: dpjax.training.Report) -> None:
        with curve_file.open("a") as file:
            file.write(f"{report.num_releases} {accuracy(report.params, data.test)}\n")

    result = dpjax.train(
        key,
        cross_entropy(model),
        params,
        tuple(data.train),
        mechanism,
        optax.sgd(settings.learning_rate),
        steps_per_call=steps_per_epoch,
        on_report=note_accuracy,
        checkpoint_dir=folder / "checkpoints",
    )
    reports = sorted(np.loadtxt(curve_file, ndmin=2).tolist())
    # The few steps that are left at the end belong to the last epoch.
    return result, list({float(round(n / steps_per_epoch)): right for n, right in reports}.items())


def note(settings: Settings, data: Dataset) -> str:
    """Returns what a reader must know of a run: its data, its key, and whether it was cut short."""
    words = [data.note, "Seeded key: the noise is reproducible, so this run is not private."]
    if settings.epochs < settings.published_epochs:
        words.append("Shortened: fewer epochs than published, so not the source's accuracy.")
    return " ".join(words)
