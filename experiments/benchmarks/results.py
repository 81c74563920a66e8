"""Benchmark results: measurement, storage and tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dpjax._files import write_atomically
from experiments.benchmarks.timing import Case, Effort, Times, interleaved
from experiments.lib.formatting import ABSENT, format_value

Values = Mapping[str, float | None]
# From a case and the times of all cases to the values of its row.
Columns = Callable[[Case, Mapping[str, Times]], Values]
# Titles and factories of groups, so that one group at a time is in memory.
Groups = Iterator[tuple[str, Callable[[], "Group"]]]


class Group(NamedTuple):
    """The cases of one table, timed alternately."""

    kind: str  # heading of the cases' names
    subject: str  # what the table is about
    cases: Sequence[Case]  # timed or skipped
    columns: Columns  # computes the values of a row
    effort: Effort = Effort()  # default time budget
    batch: int | None = None  # batch size, if any


@dataclass(frozen=True)
class Row:
    """One case of a table."""

    case: str  # name of the case
    # by column; if skipped, those that were not timed
    values: Values = field(default_factory=dict)
    repetitions: int = 0  # number of timed repetitions
    note: str = ""  # reason for skipping or timing once, or the kind of value


@dataclass(frozen=True)
class Table:
    """The results of one group, a row for each case."""

    kind: str
    subject: str
    batch: int | None
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """The title of the table."""
        return title(self.subject, self.batch)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of columns with a value, in order of appearance."""
        named = (name for row in self.rows for name, x in row.values.items() if x is not None)
        return (*dict.fromkeys(named), "runs")

    def cells(self, row: Row) -> tuple[str, ...]:
        """Returns the row's formatted values."""
        values = (format_cell(name, row.values.get(name)) for name in self.columns[:-1])
        return (*values, str(row.repetitions or ABSENT))


@dataclass(frozen=True)
class Benchmark:
    """The results of one part."""

    part: str  # name on the command line, such as "steps"
    versions: Mapping[str, str]  # versions of the measured libraries
    device: str  # description of the device
    missing: Mapping[str, str]  # libraries that are not installed, with the error
    tables: tuple[Table, ...] = ()


def title(subject: str, batch: int | None) -> str:
    """Returns the title of a table."""
    return subject if batch is None else f"{subject}, batch {batch:,}"


def ratio(times: Mapping[str, Times], case: Case, baseline: str) -> float | None:
    """Returns the median time relative to ``baseline``; None if the baseline was skipped."""
    return times[case.name].median / times[baseline].median if baseline in times else None


def median_values(case: Case, times: Mapping[str, Times]) -> Values:
    """Returns the median time and the case's own values."""
    return {"ms": times[case.name].median, **case.values}


def values_over(baseline: str) -> Columns:
    """Returns the columns of median and least time relative to ``baseline``."""

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        mine, other = times[case.name], times[baseline]
        return {
            "ms": mine.median,
            "least ms": mine.least,
            f"× {baseline}": mine.median / other.median,
            "×, least": mine.least / other.least,
        }

    return columns


def measure(group: Group, effort: Effort | None = None) -> Table:
    """Times the cases of a group, with its own effort by default."""
    times = interleaved(group.cases, effort or group.effort)
    rows = []
    for case in group.cases:
        if case.name not in times:
            rows.append(Row(case.name, dict(case.values), note=case.note))
            continue
        found = times[case.name]
        note = "slow: only its first call was timed" if found.slow else case.note
        rows.append(Row(case.name, dict(group.columns(case, times)), len(found.seconds), note))
    return Table(group.kind, group.subject, group.batch, tuple(rows))


def results_path(results: Path, part: str) -> Path:
    """Returns the path of the results file of one part of the benchmark."""
    return results / f"benchmarks_{part}.json"


def save(results: Path, benchmark: Benchmark) -> None:
    """Writes the results of a part."""
    text = json.dumps(asdict(benchmark), indent=1, ensure_ascii=False)
    write_atomically(results_path(results, benchmark.part), f"{text}\n".encode())


def load(results: Path, part: str) -> Benchmark | None:
    """Loads the results of a part; None if there are none.

    Raises:
      ValueError: if the file is not a benchmark's results.

    >>> load(Path("no_such_folder"), "steps") is None
    True
    """
    path = results_path(results, part)
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        tables = tuple(
            Table(**{**table, "rows": tuple(Row(**row) for row in table["rows"])})
            for table in content.pop("tables")
        )
        return Benchmark(**content, tables=tables)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must be a benchmark's results; remove it") from error


def format_cell(column: str, value: float | None) -> str:
    """Formats a value with three significant digits, epsilon with four.

    >>> format_cell("ms", 1234.5), format_cell("ms", 0.5), format_cell("× certified", 0.9653)
    ('1,234', '0.50', '0.965')
    """
    if value is None:
        return ABSENT
    if column == "ε":
        return format_value(value)
    decimals = 3 if column == "× certified" else max(0, 3 - len(str(int(value))))
    return f"{value:,.{decimals}f}"


def format_text(benchmark: Benchmark) -> str:
    """Formats all tables, and the libraries that are missing, for the terminal."""
    blocks = []
    for table in benchmark.tables:
        lines = [("", *table.columns, "")]
        lines += [(row.case, *table.cells(row), row.note) for row in table.rows]
        first, *others, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
        padded = [
            "  ".join([case.ljust(first), *map(str.rjust, cells, others), note]).rstrip()
            for case, *cells, note in lines
        ]
        blocks.append("\n".join([table.title, *padded]))
    missing = [f"not measured: {name} ({why})" for name, why in benchmark.missing.items()]
    return "\n\n".join([*blocks, *missing])
