"""The tables of the benchmark of the accountants, for the terminal and the report."""

from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from experiments.bench.tables import Row, short, table_lines
from experiments.bench_accounting.measurements import MANY, AccountingBench, Measurement, load
from experiments.lib.formatting import ABSENT, format_value

_ONE = ("ms", "ε", "× certified", "runs")
_MANY = ("settings", "ms", "ms a setting", "runs")


class Table(NamedTuple):
    """One question, and every way to answer it.

    Attributes:
      kind: what the rows are.
      title: the question.
      columns: headings of the cells.
      rows: one for each way.
    """

    kind: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class AccountingSection(NamedTuple):
    """What the report shows: the run, and one table for each question."""

    bench: AccountingBench
    tables: tuple[Table, ...]


def accounting_section(results: Path) -> AccountingSection | None:
    """Returns the section; ``None`` where there was no run.

    >>> accounting_section(Path("no_such_folder")) is None
    True
    """
    bench = load(results)
    return None if bench is None else AccountingSection(bench, tables_of(bench))


def tables_of(bench: AccountingBench) -> tuple[Table, ...]:
    """Returns one table for each question, in order."""
    return tuple(
        Table(
            "accountant", question, _MANY if question == MANY else _ONE, tuple(map(_row, members))
        )
        for question, members in groupby(bench.measurements, attrgetter("question"))
    )


def text(bench: AccountingBench) -> str:
    """Returns every table as the terminal shows it, and the libraries that are missing."""
    blocks = ["\n".join(table_lines(t.title, t.columns, t.rows)) for t in tables_of(bench)]
    missing = [f"not measured: {name} ({why})" for name, why in bench.missing.items()]
    return "\n\n".join([*blocks, *missing])


def _row(measurement: Measurement) -> Row:
    m, runs = measurement, str(measurement.repetitions)
    if m.question == MANY:
        each = m.median_ms / m.num_settings
        return Row(m.way, (f"{m.num_settings:,}", short(m.median_ms), short(each), runs), m.note)
    ratio = ABSENT if m.over_certified is None else f"{m.over_certified:.3f}"
    return Row(m.way, (short(m.median_ms), format_value(m.epsilon), ratio, runs), m.note)
