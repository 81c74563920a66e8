"""Runs the rows of experiments and saves one record for each; a failed row is recorded."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from experiments.lib.formatting import format_seconds
from experiments.lib.records import encode, find_record, is_current, load_records, save_record
from experiments.lib.registry import (
    PROFILES,
    Experiment,
    Record,
    Result,
    Row,
    RowContext,
    load_experiments,
    select,
    select_rows,
)


def print_line(line: str) -> None:
    """Prints a line of progress at once."""
    print(line, flush=True)


@dataclass(frozen=True)
class Plan:
    """Options of a run of experiments."""

    profile: str  # "quick" or "paper"
    results: Path  # folder of the records
    fresh: bool  # whether finished rows are run again from the start
    say: Callable[[str], None] = print_line  # prints one line of progress


def run_in_processes(names: Sequence[str], plan: Plan, num_processes: int) -> bool:
    """Runs experiments of the registry side by side; each is run by one process.

    Each process has cores of its own: threads of XLA that share cores with those of another process
    take half as long again.

    Returns:
      Whether no row failed and no process was killed.
    """
    context = multiprocessing.get_context("spawn")
    started = context.Value("i", 0)
    processes = [
        context.Process(target=_run_next, args=(names, plan, started, position))
        for position in range(num_processes)
    ]
    try:
        for position, process in enumerate(processes):
            with _on_share_of_cores(position, num_processes):
                process.start()
        for process in processes:
            process.join()
    finally:  # an interrupt ends all of them: finished rows are kept
        for process in processes:
            process.terminate()
    return all(process.exitcode == 0 for process in processes)


@contextlib.contextmanager
def _on_share_of_cores(position: int, num_shares: int) -> Iterator[None]:
    """Restricts this thread, and so processes that it starts, to every ``num_shares``-th core.

    Not where there are fewer cores than shares, or the system has no such restriction.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(cores) < num_shares:
        yield
        return
    os.sched_setaffinity(0, sorted(cores)[position::num_shares])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _run_next(names: Sequence[str], plan: Plan, started: "Synchronized[int]", place: int) -> None:
    """Runs the first experiment that no process has started, until there is none."""
    os.environ["TQDM_POSITION"] = str(place)  # of the progress bar
    experiments, succeeded = load_experiments(), True
    while (index := _count(started)) < len(names):
        (experiment,) = select([names[index]], experiments)
        try:
            succeeded &= run_experiment(experiment, plan)
        except KeyboardInterrupt:
            sys.exit(130)
    sys.exit(not succeeded)


def _count(counter: "Synchronized[int]") -> int:
    """Adds one to a counter and returns its value before."""
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


def run_experiment(experiment: Experiment, plan: Plan, only: str | None = None) -> bool:
    """Runs every row that has no finished record of the plan's profile and the row's settings.

    ``only`` names the one row to run, by default all are. A row with the settings of a finished row
    of the other profile takes over its record. Each record is saved when its row is done; an
    interrupted row resumes from its folder. A row that another process runs is waited for.

    Returns:
      Whether no row failed.
    """
    succeeded = True
    for row in select_rows(experiment, plan.profile, only):
        with _locked(plan.results / "work" / experiment.name / f"{_row_stem(row, plan)}.lock"):
            succeeded &= _run_unless_known(experiment, row, plan)
    return succeeded


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_RESUMED = "Resumed from checkpoints: the time is that of the last part."


def _run_unless_known(experiment: Experiment, row: Row, plan: Plan) -> bool:
    """Runs a row and saves its record unless there is one; returns whether it did not fail."""
    title = f"{experiment.name} ({plan.profile}), row {row.name}"
    known = _find_result(experiment, row, plan)
    if known:
        if known.profile != plan.profile:
            save_record(plan.results, replace(known, profile=plan.profile))
        plan.say(f"{title}: already there")
        return True
    plan.say(f"{title}: started")
    record = run_row(experiment, row, plan)
    save_record(plan.results, record)
    outcome = "done in" if record.finished else "FAILED after"
    plan.say(f"{title}: {outcome} {format_seconds(record.seconds)}")
    return record.finished


def _find_result(experiment: Experiment, row: Row, plan: Plan) -> Record | None:
    """Returns a finished record of these settings and the present data, of any profile."""
    if plan.fresh:
        return None
    records = load_records(plan.results, experiment.name)
    for profile in sorted(PROFILES, key=lambda profile: profile != plan.profile):
        record = find_record(records, row, profile)
        current = record and record.finished and is_current(record, row)
        if record and current and record.data == _data_name(experiment):
            return record
    return None


def run_row(experiment: Experiment, row: Row, plan: Plan) -> Record:
    """Runs one row and returns its record.

    If the row raises, or its result is not representable in JSON, the record has the error and no
    values, and the traceback is printed.
    """
    start, error = time.perf_counter(), ""
    try:
        folder = _make_folder(experiment, row, plan)
        resumed = any(folder.iterdir())
        result = experiment.run_row(row, RowContext(folder, plan.fresh, plan.profile))
        if resumed:
            result = replace(result, note=f"{result.note} {_RESUMED}".strip())
        encode(vars(result))
    except Exception as raised:  # the other rows still run
        plan.say(traceback.format_exc())
        result, error = Result({}, {}), f"{type(raised).__name__}: {raised}"
    return Record(
        experiment=experiment.name,
        row=row.name,
        profile=plan.profile,
        settings=row.settings,
        source=row.source,
        data=_data_name(experiment),
        seconds=round(time.perf_counter() - start, 3),
        error=error,
        date=datetime.now(UTC).date().isoformat(),
        versions=versions(),
        **vars(result),
    )


def _make_folder(experiment: Experiment, row: Row, plan: Plan) -> Path:
    """Creates the folder of a row and its settings; empties it for a fresh run."""
    identity = json.dumps(
        [row.name, _data_name(experiment), encode(row.settings)], sort_keys=True
    ).encode()
    name = f"{_row_stem(row, plan)}_{hashlib.sha256(identity).hexdigest()[:8]}"
    folder = plan.results / "work" / experiment.name / name
    if plan.fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _row_stem(row: Row, plan: Plan) -> str:
    readable = re.sub(r"\W+", "-", row.name)
    return f"{plan.profile}_{readable}"


def _data_name(experiment: Experiment) -> str:
    """Returns the name of the data; if they cannot be read, the row raises the error."""
    try:
        return experiment.data()
    except Exception as error:
        return f"unreadable: {error}"


def versions() -> dict[str, str]:
    """Returns the versions of Python, JAX and dpjax.

    >>> sorted(versions())
    ['JAX', 'Python', 'dpjax']
    """
    return {
        "Python": platform.python_version(),
        "JAX": importlib.metadata.version("jax"),
        "dpjax": importlib.metadata.version("dpjax"),
    }
