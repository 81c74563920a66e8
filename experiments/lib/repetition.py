"""Rows run again and compared with their committed records."""

import math
import re
import tempfile
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from experiments.lib.records import decode, encode, is_current
from experiments.lib.registry import Experiment, Record, Row, Tolerance
from experiments.lib.runner import Plan, run_row

# Measured columns that depend on the settings only.
_ACCOUNT = re.compile(r"\b(CLT|MA|AC|Rényi)\b|^closed form|formula")
# Measured columns that depend on the machine; they are not compared.
_TIME = "(ms)"


def check_rows(
    experiment: Experiment,
    rows: Sequence[Row],
    committed: Sequence[Record],
    say: Callable[[str], None],
) -> bool:
    """Runs each row that has a committed record again, and compares.

    The runs start from nothing, in a temporary folder.

    Returns:
      Whether there was a record of at least one row, and every figure agreed.
    """
    by_row, agreed = {record.row: record for record in committed}, []
    for row in rows:
        title = f"{experiment.name}, row {row.name}"
        record = by_row.get(row.name)
        if record is None:
            say(f"{title}: no committed record")
            continue
        if not is_current(record, row):
            differences = ["the committed record has other settings"]
        else:
            with tempfile.TemporaryDirectory() as folder:
                plan = Plan(record.profile, Path(folder), True, say)
                again = run_row(experiment, row, plan)
            differences = compare_records(record, again, experiment.tolerance)
        for difference in differences:
            say(f"{title}: {difference}")
        say(f"{title}: {'DIFFERS from' if differences else 'agrees with'} the committed record")
        agreed.append(not differences)
    return bool(agreed) and all(agreed)


def compare_records(committed: Record, again: Record, tolerance: Tolerance) -> list[str]:
    """Returns the differences beyond the tolerance between two records of one row.

    Measured and certified values are compared; series, notes and times are not. A measured column
    of times has a name that ends in "(ms)".
    """
    if again.error:
        return [f"the row failed: {again.error}"]
    if again.data != committed.data:
        return [f"the committed record is of {committed.data}, this run of {again.data}"]
    differences = []
    for group in ("measured", "certified"):
        old, new = (decode(encode(getattr(record, group))) for record in (committed, again))
        for name in {name: None for name in (*old, *new) if not name.endswith(_TIME)}:
            account = group == "certified" or _ACCOUNT.search(name)
            relative = tolerance.account if account else tolerance.relative
            points = tolerance.points if name.endswith("%") and not account else 0.0
            if not _agree(old.get(name), new.get(name), 0.0 if points else relative, points):
                limit = f"{points:g} points" if points else f"{relative:g} relative"
                differences.append(
                    f"{group} {name}: {new.get(name)}, committed {old.get(name)}"
                    f" (tolerance {limit})"
                )
    return differences


def _agree(old: Any, new: Any, relative: float, absolute: float) -> bool:
    """Whether two values of records agree, lists entry by entry."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(
            _agree(one, other, relative, absolute) for one, other in zip(old, new, strict=True)
        )
    if isinstance(old, Real) and isinstance(new, Real):
        one, other = float(old), float(new)
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=relative, abs_tol=absolute)
    return bool(old == new)
