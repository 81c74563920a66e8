"""Linear regression of wines' grades: records scaled by public ranges, runs and their scores."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.adjacency import Adjacency
from dpjax.bayes.regression import (
    RegressionBounds,
    RegressionPosterior,
    RegressionStatistics,
    largest_noise_eigenvalue,
    repair,
    sufficient_statistics,
    unknown_noise_posterior,
)
from dpjax.datasets.base import RegressionDataset
from dpjax.mechanisms import Mechanism

ADJACENCY: Adjacency = "add_remove"
UNIT = "one wine"
LEVEL = 0.9
_TEST_SHARE = 0.18
# For features and targets in half widths of their ranges: vague, and public.
_PRIOR = {"prior_precision": 1.0, "noise_shape": 1.0, "noise_rate": 0.1}


class Records(NamedTuple):
    """All records, with features and targets in half widths of their public ranges.

    Attributes:
      x: ``(n, d)``; the first feature is the constant one.
      y: ``(n,)``.
      half_width: of the target's range, in its own unit.
      bounds: public: the root mean squares of records spread evenly over the ranges.
    """

    x: jax.Array
    y: jax.Array
    half_width: float
    bounds: RegressionBounds


class Splits(NamedTuple):
    """Positions of the records of several runs: ``(num_repeats, n)`` each."""

    train: Any
    test: Any


class Fit(NamedTuple):
    """What one way of fitting does.

    Attributes:
      posteriors: of all runs, stacked.
      mechanism: what was released; ``None`` where nothing was protected.
    """

    posteriors: RegressionPosterior
    mechanism: Mechanism | None


class Scores(NamedTuple):
    """On the test records of each run, ``(num_repeats,)``.

    Attributes:
      error: the mean absolute one, in the target's own unit.
      coverage: the share of targets in their intervals.
    """

    error: np.ndarray
    coverage: np.ndarray


def scaled(data: RegressionDataset) -> Records:
    """Returns training and test records together: the runs split them anew."""
    x = np.concatenate([data.train.x, data.test.x])
    y = np.concatenate([data.train.y, data.test.y])
    low, high = np.array(data.feature_ranges, np.float32).T
    features = (x - (low + high) / 2) / ((high - low) / 2)
    half_width = (data.target_range.high - data.target_range.low) / 2
    targets = (y - sum(data.target_range) / 2) / half_width
    bounds = RegressionBounds(x_norm=math.sqrt(1 + len(low) / 3), y_size=math.sqrt(1 / 3))
    with_constant = np.column_stack([np.ones(len(y)), features])
    return Records(
        jnp.asarray(with_constant, jnp.float32), jnp.asarray(targets), half_width, bounds
    )


def draw_splits(records: Records, num_train: int, num_repeats: int, seed: int) -> Splits:
    """Returns random splits; the test records of a seed are the same for every ``num_train``."""
    n = len(records.y)
    num_test = round(_TEST_SHARE * n)
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (num_repeats, 1)), axis=1)
    kept = orders[:, num_test:]
    return Splits(kept[:, : min(num_train, kept.shape[1])], orders[:, :num_test])


def score(posteriors: RegressionPosterior, records: Records, splits: Splits) -> Scores:
    """Returns the mean absolute error, and the share of targets in their 90 % intervals."""
    x, y = records.x[splits.test], records.y[splits.test]
    predictions = _predict(posteriors, x)
    degrees = np.asarray(predictions.degrees_of_freedom)[:, None]
    low, high = predictions._replace(degrees_of_freedom=degrees).interval(LEVEL)
    errors = jnp.abs(predictions.mean - y).mean(axis=1) * records.half_width
    return Scores(np.asarray(errors), np.asarray(((low <= y) & (y <= high)).mean(axis=1)))


_predict = jax.jit(jax.vmap(RegressionPosterior.predict))


def sums(records: Records, splits: Splits, bounds: RegressionBounds | None) -> RegressionStatistics:
    """Returns the exact statistics of each run's training records, clipped if there are bounds."""
    x, y = (records.x, records.y) if bounds is None else bounds.clip(records.x, records.y)
    return jax.vmap(lambda run: sufficient_statistics(x[run], y[run]))(splits.train)


def run_keys(key: jax.Array, splits: Splits) -> jax.Array:
    """Returns a key for each run."""
    return jax.random.split(key, len(splits.train))


def posteriors(
    statistics: RegressionStatistics, splits: Splits, noise: Any = None
) -> RegressionPosterior:
    """Returns each run's posterior, the number of its records public.

    Args:
      statistics: of the runs, stacked.
      splits: of the runs.
      noise: the standard deviations of the noise on xtx, whose typical largest eigenvalue is the
        smallest that is left; ``None`` for exact statistics.
    """
    floor = None if noise is None else largest_noise_eigenvalue(noise)
    return _posteriors(statistics, splits.train.shape[1], floor)


@jax.jit
def _posteriors(
    statistics: RegressionStatistics, num_examples: Any, floor: Any
) -> RegressionPosterior:
    def posterior(one: RegressionStatistics) -> RegressionPosterior:
        fine = one if floor is None else repair(one, floor)
        return unknown_noise_posterior(fine, num_examples, **_PRIOR)

    return jax.vmap(posterior)(statistics)
