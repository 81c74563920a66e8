"""Private variational inference, with the norms that its steps clip: one program for all rows."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax.bayes.variational import DPSVIState
from dpjax.datasets import Dataset
from experiments.dpvi.logistic_model import accuracy_percent_of_draws
from experiments.dpvi.logistic_runs import maker
from experiments.dpvi.sweep import Maker, Point, stacked

NUM_DRAWS = 100


class Watched(NamedTuple):
    """What a row's repeats leave.

    Attributes:
      accuracies: on the test records (%), predicted by draws of the weights, ``(repeats,)``.
      norms: unclipped, of the records drawn in the first repeat, ``(steps, slots)``.
      mask: which slots were drawn, bool ``(steps, slots)``.
    """

    accuracies: np.ndarray
    norms: np.ndarray
    mask: np.ndarray


def watched_runs(
    data: Dataset,
    points: list[Point],
    *,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    repeats: int,
    seed: int,
) -> list[Watched]:
    """Runs every point ``repeats`` times, as `experiments.dpvi.sweep.fit` does; one for each."""
    make = maker(len(data.train.y), sampling_rate, learning_rate)
    keys = jax.random.split(jax.random.key(seed), repeats)
    params, norms, mask = _watch(make, num_steps, keys, stacked(points), tuple(data.train))
    accuracies = np.asarray(score(params, tuple(data.test), keys), float)
    parts = zip(accuracies, np.asarray(norms[:, 0]), np.asarray(mask[:, 0]), strict=True)
    return [Watched(*part) for part in parts]


@partial(jax.jit, static_argnums=(0, 1))
def _watch(make: Maker, num_steps: int, keys: jax.Array, points: Point, records: Any) -> Any:
    def run(key: jax.Array, point: Point) -> Any:
        svi = make(point, num_steps)

        def step(state: DPSVIState, _: None) -> tuple[DPSVIState, Any]:
            state, info = svi.update_with_info(state, *records)
            return state, (info.norms, info.mask)

        state, (norms, mask) = jax.lax.scan(step, svi.init(key, *records), length=num_steps)
        return svi.get_params(state), norms, mask

    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, points)


@jax.jit
def score(params: Any, test: Any, keys: jax.Array) -> jax.Array:
    """Returns accuracies (%) of fitted parameters, ``(points, repeats)``, by draws of weights."""

    def one(params: Any, key: jax.Array) -> jax.Array:
        x, y = test
        return accuracy_percent_of_draws(params, x, y, key, NUM_DRAWS)

    return jax.vmap(jax.vmap(one), (0, None))(params, keys)
