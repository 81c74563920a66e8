"""Counts and histograms, with intervals of a binomial count with noise."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpjax._checks import as_float64, check, check_positive
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import DiscreteGaussian, Gaussian, Mechanism
from dpjax.sensitivity import of_count, of_histogram
from dpjax.statistics.query import (
    Column,
    Estimate,
    Limits,
    Query,
    Size,
    Table,
    check_column,
    checked_categories,
    read_column,
    read_groups,
)

# Standard deviations that are added to a private number of records, as a bound on it.
_SIZE_DEVIATIONS = 3.0


@dataclass(frozen=True)
class Counts(Query):
    """Numbers of records in disjoint bins.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      column: its name; ``None`` for the number of all records.
      edges: of the bins of numbers, or ``None``.
      categories: values of the column, one for each bin, or ``None``.
      entries: which bins are estimates: labels, or ``None`` for a bin that only helps another.
    """

    label: str
    weight: float
    column: Column | None
    edges: tuple[float, ...] | None
    categories: tuple[Any, ...] | None
    entries: tuple[str, ...]

    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        bins = len(self.entries)
        moves = (
            of_count(1, norm="l2", adjacency=adjacency)
            if bins == 1
            else of_histogram(bins, norm="l2", adjacency=adjacency)
        )
        scale = Gaussian.from_epsilon(moves, epsilon=epsilon, delta=delta, unit=unit).scale
        return (DiscreteGaussian(moves, scale, unit),)

    @property
    def released(self) -> str:
        if self.column is None:
            return "number of records"
        return "one count" if len(self.entries) == 1 else f"{len(self.entries)} bins"

    def _read(self, table: Table) -> npt.NDArray[np.int64]:
        if self.column is None:
            return np.array([len(next(iter(table.values())))])
        if self.categories is not None:
            groups = read_groups(table, self.column, self.categories)
            return np.array([np.count_nonzero(group) for group in groups])

        # A record on an inner edge is in the bin above it, one on the last edge in the last bin.
        numbers = as_float64(read_column(table, self.column), f"column {self.column!r}")
        edges = np.asarray(self.edges)
        with np.errstate(invalid="ignore"):
            inside = (numbers >= edges[0]) & (numbers <= edges[-1])
        bins = np.searchsorted(edges[1:-1], numbers[inside], side="right")
        return np.bincount(bins, minlength=len(self.entries))

    def _release(
        self,
        key: PRNGKey,
        columns: npt.NDArray[np.int64],
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        (mechanism,) = mechanisms
        assert isinstance(mechanism, DiscreteGaussian)
        noisy = np.asarray(mechanism.release(key, columns), np.float64)
        noise_std = mechanism.standard_deviation

        # Where the number of records has noise, a bin may have more than it.
        n = size.num_examples + _SIZE_DEVIATIONS * size.noise_std
        estimates = []
        for entry, number in zip(self.entries, noisy.tolist(), strict=True):
            if self.column is None:
                width = float(ndtri((1 + level) / 2)) * noise_std
                low, high, variance = max(number - width, 0.0), max(number + width, 0.0), 0.0
            else:
                low, high = count_interval(number, n, noise_std, level)
                expected = min(max(number, 0.0), n)
                variance = expected * (1 - expected / n)
            estimates.append(
                Estimate(
                    statistic=self.label,
                    entry=entry,
                    estimate=number,
                    low=low,
                    high=high,
                    noise_std=noise_std,
                    standard_error=math.sqrt(variance + noise_std**2),
                )
            )
        return estimates


def count_interval(number: float, n: float, noise_std: float, level: float) -> Limits:
    """Returns the expected counts T in [0, n] that a test at ``level`` does not reject.

    The released number is taken as normal around T with the variance of a binomial count (Wilson
    1927) and of the noise. A test of T rejects the numbers whose likelihood at T is least in
    comparison with the largest one in [0, n] (Feldman & Cousins 1998), so that intervals near zero
    keep their level and are never empty.

    Args:
      number: released.
      n: number of records.
      noise_std: standard deviation of the noise.
      level: in (0, 1).
    """
    # The nearer bound is zero, or else the numbers are mirrored.
    if number > n / 2:
        low, high = count_interval(n - number, n, noise_std, level)
        return n - high, n - low

    def accepted(expected: float) -> float:
        """Probability of numbers that are more likely, by their ratio, than the released one."""
        std = max(math.sqrt(expected * (1 - expected / n) + noise_std**2), 1e-12)
        # Ratios of numbers above zero fall with the distance; below zero, with T^2 - 2 T x.
        if number >= 0:
            distance = abs(number - expected)
        else:
            distance = math.sqrt(expected**2 - 2 * expected * number)
        below = expected - distance
        if below < 0:
            below = (expected**2 - distance**2) / (2 * max(expected, 1e-12 * std))
        return float(ndtr(distance / std) - ndtr((below - expected) / std))

    # From the likeliest count outwards, to where the test rejects.
    likeliest, ends = max(number, 0.0), []
    for bound in (0.0, n):
        inside = accepted(bound) <= level or bound == likeliest
        ends.append(bound if inside else brentq(lambda t: accepted(t) - level, likeliest, bound))
    return float(ends[0]), float(ends[1])


def count(column: Column | None = None, *, equal_to: Any = None, weight: float = 1.0) -> Query:
    """Returns a query that counts the records, or those with one value in a column.

    The number of all records is a fact of the data: its interval includes noise alone. For records
    with one value the interval is of their expected number in a sample of this size, so it includes
    sampling error. The estimates are unbiased integers and may be below zero.

    Args:
      column: its name, or of an array its index; by default all records are counted, which needs
        the adjacency ``"add_remove"``, as the number is public under the others.
      equal_to: the value, with ``column``.
      weight: as of `mean`.

    Raises:
      ValueError: a column without a value, a value that is not one, or a weight that is not above
        zero.

    >>> count("smoker", equal_to=True).label
    'count of smoker = True'
    """
    check_positive("weight", weight)
    allowed = "given together with column: the value to count"
    check((column is None) == (equal_to is None), "equal_to", equal_to, allowed)
    if column is None:
        return Counts("count", weight, None, None, None, ("",))
    check_column(column)
    check(np.ndim(equal_to) == 0, "equal_to", equal_to, "one value, not an array")
    return Counts(f"count of {column} = {equal_to}", weight, column, None, (equal_to,), ("",))


def histogram(
    column: Column,
    *,
    edges: Sequence[float] | None = None,
    categories: Sequence[Any] | None = None,
    weight: float = 1.0,
) -> Query:
    """Returns a query of the numbers of records in bins, or of each category.

    Intervals are of the expected numbers in a sample of this size, each at its own level. Records
    outside all bins are not counted. The bins and categories are public: chosen without the data.

    Args:
      column: its name, or of an array its index.
      edges: of k bins, k + 1 increasing numbers, k at least two. A record on an edge is in the bin
        above it; one on the last edge in the last bin.
      categories: in place of edges: at least two different values of the column.
      weight: as of `mean`.

    Raises:
      ValueError: not exactly one of edges and categories, or edges that do not increase, or a
        weight that is not above zero.

    >>> histogram("age", edges=[0, 30, 60, 90]).label
    'histogram of age'
    """
    check_column(column)
    check_positive("weight", weight)
    check((edges is None) != (categories is None), "edges", edges, "given, or else categories")
    label = f"histogram of {column}"
    if categories is not None:
        values = checked_categories(categories)
        return Counts(label, weight, column, None, values, tuple(map(str, values)))
    numbers = as_float64(edges, "edges")
    fine = numbers.ndim == 1 and len(numbers) >= 3 and bool(np.all(np.isfinite(numbers)))
    fine = fine and bool(np.all(np.diff(numbers) > 0))
    check(fine, "edges", edges, "at least three increasing finite numbers")
    bounds = tuple(numbers.tolist())
    names = [f"[{low:g}, {high:g})" for low, high in itertools.pairwise(bounds)]
    names[-1] = names[-1][:-1] + "]"
    return Counts(label, weight, column, bounds, None, tuple(names))
