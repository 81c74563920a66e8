"""Classifiers for model inversion: softmax regression and one hidden layer, private or not."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.bayes.sgmcmc import SGLD, calibrate_step_size, sample
from dpjax.mechanisms import Mechanism
from experiments.data import Dataset, Split
from experiments.lib.training import ShuffledEpochs, Task, train

PLAIN, NOISY_SGD, LANGEVIN = "SGD", "DP-SGD", "DP-SGLD"
PICTURE, PERSON = "one picture", "one person"
Params = dict[str, jax.Array]
_NUM_HIDDEN = 300


@dataclass(frozen=True)
class Settings:
    """Settings of one row; a method ignores those that it does not use."""

    data: str
    method: str  # one of the names above
    unit: str = PICTURE  # what the guarantee is for
    epsilon: float | None = None  # None for no privacy
    delta: float = 1e-5
    network: str = "softmax"  # or "MLP"
    sampling_rate: float = 1.0
    num_steps: int = 20
    l2_clip: float = 1.0
    learning_rate: float = 1.0  # of the point estimates
    prior_std: float = 1.0  # of the chain
    seed: int = 0  # of the first run
    runs: int = 1  # with seeds of their own

    def mechanism(self, data: Dataset) -> Mechanism | None:
        """Returns the mechanism of one run, calibrated to ε; None without privacy."""
        if self.epsilon is None:
            return None
        by_person = self.unit == PERSON
        num_records = data.num_classes if by_person else len(data.train.y)
        num_pictures = len(data.train.y) // data.num_classes
        common: dict[str, Any] = {
            "sampling": dpjax.PoissonSampling(num_records, self.sampling_rate),
            "l2_clip": self.l2_clip,
            "num_steps": self.num_steps,
            "adjacency": "zero_out",
            "unit": f"{PERSON} with {num_pictures} pictures" if by_person else PICTURE,
        }
        target: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        if self.method == LANGEVIN:
            return calibrate_step_size(SGLD(step_size=1.0, **common), **target)
        mechanism = dpjax.SubsampledGaussian(noise_multiplier=1.0, **common)
        return dpjax.calibrate(mechanism, **target)


def initial_params(network: str, num_pixels: int, num_classes: int, seed: int) -> Params:
    """Returns zero weights of a softmax regression, or random ones of a hidden layer."""
    if network == "softmax":
        return {"output": jnp.zeros((num_pixels, num_classes))}
    keys = jax.random.split(jax.random.key(seed))
    init = jax.nn.initializers.lecun_normal()
    return {
        "hidden": init(keys[0], (num_pixels, _NUM_HIDDEN)),
        "output": init(keys[1], (_NUM_HIDDEN, num_classes)),
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Returns the logits of flat images ``(..., num_pixels)`` with pixels in [0, 1].

    >>> logits({"output": jnp.eye(2)}, jnp.array([1.0, 0.5])).tolist()
    [0.5, 0.0]
    """
    x = images - 0.5
    if "hidden" in params:
        x = jax.nn.sigmoid(x @ params["hidden"])
    return x @ params["output"]


def mean_loss(params: Params, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the mean cross entropy of one record: one image, or all images of a person."""
    images, labels = record
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
    return losses.mean()


def records(data: Dataset, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training data with one leading index for each record of the unit."""
    images, labels = flatten(data.train)
    if unit == PICTURE:
        return images, labels
    order = np.argsort(labels, kind="stable").reshape(data.num_classes, -1)
    return images[order], labels[order]


def flatten(part: Split) -> tuple[np.ndarray, np.ndarray]:
    """Returns images as ``(n, num_pixels)``, and their labels."""
    return part.x.reshape(len(part.y), -1), part.y


def fit(settings: Settings, data: Dataset, mechanism: Mechanism | None) -> Params:
    """Returns trained parameters, or the mean of a chain's second half."""
    examples = records(data, settings.unit)
    start = initial_params(settings.network, examples[0].shape[-1], data.num_classes, settings.seed)
    key = jax.random.key(settings.seed)
    if isinstance(mechanism, SGLD):
        return _chain_mean(key, settings, mechanism, examples, start)
    task = Task(mean_loss, examples, optax.sgd(settings.learning_rate))
    if isinstance(mechanism, dpjax.SubsampledGaussian):
        return train(key, task, start, mechanism, steps_per_report=settings.num_steps).params
    return train(key, task, start, ShuffledEpochs(settings.num_steps, len(examples[1]))).params


def _chain_mean(
    key: jax.Array, settings: Settings, chain: SGLD, examples: tuple[Any, Any], start: Params
) -> Params:
    def log_prior(params: Params) -> jax.Array:
        return -0.5 * optax.tree.norm(params, squared=True) / settings.prior_std**2

    result = sample(
        key,
        lambda params, record: -mean_loss(params, record),
        log_prior,
        start,
        examples,
        mechanism=chain,
        burn_in=settings.num_steps // 2,
        progress=False,
    )
    return jax.tree.map(lambda states: jnp.asarray(states[0].mean(axis=0)), result.samples)


def accuracy_percent(params: Params, part: Split) -> float:
    """Returns the share of images whose most probable class is theirs, in percent."""
    images, labels = flatten(part)
    found = np.asarray(logits(params, jnp.asarray(images))).argmax(axis=-1)
    return 100 * float((found == labels).mean())
