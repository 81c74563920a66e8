"""Private variational inference run many times over: every noise and clip in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import dpjax
from dpjax.bayes.variational import DPSVI

_NO_CLIP = 1e6


class Point(NamedTuple):
    """One way to be private.

    Attributes:
      sigma: noise over twice the clip, as the source counts; zero for runs without privacy, which
        do not clip either.
      l2_clip: bound on the gradient of one record's log-likelihood.
    """

    sigma: Any
    l2_clip: Any


# Makes the inference of one point, whose numbers may be traced, for so many steps.
Maker = Callable[[Point, int], DPSVI]


def fit(
    make: Maker,
    points: list[Point],
    records: tuple[Any, ...],
    *,
    num_steps: int,
    repeats: int,
    seed: int,
) -> Any:
    """Returns the fitted parameters, with ``(points, repeats)`` in front of every leaf.

    Repeats differ in starts, batches and noise. The same repeat of two points draws the same
    batches, and the same noise up to its size: drawing a batch may cost more than all the rest.

    Args:
      make: the inference of a point. Calls with the same function, steps and shapes share one
        compiled program.
      points: noise and clip of the runs.
      records: the model's arguments.
      num_steps: of each run.
      repeats: how many runs of each point.
      seed: of them all.
    """
    keys = jax.random.split(jax.random.key(seed), repeats)
    return _fit(make, keys, stacked(points), num_steps, records)


def stacked(points: list[Point]) -> Point:
    """Returns the points as one, of arrays."""
    sigmas = jnp.array([point.sigma for point in points], jnp.float32)
    bounds = jnp.array([p.l2_clip if p.sigma > 0 else _NO_CLIP for p in points], jnp.float32)
    return Point(sigmas, bounds)


@partial(jax.jit, static_argnums=(0, 3))
def _fit(make: Maker, keys: jax.Array, points: Point, num_steps: int, records: Any) -> Any:
    def run(key: jax.Array, point: Point) -> Any:
        svi = make(point, num_steps)
        state = svi.init(key, *records)
        state = jax.lax.fori_loop(0, num_steps, lambda _, s: svi.update(s, *records)[0], state)
        return svi.get_params(state)

    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, points)


def inference(
    model: Any,
    guide: Any,
    optimizer: Any,
    num_examples: int,
    sampling_rate: float,
    point: Point,
    num_steps: int,
) -> DPSVI:
    """Returns the inference of a point: the mechanism that `accounts.mechanism` accounts for."""
    return DPSVI(
        model,
        guide,
        optimizer,
        sampling=dpjax.PoissonSampling(num_examples, sampling_rate),
        num_steps=num_steps,
        l2_clip=point.l2_clip,
        noise_multiplier=2 * point.sigma,
        adjacency="zero_out",
    )
