"""What each account says of the runs of Figures 1, 3, 4 and 5 of Triastcyn and Faltings (2020).

As the source computes them: one fixed order, the distance 2C for the moments accountant, and the
distances of all pairs of a batch for the Bayesian one, in the formula for adding a record. And as
they should be: the best of many orders, the norms of the gradients, tight certificates.
"""

import functools
from typing import Any

import numpy as np

import dpjax
from dpjax.accounting import moments_accountant as moments
from dpjax.adjacency import Adjacency
from dpjax.bdp import subsampled_gaussian_log_moments
from experiments.bdp.costs import (
    ORDERS,
    Array,
    epsilons,
    epsilons_by_step,
    log_moments,
    step_costs,
)
from experiments.bdp.figures_gradients import BATCH, distances, inner_products, norm_quantile

DELTA, RATE = 1e-5, 1e-3
_SOURCE_FAILURE = 1e-16
_LONG_RATE, _LONG_STEPS = 64 / 60_000, 10_000


def published_costs(
    products: Array, level: float, order: int, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at one order, as the source estimates it: ``(steps, 1)``.

    C is the quantile of each step's own norms, the distances are those of all pairs of the batch,
    taken as independent, and their formula is the one for adding a record: for replacing one it is
    no upper bound.

    Args:
      products: inner products of the gradients, ``(steps, 50, 50)``.
      level: of the quantile.
      order: lambda.
      noise: the standard deviation over 2C.
      planned: the T of Theorem 1.
      is_clipped: whether gradients are, at C.
    """
    clip = np.quantile(distances(products).norms, level, axis=-1)
    pairs = distances(products, clip if is_clipped else np.inf).pairs
    std = noise * 2 * clip[:, None]
    found = subsampled_gaussian_log_moments((order,), pairs, sampling_rate=RATE, noise_std=std)
    return step_costs(found, planned, _SOURCE_FAILURE)


def norm_costs(
    products: Array, level: float, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at all orders from the gradients' norms, ``(steps, orders)``.

    C is the quantile of the norms' distribution: noise that depends on the batch would tell of it.
    Clipped gradients cost no more than one of norm C.
    """
    clip = norm_quantile(level)
    settings: dict[str, Any] = {"sampling_rate": RATE, "noise_std": noise * 2 * clip}
    norms = distances(products, clip if is_clipped else np.inf).norms
    worst = log_moments(np.array(clip), **settings) if is_clipped else None
    return step_costs(log_moments(norms, **settings), planned, worst=worst)


def steps_curves(level: float, num_steps: int, order: int, seeds: range) -> dict[str, Any]:
    """Returns epsilon after every step (Figure 1), the Bayesian ones for each seed.

    Args:
      level: C is this quantile of the norms.
      num_steps: T.
      order: the source's lambda.
      seeds: of the gradients.
    """
    setting: dict[str, Any] = {"noise": 1.0, "planned": num_steps}
    steps = np.arange(1, num_steps + 1)
    curves: dict[str, Any] = {
        "MA, published": moments.compute_epsilon(1.0, RATE, steps, DELTA, (order + 1,)),
        "MA": moments.compute_epsilon(1.0, RATE, steps, DELTA, [each + 1 for each in ORDERS]),
        "pairs, published": [],
        "norms": [],
        "norms, clipped": [],
    }
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
    level: float, noises: Array, order: int, seeds: range, is_clipped: bool
) -> dict[str, Any]:
    """Returns epsilon of one step at each noise over 2C (Figures 3 and 4), by the same accounts."""
    curves: dict[str, Any] = {
        "MA, published": moments.compute_epsilon(noises, RATE, 1, DELTA, (order + 1,)),
        "MA": moments.compute_epsilon(noises, RATE, 1, DELTA, [each + 1 for each in ORDERS]),
        "pairs, published": [],
        "norms": [],
    }
    for seed in seeds:
        products = inner_products(1, seed)
        setting: dict[str, Any] = {"planned": 1, "is_clipped": is_clipped}
        published = [published_costs(products, level, order, noise=s, **setting) for s in noises]
        norms = [norm_costs(products, level, noise=s, **setting) for s in noises]
        curves["pairs, published"].append(
            epsilons(np.concatenate(published), DELTA, _SOURCE_FAILURE, (order,))
        )
        curves["norms"].append(epsilons(np.concatenate(norms), DELTA, 1e-15))
    return curves


def order_curves(distance: float, orders: range) -> tuple[Array, Array]:
    """Returns epsilon at each order (Figure 5), by the Bayesian accountant and by the moments'.

    Ten thousand steps with noise of standard deviation one, every gradient's norm the same.
    """
    settings = {"sampling_rate": _LONG_RATE, "noise_std": 1.0}
    drawn = subsampled_gaussian_log_moments(orders, np.full(BATCH, distance), **settings)
    costs = _LONG_STEPS * step_costs(drawn, _LONG_STEPS)
    bayesian = [float(epsilons(costs[i : i + 1], DELTA, 0.0, (o,))) for i, o in enumerate(orders)]
    known = [
        moments.compute_epsilon(1 / distance, _LONG_RATE, _LONG_STEPS, DELTA, (o + 1,))
        for o in orders
    ]
    return np.array(bayesian), np.array(known)


@functools.cache
def certified_epsilon(noise_multiplier: float, num_steps: int, adjacency: Adjacency) -> float:
    """Returns the tight DP epsilon of steps whose gradients are clipped.

    Args:
      noise_multiplier: the noise over C, so twice the source's over 2C.
      num_steps: one at least.
      adjacency: whether a record is added or removed, or replaced.
    """
    sampling = dpjax.PoissonSampling(round(BATCH / RATE), RATE)
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency=adjacency,
    )
    return mechanism.certificate(DELTA).epsilon


def certified_long_epsilon(distance: float) -> float:
    """Returns the tight DP epsilon of the ten thousand steps of Figure 5, under add/remove."""
    sampling = dpjax.PoissonSampling(60_000, _LONG_RATE)
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=1 / distance,
        num_steps=_LONG_STEPS,
        adjacency="add_remove",
    )
    return mechanism.certificate(DELTA).epsilon
