"""The published experiment of Heikkilä et al. (2017) on distributed data, with its noise as it is.

Differences from a private release, all of which the rows show or state: records are centred by
their mean and scaled by their range, which are not released privately; the noise scale is the
classical sqrt(2 ln(1.25 / delta)) / epsilon also above epsilon = 1, where it has no proof; and the
sensitivity of the squares, from which the clipping bounds are estimated, is taken as
7.5 sqrt(d + 1), while records in [-7.5, 7.5] have 7.5^2 sqrt(d + 1).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax.mechanisms import Composition, Gaussian
from dpjax.sensitivity import Sensitivity
from experiments.bayes.wine_fits import Splits

Array = npt.NDArray[np.float64]

# Share of epsilon and delta for the squares, the range that records are scaled to, and the range
# that they are clipped to for the squares.
_SHARE, _HALF_RANGE, _ASSUMED = 0.3, 5.0, 7.5
# In place of a standard deviation whose estimated square is negative.
_LEAST_DEVIATION = math.sqrt(0.5)
# The clipping bound over the standard deviation: candidates, and the synthetic data sets and noise
# draws by which one is chosen (20 of each in the source).
_FACTORS = np.arange(1, 21) / 10
_NUM_SYNTHETIC, _NUM_NOISE = 4, 10


class PublishedData(NamedTuple):
    """Centred and scaled records."""

    values: Array  # (n, d + 1), with the target last
    grade: float  # one grade in the target's units


def scale_as_published(x: npt.ArrayLike, y: npt.ArrayLike) -> PublishedData:
    """Returns all records, centred by their mean and scaled to a range of length ten."""
    values = np.column_stack([x, y]).astype(np.float64)
    ranges = np.ptp(values, axis=0)
    scaled = (values - values.mean(axis=0)) / ranges * 2 * _HALF_RANGE
    return PublishedData(scaled, 2 * _HALF_RANGE / float(ranges[-1]))


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """Returns sqrt(2 ln(1.25 / delta)) / epsilon, proven for epsilon up to 1 only.

    >>> round(classical_noise_multiplier(1.0, 1e-4), 2)
    4.34
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def mechanisms(claimed: float, delta: float) -> tuple[Composition, Composition]:
    """Returns the two releases with an upper and with a lower bound on their sensitivities.

    The noise is relative to sensitivities of one. That of the squares is 7.5, for a record at the
    ends of the range instead of one at zero. The source's bound on that of the products has a
    factor of two off the diagonal, so it is at most twice what the same replacement attains.
    """
    shares = (1 - _SHARE, _SHARE)
    scales = [classical_noise_multiplier(part * claimed, part * delta) for part in shares]

    def composed(*sizes: float) -> Composition:
        parts = zip(sizes, scales, strict=True)
        return Composition(
            tuple(
                Gaussian(Sensitivity(size, "l2", "replace_one"), scale, "one wine")
                for size, scale in parts
            )
        )

    return composed(1.0, _ASSUMED), composed(0.5, _ASSUMED)


def choose_clipping_factors(
    num_examples: int, num_features: int, *, epsilon: float, delta: float, seed: int
) -> tuple[float, float]:
    """Returns the clipping bounds of features and target over their standard deviations.

    As published they have the least mean absolute error on synthetic data, under noise of the
    fourth power of the sensitivity in place of the sensitivity.
    """
    rng, d = np.random.default_rng(seed), num_features
    multiplier = classical_noise_multiplier(epsilon, delta)
    errors = np.zeros((len(_FACTORS), len(_FACTORS)))
    for _ in range(_NUM_SYNTHETIC):
        x = rng.standard_normal((num_examples, d))
        x -= x.mean(axis=0)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = x @ rng.standard_normal(d) + rng.standard_normal(num_examples)
        y -= y.mean()
        noise = multiplier * rng.standard_normal((_NUM_NOISE, d, d + 1))
        of_xx, of_xy = _symmetric(noise[..., :d]), noise[..., d:]
        for i, c_x in enumerate(_FACTORS * x.std(ddof=1)):
            for j, c_y in enumerate(_FACTORS * y.std(ddof=1)):
                squared = d * c_x**4 + 2 * d * (d - 1) * c_x**4 + d * (2 * c_x * c_y) ** 2
                clipped = np.clip(x, -c_x, c_x)
                xx = clipped.T @ clipped + squared**2 * of_xx
                xy = clipped.T @ np.clip(y, -c_y, c_y)[:, None] + squared**2 * of_xy
                mean = np.linalg.solve(xx + np.eye(d), xy)[..., 0]
                errors[i, j] += np.abs(mean @ x.T - y).mean()
    best = np.unravel_index(int(errors.argmin()), errors.shape)
    return float(_FACTORS[best[0]]), float(_FACTORS[best[1]])


def published_errors(
    data: PublishedData,
    splits: Splits,
    *,
    claimed: float,
    delta: float,
    every_record_perturbed: bool,
    seed: int,
) -> Array:
    """Returns the mean absolute error of each run, in grades: one wine at each holder.

    Args:
      data: all records.
      splits: of the runs.
      claimed: the epsilon that the source states.
      delta: of the same guarantee.
      every_record_perturbed: whether each holder adds the whole noise to its statistics (input
        perturbation), and not 1 / (n - 1) of its variance.
      seed: of noise and synthetic data.
    """
    n, d = splits.train.shape[1], data.values.shape[1] - 1
    factors = choose_clipping_factors(n, d, epsilon=claimed, delta=delta, seed=seed)
    of_statistics, of_squares = (
        classical_noise_multiplier(part * claimed, part * delta) for part in (1 - _SHARE, _SHARE)
    )
    copies = n if every_record_perturbed else n / (n - 1)
    rng, errors = np.random.default_rng([seed, every_record_perturbed]), []
    for train, test in zip(splits.train, splits.test, strict=True):
        records = data.values[train]
        squares = (np.clip(records, -_ASSUMED, _ASSUMED) ** 2).sum(axis=0)
        scale = of_squares * _ASSUMED * math.sqrt(d + 1) * math.sqrt(n / (n - 1))
        variances = (squares + scale * rng.standard_normal(d + 1)) / n
        deviations = np.where(variances > 0, np.sqrt(np.abs(variances)), _LEAST_DEVIATION)
        bounds = np.minimum(np.repeat(factors, (d, 1)) * deviations, _ASSUMED)
        clipped = np.clip(records, -bounds, bounds)
        scale = of_statistics * _sensitivity(bounds) * math.sqrt(copies)
        noise = scale * rng.standard_normal((d, d + 1))
        xx = _with_positive_eigenvalues(
            clipped[:, :d].T @ clipped[:, :d] + _symmetric(noise[:, :d])
        )
        xy = clipped[:, :d].T @ clipped[:, d] + noise[:, d]
        mean = np.linalg.solve(xx + np.eye(d), xy)
        tested = data.values[test]
        errors.append(np.abs(tested[:, d] - tested[:, :d] @ mean).mean() / data.grade)
    return np.array(errors)


def _sensitivity(bounds: Array) -> float:
    """The source's bound on the L2 sensitivity of the products, with the target last."""
    products = 2 * np.outer(bounds, bounds)
    products[np.diag_indices_from(products)] /= 2
    return float(np.linalg.norm(np.triu(products)[:-1]))


def _symmetric(noise: Any) -> Any:
    """The lower triangle, mirrored."""
    lower = np.tril(noise)
    return lower + np.swapaxes(np.tril(noise, -1), -1, -2)


def _with_positive_eigenvalues(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.abs(values)) @ vectors.T)
