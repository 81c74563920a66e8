"""Result tables of an experiment, and their text for a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from typing import NamedTuple

from experiments.lib.formatting import format_seconds, format_value, label, num_decimals
from experiments.lib.records import encode, find_record, is_current
from experiments.lib.registry import Experiment, Record, Row, Values, profile_rows

Justify = Callable[[str, int], str]
GROUPS = ("source", "measured", "certified")


class Column(NamedTuple):
    """A column's name, and the number of decimals its numbers are padded to."""

    name: str
    decimals: int


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    row: Row
    record: Record | None  # None if there is no record with the row's settings
    state: str  # "done", "failed", "not run yet", or "stale" (only a record of other settings)

    def values(self, group: str) -> Values:
        """Returns the values of the group ``"settings"`` or one of `GROUPS`."""
        if group in ("settings", "source"):
            return getattr(self.row, group)
        return {} if self.record is None else getattr(self.record, group)

    @property
    def outcome(self) -> str:
        """Run time of a finished row; of another row, the reason why it has no values."""
        if self.state == "stale":
            return "not run with these settings yet"
        if self.record is None:
            return self.state
        if self.record.error:
            return f"failed: {self.record.error}"
        return format_seconds(self.record.seconds)


def table_lines(
    experiment: Experiment, profile: str, records: Sequence[Record]
) -> tuple[Line, ...]:
    """Returns one line for each row of the experiment."""
    lines = []
    for row in profile_rows(experiment, profile):
        record = find_record(records, row, profile)
        if record is None:
            lines.append(Line(row, None, "not run yet"))
        elif not is_current(record, row):
            lines.append(Line(row, None, "stale"))
        else:
            lines.append(Line(row, record, "done" if record.finished else "failed"))
    return tuple(lines)


def finished_records(lines: Sequence[Line]) -> tuple[Record, ...]:
    """Returns the records of the finished rows, in the table's order."""
    return tuple(line.record for line in lines if line.record and line.state == "done")


def table_columns(lines: Sequence[Line], group: str) -> tuple[Column, ...]:
    """Returns the columns of a group, in order of appearance, or one unnamed column."""
    cells = [(name, value) for line in lines for name, value in line.values(group).items()]
    decimals: dict[str, int] = {}
    for name, value in cells:
        decimals[name] = max(decimals.get(name, 0), num_decimals(value, name))
    return tuple(Column(name, number) for name, number in decimals.items()) or (Column("", 0),)


def table_cells(line: Line, group: str, columns: Sequence[Column]) -> list[str]:
    """Formats the line's values under these columns of a group.

    Certified upper bounds are rounded up, and certified lower bounds ("lower" in the name) down.
    """
    values, cells = line.values(group), []
    for name, decimals in columns:
        bound = ROUND_FLOOR if "lower" in name else ROUND_CEILING
        rounding = bound if group == "certified" else ROUND_HALF_EVEN
        cells.append(format_value(values.get(name), name, decimals, rounding))
    return cells


def shared_settings(rows: Sequence[Row]) -> Values:
    """Returns the settings that are equal in every row.

    >>> shared_settings([Row("1", {"η": 0.25, "n": 9}, {}), Row("2", {"η": 0.15, "n": 9}, {})])
    {'n': 9}
    """
    settings = [encode(row.settings) for row in rows]
    return {
        name: value
        for name, value in rows[0].settings.items()
        if all(name in others and others[name] == settings[0][name] for others in settings)
    }


def text_table(experiment: Experiment, profile: str, records: Sequence[Record]) -> str:
    """Returns the table for the terminal: row | source | measured | certified | time.

    A row that was not run, or failed, has the reason in place of its time.
    """
    lines = table_lines(experiment, profile, records)
    blocks = [
        _block("", [["row"], *([line.row.name] for line in lines)], str.ljust),
    ]
    for group in GROUPS:
        columns = table_columns(lines, group)
        cells = [table_cells(line, group, columns) for line in lines]
        blocks.append(_block(group, [[label(name) for name, _ in columns], *cells], str.rjust))
    times = [[line.outcome.splitlines()[0]] for line in lines]
    blocks.append(_block("", [["time"], *times], str.ljust))
    body = (" | ".join(parts).rstrip() for parts in zip(*blocks, strict=True))
    return "\n".join([f"{experiment.name}, {profile} profile: {experiment.page.title}", *body])


def _block(heading: str, table: Sequence[Sequence[str]], justify: Justify) -> list[str]:
    """Pads a group's cells to columns under its heading."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(justify, row, widths)) for row in table]
    width = max(len(heading), len(rows[0]))
    return [heading.ljust(width), *(justify(row, width) for row in rows)]
