"""Regressions over wines that several holders keep, by the protocol of `dpjax.federated`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax.bayes.regression import RegressionStatistics
from dpjax.federated import Entropy, FederatedSum, Parties, run_round
from dpjax.mechanisms import ClippedSum
from experiments.bayes.wine_fits import (
    Fit,
    Task,
    exact_statistics,
    perturbation,
    posteriors,
    release_statistics,
)

Array = npt.NDArray[np.float64]


class DistributedFit(NamedTuple):
    """A fit by the protocol, and the noise in its statistics."""

    fit: Fit
    noise_ratio: float  # root mean square over the trusted aggregator's standard deviations


def holder_sums(task: Task, num_holders: int) -> list[list[Array]]:
    """Returns the statistics of each holder in each run; a run's records are dealt out evenly."""
    mechanism = perturbation(task)
    x, y = np.asarray(task.records.x), np.asarray(task.records.y)
    return [
        [mechanism.sum_records(x[own], y[own]) for own in np.array_split(run, num_holders)]
        for run in task.splits.train
    ]


def distributed(
    task: Task, parties: Parties, sums: Sequence[Sequence[Array]], entropy: Entropy
) -> DistributedFit:
    """Runs one round of the protocol for each run, with every message as bytes, and fits.

    Args:
      task: records, splits and budget.
      parties: of the protocol.
      sums: from `holder_sums`.
      entropy: of masks and noise.
    """
    trusted = perturbation(task)
    plan = FederatedSum(trusted, parties)
    results = [run_round(plan, own, entropy=entropy) for own in sums]
    used = results[0].mechanism
    released = [np.stack(part) for part in zip(*(one.released for one in results), strict=True)]
    statistics = RegressionStatistics(*map(jnp.asarray, released))
    exact = exact_statistics(task, trusted.bounds)
    rows, columns = np.triu_indices(trusted.num_features)
    ratios = [
        ((np.asarray(noisy, float) - np.asarray(true, float)) / scale).reshape(len(sums), -1)
        for noisy, true, scale in (
            (
                statistics.xtx[:, rows, columns],
                exact.xtx[:, rows, columns],
                trusted.noise_scales.xtx[rows, columns],
            ),
            (statistics.xty, exact.xty, trusted.noise_scales.xty),
            (statistics.yty, exact.yty, trusted.noise_scales.yty),
        )
    ]
    fitted = posteriors(statistics, task.splits, used.noise_scales.xtx)
    rms = math.sqrt(float(np.mean(np.concatenate(ratios, axis=1) ** 2)))
    return DistributedFit(Fit(fitted, plan), rms)


def trusted_with_noise(task: Task, factor: float) -> Fit:
    """Fits by a trusted aggregator whose noise has ``factor`` times its standard deviation."""
    return release_statistics(perturbation(task).with_privacy_factor(factor), task)


def noise_penalty(parties: Parties) -> float:
    """Returns the standard deviation of the sum's noise over a trusted aggregator's: sqrt(N / H).

    >>> round(noise_penalty(Parties(num_holders=10, num_nodes=3, num_colluders=1)), 2)
    1.12
    """
    return math.sqrt(parties.num_holders / parties.num_noise_shares)


def measured_penalty(parties: Parties, num_entries: int, entropy: Entropy) -> float:
    """Returns the noise of a sum of zeros over the trusted aggregator's, root mean square."""
    trusted = ClippedSum(
        (-np.ones(num_entries), np.ones(num_entries)), scale=1.0, adjacency="add_remove"
    )
    plan = FederatedSum(trusted, parties)
    zeros = [np.zeros(num_entries)] * parties.num_holders
    noise = run_round(plan, zeros, entropy=entropy).released
    return math.sqrt(float(np.mean(np.square(noise)))) / trusted.scale
