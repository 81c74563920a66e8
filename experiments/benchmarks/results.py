"""Measurements of a benchmark, their file and their tables."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.timing import Case, Effort, Times, interleaved
from experiments.lib.formatting import ABSENT, format_value
from experiments.lib.records import write_atomically

Values = Mapping[str, float | None]
# From a timed case and the times of all cases to the values of its row.
Columns = Callable[[Case, Mapping[str, Times]], Values]
# Title of each group, and what makes it: compiled one at a time, a group is freed again.
Groups = Iterator[tuple[str, Callable[[], "Group"]]]


class Group(NamedTuple):
    """The cases of one table, which are timed in turn.

    Attributes:
      kind: what the cases are, the heading of their names.
      subject: what is compared.
      cases: timed or skipped, in order.
      columns: the values of a row.
      effort: by default of the command.
      batch: examples in a batch, where there is one.
    """

    kind: str
    subject: str
    cases: Sequence[Case]
    columns: Columns
    effort: Effort = Effort()
    batch: int | None = None


@dataclass(frozen=True)
class Row:
    """One case of a table.

    Attributes:
      case: its name.
      values: by column; none of a case that was skipped, as ``note`` says.
      repetitions: how many were timed.
      note: why it was skipped or timed once, or what kind of number a value is.
    """

    case: str
    values: Values = field(default_factory=dict)
    repetitions: int = 0
    note: str = ""


@dataclass(frozen=True)
class Table:
    """The measurements of one group, whose attributes it has; a row for each case."""

    kind: str
    subject: str
    batch: int | None
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Heading of the table."""
        return title(self.subject, self.batch)

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the cells, in the order of their appearance."""
        return (*dict.fromkeys(name for row in self.rows for name in row.values), "runs")

    def cells(self, row: Row) -> tuple[str, ...]:
        """Returns the row's values as a reader sees them."""
        values = (format_cell(name, row.values.get(name)) for name in self.columns[:-1])
        return (*values, str(row.repetitions or ABSENT))


@dataclass(frozen=True)
class Benchmark:
    """The measurements of one part.

    Attributes:
      part: a name of the command line, such as ``"steps"``.
      versions: of what was measured.
      device: in words.
      missing: the libraries that could not be measured, and why.
      tables: in the order they were made.
    """

    part: str
    versions: Mapping[str, str]
    device: str
    missing: Mapping[str, str]
    tables: tuple[Table, ...] = ()


def title(subject: str, batch: int | None) -> str:
    """Returns the title of a table.

    >>> title("tutorial CNN", 64)
    'tutorial CNN, batch 64'
    """
    return subject if batch is None else f"{subject}, batch {batch:,}"


def ratio(times: Mapping[str, Times], case: Case, baseline: str) -> float | None:
    """Returns the case's median time over that of ``baseline``; None where that was skipped."""
    return times[case.name].median / times[baseline].median if baseline in times else None


def median_values(case: Case, times: Mapping[str, Times]) -> Values:
    """Returns the median time, and the case's own values."""
    return {"ms": times[case.name].median, **case.values}


def values_over(baseline: str) -> Columns:
    """Returns the columns that compare each case with ``baseline``, by median and by least time."""

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
    """Times a group, with its own effort by default; a skipped case keeps its place."""
    times = interleaved(group.cases, effort or group.effort)
    rows = []
    for case in group.cases:
        if case.name not in times:
            rows.append(Row(case.name, note=case.note))
            continue
        found = times[case.name]
        note = "slow: its first call alone" if found.slow else case.note
        rows.append(Row(case.name, dict(group.columns(case, times)), len(found.seconds), note))
    return Table(group.kind, group.subject, group.batch, tuple(rows))


def path_of(results: Path, part: str) -> Path:
    """Returns where the results of a part lie."""
    return results / f"benchmarks_{part}.json"


def save(results: Path, benchmark: Benchmark) -> None:
    """Writes the results of a part."""
    text = json.dumps(asdict(benchmark), indent=1, ensure_ascii=False)
    write_atomically(path_of(results, benchmark.part), text + "\n")


def load(results: Path, part: str) -> Benchmark | None:
    """Returns what :func:`save` wrote; None where there is nothing.

    Raises:
      ValueError: if the file holds something else.

    >>> load(Path("no_such_folder"), "steps") is None
    True
    """
    path = path_of(results, part)
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
    """Writes a value with three significant digits, of a whole part all; epsilon with four.

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
    """Returns every table as the terminal shows it, and the libraries that are missing."""
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
