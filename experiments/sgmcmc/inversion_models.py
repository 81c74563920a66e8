"""The models that are attacked: softmax regressions on a few images of each class, or on many."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.linear_model import LogisticRegression

import dpjax
from dpjax.bayes.sgmcmc import SGLD, calibrate_step_size, sample
from dpjax.datasets import Dataset

NUM_CLASSES = 10


@dataclass(frozen=True)
class Settings:
    """One model.

    Attributes:
      per_class: how many images of each class it is trained on.
      epsilon: of the private chain; None for the model without privacy.
      num_steps: of the chain.
      sampling_rate: of its batches.
      delta: at which epsilon is read.
      l2_clip: bound on one image's gradient.
      prior_std: standard deviation of the Gaussian prior on every weight.
      seed: of the batches and the noise.
    """

    per_class: int
    epsilon: float | None
    num_steps: int
    sampling_rate: float
    delta: float = 1e-5
    l2_clip: float = 4.0
    prior_std: float = 0.1
    seed: int = 0

    def chain(self, num_examples: int) -> SGLD:
        """SGLD at temperature 1, with the largest step size that is certified."""
        sampling = dpjax.PoissonSampling(num_examples, self.sampling_rate)
        chain = SGLD(
            sampling,
            l2_clip=self.l2_clip,
            step_size=0.02,
            num_steps=self.num_steps,
            adjacency="zero_out",
            unit="one image",
        )
        if self.epsilon is None:
            return chain
        return calibrate_step_size(chain, epsilon=self.epsilon, delta=self.delta)


class Images(NamedTuple):
    """Flat images ``(n, num_pixels)`` and their labels ``(n,)``."""

    x: np.ndarray
    y: np.ndarray


@functools.cache
def load_images() -> Dataset:
    """Returns MNIST, or what stands in for it where it cannot be had."""
    return dpjax.datasets.load("mnist")


def two_groups(data: Dataset, per_class: int) -> tuple[Images, Images]:
    """Returns so many images of each class to train on, and as many others that are held out.

    Fewer where the data do not have them.
    """
    of_class = [np.flatnonzero(data.train.y == label) for label in range(NUM_CLASSES)]
    size = min(per_class, min(map(len, of_class)) // 2)
    return (
        _images(data, [rows[:size] for rows in of_class]),
        _images(data, [rows[size : 2 * size] for rows in of_class]),
    )


def _images(data: Dataset, rows: list[np.ndarray]) -> Images:
    chosen = np.concatenate(rows)
    return Images(data.train.x[chosen].reshape(len(chosen), -1), data.train.y[chosen])


def fit(settings: Settings, group: Images) -> np.ndarray:
    """Returns the weights ``(num_pixels, num_classes)``.

    Without privacy those of largest posterior density; privately, the mean of the second half of
    the chain: logits are linear in the weights, so it is the posterior mean of the logits.
    """
    if settings.epsilon is None:
        return _posterior_mode(settings, group)
    pixels = group.x.shape[1]
    result = sample(
        jax.random.key(settings.seed),
        _log_likelihood,
        lambda weights: -0.5 * jnp.sum(weights**2) / settings.prior_std**2,
        jnp.zeros((pixels, NUM_CLASSES)),
        tuple(group),
        settings.chain(len(group.y)),
        burn_in=settings.num_steps // 2,
    )
    return result.samples[0].mean(axis=0)


def _posterior_mode(settings: Settings, group: Images) -> np.ndarray:
    model = LogisticRegression(
        C=settings.prior_std**2, fit_intercept=False, max_iter=1_000, tol=1e-3
    )
    return model.fit(*group).coef_.T


def _log_likelihood(weights: Any, example: Any) -> jax.Array:
    image, label = example
    return -optax.softmax_cross_entropy_with_integer_labels(image @ weights, label)
