"""Statistics of tables: counts, moments, histograms and quantiles, with intervals.

A query states a statistic of columns with public bounds. A plan divides one budget over queries,
and its release returns for each an estimate and an interval that includes sampling error and noise.

**Moments.** A column clipped to (low, high) is mapped to y in [-1, 1]. Means, variances and
covariances are functions of average monomials of y, released together with Gaussian noise. The
variance of an estimate is that of the noise, known, plus that of sampling, by the delta method:
with gradient g the average of (sum of g_a y^a)^2 is a combination of monomials of twice the order,
which are released too.

**Quantiles.** The exponential mechanism selects from a public grid a value whose rank is near the
quantile's, and two more, whose ranks are lower and higher by a margin that covers the sampling
error of the quantile's rank and the rank noise of the selection.
"""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from dpjax._checks import (
    as_float64,
    as_key,
    check,
    check_count,
    check_delta,
    check_positive,
    check_text,
    check_type,
    check_unmasked,
)
from dpjax._html import HTMLTable
from dpjax._typing import PRNGKey
from dpjax.accounting import calibrate
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.guarantee import Guarantee, render_guarantee
from dpjax.keys import is_seeded
from dpjax.mechanisms import (
    Composition,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
)
from dpjax.mechanisms.base import format_sensitivity
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity, of_count, of_histogram, sum_in_blocks

if TYPE_CHECKING:
    import pandas as pd

    from dpjax.certificates.certificate import Certificate

__all__ = [
    "Estimate",
    "Query",
    "StatisticsPlan",
    "StatisticsRelease",
    "count",
    "covariance",
    "histogram",
    "mean",
    "plan",
    "quantile",
    "release",
    "variance",
]

Array = npt.NDArray[np.float64]
Column = str | int
Limits = tuple[float, float]
Records = Any  # a pandas DataFrame or Series, a mapping of columns, or an array
Exponents = tuple[int, ...]
_Table = dict[Any, npt.NDArray[Any]]

# Of the squared sensitivity, what monomials that serve the intervals alone may add.
_AUXILIARY_SHARE = 0.25
# Of a quantile's budget, what its three selections get: estimate, lower end, upper end.
_QUANTILE_SHARES = (0.5, 0.25, 0.25)
# Scales of rank noise beyond a rank that make the grid's parts without records unlikely: of an end
# of the interval, and of the estimate by which a sparse end is limited.
_END_SCALES, _ESTIMATE_SCALES = 8.0, 6.0
# Probabilities and shifts of ranks are multiples of this, so that ranks of up to 2^29 records are
# computed without rounding, and the sensitivity of a utility is exact.
_RANK_UNIT = 2.0**-24
# The weight of the number of records, where it is private and no query asks for it.
_SIZE_WEIGHT = 0.25


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One released number and its interval.

    Attributes:
      statistic: the query, such as ``"mean of age"``.
      entry: of a query with several numbers which one it is, such as a bin; else empty.
      estimate: the released number, in the units of the statistic.
      low: lower end of the interval.
      high: upper end of the interval.
      noise_std: standard deviation of the privacy noise in the estimate, in its units; of a
        quantile an estimate of it.
      standard_error: of sampling error and noise together, an estimate.
    """

    statistic: str
    entry: str
    estimate: float
    low: float
    high: float
    noise_std: float
    standard_error: float


@dataclass(frozen=True)
class _Size:
    """The number of records as the estimates use it.

    Attributes:
      num_examples: public or released with noise; at least one.
      noise_std: of the noise on it; zero where it is public.
    """

    num_examples: float
    noise_std: float


class Query(abc.ABC):
    """Base class of statistics that a plan releases; `mean` and other functions return one.

    Attributes:
      label: what it is of, such as ``"mean of age"``.
      weight: its share of the budget, relative to the other queries' weights.
    """

    label: str
    weight: float

    @abc.abstractmethod
    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        """Returns mechanisms that together are (epsilon, delta)-private: the query's shares."""

    @property
    @abc.abstractmethod
    def released(self) -> str:
        """What its mechanisms release, and from which bounds, as text for certificates."""

    @abc.abstractmethod
    def _read(self, table: _Table) -> npt.NDArray[Any]:
        """Returns the columns that the query uses, clipped; raises an error for other types."""

    @abc.abstractmethod
    def _release(
        self,
        key: PRNGKey,
        columns: npt.NDArray[Any],
        mechanisms: Sequence[Mechanism],
        size: _Size,
        level: float,
    ) -> list[Estimate]:
        """Returns the estimates, of columns as `_read` returns them."""


def _as_table(records: Records) -> _Table:
    """Returns the columns ``(n,)`` of a DataFrame or mapping, or of an array by their indices."""
    if isinstance(records, Mapping) or hasattr(records, "columns"):
        names = list(records.keys())
        table = {name: _as_column(records[name], name) for name in names}
        check(len(table) == len(names) > 0, "records", names, "columns of different names")
    else:
        check_unmasked("records", records)
        array = np.asarray(records)
        array = array[:, None] if array.ndim == 1 else array
        fine = array.ndim == 2 and array.shape[1] > 0
        check(fine, "records", array.shape, "a DataFrame, or an array (n,) or (n, d)")
        table = {index: array[:, index] for index in range(array.shape[1])}
    lengths = sorted({len(column) for column in table.values()})
    check(len(lengths) == 1, "records", lengths, "columns of one length")
    return table


def _as_column(values: Any, name: Column) -> npt.NDArray[Any]:
    """Returns one value a record, ``(n,)``; pandas' missing numbers become NaN."""
    check_unmasked(f"records[{name!r}]", values)
    # Numbers of pandas' own dtypes, which have a missing value of their own.
    if getattr(values.dtype if hasattr(values, "dtype") else None, "na_value", None) is not None:
        is_number = getattr(values.dtype, "kind", "O") in "biuf"
        dtype, missing = (np.float64, np.nan) if is_number else (object, None)
        values = values.to_numpy(dtype=dtype, na_value=missing)
    array = np.asarray(values)
    check(array.ndim == 1, f"records[{name!r}]", array.shape, "one number a record, of shape (n,)")
    return array


def _read_column(table: _Table, column: Column) -> npt.NDArray[Any]:
    """Returns a column ``(n,)``."""
    check(column in table, "column", column, f"one of the columns {list(table)} of records")
    return table[column]


def _read_clipped(table: _Table, column: Column, bounds: Limits) -> Array:
    """Returns a column of numbers, clipped; NaN becomes the lower bound."""
    values = as_float64(_read_column(table, column), f"column {column!r}")
    return np.clip(np.where(np.isnan(values), bounds[0], values), *bounds)


def _check_column(column: object) -> None:
    is_index = isinstance(column, int) and not isinstance(column, bool) and column >= 0
    is_name = isinstance(column, str) and column != ""
    check(is_index or is_name, "column", column, "the name of a column, or of an array its index")


def _checked_limits(bounds: object) -> Limits:
    """Returns a lower and a higher bound; raises ValueError for anything but two numbers."""
    check_unmasked("bounds", bounds)
    allowed = "(low, high), two finite numbers with low < high, for one column"
    try:
        ends = [float(end) if np.ndim(end) == 0 else math.nan for end in bounds]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        ends = []
    fine = len(ends) == 2 and ends[0] < ends[1] and math.isfinite(ends[1] - ends[0])
    check(fine, "bounds", bounds, allowed)
    return ends[0], ends[1]


# --- Moments


@dataclass(frozen=True)
class _Function:
    """A smooth function of the average monomials of columns in [-1, 1].

    Attributes:
      statistic: its label.
      kind: ``"mean"`` or ``"covariance"``.
      columns: of the moment query, by their indices.
    """

    statistic: str
    kind: str
    columns: tuple[int, ...]


@dataclass(frozen=True)
class _Moments(Query):
    """Average monomials of columns, and functions of them.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      columns: names, of d columns.
      bounds: public, of each column.
      order: of the monomials that the functions need; the intervals need twice the order.
      functions: what is estimated.
    """

    label: str
    weight: float
    columns: tuple[Column, ...]
    bounds: tuple[Limits, ...]
    order: int
    functions: tuple[_Function, ...]

    @functools.cached_property
    def exponents(self) -> tuple[Exponents, ...]:
        """Of the monomials that are released, in the order of their degrees."""
        size = len(self.columns)
        return tuple(
            tuple(chosen.count(column) for column in range(size))
            for degree in range(1, 2 * self.order + 1)
            for chosen in itertools.combinations_with_replacement(range(size), degree)
        )

    def weights_and_sensitivity(self, adjacency: Adjacency) -> tuple[Array, float]:
        """Returns the monomials' weights, and the L2 sensitivity of the sum of what they weigh.

        A monomial is in [-1, 1], one of even exponents in [0, 1]: by replacing a record it moves by
        2 or 1. All d (d + 3) / 2 of degree one and two together move by at most d + 1: with
        u = (1, y), v = (1, z), a = y^2, b = z^2 the square is half of |u|^4 + |v|^4 - 2 (u . v)^2
        plus half of the sum of (a_i - b_i)^2, at most half of (1 + |a|_1)^2 + (1 + |b|_1)^2 +
        |a - b|^2. This is convex in (a, b), and largest at a = b = 1.
        """
        degrees = np.array([sum(each) for each in self.exponents])
        even = np.array([not any(power % 2 for power in each) for each in self.exponents])
        squares = np.ones(len(even)) if adjacency != "replace_one" else np.where(even, 1.0, 4.0)

        # Degrees up to two cost no more than degree one where a record of one column is replaced.
        size = len(self.columns)
        free = adjacency == "replace_one" and size == 1
        main = degrees <= max(self.order, 2 if free else 0)
        total = float(squares[main].sum())
        if adjacency == "replace_one" and bool(np.any(main & (degrees == 2))):
            total = (size + 1.0) ** 2

        # The others weigh so little that they add a fixed share.
        others = float(squares[~main].sum())
        if others > 0:
            added = min(_AUXILIARY_SHARE * total, others)
            return np.where(main, 1.0, math.sqrt(added / others)), math.sqrt(total + added)
        return np.ones(len(even)), math.sqrt(total)

    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        weights, length = self.weights_and_sensitivity(adjacency)
        length *= 1 + SUM_ROUNDING
        moves = Sensitivity(length, "l2", adjacency, shape=weights.shape)
        return (Gaussian.from_epsilon(moves, epsilon=epsilon, delta=delta, unit=unit),)

    @property
    def released(self) -> str:
        clipped = ", ".join(
            f"{column} in [{low:g}, {high:g}]"
            for column, (low, high) in zip(self.columns, self.bounds, strict=True)
        )
        return (
            f"sums of the {len(self.exponents)} weighted monomials up to degree {2 * self.order} of"
            f" {clipped}, mapped to [-1, 1]"
        )

    def _read(self, table: _Table) -> Array:
        columns = []
        for column, bounds in zip(self.columns, self.bounds, strict=True):
            share = (_read_clipped(table, column, bounds) - bounds[0]) / (bounds[1] - bounds[0])
            columns.append(2 * share - 1)
        return np.clip(np.stack(columns, axis=-1), -1.0, 1.0)

    def _release(
        self,
        key: PRNGKey,
        columns: Array,
        mechanisms: Sequence[Mechanism],
        size: _Size,
        level: float,
    ) -> list[Estimate]:
        # Noisy sums of the weighted monomials.
        (mechanism,) = mechanisms
        assert isinstance(mechanism, Gaussian)
        weights, _ = self.weights_and_sensitivity(mechanism.adjacency)
        powers = columns[:, None, :] ** np.array(self.exponents)
        sums = sum_in_blocks(powers.prod(axis=-1) * weights)
        noisy = np.asarray(mechanism.release(key, sums), np.float64) / weights

        # Average monomials with the deviations of their noise; the constant's is that of n.
        n = size.num_examples
        averages = {(0,) * len(self.columns): 1.0}
        noise = {(0,) * len(self.columns): size.noise_std / n}
        scales = mechanism.standard_deviation / weights / n
        for exponents, total, scale in zip(self.exponents, noisy, scales, strict=True):
            averages[exponents], noise[exponents] = total / n, scale
        return [self._estimate(each, averages, noise, n, level) for each in self.functions]

    def _estimate(
        self,
        function: _Function,
        averages: Mapping[Exponents, float],
        noise: Mapping[Exponents, float],
        n: float,
        level: float,
    ) -> Estimate:
        """Returns an estimate with an interval by the delta method and Student's distribution."""
        value, gradient, scale, offset, allowed = self._evaluate(function, averages, n)

        # Noise of the estimate: of the monomials, and of n, over which all of them are averaged.
        constant = (0,) * len(self.columns)
        mean = sum(slope * averages[each] for each, slope in gradient.items())
        noise_variance = sum((slope * noise[each]) ** 2 for each, slope in gradient.items())
        noise_variance += (mean * noise[constant]) ** 2

        # Sampling: the variance of the gradient's monomials over records, which is noisy itself.
        squared: dict[Exponents, float] = {}
        for (first, one), (second, two) in itertools.product(gradient.items(), repeat=2):
            both = tuple(a + b for a, b in zip(first, second, strict=True))
            squared[both] = squared.get(both, 0.0) + one * two
        spread = sum(slope * averages[each] for each, slope in squared.items()) - mean**2
        for each, slope in gradient.items():
            squared[each] = squared.get(each, 0.0) - 2 * mean * slope
        spread_noise = sum((slope * noise[each]) ** 2 for each, slope in squared.items())
        sampling_variance = max(spread, 0.0) / max(n - 1, 1.0)

        # Degrees of freedom by Satterthwaite's rule, of the total variance and its own variance.
        total = noise_variance + sampling_variance
        uncertainty = 2 * sampling_variance**2 / max(n - 1, 1.0) + spread_noise / n**2
        degrees = 2 * total**2 / uncertainty if uncertainty > 0 else math.inf
        width = _student_quantile((1 + level) / 2, max(degrees, 3.0)) * math.sqrt(total)
        low, high = (
            offset + scale * min(max(end, allowed[0]), allowed[1])
            for end in (value - width, value + width)
        )
        shown = offset + scale * min(max(value, allowed[0]), allowed[1])
        return Estimate(
            statistic=function.statistic,
            entry="",
            estimate=shown,
            low=low,
            high=high,
            noise_std=scale * math.sqrt(noise_variance),
            standard_error=scale * math.sqrt(total),
        )

    def _evaluate(
        self, function: _Function, averages: Mapping[Exponents, float], n: float
    ) -> tuple[float, dict[Exponents, float], float, float, Limits]:
        """Returns value, gradient, the scale and offset of its units, and the range of values."""
        size = len(self.columns)
        singles = [tuple(int(c == i) for c in range(size)) for i in function.columns]
        halves = [(high - low) / 2 for low, high in self.bounds]
        if function.kind == "mean":
            (index,), (low, _) = function.columns, self.bounds[function.columns[0]]
            scale = halves[index]
            return averages[singles[0]], {singles[0]: 1.0}, scale, low + scale, (-1.0, 1.0)

        # A covariance, or the variance of one column.
        first, second = singles
        both = tuple(a + b for a, b in zip(first, second, strict=True))
        value = averages[both] - averages[first] * averages[second]
        gradient = {both: 1.0}
        gradient[first] = gradient.get(first, 0.0) - averages[second]
        gradient[second] = gradient.get(second, 0.0) - averages[first]
        unbiased = n / max(n - 1, 1.0)
        scale = math.prod(halves[index] for index in function.columns) * unbiased
        return value, gradient, scale, 0.0, (0.0 if first == second else -1.0, 1.0)


def _student_quantile(probability: float, degrees: float) -> float:
    """Returns a quantile of Student's distribution, or of the normal one."""
    if degrees > 1e6:
        return float(ndtri(probability))
    return float(stdtrit(degrees, probability))


def mean(column: Column, *, bounds: Limits, weight: float = 1.0) -> Query:
    """Returns a query of the mean of a column, clipped to ``bounds``.

    Records beyond the bounds count as the bound, and a missing value as the lower one: the estimate
    is of the mean of the clipped column, and the interval does not include this bias.

    Args:
      column: its name, or of an array its index.
      bounds: ``(low, high)``, two public numbers in the column's units, known without the data.
      weight: share of the budget, relative to the other queries' weights.

    Raises:
      ValueError: bounds that are not two numbers in order, or a weight that is not above zero.

    >>> mean("age", bounds=(0, 100)).label
    'mean of age'
    """
    return _moments("mean", column, bounds, weight, order=1)


def variance(column: Column, *, bounds: Limits, weight: float = 1.0) -> Query:
    """Returns a query of the variance of a column, clipped to ``bounds``, with divisor n - 1.

    The mean and the variance of one column with the same bounds are released together: where a plan
    has both queries, each has the budget of both.

    Args:
      column: as of `mean`.
      bounds: as of `mean`; clipping lowers the variance, and the interval does not include this.
      weight: as of `mean`.

    Raises:
      ValueError: as `mean`.

    >>> variance("age", bounds=(0, 100)).label
    'variance of age'
    """
    return _moments("variance", column, bounds, weight, order=2)


def covariance(
    columns: tuple[Column, Column], *, bounds: tuple[Limits, Limits], weight: float = 1.0
) -> Query:
    """Returns a query of the covariance of two clipped columns, with divisor n - 1.

    Fourteen monomials of the two columns are released for it and its interval: the noise is about
    1.5 times that of a variance in the same units at the same budget.

    Args:
      columns: two different ones, each as of `mean`.
      bounds: of both columns, each as of `mean`.
      weight: as of `mean`.

    Raises:
      ValueError: one column twice, not two pairs of bounds, or as `mean`.

    >>> covariance(("age", "income"), bounds=((0, 100), (0, 200_000))).label
    'covariance of age and income'
    """
    pairs = {"columns": columns, "bounds": bounds}
    for name, pair in pairs.items():
        check_type(name, pair, Sequence, "a pair, one of each column")
        check(len(pair) == 2, name, pair, "a pair, one of each column")
    first, second = columns
    _check_column(first)
    _check_column(second)
    check(first != second, "columns", columns, "two different columns")
    check_positive("weight", weight)
    label = f"covariance of {first} and {second}"
    limits = (_checked_limits(bounds[0]), _checked_limits(bounds[1]))
    function = _Function(label, "covariance", (0, 1))
    return _Moments(label, weight, (first, second), limits, 2, (function,))


def _moments(kind: str, column: Column, bounds: Limits, weight: float, order: int) -> Query:
    _check_column(column)
    check_positive("weight", weight)
    label = f"{kind} of {column}"
    function = (
        _Function(label, "mean", (0,)) if kind == "mean" else _Function(label, "covariance", (0, 0))
    )
    limits = (_checked_limits(bounds),)
    return _Moments(label, weight, (column,), limits, order, (function,))


# --- Counts


@dataclass(frozen=True)
class _Counts(Query):
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
            dataclasses.replace(of_count(norm="l2", adjacency=adjacency), shape=(1,))
            if bins == 1
            else of_histogram(bins, norm="l2", adjacency=adjacency)
        )
        scale = Gaussian.from_epsilon(moves, epsilon=epsilon, delta=delta, unit=unit).scale
        return (DiscreteGaussian(moves, scale, unit),)

    @property
    def released(self) -> str:
        return "number of records" if self.column is None else f"{len(self.entries)} bins"

    def _read(self, table: _Table) -> npt.NDArray[np.int64]:
        if self.column is None:
            return np.array([len(next(iter(table.values())))])
        values = _read_column(table, self.column)
        if self.categories is not None:
            return np.array([np.count_nonzero(values == each) for each in self.categories])

        # A record on an inner edge is in the bin above it, one on the last edge in the last bin.
        numbers = as_float64(values, f"column {self.column!r}")
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
        size: _Size,
        level: float,
    ) -> list[Estimate]:
        (mechanism,) = mechanisms
        assert isinstance(mechanism, DiscreteGaussian)
        noisy = np.asarray(mechanism.release(key, columns), np.float64)
        noise_std, n = mechanism.standard_deviation, size.num_examples
        estimates = []
        for entry, number in zip(self.entries, noisy.tolist(), strict=True):
            if self.column is None:
                width = float(ndtri((1 + level) / 2)) * noise_std
                low, high, variance = max(number - width, 0.0), max(number + width, 0.0), 0.0
            else:
                low, high = _score_interval(number, n, noise_std, level)
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


def _score_interval(number: float, n: float, noise_std: float, level: float) -> Limits:
    """Returns the expected counts T with (number - T)^2 <= z^2 (T (1 - T / n) + noise_std^2).

    The score interval of a binomial count (Wilson 1927), with the noise's variance.
    """
    square = float(ndtri((1 + level) / 2)) ** 2
    # (1 + z^2 / n) T^2 - (2 number + z^2) T + number^2 - z^2 noise_std^2 <= 0.
    first, middle = 1 + square / n, 2 * number + square
    last = number**2 - square * noise_std**2
    root = math.sqrt(max(middle**2 - 4 * first * last, 0.0))
    low, high = (middle - root) / (2 * first), (middle + root) / (2 * first)
    return min(max(low, 0.0), n), min(max(high, 0.0), n)


def count(column: Column | None = None, *, equal_to: Any = None, weight: float = 1.0) -> Query:
    """Returns a query of the number of records, or of those whose column has one value.

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
    allowed = "given with a column, and with it only"
    check((column is None) == (equal_to is None), "equal_to", equal_to, allowed)
    if column is None:
        return _Counts("count", weight, None, None, None, ("",))
    _check_column(column)
    check(np.ndim(equal_to) == 0, "equal_to", equal_to, "one value, not an array")
    return _Counts(f"count of {column} = {equal_to}", weight, column, None, (equal_to,), ("",))


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
    _check_column(column)
    check_positive("weight", weight)
    check((edges is None) != (categories is None), "edges", edges, "given, or else categories")
    label = f"histogram of {column}"
    if categories is not None:
        values = tuple(categories)
        fine = len(values) >= 2 and all(np.ndim(each) == 0 for each in values)
        fine = fine and len(set(values)) == len(values)
        check(fine, "categories", categories, "at least two different values")
        return _Counts(label, weight, column, None, values, tuple(map(str, values)))
    numbers = as_float64(edges, "edges")
    fine = numbers.ndim == 1 and len(numbers) >= 3 and bool(np.all(np.isfinite(numbers)))
    fine = fine and bool(np.all(np.diff(numbers) > 0))
    check(fine, "edges", edges, "at least three increasing finite numbers")
    bounds = tuple(numbers.tolist())
    names = [f"[{low:g}, {high:g})" for low, high in itertools.pairwise(bounds)]
    names[-1] = names[-1][:-1] + "]"
    return _Counts(label, weight, column, bounds, None, tuple(names))


# --- Quantiles


@dataclass(frozen=True)
class _Quantile(Query):
    """A quantile and an interval for it, by three selections from a public grid.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      column: its name.
      probability: of the quantile, a multiple of `_RANK_UNIT`.
      bounds: of the grid.
      num_candidates: of the grid.
    """

    label: str
    weight: float
    column: Column
    probability: float
    bounds: Limits
    num_candidates: int

    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        largest = max(self.probability, 1 - self.probability)
        value = 1.0 if adjacency == "replace_one" else largest
        moves = Sensitivity(value, "linf", adjacency, shape=(self.num_candidates,))
        return tuple(
            ExponentialMechanism.from_epsilon(moves, epsilon=share * epsilon, unit=unit)
            for share in _QUANTILE_SHARES
        )

    @property
    def released(self) -> str:
        low, high = self.bounds
        grid = f"{self.num_candidates:,} candidates in [{low:g}, {high:g}]"
        return f"estimate and both ends of its interval, each selected from {grid}"

    def _read(self, table: _Table) -> Array:
        return np.sort(_read_clipped(table, self.column, self.bounds))

    def _release(
        self,
        key: PRNGKey,
        columns: Array,
        mechanisms: Sequence[Mechanism],
        size: _Size,
        level: float,
    ) -> list[Estimate]:
        grid = np.linspace(*self.bounds, self.num_candidates)

        # The margins that cover sampling error and the ends' own rank noise.
        n, rank = size.num_examples, self.probability * size.num_examples
        rank_std = math.sqrt(rank * (1 - self.probability))
        scales = [each.scale for each in mechanisms if isinstance(each, ExponentialMechanism)]
        margins = [_rank_margin(rank_std, scale, level) for scale in scales[1:]]

        # Where few records are beyond an end on its other side, the selection may land there in a
        # part of the grid without records: such an end is selected on its own side of the estimate,
        # and is the bound where the estimate itself may be in such a part.
        shifts = [_round_rank(shift) for shift in (0.0, -margins[0], margins[1])]
        beyond = (n - rank, rank)
        is_sparse = [
            least + margin < _END_SCALES * scale
            for least, margin, scale in zip(beyond, margins, scales[1:], strict=True)
        ]
        selected: list[float] = []
        for number, one in enumerate(jax.random.split(key, 3)):
            mechanism, shift = mechanisms[number], shifts[number]
            assert isinstance(mechanism, ExponentialMechanism)
            utilities = -_rank_distances(columns, grid, self.probability, shift)
            if number > 0 and is_sparse[number - 1]:
                side = grid <= selected[0] if number == 1 else grid >= selected[0]
                utilities = np.where(side, utilities, -np.inf)
            selected.append(float(grid[int(mechanism.release(one, utilities))]))

        # Half a step is added. An end whose rank is beyond the sample is the bound, too.
        step = (self.bounds[1] - self.bounds[0]) / (self.num_candidates - 1) / 2
        fewest = _ESTIMATE_SCALES * scales[0]
        low = max(min(selected[1:]) - step, self.bounds[0])
        high = min(max(selected[1:]) + step, self.bounds[1])
        if rank <= margins[0] or (is_sparse[0] and n - rank < fewest):
            low = self.bounds[0]
        if n - rank <= margins[1] or (is_sparse[1] and rank < fewest):
            high = self.bounds[1]
        estimate = min(max(selected[0], low), high)

        # Errors in the column's units, from the width of the interval in ranks.
        per_rank = (high - low) / sum(margins)
        noise_std = math.sqrt(2) * scales[0] * per_rank
        error = math.hypot(noise_std, rank_std * per_rank)
        return [
            Estimate(
                statistic=self.label,
                entry="",
                estimate=estimate,
                low=low,
                high=high,
                noise_std=noise_std,
                standard_error=error,
            )
        ]


def _rank_distances(values: Array, grid: Array, probability: float, shift: float) -> Array:
    """Returns how far candidates are, in ranks, from the quantile's rank plus ``shift``.

    A record adds one less the probability to the rank difference of candidates above it, and takes
    the probability off that of others: the largest distance of neighbours follows.

    Args:
      values: sorted, ``(n,)``.
      grid: candidates.
      probability: of the quantile; like ``shift`` a multiple of `_RANK_UNIT`.
      shift: in ranks.
    """
    below = np.searchsorted(values, grid, side="left") - probability * len(values)
    up_to = np.searchsorted(values, grid, side="right") - probability * len(values)
    return np.maximum(np.maximum(below - shift, shift - up_to), 0.0)


def _round_rank(rank: float) -> float:
    """Returns the nearest multiple of `_RANK_UNIT`."""
    return round(float(rank) / _RANK_UNIT) * _RANK_UNIT


def _rank_margin(rank_std: float, scale: float, level: float) -> float:
    """Returns the quantile of a normal plus a Laplace variable, at (1 + level) / 2."""
    uniform = (np.arange(2000) + 0.5) / 2000
    laplace = -scale * np.sign(uniform - 0.5) * np.log1p(-2 * np.abs(uniform - 0.5))

    def excess(margin: float) -> float:
        return float(np.mean(ndtr((margin - laplace) / max(rank_std, 1e-9)))) - (1 + level) / 2

    return float(brentq(excess, 0.0, 40 * (rank_std + scale)))


def quantile(
    column: Column,
    probability: float,
    *,
    bounds: Limits,
    num_candidates: int = 10_001,
    weight: float = 1.0,
) -> Query:
    """Returns a query of a quantile of a column, such as its median.

    The exponential mechanism selects from a public grid between the bounds (Smith 2011): one value
    for the estimate and one for each end of the interval. Records beyond the bounds count as the
    bound; a quantile within them is not moved by this.

    Args:
      column: as of `mean`.
      probability: in (0, 1); 0.5 for the median.
      bounds: as of `mean`; the quantile is known to be between them.
      num_candidates: of the grid, which has equal steps.
      weight: as of `mean`.

    Raises:
      ValueError: a number out of range, or several probabilities.

    >>> quantile("income", 0.5, bounds=(0, 200_000)).label
    '0.5-quantile of income'
    """
    _check_column(column)
    check_delta(probability, "probability")
    check_count("num_candidates", num_candidates, minimum=2)
    check_positive("weight", weight)
    label = f"{float(probability):g}-quantile of {column}"
    limits = _checked_limits(bounds)
    return _Quantile(label, weight, column, _round_rank(probability), limits, int(num_candidates))


# --- Plans and releases


@dataclass(frozen=True)
class StatisticsPlan(Mechanism):
    """Queries with their noise: what a release of them guarantees, before there is any data.

    Attributes:
      queries: as `plan` groups them: moments of one column with the same bounds are one query.
      mechanisms: of each query, one or more.
      labels: of the queries, in the order in which they were asked.

    Privacy:
      What ``release`` returns is released: of each query what its mechanisms release. Under
      ``"add_remove"`` the number of records is released with noise, else it is public.

    >>> ages = plan(
    ...     [mean("age", bounds=(0, 100))], epsilon=1.0, delta=1e-6, adjacency="replace_one"
    ... )
    >>> round(ages.certificate(1e-6).epsilon, 2)
    1.0
    """

    queries: tuple[Query, ...]
    mechanisms: tuple[tuple[Mechanism, ...], ...]
    _: KW_ONLY
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        for query in self.queries:
            check_type("queries", query, Query, "queries such as statistics.mean returns")
        same = len(self.queries) == len(self.mechanisms) > 0
        check(same, "mechanisms", self.mechanisms, "one or more of each query")

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        flat = tuple(itertools.chain.from_iterable(self.mechanisms))
        total = Composition(flat).guarantee
        description = {}
        for query, mechanisms in zip(self.queries, self.mechanisms, strict=True):
            noise = [each.guarantee.description["noise"] for each in mechanisms]
            moves = format_sensitivity(mechanisms[0].sensitivity)  # type: ignore[attr-defined]
            texts = [query.released, moves, *dict.fromkeys(noise)]
            description[query.label] = "; ".join(texts)
        return dataclasses.replace(total, description=description)

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        scaled = tuple(
            tuple(mechanism.with_privacy_factor(factor) for mechanism in mechanisms)
            for mechanisms in self.mechanisms
        )
        return dataclasses.replace(self, mechanisms=scaled)

    def release(self, key: PRNGKey, records: Records, *, level: float = 0.9) -> "StatisticsRelease":
        """Returns the estimates of all queries, with intervals.

        Args:
          key: a JAX key; a secret. `dpjax.release_key` for a real release.
          records: one row for each unit of privacy: a pandas DataFrame, a mapping of columns
            ``(n,)``, or an array ``(n, d)`` whose columns are named by their indices.
          level: of each interval by itself, in (0, 1).

        Raises:
          ValueError: a column that is not there, is not of numbers where the query needs them, or
            has several numbers a record.
        """
        key = as_key(key)
        check_delta(level, "level")

        # All columns are read first: no error comes after a release.
        table = _as_table(records)
        columns = [query._read(table) for query in self.queries]
        n = len(next(iter(table.values())))
        keys = jax.random.split(key, len(self.queries))

        # The number of records, public or released first.
        found: dict[str, list[Estimate]] = {}
        size = _Size(float(max(n, 1)), 0.0)
        order = sorted(range(len(self.queries)), key=lambda i: self.queries[i].label != "count")
        for index in order:
            query, mechanisms = self.queries[index], self.mechanisms[index]
            for each in query._release(keys[index], columns[index], mechanisms, size, level):
                found.setdefault(each.statistic, []).append(each)
            if query.label == "count":
                (number,) = found["count"]
                size = _Size(max(number.estimate, 1.0), number.noise_std)
        estimates = [each for label in self.labels for each in found[label]]
        guarantee = self.guarantee.of_run(seeded=is_seeded(key))
        return StatisticsRelease(tuple(estimates), guarantee, level=level)


@dataclass(frozen=True)
class StatisticsRelease:
    """Released estimates with their intervals, and one certificate for all of them.

    Attributes:
      estimates: in the order of the queries.
      guarantee: of the release.
      level: of each interval by itself.
    """

    estimates: tuple[Estimate, ...]
    guarantee: Guarantee
    _: KW_ONLY
    level: float

    def certificate(self, delta: float) -> "Certificate":
        """Returns the certificate of all released numbers at ``delta``, in (0, 1)."""
        from dpjax.certificates.certificate import certify

        return certify(self.guarantee, delta)

    def __getitem__(self, statistic: str) -> Estimate | tuple[Estimate, ...]:
        """Returns the estimate of a label such as ``"mean of age"``, or all of a histogram."""
        found = tuple(each for each in self.estimates if each.statistic == statistic)
        labels = list(dict.fromkeys(each.statistic for each in self.estimates))
        check(bool(found), "statistic", statistic, f"one of {labels}")
        return found[0] if len(found) == 1 else found

    def to_pandas(self) -> "pd.DataFrame":
        """Returns a DataFrame with one row for each estimate."""
        import pandas as pd

        table = pd.DataFrame([dataclasses.asdict(each) for each in self.estimates])
        return table.set_index(["statistic", "entry"])

    @property
    def _rows(self) -> list[list[str]]:
        interval = f"{100 * self.level:g} % interval"
        rows = [["statistic", "", "estimate", interval, "noise s.d.", "standard error"]]
        for each in self.estimates:
            numbers = (each.estimate, each.low, each.high, each.noise_std, each.standard_error)
            shown = [f"{number:,.5g}" for number in numbers]
            ends = f"{shown[1]} to {shown[2]}"
            rows.append([each.statistic, each.entry, shown[0], ends, *shown[3:]])
        return rows

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        lines = []
        for row in self._rows:
            cells = [
                cell.ljust(width) if index < 2 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        columns, *rows = self._rows
        table = HTMLTable("Estimates", rows, columns)
        return render_guarantee("Statistics", self.guarantee, first=[table])


def plan(
    queries: Sequence[Query],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    unit: str = "one record",
) -> StatisticsPlan:
    """Returns queries with the least noise whose joint release is (epsilon, delta)-private.

    Each query gets the share of epsilon and delta that its weight has of all weights, and the noise
    of all is then lowered by one factor, to where the certificate of the composition reaches
    epsilon. Under ``"add_remove"`` the number of records is private, and released too.

    Args:
      queries: at least one, all different.
      epsilon: of all queries together, above zero.
      delta: in (0, 1); customarily well below one over the number of records.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy; the records must have one row for each.

    Raises:
      ValueError: no queries or two equal ones, a count of all records where it is public, or a
        number out of range.

    >>> both = [mean("age", bounds=(0, 100)), quantile("age", 0.5, bounds=(0, 100))]
    >>> ages = plan(both, epsilon=1.0, delta=1e-6, adjacency="replace_one", unit="one person")
    >>> len(ages.queries), ages.num_releases
    (2, 4)
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_adjacency(adjacency)
    check_text("unit", unit)
    check_type("queries", queries, Sequence, "a list of queries such as statistics.mean returns")
    asked = tuple(queries)
    check(len(asked) > 0, "queries", asked, "at least one query")
    for query in asked:
        check_type("queries", query, Query, "queries such as statistics.mean returns")
    labels = tuple(query.label for query in asked)
    check(len(set(labels)) == len(labels), "queries", labels, "different statistics")

    # The number of all records.
    if is_size_public(adjacency):
        allowed = "no count() of all records, whose number is public under this adjacency"
        check("count" not in labels, "queries", labels, allowed)
    elif "count" not in labels:
        asked = (count(weight=_SIZE_WEIGHT), *asked)

    # Moments of the same columns and bounds are one release, then budget and calibration.
    grouped = _group(asked)
    weights = np.array([query.weight for query in grouped])
    mechanisms = tuple(
        query._make_mechanisms(
            epsilon=share * epsilon, delta=share * delta, adjacency=adjacency, unit=unit
        )
        for query, share in zip(grouped, (weights / weights.sum()).tolist(), strict=True)
    )
    basic = StatisticsPlan(grouped, mechanisms, labels=labels)
    return calibrate(basic, epsilon=epsilon, delta=delta)


def _group(queries: Sequence[Query]) -> tuple[Query, ...]:
    """Returns queries, those of moments of the same columns and bounds joined."""
    grouped: dict[Any, Query] = {}
    for query in queries:
        key: Any = query.label
        if isinstance(query, _Moments):
            key = (query.columns, query.bounds)
            joined = grouped.get(key)
            if isinstance(joined, _Moments):
                query = _Moments(
                    f"{joined.label}, {query.label}",
                    joined.weight + query.weight,
                    query.columns,
                    query.bounds,
                    max(joined.order, query.order),
                    joined.functions + query.functions,
                )
        grouped[key] = query
    return tuple(grouped.values())


def release(
    key: PRNGKey,
    records: Records,
    queries: Sequence[Query],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    unit: str = "one record",
    level: float = 0.9,
) -> StatisticsRelease:
    """Returns statistics of a table with intervals that include sampling error and noise.

    The same as ``plan(queries, ...).release(key, records)``.

    Args:
      key: a JAX key; a secret. `dpjax.release_key` for a real release.
      records: as of `StatisticsPlan.release`.
      queries: as of `plan`.
      epsilon: of all queries together.
      delta: as of `plan`.
      adjacency: as of `plan`.
      unit: the unit of privacy.
      level: of each interval by itself, in (0, 1).

    Returns:
      Estimates with intervals; its ``certificate`` is of all of them.

    Privacy:
      All estimates and intervals are released together, at ``epsilon`` and ``delta``.

    Raises:
      ValueError: as `plan` and `StatisticsPlan.release`.

    >>> ages = np.random.default_rng(0).normal(40.0, 10.0, 1000)
    >>> released = release(
    ...     jax.random.key(0), {"age": ages}, [mean("age", bounds=(0, 100))],
    ...     epsilon=1.0, delta=1e-6, adjacency="replace_one",
    ... )
    >>> print(released)
    statistic ...
    mean of age ...
    """
    made = plan(queries, epsilon=epsilon, delta=delta, adjacency=adjacency, unit=unit)
    return made.release(key, records, level=level)
