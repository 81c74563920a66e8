"""Simulated gradients of Figures 1, 3 and 4 of Triastcyn and Faltings (2020), and their accounts.

Gradients have 1,000 Weibull coordinates of shape 1/2, with 50 gradients in a step. As published:
one order, distance 2C for the moments accountant, and all pair distances of a batch for BDP. In
addition: the best of many orders, and BDP accounts from gradient norms.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax.accounting import log_moments as moments
from dpjax.bdp import subsampled_gaussian_log_moments
from experiments.bdp.costs import (
    ORDERS,
    Array,
    epsilons,
    epsilons_by_step,
    log_moments,
    step_costs,
)

SHAPE, DIMENSION, BATCH = 0.5, 1_000, 50
DELTA, RATE = 1e-5, 1e-3
LONG_SIZE, LONG_RATE, LONG_STEPS = 60_000, 64 / 60_000, 10_000
_SOURCE_FAILURE = 1e-16
_REFERENCE_STEPS, _REFERENCE_SEED = 200, 2**31


class Distances(NamedTuple):
    """Norms and pair distances of the gradients of one or several steps."""

    norms: Array  # gradient norms, (..., 50)
    pairs: Array  # distances of all pairs, (..., 1225)


def inner_products(num_steps: int, seed: int) -> Array:
    """Returns the inner products of the gradients of each step, ``(num_steps, 50, 50)``.

    >>> inner_products(2, seed=0).shape
    (2, 50, 50)
    """
    generator = np.random.default_rng(seed)
    gradients = generator.weibull(SHAPE, (num_steps, BATCH, DIMENSION))
    return np.asarray(gradients @ gradients.swapaxes(-1, -2))


def distances(products: Array, l2_clip: npt.ArrayLike = np.inf) -> Distances:
    """Returns norms and pair distances of clipped gradients from their inner products.

    >>> clipped = distances(np.array([[9.0, 0.0], [0.0, 16.0]]), l2_clip=1.0)
    >>> clipped.norms, clipped.pairs
    (array([1., 1.]), array([1.4142]))
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    factors = np.minimum(1.0, np.asarray(l2_clip)[..., None] / np.sqrt(squares))
    clipped = factors[..., :, None] * products * factors[..., None, :]
    squares = np.diagonal(clipped, axis1=-2, axis2=-1)
    first, second = np.triu_indices(squares.shape[-1], 1)
    apart = squares[..., first] + squares[..., second] - 2 * clipped[..., first, second]
    return Distances(np.sqrt(squares), np.sqrt(np.maximum(apart, 0.0)))


def norm_quantile(level: float) -> float:
    """Returns a quantile of the norms, estimated from 10,000 separate samples."""
    return float(np.quantile(_reference_norms(), level))


@functools.cache
def _reference_norms() -> Array:
    seeds = range(_REFERENCE_SEED, _REFERENCE_SEED + 4)
    drawn = [distances(inner_products(_REFERENCE_STEPS // 4, seed)).norms for seed in seeds]
    return np.concatenate(drawn).ravel()


def published_costs(
    products: Array, level: float, order: int, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at one order by the source's estimate, ``(steps, 1)``.

    C is a quantile of each step's own norms; all pair distances are treated as independent, in the
    formula for adding a record. It is not an upper bound for replacing one.
    """
    clip = np.quantile(distances(products).norms, level, axis=-1)
    pairs = distances(products, clip if is_clipped else np.inf).pairs
    std = noise * 2 * clip[:, None]
    found = subsampled_gaussian_log_moments((order,), pairs, sampling_rate=RATE, noise_std=std)
    return step_costs(found, planned, _SOURCE_FAILURE)


def norm_costs(
    products: Array, level: float, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at all orders from gradient norms, ``(steps, orders)``.

    C is a quantile of the distribution of norms, so that the noise does not depend on the batch.
    """
    clip = norm_quantile(level)
    settings: dict[str, Any] = {"sampling_rate": RATE, "noise_std": noise * 2 * clip}
    norms = distances(products, clip if is_clipped else np.inf).norms
    worst = log_moments(np.array(clip), **settings) if is_clipped else None
    return step_costs(log_moments(norms, **settings), planned, worst=worst)


def _moments_curves(noise: Any, steps: Any, order: int) -> dict[str, Any]:
    """Returns ε by the moments accountant, at the source's order and at the best one."""
    best = [each + 1 for each in ORDERS]
    return {
        "MA, published": moments.compute_epsilon(noise, RATE, steps, DELTA, (order + 1,)),
        "MA": moments.compute_epsilon(noise, RATE, steps, DELTA, best),
    }


def steps_curves(level: float, num_steps: int, order: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns ε after every step (Figure 1), with BDP ε for each seed."""
    setting: dict[str, Any] = {"noise": 1.0, "planned": num_steps}
    curves = _moments_curves(1.0, np.arange(1, num_steps + 1), order)
    curves |= {"pairs, published": [], "norms": [], "norms, clipped": []}
    for seed in seeds:
        products = inner_products(num_steps, seed)
        published = published_costs(products, level, order, is_clipped=False, **setting)
        curves["pairs, published"].append(
            epsilons_by_step(published, DELTA, _SOURCE_FAILURE, (order,))
        )
        for name, is_clipped in (("norms", False), ("norms, clipped", True)):
            costs = norm_costs(products, level, is_clipped=is_clipped, **setting)
            curves[name].append(epsilons_by_step(costs, DELTA))
    return curves


def noise_curves(
    level: float, noises: Array, order: int, seeds: Sequence[int], is_clipped: bool
) -> dict[str, Any]:
    """Returns ε of one step at each noise over 2C (Figures 3 and 4), by the same accounts."""
    curves = _moments_curves(noises, 1, order) | {"pairs, published": [], "norms": []}
    setting: dict[str, Any] = {"planned": 1, "is_clipped": is_clipped}
    for seed in seeds:
        products = inner_products(1, seed)
        published = [published_costs(products, level, order, noise=s, **setting) for s in noises]
        norms = [norm_costs(products, level, noise=s, **setting) for s in noises]
        curves["pairs, published"].append(
            epsilons(np.concatenate(published), DELTA, _SOURCE_FAILURE, (order,))
        )
        curves["norms"].append(epsilons(np.concatenate(norms), DELTA, 1e-15))
    return curves


def order_curves(distance: float, orders: range) -> tuple[Array, Array]:
    """Returns ε at each order (Figure 5) by the BDP and the moments accountant, for equal norms."""
    settings = {"sampling_rate": LONG_RATE, "noise_std": 1.0}
    drawn = subsampled_gaussian_log_moments(orders, np.full(BATCH, distance), **settings)
    costs = LONG_STEPS * step_costs(drawn, LONG_STEPS)
    bayesian = [float(epsilons(costs[i : i + 1], DELTA, 0.0, (o,))) for i, o in enumerate(orders)]
    known = [
        moments.compute_epsilon(1 / distance, LONG_RATE, LONG_STEPS, DELTA, (o + 1,))
        for o in orders
    ]
    return np.array(bayesian), np.array(known)
