"""Quantiles by permute-and-flip, with intervals between two other selections."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import binom

from dpjax._checks import check, check_count, check_delta, check_positive
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import DiscreteGaussian, Mechanism, PermuteAndFlip
from dpjax.sensitivity import Sensitivity
from dpjax.statistics.counts import Counts
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

# Of a quantile's budget, what its three selections get: estimate, lower end, upper end.
_QUANTILE_SHARES = (0.5, 0.25, 0.25)
# Of the budget of quantiles by group, what the groups' numbers of records get.
_COUNT_SHARE = 0.2
# Standard deviations of its noise by which a private number of records may be too large.
_SIZE_DEVIATIONS = 1.0
# Scales of rank noise beyond a rank that make the grid's parts without records unlikely: of an end
# of the interval, and of the estimate by which a sparse end is limited.
_END_SCALES, _ESTIMATE_SCALES = 8.0, 6.0
# Probabilities and shifts of ranks are multiples of this, so that ranks of up to 2^29 records are
# computed without rounding, and the sensitivity of a utility is exact.
_RANK_UNIT = 2.0**-24


@dataclass(frozen=True)
class Quantile(Query):
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
        return self._make_selections(value, epsilon=epsilon, adjacency=adjacency, unit=unit)

    def _make_selections(
        self, value: float, *, epsilon: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        """Returns three selections by utilities that a record moves by at most ``value``."""
        moves = Sensitivity(value, "linf", adjacency, shape=(self.num_candidates,))
        return tuple(
            PermuteAndFlip.from_epsilon(moves, epsilon=share * epsilon, unit=unit)
            for share in _QUANTILE_SHARES
        )

    @property
    def released(self) -> str:
        low, high = self.bounds
        grid = f"{self.num_candidates:,} candidates in [{low:g}, {high:g}]"
        return f"estimate and both ends of its interval, each selected from {grid}"

    def _read(self, table: Table) -> Array:
        return np.sort(read_clipped(table, self.column, self.bounds))

    def _release(
        self,
        key: PRNGKey,
        columns: Array,
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        grid = np.linspace(*self.bounds, self.num_candidates)

        # The margins that cover sampling error and the ends' own rank noise.
        n, rank = size.num_examples, self.probability * size.num_examples
        rank_std = math.sqrt(rank * (1 - self.probability))
        scales = [each.scale for each in mechanisms if isinstance(each, PermuteAndFlip)]
        margins = rank_margins(max(round(n), 1), self.probability, (scales[1], scales[2]), level)

        # How many records there are at least, where their number has noise.
        least_n = max(n - _SIZE_DEVIATIONS * size.noise_std, 0.0)
        beyond = ((1 - self.probability) * least_n, self.probability * least_n)

        # Where few records are beyond an end on its other side, the selection may land there in a
        # part of the grid without records: such an end is selected on its own side of the estimate,
        # and is the bound where the estimate itself may be in such a part.
        shifts = [round_rank(shift) for shift in (0.0, -margins[0], margins[1])]
        is_sparse = [
            least + margin < _END_SCALES * scale
            for least, margin, scale in zip(beyond, margins, scales[1:], strict=True)
        ]
        selected: list[float] = []
        for number, one in enumerate(jax.random.split(key, 3)):
            mechanism, shift = mechanisms[number], shifts[number]
            assert isinstance(mechanism, PermuteAndFlip)
            utilities = -rank_distances(columns, grid, self.probability, shift)
            if number > 0 and is_sparse[number - 1]:
                side = grid <= selected[0] if number == 1 else grid >= selected[0]
                utilities = np.where(side, utilities, -np.inf)
            selected.append(float(grid[int(mechanism.release(one, utilities))]))

        # Half a step is added. An end whose rank is beyond the sample is the bound, too.
        step = (self.bounds[1] - self.bounds[0]) / (self.num_candidates - 1) / 2
        fewest = _ESTIMATE_SCALES * scales[0]
        low = max(min(selected[1:]) - step, self.bounds[0])
        high = min(max(selected[1:]) + step, self.bounds[1])
        if beyond[1] <= margins[0] or (is_sparse[0] and beyond[0] < fewest):
            low = self.bounds[0]
        if beyond[0] <= margins[1] or (is_sparse[1] and beyond[1] < fewest):
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


@dataclass(frozen=True)
class GroupedQuantile(Query):
    """A quantile of each group, with intervals: the groups' counts, and selections in each group.

    Attributes:
      label: of the query.
      weight: its share of the budget.
      quantile: of each group.
      counts: of the groups, whose categories are those of its column.
    """

    label: str
    weight: float
    quantile: Quantile
    counts: Counts

    # Each group has a number of records of its own.
    _uses_size = False

    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        """Returns the mechanism of the counts, and three of the selections, used in each group.

        A record that is added, removed or zeroed out is in one group: the selections of the others
        are the same, and all together are as private as those of one group. A replaced record may
        leave one group and enter another: both groups' utilities change as by a removal and an
        addition, and both selections compose. With twice the sensitivity each is private at half of
        epsilon. Within a group it changes utilities by at most one, which is not more.
        """
        counts = self.counts._make_mechanisms(
            epsilon=_COUNT_SHARE * epsilon, delta=delta, adjacency=adjacency, unit=unit
        )
        largest = max(self.quantile.probability, 1 - self.quantile.probability)
        value = 2 * largest if adjacency == "replace_one" else largest
        return *counts, *self.quantile._make_selections(
            value, epsilon=(1 - _COUNT_SHARE) * epsilon, adjacency=adjacency, unit=unit
        )

    @property
    def released(self) -> str:
        groups = f"{len(self.counts.entries)} groups by {self.counts.column}"
        return f"{groups}: counts, and of each group {self.quantile.released}"

    def _read(self, table: Table) -> npt.NDArray[Any]:
        """Returns the sorted values of each group, an array of arrays."""
        assert self.counts.column is not None
        assert self.counts.categories is not None
        groups = read_groups(table, self.counts.column, self.counts.categories)
        values = read_clipped(table, self.quantile.column, self.quantile.bounds)
        columns = np.empty(len(groups), object)
        for index, group in enumerate(groups):
            columns[index] = np.sort(values[group])
        return columns

    def _release(
        self,
        key: PRNGKey,
        columns: npt.NDArray[Any],
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        # The groups' numbers of records.
        of_counts, *selections = mechanisms
        assert isinstance(of_counts, DiscreteGaussian)
        count_key, *keys = jax.random.split(key, 1 + len(columns))
        noisy = of_counts.release(count_key, np.array([len(group) for group in columns]))

        # Of each group as of one table whose number of records has noise.
        estimates = []
        for one, entry, group, number in zip(
            keys, self.counts.entries, columns, np.asarray(noisy).tolist(), strict=True
        ):
            own = Size(max(float(number), 1.0), of_counts.standard_deviation)
            (found,) = self.quantile._release(one, group, selections, own, level)
            estimates.append(dataclasses.replace(found, statistic=self.label, entry=entry))
        return estimates


def rank_distances(values: Array, grid: Array, probability: float, shift: float) -> Array:
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


def round_rank(rank: float) -> float:
    """Returns the nearest multiple of `_RANK_UNIT`."""
    return round(float(rank) / _RANK_UNIT) * _RANK_UNIT


def rank_margins(
    num_examples: int, probability: float, scales: tuple[float, float], level: float
) -> tuple[float, float]:
    """Returns how far below and above the quantile's rank both ends are selected.

    The number K of n records up to the quantile is binomial, and a selection's rank differs from
    what it was selected for by about a Laplace variable: each end is on its side of K with
    probability (1 + level) / 2.

    Args:
      num_examples: n.
      probability: of the quantile.
      scales: of the rank noise of the lower and of the upper end.
      level: of the interval.
    """
    shares = (np.arange(400) + 0.5) / 400
    ranks = binom.ppf(shares, num_examples, probability) - probability * num_examples
    largest = 40 * (math.sqrt(num_examples) + sum(scales))

    def margin(ranks: Array, scale: float) -> float:
        def excess(margin: float) -> float:
            distance = (ranks + margin) / scale
            tail = np.exp(-np.abs(distance)) / 2
            return float(np.where(distance < 0, tail, 1 - tail).mean()) - (1 + level) / 2

        return max(float(brentq(excess, -largest, largest)), 0.0)

    return margin(ranks, scales[0]), margin(-ranks, scales[1])


def quantile(
    column: Column,
    probability: float,
    *,
    bounds: Limits,
    num_candidates: int = 10_001,
    by: Column | None = None,
    categories: Sequence[Any] | None = None,
    weight: float = 1.0,
) -> Query:
    """Returns a query of a quantile of a column, such as its median.

    Permute-and-flip selects from a public grid between the bounds: one value for the estimate and
    one for each end of the interval. Records beyond the bounds count as the
    bound; a quantile within them is not moved by this.

    With ``by`` there is one estimate for each category, as of `mean`: the groups' numbers of
    records are private and released too, with a fifth of the budget. Where a record is added or
    removed all groups cost what one costs; where one is replaced it may leave one group and enter
    another, so the selections have twice the noise. The interval of a group with too few records
    for the noise is that of the bounds.

    Args:
      column: as of `mean`.
      probability: in (0, 1); 0.5 for the median.
      bounds: as of `mean`; the quantile is known to be between them.
      num_candidates: of the grid, which has equal steps.
      by: as of `mean`.
      categories: as of `mean`.
      weight: as of `mean`.

    Raises:
      ValueError: a number out of range, several probabilities, or groups as of `mean`.

    >>> quantile("income", 0.5, bounds=(0, 200_000)).label
    '0.5-quantile of income'
    """
    check_column(column)
    check_delta(probability, "probability")
    check_count("num_candidates", num_candidates, minimum=2)
    check_positive("weight", weight)
    check((by is None) == (categories is None), "categories", categories, "given with by, only")
    label = f"{float(probability):g}-quantile of {column}"
    limits = checked_limits(bounds)
    one = Quantile(label, weight, column, round_rank(probability), limits, int(num_candidates))
    if by is None:
        return one
    check_column(by, "by")
    check(by != column, "by", by, "another column than that of the quantiles")
    label, values = f"{label} by {by}", checked_categories(categories)
    counts = Counts(label, weight, by, None, values, tuple(map(str, values)))
    return GroupedQuantile(label, weight, one, counts)
