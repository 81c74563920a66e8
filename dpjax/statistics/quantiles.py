"""Quantiles by permute-and-flip, with intervals between two other selections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from dpjax._checks import check_count, check_delta, check_positive
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import Mechanism, PermuteAndFlip
from dpjax.sensitivity import Sensitivity
from dpjax.statistics.query import (
    Array,
    Column,
    Estimate,
    Limits,
    Query,
    Size,
    Table,
    check_column,
    checked_limits,
    read_clipped,
)

# Of a quantile's budget, what its three selections get: estimate, lower end, upper end.
_QUANTILE_SHARES = (0.5, 0.25, 0.25)
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

        # Where few records are beyond an end on its other side, the selection may land there in a
        # part of the grid without records: such an end is selected on its own side of the estimate,
        # and is the bound where the estimate itself may be in such a part.
        shifts = [round_rank(shift) for shift in (0.0, -margins[0], margins[1])]
        beyond = (n - rank, rank)
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
    weight: float = 1.0,
) -> Query:
    """Returns a query of a quantile of a column, such as its median.

    Permute-and-flip selects from a public grid between the bounds: one value for the estimate and
    one for each end of the interval. Records beyond the bounds count as the
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
    check_column(column)
    check_delta(probability, "probability")
    check_count("num_candidates", num_candidates, minimum=2)
    check_positive("weight", weight)
    label = f"{float(probability):g}-quantile of {column}"
    limits = checked_limits(bounds)
    return Quantile(label, weight, column, round_rank(probability), limits, int(num_candidates))
