"""Tables of an experiment's rows beside their records, and their text for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from typing import Any, NamedTuple

from experiments.lib.formatting import format_seconds, format_value, label, num_decimals
from experiments.lib.records import encode, find_record, is_current
from experiments.lib.registry import Experiment, Record, Row, rows_of

Justify = Callable[[str, int], str]
GROUPS = ("source", "measured", "certified")


class Column(NamedTuple):
    """A column: its name, and to how many decimals its numbers are filled up."""

    name: str
    decimals: int


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes:
      row: the row as registered now.
      record: its record, where there is one that was made with the row's settings.
      state: ``"done"``, ``"failed"``, ``"not run yet"``, or ``"stale"``: there is a record, but of
        other settings, so none of its values are shown.
    """

    row: Row
    record: Record | None
    state: str

    def values(self, group: str) -> Mapping[str, Any]:
        """The values under ``"settings"`` or one of :data:`GROUPS`."""
        if group in ("settings", "source"):
            return getattr(self.row, group)
        return {} if self.record is None else getattr(self.record, group)

    @property
    def outcome(self) -> str:
        """The time a finished row took, and in words why another one has no values."""
        if self.state == "stale":
            return "not run with these settings yet"
        if self.record is None:
            return self.state
        if self.record.error:
            return f"failed: {self.record.error}"
        return format_seconds(self.record.seconds)


def lines_of(experiment: Experiment, profile: str, records: Sequence[Record]) -> tuple[Line, ...]:
    """One line for each row of the experiment, run or not."""
    lines = []
    for row in rows_of(experiment, profile):
        record = find_record(records, row, profile)
        if record is None:
            lines.append(Line(row, None, "not run yet"))
        elif not is_current(record, row):
            lines.append(Line(row, None, "stale"))
        else:
            lines.append(Line(row, record, "done" if record.finished else "failed"))
    return tuple(lines)


def finished_records(lines: Sequence[Line]) -> tuple[Record, ...]:
    """The records of the rows that are done, in the table's order."""
    return tuple(line.record for line in lines if line.record and line.state == "done")


def columns_of(lines: Sequence[Line], group: str) -> tuple[Column, ...]:
    """The columns of a group, in order of appearance; one without a name for none."""
    cells = [(name, value) for line in lines for name, value in line.values(group).items()]
    decimals: dict[str, int] = {}
    for name, value in cells:
        decimals[name] = max(decimals.get(name, 0), num_decimals(value, name))
    return tuple(Column(name, number) for name, number in decimals.items()) or (Column("", 0),)


def cells_of(line: Line, group: str, columns: Sequence[Column]) -> list[str]:
    """The line's values under these columns of a group, written for a reader.

    A certified value is a bound, and what is printed must be one too: an upper bound is rounded
    upwards, one with "lower" in its name downwards.
    """
    values, cells = line.values(group), []
    for name, decimals in columns:
        bound = ROUND_FLOOR if "lower" in name else ROUND_CEILING
        rounding = bound if group == "certified" else ROUND_HALF_EVEN
        cells.append(format_value(values.get(name), name, decimals, rounding))
    return cells


def shared_settings(rows: Sequence[Row]) -> dict[str, Any]:
    """The settings that are the same in every row.

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
    """The table for the terminal: row | source | measured | certified | time.

    Args:
      experiment: what to print.
      profile: whose rows.
      records: the experiment's records, of any profile.

    Returns:
      A title, two lines of headings and one line for each row; a row that was not run, or failed,
      has the reason in place of its values.
    """
    lines = lines_of(experiment, profile, records)
    blocks = [
        _block("", [["row"], *([line.row.name] for line in lines)], str.ljust),
    ]
    for group in GROUPS:
        columns = columns_of(lines, group)
        cells = [cells_of(line, group, columns) for line in lines]
        blocks.append(_block(group, [[label(name) for name, _ in columns], *cells], str.rjust))
    times = [[line.outcome.splitlines()[0]] for line in lines]
    blocks.append(_block("", [["time"], *times], str.ljust))
    body = (" | ".join(parts).rstrip() for parts in zip(*blocks, strict=True))
    return "\n".join([f"{experiment.name}, {profile} profile: {experiment.title}", *body])


def _block(heading: str, table: Sequence[Sequence[str]], justify: Justify) -> list[str]:
    """Pads a group's cells to columns under its heading; the lines have one length."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ["  ".join(map(justify, row, widths)) for row in table]
    width = max(len(heading), len(rows[0]))
    return [heading.ljust(width), *(justify(row, width) for row in rows)]
