"""Private variational inference, with the norms that its steps clip: one program for all rows."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace

import dpjax
from dpjax.bayes.variational import DPSVI, DPSVIState
from dpjax.datasets import Dataset
from dpjax.sampling.base import gather
from experiments.dpvi.logistic_model import accuracy_percent_of_draws, guide
from experiments.dpvi.logistic_runs import maker
from experiments.dpvi.sweep import Point, at_point, stacked

NUM_DRAWS = 100
_NO_CLIP = 1e6


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
def _watch(
    make: Callable[[], DPSVI], num_steps: int, keys: jax.Array, points: Point, records: Any
) -> Any:
    def run(key: jax.Array, point: Point) -> Any:
        svi = at_point(make(), point, num_steps)

        def step(state: DPSVIState, _: None) -> tuple[DPSVIState, Any]:
            return svi.update(state, *records)[0], norms_of_step(svi, state, records)

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


def norms_of_step(svi: DPSVI, state: DPSVIState, records: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the norms that the next update will clip, and which of them were drawn.

    They are computed once more here: the inference does not hand them out. Batch and weights are
    the very ones that it draws; of a draw that needs two physical batches, the first.
    """
    sampling = svi.mechanism.sampling
    batch = sampling.batch(sampling.draw(state.sampler)[0], 0)
    guide_key = jax.random.split(jax.random.split(state.rng_key)[1])[1]
    params = svi.optim.get_params(state.optim_state)
    loss = partial(_record_loss, guide_key)
    norms = dpjax.clipped_grad(loss, _NO_CLIP)(params, gather(records, batch.indices), batch.mask)
    return norms[1].norms, batch.mask


def _record_loss(guide_key: jax.Array, params: Any, record: Any) -> jax.Array:
    """Minus the log-likelihood of one record, at the weights that the guide draws by this key."""
    x, y = record
    weights = draw_weights(guide_key, params, len(x))
    return -jax.nn.log_sigmoid((2 * y - 1) * (x @ weights))


def draw_weights(guide_key: jax.Array, params: Any, num_features: int) -> jax.Array:
    """Returns the guide's draw, given unconstrained parameters (logarithms of the scales)."""
    values = {"mean": params["mean"], "scale": jnp.exp(params["scale"])}
    shown = seed(substitute(guide, data=values), guide_key)
    weights: jax.Array = trace(shown).get_trace(jnp.zeros((1, num_features)))["weights"]["value"]
    return weights
