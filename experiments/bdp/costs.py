"""BDP ε from samples of log moments, by step, and certified DP ε.

`dpjax.bdp` accounts for whole runs; curves over steps, noise or orders need the costs of each step.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import dpjax
from dpjax.adjacency import Adjacency
from dpjax.bdp import estimators, subsampled_gaussian_log_moments

Array = npt.NDArray[np.float64]

ORDERS = tuple(range(1, 65))
FAILURE = 1e-15
_GRID = 4_097


def log_moments(
    distances: Array,
    *,
    sampling_rate: float,
    noise_std: float,
    orders: tuple[int, ...] = ORDERS,
) -> Array:
    """Returns interpolated ``subsampled_gaussian_log_moments``, with the orders on a last axis.

    A log moment is convex in the squared distance, so linear interpolation on a grid is an upper
    bound.

    >>> float(log_moments(np.ones(1), sampling_rate=1.0, noise_std=1.0)[0, 0].round(6))
    1.0
    """
    squares = np.square(distances / noise_std)
    grid, table = _table(orders, sampling_rate, int(np.ceil(np.log2(squares.max(initial=1e-3)))))
    return np.stack([np.interp(squares, grid, column) for column in table.T], axis=-1)


@functools.cache
def _table(orders: tuple[int, ...], sampling_rate: float, power: int) -> tuple[Array, Array]:
    """Returns log moments on a grid of squared distances in noise units, up to ``2**power``."""
    roots = np.linspace(0.0, 2.0 ** (power / 2), _GRID)
    rates = {"sampling_rate": sampling_rate, "noise_std": 1.0}
    return np.square(roots), subsampled_gaussian_log_moments(orders, roots, **rates)


def step_costs(
    log_moments: Array,
    planned: int,
    failure_probability: float = FAILURE,
    worst: Array | None = None,
) -> Array:
    """Returns the cost of each step by Theorem 1, with Student's upper bound of Theorem 4.

    Args:
      log_moments: of each sample at each order, ``(..., samples, orders)``.
      planned: number of steps T of Theorem 1.
      failure_probability: gamma of each estimate.
      worst: log moments of the worst-case record, an upper bound on the costs, if finite.

    >>> step_costs(np.full((50, 1), 0.25), planned=100)
    array([0.25])
    """
    costs = estimators.student_upper_bound(planned * log_moments, failure_probability) / planned
    return costs if worst is None else np.minimum(costs, worst)


def epsilons(
    costs: Array, delta: float, failure: float = 0.0, orders: Sequence[int] = ORDERS
) -> Array:
    """Returns the smallest epsilon over the orders (Corollary 1).

    Args:
      costs: total of all steps, ``(..., orders)``.
      delta: of the guarantee.
      failure: failure probability of the estimates, part of delta.
      orders: lambda.

    >>> float(epsilons(np.array([1.0, 4.0]), delta=np.exp(-3.0), orders=(1, 2)))
    3.5
    """
    return np.asarray(np.min((costs - np.log(delta - failure)) / np.asarray(orders), axis=-1))


def epsilons_by_step(
    costs: Array,
    delta: float,
    failure_probability: float = FAILURE,
    orders: Sequence[int] = ORDERS,
) -> Array:
    """Returns epsilon after each of the steps whose costs are ``(..., steps, orders)``."""
    num_done = np.arange(1, costs.shape[-2] + 1)
    left = np.log(delta - num_done * failure_probability)
    totals = np.cumsum(costs, axis=-2) - left[:, None]
    return np.asarray(np.min(totals / np.asarray(orders), axis=-1))


@functools.cache
def certified_epsilon(
    num_examples: int,
    sampling_rate: float,
    noise_multiplier: float,
    num_steps: int,
    adjacency: Adjacency,
    delta: float,
) -> float:
    """Returns the certified DP epsilon of the subsampled Gaussian mechanism."""
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency=adjacency,
    )
    return mechanism.certificate(delta).epsilon
