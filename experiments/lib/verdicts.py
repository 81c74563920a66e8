"""Remarks of the report that compare claimed, measured and certified values."""

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING
from typing import Any

from experiments.lib.formatting import format_value
from experiments.lib.registry import Record

BEST_ACCURACY_REMARK = (
    "The best accuracy here at certified ε = 1, 2 and 3, on MNIST, Fashion-MNIST and CIFAR-10, is"
    " in the table of `scattering_linear`."
)


def format_upper_bound(value: float) -> str:
    """Formats an upper bound, such as a certified ε, rounded up.

    >>> format_upper_bound(2.35312), format_upper_bound(float("inf"))
    ('2.354', '∞')
    """
    return format_value(value, rounding=ROUND_CEILING)


def compare_claim(claim: float, certified: float) -> str:
    """Returns the verb phrase that compares a claimed ε with the certified one.

    >>> compare_claim(0.83, certified=0.86), compare_claim(1.19, certified=0.86)
    ('is below', 'is not below')
    """
    return "is below" if claim < certified else "is not below"


def remarks_on_rows(
    records: Sequence[Record], write: Callable[..., str | Sequence[str]], *rows: str
) -> list[str]:
    """Returns ``write(*records)`` for the records of these rows, or nothing if one is missing."""
    by_row = {record.row: record for record in records}
    if not set(rows) <= set(by_row):
        return []
    remarks = write(*(by_row[row] for row in rows))
    return [remarks] if isinstance(remarks, str) else list(remarks)


def join_row_names(records: Sequence[Record], holds: Callable[[Record], bool]) -> str:
    """Returns the names of the rows that satisfy a condition, joined by semicolons."""
    return "; ".join(record.row for record in records if holds(record))


def group_by(records: Sequence[Record], setting: str) -> dict[Any, list[Record]]:
    """Groups the records that have this setting by its value, in order of appearance."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        if setting in record.settings:
            groups.setdefault(record.settings[setting], []).append(record)
    return groups


def largest_deviation(records: Sequence[Record], names: Sequence[str] = ()) -> float:
    """Returns the largest relative difference between measured and published values.

    The columns ``names`` are compared, by default all published ones.
    """
    return max(
        abs(record.measured[name] / record.source[name] - 1)
        for record in records
        for name in names or record.source
    )
