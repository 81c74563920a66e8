"""Private linear regression of wines' grades: records, random splits, methods and their scores."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import PyTree
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression import (
    AdaSSP,
    PerturbedStatistics,
    PrivateBounds,
    RegressionBounds,
    RegressionPosterior,
    RegressionStatistics,
    known_noise_posterior,
    largest_noise_eigenvalue,
    repair,
    sufficient_statistics,
    unknown_noise_posterior,
)
from dpjax.mechanisms import Composition, Gaussian, Mechanism
from dpjax.sensitivity import Sensitivity
from experiments.data import RegressionDataset

ADJACENCY: Adjacency = "add_remove"
_UNIT, _LEVEL, _TEST_SHARE = "one wine", 0.9, 0.18
# Weak public prior, for features and targets in half widths of their ranges.
_PRIOR = {"prior_precision": 1.0, "noise_shape": 1.0, "noise_rate": 0.1}
# Share of epsilon for private bounds, their quantile and candidates.
_SHARE_FOR_BOUNDS, _QUANTILE = 0.2, 0.8
_CANDIDATES = tuple(round(0.4 * 1.25**power, 3) for power in range(10))
_UNIT_BOUNDS = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
_EVEN = RegressionStatistics(1 / 3, 1 / 3, 1 / 3)


class Records(NamedTuple):
    """All records, with features and targets in half widths of their public ranges."""

    x: jax.Array  # (n, d), with the constant first
    y: jax.Array  # (n,)
    half_width: float  # of the target's range
    # public clipping bounds
    bounds: RegressionBounds


class Splits(NamedTuple):
    """Indices of the training and test records of each run, ``(num_repeats, n)``."""

    train: Any
    test: PyTree


class Fit(NamedTuple):
    """Stacked posteriors of all runs, and the mechanism, None without privacy."""

    posteriors: RegressionPosterior
    mechanism: Mechanism | None


class Scores(NamedTuple):
    """Scores on the test records of each run, ``(num_repeats,)``."""

    error: np.ndarray  # mean absolute error, in units of the target
    coverage: np.ndarray  # of 90 % prediction intervals


class Task(NamedTuple):
    """Records, splits, noise key and budget of one fit."""

    records: Records  # with clipping bounds
    splits: Splits  # of the runs
    key: jax.Array  # of the noise
    epsilon: float  # of one run
    delta: float  # of one run; zero for Laplace noise

    def run_keys(self) -> jax.Array:
        """Returns a key for each run."""
        return jax.random.split(self.key, len(self.splits.train))


def scale_records(data: RegressionDataset) -> Records:
    """Returns all records, scaled by their public ranges."""
    x = np.concatenate([data.train.x, data.test.x])
    y = np.concatenate([data.train.y, data.test.y])
    low, high = np.array(data.feature_ranges, np.float32).T
    features = (x - (low + high) / 2) / ((high - low) / 2)
    half_width = (data.target_range.high - data.target_range.low) / 2
    targets = (y - sum(data.target_range) / 2) / half_width
    bounds = RegressionBounds(x_norm_bound=math.sqrt(1 + len(low) / 3), y_bound=math.sqrt(1 / 3))
    with_constant = np.column_stack([np.ones(len(y)), features])
    return Records(
        jnp.asarray(with_constant, jnp.float32), jnp.asarray(targets), half_width, bounds
    )


def draw_splits(records: Records, num_train: int, num_repeats: int, seed: int) -> Splits:
    """Draws random splits; the test records do not depend on ``num_train``."""
    n = len(records.y)
    num_test = round(_TEST_SHARE * n)
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (num_repeats, 1)), axis=1)
    kept = orders[:, num_test:]
    return Splits(kept[:, : min(num_train, kept.shape[1])], orders[:, :num_test])


def score(posteriors: RegressionPosterior, records: Records, splits: Splits) -> Scores:
    """Returns mean absolute error and interval coverage on each run's test records."""
    x, y = records.x[splits.test], records.y[splits.test]
    predictions = _predict(posteriors, x)
    degrees = np.asarray(predictions.degrees_of_freedom)[:, None]
    low, high = predictions._replace(degrees_of_freedom=degrees).interval(_LEVEL)
    errors = jnp.abs(predictions.mean - y).mean(axis=1) * records.half_width
    return Scores(np.asarray(errors), np.asarray(((low <= y) & (y <= high)).mean(axis=1)))


_predict = jax.jit(jax.vmap(RegressionPosterior.predict))


def exact_statistics(task: Task, bounds: RegressionBounds | None) -> RegressionStatistics:
    """Returns the statistics of each run's training records, clipped to the bounds if any."""
    x, y = task.records.x, task.records.y
    x, y = (x, y) if bounds is None else bounds.clip(x, y)
    return jax.vmap(lambda run: sufficient_statistics(x[run], y[run]))(task.splits.train)


def posteriors(
    statistics: RegressionStatistics, splits: Splits, noise: jax.Array | np.ndarray | None = None
) -> RegressionPosterior:
    """Returns each run's posterior, with a public number of records.

    ``noise`` has the standard deviations of the noise on xtx, for its repair; None if exact.
    """
    floor = None if noise is None else largest_noise_eigenvalue(noise)
    return _posteriors(statistics, splits.train.shape[1], floor)


@jax.jit
def _posteriors(
    statistics: RegressionStatistics, num_examples: int, floor: jax.Array | None
) -> RegressionPosterior:
    def posterior(one: RegressionStatistics) -> RegressionPosterior:
        fine = one if floor is None else repair(one, floor)
        return unknown_noise_posterior(fine, num_examples, **_PRIOR)

    return jax.vmap(posterior)(statistics)


def non_private(task: Task) -> Fit:
    """Fits without noise and clipping."""
    return Fit(posteriors(exact_statistics(task, None), task.splits), None)


def perturbed_statistics(task: Task, split: RegressionStatistics | None = None) -> Fit:
    """Fits by perturbed statistics, with the default budget split if ``split`` is None."""
    return release_statistics(perturbation(task, split), task)


def adassp(task: Task) -> Fit:
    """Fits by AdaSSP with an assumed noise variance, since it releases no squared targets."""
    bounds, d = task.records.bounds, task.records.x.shape[1]
    mechanism = AdaSSP.from_epsilon(
        bounds,
        epsilon=task.epsilon,
        delta=task.delta,
        adjacency=ADJACENCY,
        num_features=d,
        unit=_UNIT,
    )

    def posterior(key: jax.Array, one: RegressionStatistics):  # type: ignore[no-untyped-def]
        ridged = mechanism.release(key, one).ridged
        return known_noise_posterior(ridged, prior_precision=1e-3, noise_precision=1.0)

    return Fit(jax.vmap(posterior)(task.run_keys(), exact_statistics(task, bounds)), mechanism)


def private_bounds(task: Task) -> Fit:
    """Fits by perturbed statistics with private bounds, for a fifth of epsilon."""
    records, train = task.records, task.splits.train
    paid = _SHARE_FOR_BOUNDS * task.epsilon
    bounds = PrivateBounds(
        x_norm_bounds=_CANDIDATES,
        y_bounds=_CANDIDATES,
        quantile=_QUANTILE,
        epsilon=paid,
        adjacency=ADJACENCY,
        unit=_UNIT,
    )
    for_bounds, for_noise = jax.random.split(task.key)
    chosen = jax.vmap(bounds.release_positions)(
        task._replace(key=for_bounds).run_keys(), records.x[train], records.y[train]
    )
    pairs, group = np.unique(np.stack(chosen, axis=1), axis=0, return_inverse=True)
    fits = []
    for pair in pairs:
        x_norm_bound, y_bound = (_CANDIDATES[position] for position in pair)
        bounded = records._replace(
            bounds=RegressionBounds(x_norm_bound=x_norm_bound, y_bound=y_bound)
        )
        rest = task._replace(records=bounded, key=for_noise, epsilon=task.epsilon - paid)
        mechanism = perturbation(rest)
        fits.append(release_statistics(mechanism, rest).posteriors)
    runs = np.arange(len(group))
    own_fits = jax.tree.map(lambda *leaves: jnp.stack(leaves)[group, runs], *fits)
    # The event does not depend on the chosen bounds.
    return Fit(own_fits, Composition((bounds, mechanism)))


def local_statistics(task: Task, num_holders: int | None = None) -> Fit:
    """Fits in the local model: every holder releases its statistics, by default of one record."""
    mechanism = perturbation(task)
    # The sum of independent noises, drawn as one Gaussian.
    summed = mechanism.with_privacy_factor(math.sqrt(num_holders or task.splits.train.shape[1]))
    return release_statistics(summed, task)._replace(mechanism=mechanism)


def local_records(task: Task) -> Fit:
    """Fits in the local model: every holder releases x and y, with half of mu^2 each."""
    bounds, train = task.records.bounds, task.splits.train
    any_size = Sensitivity(1.0, "l2", ADJACENCY)
    half = Gaussian.from_epsilon(any_size, epsilon=task.epsilon, delta=task.delta).mu / math.sqrt(2)
    # Under add/remove an absent holder sends noise.
    of_x, of_y = (
        Gaussian(Sensitivity(size, "l2", ADJACENCY), size / half, _UNIT)
        for size in (bounds.x_norm_bound, bounds.y_bound)
    )
    x, y = bounds.clip(task.records.x, task.records.y)
    summed = _sum_noisy_records(of_x.scale, of_y.scale, task.run_keys(), x[train], y[train])
    # Variance of noise times noise plus noise times features of mean square x_norm_bound^2 / d.
    n, d = train.shape[1], x.shape[1]
    variance = of_x.scale**4 + 2 * of_x.scale**2 * bounds.x_norm_bound**2 / d
    noise = np.full((d, d), np.sqrt(n * variance))
    return Fit(posteriors(summed, task.splits, noise), Composition((of_x, of_y)))


@jax.jit
def _sum_noisy_records(
    x_scale: jax.Array, y_scale: jax.Array, keys: jax.Array, x: jax.Array, y: jax.Array
) -> RegressionStatistics:
    """Returns debiased statistics of noisy records ``(num_repeats, n, d)``."""
    n, d = x.shape[1:]
    # Each record is a statistic of its own holder; the noise of all of them is drawn at once.
    of_x, of_y = (
        Gaussian(Sensitivity(1.0, "l2", ADJACENCY, shape=shape), scale)  # type: ignore[arg-type]
        for shape, scale in (((n, d), x_scale), ((n,), y_scale))
    )

    def one_run(key: jax.Array, x: jax.Array, y: jax.Array) -> RegressionStatistics:
        keys = jax.random.split(key)
        seen = sufficient_statistics(of_x.release(keys[0], x), of_y.release(keys[1], y))
        xtx, yty = seen.xtx - n * x_scale**2 * jnp.eye(d), seen.yty - n * y_scale**2
        return seen._replace(xtx=xtx, yty=yty)

    return jax.vmap(one_run)(keys, x, y)


def perturbation(task: Task, split: RegressionStatistics | None = None) -> PerturbedStatistics:
    """Returns the Gaussian or Laplace mechanism that spends the task's budget on one run."""
    bounds, d = task.records.bounds, task.records.x.shape[1]
    return PerturbedStatistics.from_epsilon(
        bounds,
        epsilon=task.epsilon,
        delta=task.delta,
        adjacency=ADJACENCY,
        num_features=d,
        split=split,
        unit=_UNIT,
    )


def release_statistics(mechanism: PerturbedStatistics, task: Task) -> Fit:
    """Releases the statistics of each run, and fits."""
    exact = exact_statistics(task, mechanism.bounds)
    # Compiled once for all scales and bounds; the release depends only on the scales.
    unscaled = replace(mechanism, bounds=_UNIT_BOUNDS, scales=RegressionStatistics(1.0, 1.0, 1.0))
    released = _release_all(unscaled, mechanism.scales, task.run_keys(), exact)
    return Fit(posteriors(released, task.splits, mechanism.noise_scales.xtx), mechanism)


@functools.partial(jax.jit, static_argnums=0)
def _release_all(
    unscaled: PerturbedStatistics,
    scales: RegressionStatistics,
    keys: jax.Array,
    exact: RegressionStatistics,
) -> RegressionStatistics:
    return jax.vmap(replace(unscaled, scales=scales).release)(keys, exact)


METHODS: Mapping[str, Callable[[Task], Fit]] = {
    "not private": non_private,
    "trusted, Gaussian": perturbed_statistics,
    "trusted, Gaussian, split evenly": functools.partial(perturbed_statistics, split=_EVEN),
    "trusted, Gaussian, bounds bought": private_bounds,
    "trusted, AdaSSP": adassp,
    "trusted, Laplace": lambda task: perturbed_statistics(task._replace(delta=0.0)),
    "naive, every holder's statistics": local_statistics,
    "naive, every holder's record": local_records,
}
