"""Means, covariances, correlations and regressions, from noisy average products of columns."""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from dpjax._checks import check, check_positive, check_type
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import Gaussian, Mechanism
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity, sum_in_blocks
from dpjax.statistics.query import (
    Array,
    Column,
    Estimate,
    Limits,
    Query,
    Size,
    Table,
    check_column,
    checked_categories,
    checked_limits,
    read_clipped,
    read_groups,
)

# A product of columns by their indices, increasing and repeated; the empty one is constant.
Monomial = tuple[int, ...]
# The average product of mapped columns, by their names: of none it is one, of (a, a) that of a^2.
Average = Callable[..., npt.NDArray[np.complex128]]
Ratio = tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]

# Of the squared sensitivity, what monomials that serve the intervals alone may add.
_AUXILIARY_SHARE = 0.25
# Records whose monomials are in memory at a time: a power of 256, so that the blocks of their sum
# are those of `sum_in_blocks`.
_RECORDS_AT_ONCE = 256**2
# An imaginary step, of which the derivatives have no rounding error (Squire & Trapp 1998).
_STEP = 1e-30


@dataclass(frozen=True)
class Statistic(abc.ABC):
    """A statistic that is a smooth function of moments of columns, as a ratio of two others.

    Attributes:
      label: of the query.
      bounds: of each column that it reads, by name.
      entry: of a query with several numbers which one it is.
    """

    label: str
    bounds: Mapping[Column, Limits] = field(hash=False)
    entry: str = ""

    @abc.abstractmethod
    def ratio(self, average: Average, num_examples: float) -> Ratio:
        """Returns numerator and denominator of the statistic, from averages over all records.

        Without noise the denominator is not negative.
        """

    @property
    def limits(self) -> Limits:
        """The least and the largest value."""
        return -math.inf, math.inf

    def scale(self, column: Column) -> float:
        """Units of the column for each unit of the mapped column."""
        low, high = self.bounds[column]
        return (high - low) / 2

    def centre(self, column: Column) -> float:
        """The column's value where the mapped column is zero."""
        return self.bounds[column][0] + self.scale(column)


class Mean(Statistic):
    """Mean of the one column."""

    def ratio(self, average: Average, num_examples: float) -> Ratio:
        (column,) = self.bounds
        return self.scale(column) * average(column) + self.centre(column) * average(), average()

    @property
    def limits(self) -> Limits:
        (limits,) = self.bounds.values()
        return limits


class Covariance(Statistic):
    """Covariance of the two columns, or the variance of the one column; with divisor n - 1."""

    def ratio(self, average: Average, num_examples: float) -> Ratio:
        first, second = self._pair
        product = average(first, second) - average(first) * average(second) / average()
        unbiased = num_examples / max(num_examples - 1, 1.0)
        return self.scale(first) * self.scale(second) * unbiased * product, average()

    @property
    def limits(self) -> Limits:
        first, second = self._pair
        largest = self.scale(first) * self.scale(second)
        return (0.0 if first == second else -largest), largest

    @property
    def _pair(self) -> tuple[Column, Column]:
        first, *others = self.bounds
        return first, others[0] if others else first


class Correlation(Statistic):
    """Correlation of the two columns."""

    def ratio(self, average: Average, num_examples: float) -> Ratio:
        first, second = self.bounds
        product, one, other = (
            average(a, b) * average() - average(a) * average(b)
            for a, b in ((first, second), (first, first), (second, second))
        )
        positive = (one.real > 0) & (other.real > 0)
        return product, np.sqrt(np.where(positive, one * other, 0.0))

    @property
    def limits(self) -> Limits:
        return -1.0, 1.0


@dataclass(frozen=True)
class Coefficient(Statistic):
    """Coefficient of least squares by Cramer's rule.

    Attributes:
      target: the column that is regressed on the others.
      feature: whose coefficient it is; ``None`` for the intercept.
    """

    _: KW_ONLY
    target: Column
    feature: Column | None

    def ratio(self, average: Average, num_examples: float) -> Ratio:
        # Normal equations A b = c of the mapped columns, with the constant in front.
        features = [column for column in self.bounds if column != self.target]
        terms: list[tuple[Column, ...]] = [(), *((column,) for column in features)]
        matrix = np.stack(
            [np.stack([average(*one, *other) for other in terms], axis=-1) for one in terms], -1
        )
        right = np.stack([average(*one, self.target) for one in terms], axis=-1)

        # Cramer's rule.
        denominator = np.linalg.det(matrix)
        numerators = []
        for index in range(len(terms)):
            replaced = matrix.copy()
            replaced[..., :, index] = right
            numerators.append(np.linalg.det(replaced) * self.scale(self.target))

        # In the columns' units.
        slopes = {
            column: numerator / self.scale(column)
            for column, numerator in zip(features, numerators[1:], strict=True)
        }
        if self.feature is not None:
            return slopes[self.feature], denominator
        constant = numerators[0] + self.centre(self.target) * denominator
        shifts = [slope * self.centre(column) for column, slope in slopes.items()]
        return constant - np.sum(shifts, axis=0), denominator


@dataclass(frozen=True)
class Moments(Query):
    """Query of means, covariances, correlations or regressions: one release of sums of products.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      bounds: public, of each of d columns by its name.
      order: of the monomials that the statistics need; the intervals need twice the order.
      statistics: what is estimated.
    """

    label: str
    weight: float
    bounds: Mapping[Column, Limits] = field(hash=False)
    order: int
    statistics: tuple[Statistic, ...]

    @functools.cached_property
    def monomials(self) -> tuple[Monomial, ...]:
        """The products of columns whose sums are released, by degree."""
        columns = range(len(self.bounds))
        return tuple(
            monomial
            for degree in range(1, 2 * self.order + 1)
            for monomial in itertools.combinations_with_replacement(columns, degree)
        )

    @functools.cached_property
    def _positions(self) -> dict[Monomial, int]:
        """Where the averages of the constant and of the monomials are."""
        return {each: index for index, each in enumerate(((), *self.monomials))}

    @functools.cached_property
    def _products(self) -> npt.NDArray[np.intp]:
        """Where the products are of any two monomials up to ``order``."""
        main = [each for each in self._positions if len(each) <= self.order]
        return np.array(
            [[self._positions[tuple(sorted(one + other))] for other in main] for one in main]
        )

    def joined(self, other: "Moments") -> "Moments":
        """Returns one query of the statistics of both, which have the same columns and bounds."""
        return Moments(
            f"{self.label}, {other.label}",
            self.weight + other.weight,
            self.bounds,
            max(self.order, other.order),
            self.statistics + other.statistics,
        )

    def weights_and_sensitivity(self, adjacency: Adjacency) -> tuple[Array, float]:
        """Returns the monomials' weights, and the L2 sensitivity of the sum of what they weigh.

        A monomial is in [-1, 1], one of even powers in [0, 1]: by replacing a record it moves by
        2 or 1. All d (d + 3) / 2 of degree one and two together move by at most d + 1: with
        u = (1, y), v = (1, z), a = y^2, b = z^2 the square is half of |u|^4 + |v|^4 - 2 (u . v)^2
        plus half of the sum of (a_i - b_i)^2, at most half of (1 + |a|_1)^2 + (1 + |b|_1)^2 +
        |a - b|^2. This is convex in (a, b), and largest at a = b = 1.
        """
        degrees = np.array([len(each) for each in self.monomials])
        even = np.array(
            [all(each.count(column) % 2 == 0 for column in each) for each in self.monomials]
        )
        squares = np.ones(len(even)) if adjacency != "replace_one" else np.where(even, 1.0, 4.0)

        # Degrees up to two cost no more than degree one where a record of one column is replaced.
        size = len(self.bounds)
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
            f"{column} in [{low:g}, {high:g}]" for column, (low, high) in self.bounds.items()
        )
        return (
            f"sums of the {len(self.monomials)} weighted monomials up to degree {2 * self.order} of"
            f" {clipped}, mapped to [-1, 1]"
        )

    def _read(self, table: Table) -> Array:
        columns = []
        for column, bounds in self.bounds.items():
            share = (read_clipped(table, column, bounds) - bounds[0]) / (bounds[1] - bounds[0])
            columns.append(2 * share - 1)
        return np.clip(np.stack(columns, axis=-1), -1.0, 1.0)

    def _release(
        self,
        key: PRNGKey,
        columns: Array,
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        # Noisy sums of the weighted monomials.
        (mechanism,) = mechanisms
        assert isinstance(mechanism, Gaussian)
        weights, _ = self.weights_and_sensitivity(mechanism.adjacency)
        noisy = np.asarray(mechanism.release(key, self.sum(columns) * weights), np.float64)

        # Averages and the deviations of their noise; the noise of the constant is that of n.
        n = size.num_examples
        averages = np.array([1.0, *noisy / weights / n])
        noise_std = np.array([size.noise_std, *mechanism.standard_deviation / weights]) / n
        return [self._estimate(each, averages, noise_std, n, level) for each in self.statistics]

    def sum(self, columns: Array) -> Array:
        """Returns the sums of the monomials over records ``(n, d)`` in [-1, 1]."""
        sums = []
        for start in range(0, max(len(columns), 1), _RECORDS_AT_ONCE):
            chunk = columns[start : start + _RECORDS_AT_ONCE].T
            products: dict[Monomial, Array] = {(): np.ones(chunk.shape[1])}
            for monomial in self.monomials:
                products[monomial] = products[monomial[:-1]] * chunk[monomial[-1]]
            sums.append(sum_in_blocks([products[each] for each in self.monomials], axis=1))
        return sum_in_blocks(sums)

    def _estimate(
        self, statistic: Statistic, averages: Array, noise_std: Array, n: float, level: float
    ) -> Estimate:
        """Returns the estimate N / D, with Fieller's interval: |N - D t| within its error."""
        # N and D, and their gradients in the averages, by a step in each of them.
        products, names = self._products, list(self.bounds)
        means, mean_noise = averages[: len(products)], noise_std[: len(products)]
        steps = means + 1j * _STEP * np.eye(len(means))

        def average(*columns: Column) -> npt.NDArray[np.complex128]:
            return steps[:, self._positions[tuple(sorted(map(names.index, columns)))]]

        ratio = np.stack(np.broadcast_arrays(*statistic.ratio(average, n)))
        numerator, denominator = ratio.real[:, 0].tolist()
        low, high = statistic.limits
        unknown = Estimate(
            statistic=statistic.label,
            entry=statistic.entry,
            estimate=math.nan,
            low=low,
            high=high,
            noise_std=math.inf,
            standard_error=math.inf,
        )
        if denominator <= 0:
            return unknown
        value = numerator / denominator

        # Gradients of N - D value and of D, and the variances of noise.
        gradients = ratio.imag / _STEP
        gradients[0] -= value * gradients[1]
        noise = (gradients * mean_noise**2) @ gradients.T

        # Sampling: the covariance over records of the gradients' monomials, which has noise too.
        spread = gradients @ (averages[products] - np.outer(means, means)) @ gradients.T
        lengths, directions = np.linalg.eigh(spread)
        sampling = (directions * np.maximum(lengths, 0.0)) @ directions.T / max(n - 1, 1.0)
        slopes = np.bincount(
            products.ravel(), np.outer(gradients[0], gradients[0]).ravel(), len(averages)
        )
        slopes[: len(means)] -= 2 * (gradients[0] @ means) * gradients[0]
        spread_noise = float(((slopes * noise_std) ** 2).sum())

        # Degrees of freedom by Satterthwaite's rule, of the total variance and its own variance.
        (total, shared), (_, other) = (noise + sampling).tolist()
        uncertainty = 2 * float(sampling[0, 0]) ** 2 / max(n - 1, 1.0) + spread_noise / n**2
        degrees = 2 * total**2 / uncertainty if uncertainty > 0 else math.inf
        square = _student_quantile((1 + level) / 2, max(degrees, 3.0)) ** 2

        # The interval: where (D u)^2 <= square variance(N - D (value + u)).
        leading = denominator**2 - square * other
        if leading > 0:
            middle = -square * shared
            root = math.sqrt(middle**2 + leading * square * total)
            low, high = (
                min(max(value + end / leading, low), high) for end in (middle - root, middle + root)
            )
        return dataclasses.replace(
            unknown,
            estimate=min(max(value, low), high),
            low=low,
            high=high,
            noise_std=math.sqrt(noise[0, 0]) / denominator,
            standard_error=math.sqrt(total) / denominator,
        )


@dataclass(frozen=True)
class GroupedMoments(Query):
    """Query of means or variances by group: one release of the groups' counts and sums.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      moments: of each group, of one column.
      by: the column that has the group of a record.
      categories: its values, one for each group; records with others are in no group.
    """

    label: str
    weight: float
    moments: Moments
    by: Column
    categories: tuple[Any, ...]

    # Each group has a number of records of its own.
    _uses_size = False

    @property
    def _by_group(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(each.label for each in self.moments.statistics)

    def joined(self, other: "GroupedMoments") -> "GroupedMoments":
        """Returns one query of the statistics of both, which have the same groups and bounds."""
        moments = self.moments.joined(other.moments)
        return GroupedMoments(moments.label, moments.weight, moments, self.by, self.categories)

    @property
    def weights_and_sensitivity(self) -> tuple[Array, dict[Adjacency, float]]:
        """The weights of a group's count and monomials, and the L2 sensitivity of all groups' sums.

        A record adds to one group one to the count and at most the monomials' weights, all of which
        it attains at an end of the bounds. A record that leaves one group and enters another
        changes the sums of both by as much: the squares add up. Within a group it changes them by
        less: of a mean, by at most 4 in place of 4.5; of a variance, 6.25 in place of 7.
        """
        weights, length = self.moments.weights_and_sensitivity("add_remove")
        one = math.hypot(1.0, length)
        lengths: dict[Adjacency, float] = {
            "add_remove": one,
            "zero_out": one,
            "replace_one": math.sqrt(2) * one,
        }
        return np.array([1.0, *weights]), lengths

    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        weights, lengths = self.weights_and_sensitivity
        shape = (len(self.categories), len(weights))
        moves = Sensitivity(lengths[adjacency] * (1 + SUM_ROUNDING), "l2", adjacency, shape=shape)
        return (Gaussian.from_epsilon(moves, epsilon=epsilon, delta=delta, unit=unit),)

    @property
    def released(self) -> str:
        return f"{len(self.categories)} groups by {self.by}: counts, {self.moments.released}"

    def _read(self, table: Table) -> Array:
        """Returns each group's count and sums of monomials, without weights."""
        columns = self.moments._read(table)
        groups = [columns[group] for group in read_groups(table, self.by, self.categories)]
        return np.array([[len(group), *self.moments.sum(group)] for group in groups])

    def _release(
        self,
        key: PRNGKey,
        columns: Array,
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        (mechanism,) = mechanisms
        assert isinstance(mechanism, Gaussian)
        weights, _ = self.weights_and_sensitivity
        noisy = np.asarray(mechanism.release(key, columns * weights), np.float64) / weights
        noise_std = mechanism.standard_deviation / weights

        # Of each group the averages and the deviations of their noise, as of one table.
        estimates = []
        for statistic in self.moments.statistics:
            for category, (number, *sums) in zip(self.categories, noisy.tolist(), strict=True):
                n = max(number, 1.0)
                averages = np.array([n, *sums]) / n
                one = self.moments._estimate(statistic, averages, noise_std / n, n, level)
                estimates.append(dataclasses.replace(one, entry=str(category)))
        return estimates


def _student_quantile(probability: float, degrees: float) -> float:
    """Returns a quantile of Student's distribution, or of the normal one."""
    if degrees > 1e6:
        return float(ndtri(probability))
    return float(stdtrit(degrees, probability))


def mean(
    column: Column,
    *,
    bounds: Limits,
    by: Column | None = None,
    categories: Sequence[Any] | None = None,
    weight: float = 1.0,
) -> Query:
    """Returns a query of the mean of a column, clipped to ``bounds``.

    Records beyond the bounds count as the bound, and a missing value as the lower one: the estimate
    is of the mean of the clipped column, and the interval does not include this bias.

    With ``by`` there is one estimate for each category. The groups' numbers of records are private
    under every adjacency, and released with the sums. Where a record is added or removed it is in
    one group, so that all groups cost what one costs; a replaced record may leave one group and
    enter another, which raises the noise by a factor of the square root of two. The interval of a
    group with too few records for the noise is that of the bounds.

    Args:
      column: its name, or of an array its index.
      bounds: ``(low, high)``, two public numbers in the column's units, known without the data.
      by: the column that has the group of a record.
      categories: with ``by``, at least two different values of it, public: stated without the data.
        A record with another value, or none, is in no group. An error would depend on that record.
      weight: share of the budget, relative to the other queries' weights.

    Raises:
      ValueError: bounds that are not two numbers in order, not both or none of ``by`` and
        categories, equal categories, or a weight that is not above zero.

    >>> mean("age", bounds=(0, 100)).label
    'mean of age'
    >>> mean("age", bounds=(0, 100), by="arm", categories=["drug", "placebo"]).label
    'mean of age by arm'
    """
    return _of_column(Mean, "mean", 1, column, bounds, by, categories, weight)


def variance(
    column: Column,
    *,
    bounds: Limits,
    by: Column | None = None,
    categories: Sequence[Any] | None = None,
    weight: float = 1.0,
) -> Query:
    """Returns a query of the variance of a column, clipped to ``bounds``, with divisor n - 1.

    The mean and the variance of one column with the same bounds are released together: where a plan
    has both queries, each has the budget of both.

    Args:
      column: as of `mean`.
      bounds: as of `mean`; clipping lowers the variance, and the interval does not include this.
      by: as of `mean`.
      categories: as of `mean`.
      weight: as of `mean`.

    Raises:
      ValueError: as `mean`.

    >>> variance("age", bounds=(0, 100)).label
    'variance of age'
    """
    return _of_column(Covariance, "variance", 2, column, bounds, by, categories, weight)


def _of_column(
    kind: type[Statistic],
    name: str,
    order: int,
    column: Column,
    bounds: Limits,
    by: Column | None,
    categories: Sequence[Any] | None,
    weight: float,
) -> Query:
    check_column(column)
    check_positive("weight", weight)
    check((by is None) == (categories is None), "categories", categories, "given with by, only")
    label = f"{name} of {column}" if by is None else f"{name} of {column} by {by}"
    limits = {column: checked_limits(bounds)}
    moments = Moments(label, weight, limits, order, (kind(label, limits),))
    if by is None:
        return moments
    check_column(by, "by")
    check(by != column, "by", by, "another column than that of the moments")
    return GroupedMoments(label, weight, moments, by, checked_categories(categories))


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
    return _of_pair(Covariance, "covariance", columns, bounds, weight)


def correlation(
    columns: tuple[Column, Column], *, bounds: tuple[Limits, Limits], weight: float = 1.0
) -> Query:
    """Returns a query of the correlation of two clipped columns.

    It is released together with a covariance or a regression of the same columns and bounds: where
    a plan has both queries, each has the budget of both. Where the noise may be as large as a
    column's variance, the interval is from -1 to 1.

    Args:
      columns: two different ones, each as of `mean`.
      bounds: of both columns, each as of `mean`.
      weight: as of `mean`.

    Raises:
      ValueError: as `covariance`.

    >>> correlation(("age", "income"), bounds=((0, 100), (0, 200_000))).label
    'correlation of age and income'
    """
    return _of_pair(Correlation, "correlation", columns, bounds, weight)


def _of_pair(
    kind: type[Statistic],
    name: str,
    columns: tuple[Column, Column],
    bounds: tuple[Limits, Limits],
    weight: float,
) -> Query:
    for argument, pair in {"columns": columns, "bounds": bounds}.items():
        check_type(argument, pair, Sequence, "a pair, one of each column")
        check(len(pair) == 2, argument, pair, "a pair, one of each column")
    first, second = columns
    check_column(first, "columns")
    check_column(second, "columns")
    check(first != second, "columns", columns, "two different columns")
    check_positive("weight", weight)
    limits = {first: checked_limits(bounds[0]), second: checked_limits(bounds[1])}
    statistic = kind(f"{name} of {first} and {second}", limits)
    return Moments(statistic.label, weight, limits, 2, (statistic,))


def regression(
    target: Column,
    features: Sequence[Column],
    *,
    bounds: Mapping[Column, Limits],
    weight: float = 1.0,
) -> Query:
    """Returns a query of the least-squares regression of a column on others, all clipped.

    One estimate for the intercept and one for each feature's coefficient. They are of the best
    linear prediction of the population, whether or not its errors are normal or of one variance.
    The monomials of d + 1 columns up to the fourth degree are released; the noise grows with d.
    Where the noise may be as large as the features' variances the interval is unbounded: narrower
    bounds, fewer features or more budget are needed. Posteriors: {py:mod}`dpjax.bayes.regression`.

    Args:
      target: the column that is predicted, as of `mean`.
      features: different columns, each as of `mean`.
      bounds: of the target and of each feature, by its column, each as of `mean`. Those of further
        columns are not read, so that one mapping serves all statistics of a table; they need not be
        columns of the records.
      weight: as of `mean`.

    Raises:
      ValueError: no features, a column twice or without bounds, or as `mean`.

    >>> regression("income", ["age"], bounds={"income": (0, 200_000), "age": (0, 100)}).label
    'regression of income'
    """
    check_type("features", features, Sequence, "a list of columns")
    check(not isinstance(features, str), "features", features, "a list of columns")
    check_column(target, "target")
    for column in features:
        check_column(column, "features")
    columns = (target, *features)
    different = len(set(columns)) == len(columns) > 1
    check(different, "features", features, "one or more columns, all different, not the target")
    check_type("bounds", bounds, Mapping, "a mapping from each column to its bounds")
    allowed = f"among the columns of bounds, got bounds of {list(bounds)}"
    check(target in bounds, "target", target, allowed)
    check(set(features) <= set(bounds), "features", features, allowed)
    check_positive("weight", weight)
    limits = {column: checked_limits(bounds[column]) for column in columns}
    label = f"regression of {target}"
    statistics = tuple(
        Coefficient(
            label,
            limits,
            "intercept" if feature is None else str(feature),
            target=target,
            feature=feature,
        )
        for feature in (None, *features)
    )
    return Moments(label, weight, limits, 2, statistics)
