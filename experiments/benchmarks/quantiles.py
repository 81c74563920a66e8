"""Rank errors of private quantiles: ``python -m experiments.benchmarks.quantiles``.

The mechanisms of dpjax, OpenDP's ``make_private_quantile``, diffprivlib's ``tools.quantile`` and a
binary search over noisy counts, at equal epsilon for ``"replace_one"`` neighbours, from the same
grid of candidates. All of epsilon is for one value: `dpjax.statistics.quantile` uses half of it for
the ends of an interval. Libraries that are not installed are left out.
"""

import argparse
import importlib.metadata
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax.statistics.quantiles import rank_distances, round_rank
from experiments.benchmarks.methods import import_error

Array = npt.NDArray[np.float64]


class Task(NamedTuple):
    """A quantile to be released.

    Attributes:
      values: of the records, sorted.
      grid: of candidates, sorted; its ends are the bounds.
      probability: of the quantile.
      epsilon: of one release.
    """

    values: Array
    grid: Array
    probability: float
    epsilon: float


class Method(NamedTuple):
    """A private quantile.

    Attributes:
      library: that it needs.
      release: from a task, a generator and a number of releases to released values.
      num_releases: of each data set.
    """

    library: str
    release: Callable[[Task, np.random.Generator, int], Array]
    num_releases: int


# Populations: how they are drawn, bounds, and the number of candidates.
POPULATIONS: dict[str, tuple[Callable[[np.random.Generator, int], Array], float, int]] = {
    "normal(50, 10) in [0, 100]": (lambda rng, n: rng.normal(50, 10, n), 100.0, 10_001),
    "the same in whole numbers": (lambda rng, n: rng.normal(50, 10, n).round(), 100.0, 101),
    "lognormal(10.3, 0.6) in [0, 200,000]": (
        lambda rng, n: rng.lognormal(10.3, 0.6, n),
        2e5,
        10_001,
    ),
    "the same in [0, 10,000,000]": (lambda rng, n: rng.lognormal(10.3, 0.6, n), 1e7, 10_001),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the mean absolute rank error of each method and setting as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000])
    arguments = parser.parse_args(argv)

    methods = {name: each for name, each in METHODS.items() if not import_error(each.library)}
    libraries = [name for name in ("dpjax", "opendp", "diffprivlib") if not import_error(name)]
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries))
    print(f"| population | quantile | epsilon | records | {' | '.join(methods)} |")
    print("|---" * (4 + len(methods)) + "|")
    settings = itertools.product(POPULATIONS, (0.5, 0.9), (0.1, 1.0), arguments.sizes)
    for population, probability, epsilon, num_examples in settings:
        errors = [
            rank_error(each, population, probability, epsilon, num_examples, arguments.datasets)
            for each in methods.values()
        ]
        cells = [population, f"{probability:g}", f"{epsilon:g}", f"{num_examples:,}"]
        print(f"| {' | '.join([*cells, *(f'{error:.3g}' for error in errors)])} |", flush=True)


def rank_error(
    method: Method,
    population: str,
    probability: float,
    epsilon: float,
    num_examples: int,
    num_datasets: int,
) -> float:
    """Returns the mean distance in ranks of released values from the quantile, over data sets."""
    draw, high, num_candidates = POPULATIONS[population]
    grid = np.linspace(0.0, high, num_candidates)
    probability = round_rank(probability)
    # The data sets are the same for all methods.
    records, noise = np.random.default_rng(num_examples).spawn(2)
    errors = []
    for _ in range(num_datasets):
        values = np.sort(np.clip(draw(records, num_examples), 0.0, high))
        task = Task(values, grid, probability, epsilon)
        released = method.release(task, noise, method.num_releases)
        errors += rank_distances(values, np.sort(released), probability, 0.0).tolist()
    return float(np.mean(errors))


def permute_and_flip(task: Task, rng: np.random.Generator, num_releases: int) -> Array:
    """`dpjax.PermuteAndFlip` by its noise, with numpy's generator in place of the exact sampler."""
    noise = rng.exponential(2 / task.epsilon, (num_releases, len(task.grid)))
    return select_largest(task, noise)


def exponential(task: Task, rng: np.random.Generator, num_releases: int) -> Array:
    """`dpjax.ExponentialMechanism` by its noise, with numpy's generator."""
    noise = rng.gumbel(0, 2 / task.epsilon, (num_releases, len(task.grid)))
    return select_largest(task, noise)


def select_largest(task: Task, noise: Array) -> Array:
    """Returns the candidates of the largest noisy utilities, ``(num_releases,)``."""
    utilities = -rank_distances(task.values, task.grid, task.probability, 0.0)
    return task.grid[(utilities + noise).argmax(axis=1)]


def binary_search(task: Task, rng: np.random.Generator, num_releases: int) -> Array:
    """Halves the grid by a count with Laplace noise, each of an equal share of epsilon."""
    rounds = math.ceil(math.log2(len(task.grid)))
    low, high = np.zeros(num_releases, int), np.full(num_releases, len(task.grid) - 1)
    for _ in range(rounds):
        middle = (low + high) // 2
        counts = np.searchsorted(task.values, task.grid[middle], side="right")
        noisy = counts + rng.laplace(0, rounds / task.epsilon, num_releases)
        is_below = noisy < task.probability * len(task.values)
        low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
        low = np.minimum(low, high)
    return task.grid[low]


def opendp_quantile(task: Task, rng: np.random.Generator, num_releases: int) -> Array:
    """OpenDP with a known number of records: a replacement has distance two."""
    import opendp.prelude as dp

    del rng
    dp.enable_features("contrib")
    bounds = (float(task.grid[0]), float(task.grid[-1]))
    domain = dp.vector_domain(dp.atom_domain(bounds=bounds, nan=False), size=len(task.values))
    measurement = dp.m.make_private_quantile(
        domain,
        dp.symmetric_distance(),
        dp.max_divergence(),
        task.grid.tolist(),
        float(task.probability),
        2 / task.epsilon,
    )
    assert abs(measurement.map(2) / task.epsilon - 1) < 1e-6
    return np.array([measurement(task.values.tolist()) for _ in range(num_releases)])


def diffprivlib_quantile(task: Task, rng: np.random.Generator, num_releases: int) -> Array:
    """diffprivlib, which selects from the intervals between records by their lengths."""
    from diffprivlib.tools import quantile

    bounds = (float(task.grid[0]), float(task.grid[-1]))
    seeds = rng.integers(2**31, size=num_releases).tolist()
    return np.array(
        [
            quantile(
                task.values,
                task.probability,
                epsilon=task.epsilon,
                bounds=bounds,
                random_state=seed,
            )
            for seed in seeds
        ]
    )


METHODS = {
    "permute-and-flip": Method("dpjax", permute_and_flip, 100),
    "exponential mechanism": Method("dpjax", exponential, 100),
    "noisy binary search": Method("dpjax", binary_search, 100),
    "OpenDP": Method("opendp", opendp_quantile, 5),
    "diffprivlib": Method("diffprivlib", diffprivlib_quantile, 5),
}


if __name__ == "__main__":
    main()
