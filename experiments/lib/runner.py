"""Runs the rows of experiments, one record each, and keeps going where one fails."""

import hashlib
import importlib.metadata
import json
import platform
import re
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from experiments.lib.formatting import format_seconds
from experiments.lib.records import encode, find_record, is_current, load_records, save_record
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext, rows_of


@dataclass(frozen=True)
class Plan:
    """How experiments are run.

    Attributes:
      profile: ``"quick"`` or ``"paper"``.
      results: the folder of the records.
      fresh: whether finished rows are run again, from nothing.
      say: takes one line of progress.
    """

    profile: str
    results: Path
    fresh: bool
    say: Callable[[str], None]


def run_experiment(experiment: Experiment, plan: Plan) -> bool:
    """Runs every row that has no finished record of the plan's profile and the row's settings.

    Each record is saved as soon as its row is done: an interrupted run loses one row at most, and
    that one can go on from what it left in its folder.

    Returns:
      Whether no row failed.
    """
    succeeded = True
    for row in rows_of(experiment, plan.profile):
        title = f"{experiment.name} ({plan.profile}), row {row.name}"
        known = find_record(load_records(plan.results, experiment.name), row, plan.profile)
        has_result = known and known.finished and is_current(known, row) and not plan.fresh
        if known and has_result and known.data == _data_at_hand(experiment):
            plan.say(f"{title}: already there")
            continue
        plan.say(f"{title}: started")
        record = run_row(experiment, row, plan)
        save_record(plan.results, record)
        outcome = "done in" if record.finished else "FAILED after"
        plan.say(f"{title}: {outcome} {format_seconds(record.seconds)}")
        succeeded &= record.finished
    return succeeded


def run_row(experiment: Experiment, row: Row, plan: Plan) -> Record:
    """Runs one row, whatever records there are of it.

    Args:
      experiment: whose row it is.
      row: what to run.
      plan: how; its ``say`` takes the traceback of a row that fails.

    Returns:
      The row's record; where the row raised, or its result is not JSON-ready, one with the error
      and without values.
    """
    start, error = time.perf_counter(), ""
    try:
        context = RowContext(_make_folder(experiment, row, plan), plan.fresh, plan.profile)
        result = experiment.run_row(row, context)
        encode(vars(result))
    except Exception as raised:  # whatever a row raises, the others go on
        plan.say(traceback.format_exc())
        result, error = Result({}, {}), f"{type(raised).__name__}: {raised}"
    return Record(
        experiment=experiment.name,
        row=row.name,
        profile=plan.profile,
        settings=row.settings,
        source=row.source,
        data=_data_at_hand(experiment),
        seconds=round(time.perf_counter() - start, 3),
        error=error,
        date=datetime.now(UTC).date().isoformat(),
        versions=versions(),
        **vars(result),
    )


def _make_folder(experiment: Experiment, row: Row, plan: Plan) -> Path:
    """The row's folder, which other settings do not share; emptied for a fresh run."""
    identity = json.dumps(
        [row.name, _data_at_hand(experiment), encode(row.settings)], sort_keys=True
    ).encode()
    readable = re.sub(r"\W+", "-", row.name)
    name = f"{plan.profile}_{readable}_{hashlib.sha256(identity).hexdigest()[:8]}"
    folder = plan.results / "work" / experiment.name / name
    if plan.fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _data_at_hand(experiment: Experiment) -> str:
    """The name of the data; where they cannot be read, the row itself raises why."""
    try:
        return experiment.data()
    except Exception as error:
        return f"unreadable: {error}"


def versions() -> dict[str, str]:
    """The versions that a result depends on, whatever the machine.

    >>> sorted(versions())
    ['JAX', 'Python', 'dpjax']
    """
    return {
        "Python": platform.python_version(),
        "JAX": importlib.metadata.version("jax"),
        "dpjax": importlib.metadata.version("dpjax"),
    }
