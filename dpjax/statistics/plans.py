"""Plans that divide one budget over queries, and their releases."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from dpjax._checks import (
    as_key,
    check,
    check_choice,
    check_delta,
    check_positive,
    check_text,
    check_type,
)
from dpjax._html import HTMLTable
from dpjax._typing import PRNGKey
from dpjax.accounting import calibrate
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.guarantee import Guarantee, render_guarantee
from dpjax.keys import is_seeded
from dpjax.mechanisms import Composition, Mechanism
from dpjax.mechanisms.base import format_sensitivity
from dpjax.statistics.counts import count
from dpjax.statistics.moments import GroupedMoments, Moments
from dpjax.statistics.query import Estimate, Query, Records, Size, as_table

if TYPE_CHECKING:
    import pandas as pd

    from dpjax.certificates.certificate import Certificate

# Over all queries' weights, that of the number of records, where it is private and no query asks
# for it.
_SIZE_WEIGHT = 0.25


@dataclass(frozen=True)
class StatisticsPlan(Mechanism):
    """Private release of several statistics of a table under one budget, built without the data.

    Attributes:
      queries: as `plan` groups them: moments of one column with the same bounds are one query.
      mechanisms: of each query, one or more.
      labels: of the queries, in the order in which they were asked.

    Privacy:
      What ``release`` returns is released: of each query what its mechanisms release. Under
      ``"add_remove"`` the number of records is released with noise, else it is public.

    >>> from dpjax.statistics import mean
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
        table = as_table(records)
        columns = [query._read(table) for query in self.queries]
        n = len(next(iter(table.values())))
        keys = jax.random.split(key, len(self.queries))

        # The number of records, public or released first.
        found: dict[str, list[Estimate]] = {}
        size = Size(float(max(n, 1)), 0.0)
        order = sorted(range(len(self.queries)), key=lambda i: self.queries[i].label != "count")
        for index in order:
            query, mechanisms = self.queries[index], self.mechanisms[index]
            for each in query._release(keys[index], columns[index], mechanisms, size, level):
                found.setdefault(each.statistic, []).append(each)
            if query.label == "count":
                (number,) = found["count"]
                size = Size(max(number.estimate, 1.0), number.noise_std)
        estimates = [each for label in self.labels for each in found[label]]
        guarantee = self.guarantee.of_run(seeded=is_seeded(key))
        by_group = tuple(label for query in self.queries for label in query._by_group)
        return StatisticsRelease(tuple(estimates), guarantee, level=level, by_group=by_group)


@dataclass(frozen=True)
class StatisticsRelease:
    """Released estimates with their intervals, and one certificate for all of them.

    Attributes:
      estimates: in the order of the queries.
      guarantee: of the release.
      level: of each interval by itself.
      by_group: labels of the means and variances by group.
    """

    estimates: tuple[Estimate, ...]
    guarantee: Guarantee
    _: KW_ONLY
    level: float
    by_group: tuple[str, ...] = ()

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

    def difference(self, statistic: str, *, minuend: str, subtrahend: str) -> Estimate:
        """Returns the difference of a mean or variance between two groups, with its interval.

        The records and the noise of two groups are independent, so the distances from the estimates
        to the ends of both intervals are added as squares.

        Source: Zou & Donner (2008), "Construction of confidence limits about effect measures", on
        a difference.

        Args:
          statistic: label of a mean or a variance with ``by``.
          minuend: the category whose estimate the other is subtracted from.
          subtrahend: the category that is subtracted.

        Privacy:
          Computed from released numbers, at no privacy cost.

        Raises:
          ValueError: another statistic, whose estimates are not independent, or not two categories.

        >>> from dpjax.statistics import mean
        >>> records = {"y": np.arange(1000) % 50, "arm": np.array(["a", "b"]).repeat(500)}
        >>> released = release(
        ...     jax.random.key(0), records,
        ...     [mean("y", bounds=(0, 50), by="arm", categories=["a", "b"])],
        ...     epsilon=1.0, delta=1e-6, adjacency="add_remove")
        >>> effect = released.difference("mean of y by arm", minuend="b", subtrahend="a")
        >>> effect.low < 0 < effect.high
        True
        """
        allowed = "the label of a mean or variance with by: there is none in this release"
        check(bool(self.by_group), "statistic", statistic, allowed)
        check_choice("statistic", statistic, self.by_group)
        groups = {each.entry: each for each in self.estimates if each.statistic == statistic}
        for name, group in {"minuend": minuend, "subtrahend": subtrahend}.items():
            check_choice(name, group, groups)
        check(minuend != subtrahend, "subtrahend", subtrahend, "another category than minuend")
        one, other = groups[minuend], groups[subtrahend]

        difference = one.estimate - other.estimate
        below = math.hypot(one.estimate - one.low, other.high - other.estimate)
        above = math.hypot(one.high - one.estimate, other.estimate - other.low)
        return Estimate(
            statistic=f"difference of {statistic}",
            entry=f"{minuend} - {subtrahend}",
            estimate=difference,
            low=difference - below,
            high=difference + above,
            noise_std=math.hypot(one.noise_std, other.noise_std),
            standard_error=math.hypot(one.standard_error, other.standard_error),
        )

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
    """Returns queries with noise for their joint release to be (epsilon, delta)-private.

    Each query gets the share of epsilon and delta that its weight has of all weights, and the noise
    of all is then lowered by one factor, to where the certificate of the composition reaches
    epsilon. Under ``"add_remove"`` the number of records is private, and released too where a query
    uses it.

    Args:
      queries: at least one, all different.
      epsilon: of all queries together, above zero.
      delta: in (0, 1); customarily well below one over the number of records.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy; the records must have one row for each.

    Raises:
      ValueError: no queries or two equal ones, a count of all records where it is public, or a
        number out of range.

    >>> from dpjax.statistics import mean, quantile
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
    elif "count" not in labels and any(query._uses_size for query in asked):
        asked = (count(weight=_SIZE_WEIGHT * sum(query.weight for query in asked)), *asked)

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
        if isinstance(query, Moments):
            key = frozenset(query.bounds.items())
            earlier = grouped.get(key)
            query = earlier.joined(query) if isinstance(earlier, Moments) else query
        elif isinstance(query, GroupedMoments):
            key = (frozenset(query.moments.bounds.items()), query.by, query.categories)
            earlier = grouped.get(key)
            query = earlier.joined(query) if isinstance(earlier, GroupedMoments) else query
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

    >>> from dpjax.statistics import mean
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
