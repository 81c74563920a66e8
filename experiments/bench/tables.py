"""The benchmark's tables, for the terminal and the report."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from experiments.bench.measurements import Bench, Measurement
from experiments.lib.formatting import ABSENT

COLUMNS = ("ms", "× plain", "× noisy", "examples/s", "peak MiB", "runs")
_FIRST = {"steps": "× plain", "loops": "× host"}


class Row(NamedTuple):
    """One case: its cells as in :data:`COLUMNS`, and why it was skipped."""

    case: str
    cells: tuple[str, ...]
    note: str


class Table(NamedTuple):
    """One group.

    Attributes:
      kind: of the group.
      title: what is compared.
      rows: one for each case.
    """

    kind: str
    title: str
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the cells."""
        return tuple(_FIRST[self.kind] if name == "× plain" else name for name in COLUMNS)


def tables_of(bench: Bench) -> tuple[Table, ...]:
    """Returns one table for each group, in order."""

    def group_of(measurement: Measurement) -> tuple[str, str, int | None]:
        return measurement.kind, measurement.model, measurement.batch

    return tuple(
        Table(kind, title(model, batch), tuple(map(_row, members)))
        for (kind, model, batch), members in groupby(bench.measurements, group_of)
    )


def title(model: str, batch: int | None) -> str:
    """Returns a group's title.

    >>> title("tutorial CNN", 64)
    'tutorial CNN, batch 64'
    """
    return model if batch is None else f"{model}, batch {batch:,}"


def text(bench: Bench) -> str:
    """Returns every table as the terminal shows it, and the peers that are missing."""
    blocks = ["\n".join(table_lines(t.title, t.columns, t.rows)) for t in tables_of(bench)]
    missing = [f"not measured: {name} ({why})" for name, why in bench.missing.items()]
    return "\n\n".join([*blocks, *missing])


def _row(measurement: Measurement) -> Row:
    m = measurement
    values = (m.median_ms, m.ratio, m.noisy_ratio, m.examples_per_second, m.peak_mib)
    runs = str(m.repetitions) if m.repetitions else ABSENT
    return Row(m.case, (*map(short, values), runs), m.note)


def short(value: float | None) -> str:
    """Three significant digits; of a whole part, all."""
    if value is None:
        return ABSENT
    return f"{value:,.{max(0, 3 - len(str(int(value))))}f}"


def table_lines(title: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[str]:
    """Returns a table as the terminal shows it: its title, its headings, its rows."""
    every = (Row("", columns, ""), *rows)
    first, *others = [
        max(map(len, column))
        for column in zip(*((row.case, *row.cells) for row in every), strict=True)
    ]
    lines = [
        "  ".join([row.case.ljust(first), *map(str.rjust, row.cells, others), row.note]).rstrip()
        for row in every
    ]
    return [title, *lines]
