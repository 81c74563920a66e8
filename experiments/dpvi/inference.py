"""Repeated DP-SVI runs at many noise levels in one compiled program, and their epsilon.

Jälkö, Dikmen and Honkela (2017) write their noise as N(0, 4 c² σ² I): σ is over 2c, the L2
sensitivity to *replacing* a record. dpjax's noise multiplier is over c: 2σ.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax._typing import ArrayTree, PRNGKey, PyTree
from dpjax.accounting import epsilon
from dpjax.accounting import log_moments as moments
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.gradient_trace import GradientTrace

REPLACE, ADD = "replace one", "add/remove"
_NO_CLIP = 1e6
_SLACK = 4e-5


class Point(NamedTuple):
    """Noise, clip bound and, where runs differ in it, learning rate of a run."""

    # the source's σ, noise over twice the clip bound; zero for a run without privacy, which does
    # not clip either
    sigma: Any
    l2_clip: Any  # bound on the gradient of one record's log-likelihood
    learning_rate: Any = 0.0


# From point and num_steps to DPSVI; the point's numbers may be traced.
MakeInference = Callable[[Point, int], DPSVI]


class Fits(NamedTuple):
    """Fitted parameters, gradient norms and traces of the runs."""

    params: ArrayTree  # leaves with leading axes (points, repeats)
    # unclipped norms of the drawn records, (points, repeats, steps, slots), or None
    norms: jax.Array | None
    mask: jax.Array | None  # which slots hold a drawn record, bool of the same shape
    trace: GradientTrace | None  # of each run, leaves with leading axes (points, repeats)


def make_inference(
    model: Callable[..., None],
    guide: Callable[..., None],
    optimizer: optax.GradientTransformation,
    num_examples: int,
    sampling_rate: float,
    point: Point,
    num_steps: int,
) -> DPSVI:
    """Returns DP-SVI on Poisson batches; `make_mechanism` returns its mechanism."""
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(num_examples, sampling_rate),
        num_steps=num_steps,
        l2_clip=point.l2_clip,
        noise_multiplier=2 * point.sigma,
        adjacency="zero_out",
    )
    return DPSVI(model, guide, optimizer, mechanism=mechanism)


def fit(
    key: PRNGKey,
    make: MakeInference,
    points: list[Point],
    records: tuple[PyTree, ...],
    *,
    num_steps: int,
    repeats: int,
    with_norms: bool = False,
) -> Fits:
    """Fits the parameters ``repeats`` times at each point.

    Repeats differ in initial values, batches and noise; the points of a repeat share batches and
    standard noise. Calls with the same ``make``, steps and shapes share one compiled program.
    """
    keys = jax.random.split(key, repeats)
    return _fit(make, num_steps, with_norms, keys, stack_points(points), records)


def stack_points(points: list[Point]) -> Point:
    """Stacks the fields of points; without noise the clip bound is too large to clip."""
    sigmas = jnp.array([point.sigma for point in points], jnp.float32)
    bounds = jnp.array([p.l2_clip if p.sigma > 0 else _NO_CLIP for p in points], jnp.float32)
    return Point(sigmas, bounds, jnp.array([point.learning_rate for point in points], jnp.float32))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fit(
    make: MakeInference, num_steps: int, with_norms: bool, keys: Any, points: Point, records: PyTree
) -> Fits:
    def run(key: jax.Array, point: Point) -> Fits:
        svi = make(point, num_steps)

        def step(state: PyTree, _: None) -> PyTree:
            state, info = svi.update_with_info(state, *records)
            return state, ((info.norms, info.mask) if with_norms else (None, None))

        state, (norms, mask) = jax.lax.scan(step, svi.init(key, *records), length=num_steps)
        return Fits(svi.get_params(state), norms, mask, state.trace)

    # Each point has the keys of all repeats: points may share noise, since only one is released.
    keys = jnp.broadcast_to(keys, (len(points.sigma), *keys.shape))
    return jax.vmap(jax.vmap(run, (0, None)))(keys, points)


class Epsilons(NamedTuple):
    """ε of a run, by column name."""

    claimed: dict[str, float]  # by advanced composition and by the moments accountant
    # upper bounds by the privacy loss distribution, under both adjacencies
    certified: dict[str, float]


def make_mechanism(
    sigma: float, l2_clip: float, sampling_rate: float, num_steps: int, num_examples: int
) -> dpjax.SubsampledGaussian:
    """Returns the mechanism of a run with noise ``2 sigma l2_clip``, under add/remove."""
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    return dpjax.SubsampledGaussian(
        sampling,
        l2_clip=l2_clip,
        noise_multiplier=2 * sigma,
        num_steps=num_steps,
        adjacency="add_remove",
    )


def compute_epsilons(mechanism: dpjax.SubsampledGaussian, delta: float) -> Epsilons:
    """Returns ε under both adjacencies, by the source's accountants and certified.

    The source's replace-one estimates are at ``delta / 2``, as in its code: twice the ε of
    advanced composition, and the moments accountant with σ as the noise multiplier. The add/remove
    estimates are at ``delta``.

    >>> one = compute_epsilons(make_mechanism(1.2214, 0.25, 0.05, 1_000, 3_341), 1e-3)
    >>> [round(value, 2) for value in one.claimed.values()]
    [252.43, 7.59, 112.61, 2.8]
    >>> [round(value, 2) for value in one.certified.values()]
    [4.32, 1.97]
    """
    sampling, steps = mechanism.sampling, mechanism.num_steps
    rate = sampling.expected_batch_size / sampling.num_examples
    noise: Any = mechanism.noise_multiplier
    claimed = {
        f"AC ε, {REPLACE}": 2 * advanced_composition(noise, rate, steps, delta / 2),
        f"MA ε, {REPLACE}": float(moments.compute_epsilon(noise / 2, rate, steps, delta / 2)),
        f"AC ε, {ADD}": advanced_composition(noise, rate, steps, delta),
        f"MA ε, {ADD}": float(moments.compute_epsilon(noise, rate, steps, delta)),
    }
    certified = {
        f"ε, {REPLACE}": epsilon(mechanism.event, delta, adjacency="replace_one"),
        f"ε, {ADD}": epsilon(mechanism.event, delta, adjacency="add_remove"),
    }
    return Epsilons(claimed, certified)


def advanced_composition(
    noise_multiplier: float, sampling_rate: float, num_steps: int, delta: float
) -> float:
    """Returns ε by advanced composition of subsampled Gaussian steps, with a slack of 4e-5.

    The ε of one step is that of the classical Gaussian mechanism, proven only below 1, amplified
    by subsampling.

    Source: the code of Jälkö, Dikmen and Honkela (2017).

    >>> round(advanced_composition(2.0, 0.005, 2_000, 1e-3), 2)
    10.8
    """
    step_delta = (delta - _SLACK) / (num_steps * sampling_rate)
    unsampled = math.sqrt(2 * math.log(1.25 / step_delta)) / noise_multiplier
    step = math.log1p(sampling_rate * math.expm1(unsampled))
    first = math.sqrt(2 * num_steps * math.log(1.25 / _SLACK)) * step
    return first + num_steps * step * math.expm1(step)
