"""The logistic regressions run many times over, and how often they guess right."""

import functools
from typing import Any

import jax
import numpy as np

from dpjax.datasets import Dataset
from experiments.dpvi.logistic_model import accuracy_percent, guide, model, windowed_adagrad
from experiments.dpvi.sweep import Maker, Point, fit, inference


def accuracies(
    data: Dataset,
    points: list[Point],
    *,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    repeats: int,
    seed: int,
) -> np.ndarray:
    """Returns test accuracies (%), ``(points, repeats)``.

    Args:
      data: trained on, and tested on.
      points: noise and clip of the runs.
      sampling_rate: of the Poisson batches.
      num_steps: of each run.
      learning_rate: of `windowed_adagrad`.
      repeats: how many runs of each point.
      seed: of them all.
    """
    make = maker(len(data.train.y), sampling_rate, learning_rate)
    params = fit(make, points, tuple(data.train), num_steps=num_steps, repeats=repeats, seed=seed)
    return np.asarray(_score(params, data.test.x, data.test.y), float)


@functools.cache
def maker(num_examples: int, sampling_rate: float, learning_rate: float) -> Maker:
    """Returns what makes the inferences of `fit`: the same function for the same numbers."""
    optimizer = windowed_adagrad(learning_rate)
    return functools.partial(inference, model, guide, optimizer, num_examples, sampling_rate)


@jax.jit
def _score(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.vmap(jax.vmap(lambda one: accuracy_percent(one, x, y)))(params)
