"""Bayesian neural networks by private Langevin chains, and scores of their predictions.

Scores of predictive probabilities ``(n, num_classes)`` for labels ``(n,)``: likelihood,
calibration and out-of-distribution detection, with natural logarithms.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.stats import mannwhitneyu

import dpjax
from dpjax.bayes.sgmcmc import SGHMC, SGLD, Langevin, calibrate_step_size, sample
from experiments.data import Dataset, Split, load_data
from experiments.lib.models import MnistCNN, MnistMLP, cross_entropy
from experiments.lib.training import ShuffledEpochs, Task, initialize, train

PLAIN, NOISY_SGD, LANGEVIN, HAMILTONIAN = "SGD", "DP-SGD", "SGLD", "SGHMC"
# Training images: of MNIST as the slides state; of SVHN its whole training part, not stated there.
PUBLISHED_SIZES = {"mnist": 50_000, "svhn": 73_257}
PUBLISHED_STEPS = 10_000
BATCHES = (100, 256, 1_000, 5_000)
# Steps between two checkpoints: about ten of a run as published.
_STEPS_PER_CALL = 1000
_UNIT, _NUM_OUT_OF_DISTRIBUTION = "one image", 2_000
_LEAST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Settings:
    """Settings of one row; a method ignores those that it does not use."""

    method: str  # one of the names above
    data: str  # "mnist" or "svhn"
    network: str  # "MLP" or "CNN"
    num_steps: int  # T, as this profile runs
    delta: float
    batch_size: int = 256  # mean of the Poisson draw; of a plain run, the size of every batch
    step_size: float = 0.1  # eta of a chain
    l2_clip: float = 4.0  # L, the bound on one image's gradient
    temperature: float = 1.0  # 1/2 is the printed noise, 1 that of the true posterior
    friction: float = 0.1  # alpha of SGHMC
    target: float | None = None  # the epsilon to which the step size is scaled; None to leave it
    learning_rate: float = 0.5  # of the point estimates
    prior_std: float = 1.0  # standard deviation of the Gaussian prior on every weight
    num_kept: int = 20  # states that predictions average over, spread over the chain's second half
    seed: int = 0  # of the first run
    runs: int = 1  # with seeds of their own

    @property
    def model(self) -> nn.Module:
        """The network."""
        return MnistCNN() if self.network == "CNN" else MnistMLP()

    @property
    def is_chain(self) -> bool:
        """Whether the row samples a posterior."""
        return self.method in (LANGEVIN, HAMILTONIAN)

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.is_chain or self.method == NOISY_SGD

    def chain(self, num_examples: int, num_steps: int) -> Langevin:
        """Returns the chain on ``num_examples`` images; for DP-SGD, the SGLD with its noise."""
        sampling = dpjax.PoissonSampling(num_examples, min(1.0, self.batch_size / num_examples))
        is_hamiltonian = self.method == HAMILTONIAN
        sampler: Callable[..., Langevin] = SGHMC if is_hamiltonian else SGLD
        chain = sampler(
            sampling,
            l2_clip=self.l2_clip,
            step_size=self.step_size,
            num_steps=num_steps,
            adjacency="zero_out",
            temperature=self.temperature,
            unit=_UNIT,
            **({"friction": self.friction} if is_hamiltonian else {}),
        )
        if self.target is None:
            return chain
        return calibrate_step_size(chain, epsilon=self.target, delta=self.delta)


class Predictions(NamedTuple):
    """Predictive probabilities, averaged over the kept states and of the last state."""

    averaged: np.ndarray  # on the test images, (n, 10)
    last: np.ndarray  # likewise
    out_of_distribution: dict[str, np.ndarray]  # averaged, on out-of-distribution images


@functools.cache
def load_images(name: str) -> Dataset:
    """Returns the data set with at most as many training images as in `PUBLISHED_SIZES`."""
    data, size = load_data(name), PUBLISHED_SIZES[name]
    train = Split(data.train.x[:size], data.train.y[:size])
    return dataclasses.replace(data, train=train)


def run(settings: Settings, data: Dataset, folder: Path) -> Predictions:
    """Runs one chain or training and predicts; an interrupted one resumes from ``folder``."""
    key, params = initialize(settings.model, data.train.x[:1], settings.seed)
    if settings.is_chain:
        states = _sample(settings, data, params, key, folder)
    else:
        states = [_train(settings, data, params, key, folder)]
    each = [_probabilities(settings.model, params, data.test.x) for params in states]
    others = {
        name: np.mean([_probabilities(settings.model, params, images) for params in states], axis=0)
        for name, images in out_of_distribution_images(
            data.test.x[:_NUM_OUT_OF_DISTRIBUTION]
        ).items()
    }
    return Predictions(np.mean(each, axis=0), each[-1], others)


def _sample(settings: Settings, data: Dataset, params: Any, key: Any, folder: Path) -> list[Any]:
    """Returns the kept states of a chain."""
    loss_fn, burn_in = cross_entropy(settings.model), settings.num_steps // 2

    def log_prior(params: Any) -> jax.Array:
        squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)])
        return -0.5 * squares.sum() / settings.prior_std**2

    result = sample(
        key,
        lambda params, example: -loss_fn(params, example),
        log_prior,
        params,
        tuple(data.train),
        mechanism=settings.chain(len(data.train.y), settings.num_steps),
        burn_in=burn_in,
        thinning=(settings.num_steps - burn_in) // settings.num_kept,
        steps_per_call=_STEPS_PER_CALL,
        checkpoint_dir=folder,
    )
    return [
        jax.tree.map(lambda leaf, at=at: np.asarray(leaf[0, at]), result.samples)
        for at in range(settings.num_kept)
    ]


def _train(settings: Settings, data: Dataset, params: Any, key: Any, folder: Path) -> Any:
    """Returns parameters trained by DP-SGD, or by Adam without privacy."""
    num_examples = len(data.train.y)
    plan: dpjax.SubsampledGaussian | ShuffledEpochs
    if settings.is_private:
        plan = noisy_sgd_mechanism(settings.chain(num_examples, settings.num_steps))
        optimizer = optax.sgd(settings.learning_rate)
    else:
        size = min(settings.batch_size, num_examples)
        plan = ShuffledEpochs(-(-settings.num_steps * size // num_examples), size)
        optimizer = optax.adam(1e-3)
    task = Task(cross_entropy(settings.model), tuple(data.train), optimizer)
    return train(key, task, params, plan, folder=folder).params


def noisy_sgd_mechanism(chain: Langevin) -> dpjax.SubsampledGaussian:
    """Returns the subsampled Gaussian mechanism of ``chain`` with clip bound one."""
    return dataclasses.replace(chain.gaussian, l2_clip=1.0)


@functools.cache
def published_epsilon(settings: Settings) -> float:
    """Returns the certified ε of a chain with as many images and steps as in the slides."""
    chain = settings.chain(PUBLISHED_SIZES[settings.data], PUBLISHED_STEPS)
    return dpjax.accounting.epsilon(
        chain.event, settings.delta, adjacency=chain.adjacency, method="pld"
    )


def epsilon_by_batch(temperature: float) -> dict[int, float]:
    """Returns `published_epsilon` of DP-SGLD by batch size.

    >>> {batch: round(epsilon, 2) for batch, epsilon in epsilon_by_batch(0.5).items()}
    {100: 36.18, 256: 3.51, 1000: 2.35, 5000: 2.29}
    """
    at = Settings(LANGEVIN, "mnist", "CNN", PUBLISHED_STEPS, 1e-5, temperature=temperature)
    return {
        batch: published_epsilon(dataclasses.replace(at, batch_size=batch)) for batch in BATCHES
    }


def out_of_distribution_images(images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns out-of-distribution images: rotated, with shuffled pixels and, if grey, inverted.

    In SVHN, the colour data set, digits are lighter or darker than their background, so that
    inverted images are in the distribution.

    >>> sorted(out_of_distribution_images(np.zeros((2, 28, 28, 1))))
    ['inverted', 'on their side', 'shuffled']
    """
    order = np.random.default_rng(0).permutation(images[0].size)
    shuffled = images.reshape(len(images), -1)[:, order].reshape(images.shape)
    turned = np.rot90(images, axes=(1, 2))
    found = {"on their side": turned, "shuffled": shuffled}
    return {"inverted": 1 - images, **found} if images.shape[-1] == 1 else found


@functools.partial(jax.jit, static_argnums=0)
def _softmax(model: nn.Module, params: Any, images: jax.Array) -> jax.Array:
    logits: Any = model.apply({"params": params}, images)
    return jax.nn.softmax(logits)


def _probabilities(model: nn.Module, params: Any, images: np.ndarray) -> np.ndarray:
    parts = range(0, len(images), _NUM_OUT_OF_DISTRIBUTION)
    return np.concatenate(
        [_softmax(model, params, images[i : i + _NUM_OUT_OF_DISTRIBUTION]) for i in parts]
    )


class Reliability(NamedTuple):
    """Predictions binned by confidence, the probability of the predicted class."""

    confidence: np.ndarray  # mean of each bin that is not empty
    accuracy: np.ndarray  # share of a bin's predictions that are right
    share: np.ndarray  # of all predictions, those in a bin


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    """The mean of ``-log p(label)``.

    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 3)
    0.49
    """
    probabilities = np.asarray(probabilities)
    of_labels = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.log(np.maximum(of_labels, _LEAST)).mean())


def reliability(probabilities: Any, labels: Any, num_bins: int = 10) -> Reliability:
    """Accuracy by confidence, in bins of equal width.

    >>> found = reliability([[0.9, 0.1], [0.92, 0.08], [0.4, 0.6]], [0, 1, 1])
    >>> found.confidence.round(2).tolist(), found.accuracy.tolist()
    ([0.6, 0.91], [1.0, 0.5])
    """
    probabilities = np.asarray(probabilities, np.float64)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == np.asarray(labels)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    counts, confidences, rights = (
        np.bincount(bins, weights, num_bins) for weights in (None, confidence, right)
    )
    filled = counts > 0
    counts, confidences, rights = counts[filled], confidences[filled], rights[filled]
    return Reliability(confidences / counts, rights / counts, counts / len(right))


def calibration_error_percent(probabilities: Any, labels: Any, num_bins: int = 10) -> float:
    """Expected calibration error, in percentage points.

    Source: Guo, Pleiss, Sun, Weinberger (2017), equation 3.

    >>> round(calibration_error_percent([[0.9, 0.1], [0.9, 0.1]], [0, 1]), 1)
    40.0
    """
    bins = reliability(probabilities, labels, num_bins)
    return 100 * float((bins.share * abs(bins.confidence - bins.accuracy)).sum())


def entropies(probabilities: Any) -> np.ndarray:
    """Returns the entropy of each prediction, in nats.

    >>> entropies([[0.5, 0.5], [1.0, 0.0]]).round(2).tolist()
    [0.69, 0.0]
    """
    probabilities = np.maximum(np.asarray(probabilities, np.float64), _LEAST)
    return -(probabilities * np.log(probabilities)).sum(axis=1)


def auroc_percent(known: Any, unknown: Any) -> float:
    """AUROC (%) of out-of-distribution detection by the entropies ``unknown`` against ``known``.

    >>> auroc_percent([0.1, 0.2], [0.3, 0.15])
    75.0
    """
    known, unknown = np.asarray(known), np.asarray(unknown)
    return 100 * float(mannwhitneyu(unknown, known).statistic) / (known.size * unknown.size)
