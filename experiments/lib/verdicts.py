"""Sentences of the report that compare what a source claims with what is measured and certified."""

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING
from typing import Any

from experiments.lib.formatting import format_value
from experiments.lib.registry import Record


def format_upper_bound(value: float) -> str:
    """Writes an upper bound, such as a certified ε: rounded up, so that it still is one.

    >>> format_upper_bound(2.35312), format_upper_bound(float("inf"))
    ('2.354', '∞')
    """
    return format_value(value, rounding=ROUND_CEILING)


def judge_claim(claim: float, certified: float) -> str:
    """Whether a claimed ε is at least the certified one, as the end of a sentence.

    >>> judge_claim(0.83, certified=0.86), judge_claim(1.19, certified=0.86)
    ('promises too much', 'is on the safe side')
    """
    return "promises too much" if claim < certified else "is on the safe side"


def when_run(
    records: Sequence[Record], say: Callable[..., str | Sequence[str]], *rows: str
) -> list[str]:
    """Remarks on some rows, none unless every one of them is finished.

    Args:
      records: finished ones.
      say: from the records of ``rows``, in their order, to a sentence or several.
      *rows: names.
    """
    by_row = {record.row: record for record in records}
    if not set(rows) <= set(by_row):
        return []
    said = say(*(by_row[row] for row in rows))
    return [said] if isinstance(said, str) else list(said)


def rows_where(records: Sequence[Record], holds: Callable[[Record], bool]) -> str:
    """The names of the rows for which something holds, separated by semicolons."""
    return "; ".join(record.row for record in records if holds(record))


def group_by(records: Sequence[Record], setting: str) -> dict[Any, list[Record]]:
    """The records by the value of a setting, in order of appearance; without it they are left out.

    Args:
      records: of one experiment.
      setting: its name; values must be hashable.
    """
    groups: dict[Any, list[Record]] = {}
    for record in records:
        if setting in record.settings:
            groups.setdefault(record.settings[setting], []).append(record)
    return groups


def largest_deviation(records: Sequence[Record], names: Sequence[str] = ()) -> float:
    """The largest relative difference between the source's figures and the measured ones.

    Args:
      records: of rows with source figures.
      names: columns to compare; all that a row has under source where left out.
    """
    return max(
        abs(record.measured[name] / record.source[name] - 1)
        for record in records
        for name in names or record.source
    )
