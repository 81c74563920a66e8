"""Ways to fit a regression privately: with a trusted aggregator, and without one."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.bayes.regression import (
    AdaSSP,
    PerturbedStatistics,
    PrivateBounds,
    RegressionBounds,
    RegressionStatistics,
    known_noise_posterior,
    sufficient_statistics,
)
from dpjax.mechanisms import Composition, Gaussian
from dpjax.sensitivity import Sensitivity
from experiments.bayes.wine_runs import (
    ADJACENCY,
    UNIT,
    Fit,
    Records,
    Splits,
    posteriors,
    run_keys,
    sums,
)

# What bounds of the data's own cost, and what they are chosen from.
_SHARE_FOR_BOUNDS = 0.2
_QUANTILE = 0.8
_CANDIDATES = tuple(round(0.4 * 1.25**power, 3) for power in range(10))
_UNIT_BOUNDS = RegressionBounds(x_norm=1.0, y_size=1.0)
_EVEN = RegressionStatistics(1 / 3, 1 / 3, 1 / 3)


def exact(records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float) -> Fit:
    """Nothing is protected, and nothing clipped."""
    return Fit(posteriors(sums(records, splits, None), splits), None)


def gaussian(records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float) -> Fit:
    """Gaussian noise, the budget split by default."""
    return _perturbed(_perturbation(records, epsilon, delta), records, splits, key)


def evenly(records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float) -> Fit:
    """Gaussian noise, a third of mu^2 for each statistic."""
    return _perturbed(_perturbation(records, epsilon, delta, _EVEN), records, splits, key)


def laplace(records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float) -> Fit:
    """Laplace noise: pure differential privacy, delta is not used."""
    return _perturbed(_perturbation(records, epsilon, 0.0), records, splits, key)


def adassp(records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float) -> Fit:
    """AdaSSP, which releases no sum of squared targets: their noise is guessed."""
    d = records.x.shape[1]
    mechanism = AdaSSP.from_epsilon(
        records.bounds, epsilon=epsilon, delta=delta, adjacency=ADJACENCY, num_features=d, unit=UNIT
    )

    def posterior(key: jax.Array, one: RegressionStatistics):  # type: ignore[no-untyped-def]
        ridged = mechanism.release(key, one).ridged
        return known_noise_posterior(ridged, prior_precision=1e-3, noise_precision=1.0)

    exact_sums = sums(records, splits, records.bounds)
    return Fit(jax.vmap(posterior)(run_keys(key, splits), exact_sums), mechanism)


def bought_bounds(
    records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float
) -> Fit:
    """Gaussian noise, with bounds near a quantile for which a fifth of epsilon is paid."""
    paid = _SHARE_FOR_BOUNDS * epsilon
    bounds = PrivateBounds(
        x_norms=_CANDIDATES,
        y_sizes=_CANDIDATES,
        quantile=_QUANTILE,
        epsilon=paid,
        adjacency=ADJACENCY,
        unit=UNIT,
    )
    for_bounds, for_noise = jax.random.split(key)
    chosen = jax.vmap(bounds.release_positions)(
        run_keys(for_bounds, splits), records.x[splits.train], records.y[splits.train]
    )
    pairs, group = np.unique(np.stack(chosen, axis=1), axis=0, return_inverse=True)
    fits = []
    for pair in pairs:
        x_norm, y_size = (_CANDIDATES[position] for position in pair)
        own = RegressionBounds(x_norm=x_norm, y_size=y_size)
        bounded = records._replace(bounds=own)
        mechanism = _perturbation(bounded, epsilon - paid, delta)
        fits.append(_perturbed(mechanism, bounded, splits, for_noise).posteriors)
    runs = np.arange(len(group))
    own_fits = jax.tree.map(lambda *leaves: jnp.stack(leaves)[group, runs], *fits)
    # The event of the last is that of any: noise over the bounds does not depend on them.
    return Fit(own_fits, Composition((bounds, mechanism)))


def own_statistics(
    records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float
) -> Fit:
    """Every holder releases the statistics of its one record; the releases are summed."""
    mechanism = _perturbation(records, epsilon, delta)
    # The sum of n independent Gaussian noises is one that is sqrt(n) as large: drawn at once.
    summed = mechanism.scale_noise(math.sqrt(splits.train.shape[1]))
    return _perturbed(summed, records, splits, key)._replace(mechanism=mechanism)


def own_record(
    records: Records, splits: Splits, key: jax.Array, epsilon: float, delta: float
) -> Fit:
    """Every holder releases its record, x and y with half of mu^2 each; squares are debiased."""
    of_x, of_y = _of_record(records.bounds, epsilon, delta)
    x, y = records.bounds.clip(records.x, records.y)
    summed = _sum_noisy_records(
        of_x.scale, of_y.scale, run_keys(key, splits), x[splits.train], y[splits.train]
    )
    # Noise times noise, and noise times features of mean square x_norm^2 / d on either side.
    n, d = splits.train.shape[1], x.shape[1]
    variance = of_x.scale**4 + 2 * of_x.scale**2 * records.bounds.x_norm**2 / d
    noise = np.full((d, d), np.sqrt(n * variance))
    return Fit(posteriors(summed, splits, noise), Composition((of_x, of_y)))


@jax.jit
def _sum_noisy_records(
    x_scale: jax.Array, y_scale: jax.Array, keys: jax.Array, x: jax.Array, y: jax.Array
) -> RegressionStatistics:
    """Statistics of noisy records ``(num_repeats, n, d)``, less what the noise adds to squares."""
    any_size = Sensitivity(1.0, "l2", ADJACENCY)
    of_x, of_y = Gaussian(any_size, x_scale), Gaussian(any_size, y_scale)  # type: ignore[arg-type]
    n, d = x.shape[1:]

    def one_run(key: jax.Array, x: jax.Array, y: jax.Array) -> RegressionStatistics:
        keys = jax.random.split(key)
        seen = sufficient_statistics(of_x.release(keys[0], x), of_y.release(keys[1], y))
        xtx, yty = seen.xtx - n * x_scale**2 * jnp.eye(d), seen.yty - n * y_scale**2
        return seen._replace(xtx=xtx, yty=yty)

    return jax.vmap(one_run)(keys, x, y)


def _perturbation(
    records: Records, epsilon: float, delta: float, split: RegressionStatistics | None = None
) -> PerturbedStatistics:
    return PerturbedStatistics.from_epsilon(
        records.bounds,
        epsilon=epsilon,
        delta=delta,
        adjacency=ADJACENCY,
        num_features=records.x.shape[1],
        split=split,
        unit=UNIT,
    )


def _perturbed(
    mechanism: PerturbedStatistics, records: Records, splits: Splits, key: jax.Array
) -> Fit:
    exact_sums = sums(records, splits, mechanism.bounds)
    # One compilation for every scale and bound, of which the release needs the scales alone.
    unscaled = replace(mechanism, bounds=_UNIT_BOUNDS, scales=RegressionStatistics(1.0, 1.0, 1.0))
    released = _release_all(unscaled, mechanism.scales, run_keys(key, splits), exact_sums)
    return Fit(posteriors(released, splits, mechanism.noise_scales.xtx), mechanism)


@functools.partial(jax.jit, static_argnums=0)
def _release_all(
    unscaled: PerturbedStatistics,
    scales: RegressionStatistics,
    keys: jax.Array,
    exact_sums: RegressionStatistics,
) -> RegressionStatistics:
    return jax.vmap(replace(unscaled, scales=scales).release)(keys, exact_sums)


def _of_record(bounds: RegressionBounds, epsilon: float, delta: float) -> tuple[Gaussian, Gaussian]:
    """The mechanisms of one record's x and y: with it or without, as an absent holder's noise."""
    half = Gaussian.from_epsilon(
        Sensitivity(1.0, "l2", ADJACENCY), epsilon=epsilon, delta=delta
    ).mu / math.sqrt(2)
    of_x, of_y = (
        Gaussian(Sensitivity(size, "l2", ADJACENCY), size / half, UNIT)
        for size in (bounds.x_norm, bounds.y_size)
    )
    return of_x, of_y


FITS: Mapping[str, Callable[[Records, Splits, jax.Array, float, float], Fit]] = {
    "not private": exact,
    "trusted, Gaussian": gaussian,
    "trusted, Gaussian, split evenly": evenly,
    "trusted, Gaussian, bounds bought": bought_bounds,
    "trusted, AdaSSP": adassp,
    "trusted, Laplace": laplace,
    "naive, every holder's statistics": own_statistics,
    "naive, every holder's record": own_record,
}
