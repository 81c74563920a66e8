"""Private variational inference run many times over: every noise and clip in one program."""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _AnyNoise(dpjax.SubsampledGaussian):
    """A mechanism whose noise, clip and length are traced numbers, so nobody can check them.

    Guarantees are read off the plain mechanism of the same numbers.
    """

    noise_multiplier: Any
    num_steps: Any

    def __post_init__(self) -> None:
        """Checks nothing."""


def fit(
    make: Callable[[], DPSVI],
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
      make: the inference; of its mechanism only the sampler and the adjacency are used. Calls with
        the same function and shapes share one compiled program.
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


@partial(jax.jit, static_argnums=0)
def _fit(
    make: Callable[[], DPSVI], keys: jax.Array, points: Point, num_steps: jax.Array, records: Any
) -> Any:
    def run(key: jax.Array, point: Point) -> Any:
        svi = at_point(make(), point, num_steps)
        state = svi.init(key, *records)
        state = jax.lax.fori_loop(0, num_steps, lambda _, s: svi.update(s, *records)[0], state)
        return svi.get_params(state)

    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, points)


def at_point(svi: DPSVI, point: Point, num_steps: Any) -> DPSVI:
    """Gives an inference a mechanism of these numbers, which may be traced; returns it."""
    sampling, adjacency = svi.mechanism.sampling, svi.mechanism.adjacency
    svi.mechanism = _AnyNoise(sampling, point.l2_clip, 2 * point.sigma, num_steps, adjacency)
    return svi


def inference(
    model: Any, guide: Any, optimizer: Any, num_examples: int, sampling_rate: float
) -> DPSVI:
    """Returns an inference whose noise, clip and length are yet to be replaced by `fit`."""
    return DPSVI(
        model,
        guide,
        optimizer,
        sampling=dpjax.PoissonSampling(num_examples, sampling_rate),
        num_steps=1,
        l2_clip=1.0,
        noise_multiplier=1.0,
        adjacency="add_remove",
    )
