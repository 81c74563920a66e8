"""Populations of z = exp(Tλ D) whose mean is known, and how often estimators miss it.

Theorem 4's estimator exceeds the mean with probability 1 - gamma where z is normal. Elsewhere it
promises nothing, and the counts here say what it does.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtri

from dpjax.bdp import estimators
from experiments.bayes.attack_rates import clopper_pearson
from experiments.bdp.costs import Array, log_moments

ORDERS = tuple(range(1, 33))
SIZES = (16, 64, 256, 1_024, 4_096)
# Numbers of records of which there are about as many pairs.
RECORDS = (6, 12, 23, 46, 91)
# Of the population of clipped norms: lengths over C, and the run that z is of.
MEDIAN_NORM, LOG_SPREAD = 0.15, 0.6
RUN: Mapping[str, float] = {"sampling_rate": 0.01, "noise_std": 1.0}
NUM_STEPS, _ORDER = 1_000, 8
_RARE, _LARGE = 1e-3, 1e6
_COORDINATES, _PAIR_SCALE = 8, 0.02
_CHUNK = 2**20
_LAST_LEVEL, _GRID = 40.0, 2**14


class Population(NamedTuple):
    """A distribution of z.

    Attributes:
      draw: from a generator and a shape ``(trials, draws)`` to log z.
      log_mean: the log of its mean, exactly.
      log_bound: of the largest z, infinite where there is none.
    """

    draw: Callable[[np.random.Generator, tuple[int, int]], Array]
    log_mean: float
    log_bound: float = math.inf


def log_normal_norms(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Draws norms over C, most of them small: one in 1,275 is clipped.

    >>> log_normal_norms(np.random.default_rng(0), (2, 3)).shape
    (2, 3)
    """
    return MEDIAN_NORM * generator.lognormal(0.0, LOG_SPREAD, shape)


def run_log_moments(norms: Array) -> Array:
    """Log moments of one step of the run at all orders, orders last, of norms over C."""
    return log_moments(norms, **RUN, orders=ORDERS)


def clipped_mean(norm_at: Callable[[Array], Array], last_level: float = _LAST_LEVEL) -> Array:
    """Returns log E exp(Tλ D) at all orders of norms clipped at C = 1, whose law is known.

    Args:
      norm_at: gives the norm that a share exp(-t) of the population exceeds, for levels t.
      last_level: up to which the levels go; beyond it, norms count as the norm there.

    >>> bool(np.all(clipped_mean(lambda levels: np.ones_like(levels)) > 0))
    True
    """
    ends = np.linspace(0.0, last_level, _GRID + 1)
    log_shares = np.log(-np.diff(np.exp(-ends), append=0.0))
    levels = np.append((ends[1:] + ends[:-1]) / 2, last_level)
    moments = run_log_moments(np.minimum(norm_at(levels), 1.0))
    return np.asarray(logsumexp(NUM_STEPS * moments + log_shares[:, None], axis=0))


def log_normal_norm_at(levels: Array) -> Array:
    """The norm that a share exp(-level) of `log_normal_norms` exceeds."""
    return MEDIAN_NORM * np.exp(-LOG_SPREAD * ndtri(np.exp(-levels)))


def _normal(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.log(generator.normal(10.0, 1.0, shape))


def _log_normal(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return generator.normal(0.0, 2.0, shape)


def _rare(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.where(generator.random(shape) < _RARE, math.log(_LARGE), 0.0)


def _pareto(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return generator.exponential(1 / 1.5, shape)


def _clipped(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    norms = np.minimum(log_normal_norms(generator, shape), 1.0)
    grid = np.linspace(0.0, 1.0, 2_001)
    return np.interp(norms, grid, NUM_STEPS * run_log_moments(grid)[:, ORDERS.index(_ORDER)])


def _pairs(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """All pairs of as many records as have at most that many: not independent."""
    num_records = math.isqrt(2 * shape[1]) + 1
    records = generator.normal(size=(shape[0], num_records, _COORDINATES))
    squares = np.square(records).sum(axis=-1)
    first, second = np.triu_indices(num_records, 1)
    products = np.matmul(records, records.swapaxes(-1, -2))[:, first, second]
    return _PAIR_SCALE * (squares[:, first] + squares[:, second] - 2 * products)


def _independent_pairs(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    return 2 * _PAIR_SCALE * generator.chisquare(_COORDINATES, shape)


@functools.cache
def populations() -> dict[str, Population]:
    """Returns the populations by name; the first alone is inside Theorem 4's assumption."""
    worst = NUM_STEPS * float(run_log_moments(np.ones(1))[0, ORDERS.index(_ORDER)])
    clipped = float(clipped_mean(log_normal_norm_at)[ORDERS.index(_ORDER)])
    # Of exp(a |x - x'|^2), where |x - x'|^2 / 2 has a chi-squared distribution.
    of_pairs = -_COORDINATES / 2 * math.log1p(-4 * _PAIR_SCALE)
    return {
        "normal": Population(_normal, math.log(10.0)),
        "log-normal": Population(_log_normal, 2.0),
        "Pareto": Population(_pareto, math.log(3.0)),
        "one in 1,000": Population(_rare, math.log1p(_RARE * (_LARGE - 1)), math.log(_LARGE)),
        "clipped norms": Population(_clipped, clipped, worst),
        "independent pairs": Population(_independent_pairs, of_pairs),
        "all pairs": Population(_pairs, of_pairs),
    }


def num_too_small(
    population: Population, trials: int, num_draws: int, gammas: Sequence[float], seed: int
) -> dict[str, list[int]]:
    """Counts trials whose estimate is below the mean, for each gamma.

    Returns:
      By estimator; the one that needs a bound only where there is one.
    """
    generator = np.random.default_rng((seed, num_draws))
    bounded = math.isfinite(population.log_bound)
    counts = {name: [0] * len(gammas) for name in ("student", *(["bernstein"] * bounded))}
    per_chunk = max(1, _CHUNK // num_draws)
    for start in range(0, trials, per_chunk):
        shape = (min(per_chunk, trials - start), num_draws)
        values = population.draw(generator, shape)[..., None]
        for place, gamma in enumerate(gammas):
            found = {"student": estimators.student_upper_bound(values, gamma)}
            if bounded:
                bound = population.log_bound
                found["bernstein"] = estimators.empirical_bernstein_upper_bound(
                    values, gamma, bound
                )
            for name, estimate in found.items():
                counts[name][place] += int((estimate < population.log_mean).sum())
    return counts


def share_bounds(counts: npt.ArrayLike, trials: int, error: float = 0.005) -> Any:
    """Returns lower and upper bounds on each share, each wrong with probability ``error``.

    >>> share_bounds([0, 5], 100).shape
    (2, 2)
    """
    return np.array([clopper_pearson(count, trials, error) for count in np.ravel(counts)]).T
