"""The command ``python -m experiments.distributed [--kills N]``: processes against one.

NoisySGD, DPSVI and SGLD are run by 1, 2 and 4 processes of this machine, which share four fake
devices and have parts of one data set of unequal size, one of them empty; NoisySGD also on a data
source, of which each process reads what is drawn for its devices. Parameters must agree up
to the order of summation, and noise bit for bit. Then one of four processes is killed at random
moments, and two processes resume its run.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.distributed.processes import Outcome, Run
from experiments.distributed.worker import NUM_STEPS, STEPS_PER_CALL, part_sizes

_JOBS = ("sgd", "source", "noise", "dpsvi", "sgld")
_TOLERANCE = 1e-6
_TIME_LIMIT, _END_LIMIT = 400.0, 60.0
_NUM_REPORTS = NUM_STEPS // STEPS_PER_CALL
# Moments at which a process is killed, and the seconds of which one is drawn after each begins.
PHASES = {
    "at the start": 4.0,
    "in a step": 0.4,
    "in a checkpoint": 0.02,
    "between steps": 0.1,
    "at the end": 0.3,
}
# How a process ends that has lost another, by what it writes.
_ENDS = {
    "LostProcessError: process": "LostProcessError",
    "jax.distributed.initialize(": "before it had joined",
    "Terminating process because the JAX distributed service": "ended by JAX",
}


def main() -> int:
    """Runs and compares, and prints the results.

    Returns:
      The exit status: 0, or 1 if a comparison failed.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.distributed", description=__doc__)
    parser.add_argument("--kills", type=int, default=1, help="processes to kill (1)")
    kills = parser.parse_args().kills
    expected = run(1, _JOBS)
    if expected is None:
        return 1
    good = True
    for num_processes in (2, 4):
        jobs = (*_JOBS, "refused") if num_processes == 2 else _JOBS[:-1]
        found = run(num_processes, jobs) if good else None
        good = good and found is not None and compare(found, expected)
    moments = random.Random(0)
    for number in range(kills):
        good = good and kill_and_resume(number, moments, expected)
    print("all equal" if good else "NOT as expected")
    return int(not good)


def run(num_processes: int, jobs: tuple[str, ...], **options: Any) -> dict[str, np.ndarray] | None:
    """Returns what the processes released, or ``None`` (and prints why) if one failed."""
    with tempfile.TemporaryDirectory() as name:
        started = Run(Path(name), jobs, num_processes, **options)
        outcomes = started.finish(_TIME_LIMIT)
        if not any(outcome.status for outcome in outcomes):
            seconds = max(outcome.seconds for outcome in outcomes)
            print(f"{num_processes} processes of {part_sizes(num_processes)} records:", end=" ")
            print(f"{', '.join(jobs)} in {seconds:.0f} s", flush=True)
            return started.released()
    _print_failures(outcomes)
    return None


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Returns whether released arrays agree with those of one process, and prints how far."""
    good = True
    for job in (job for job in _JOBS if f"{job} epsilon" in found):
        names = [name for name in expected if name.startswith(job)]
        moved = max(float(np.abs(found[name] - expected[name]).max()) for name in names)
        epsilon = found[f"{job} epsilon"], expected[f"{job} epsilon"]
        print(f"  {job}: parameters differ by at most {moved:.1e}, epsilon {epsilon[0]:.4f}")
        limit = 0.0 if job == "noise" else _TOLERANCE
        good = good and moved <= limit and epsilon[0] == epsilon[1]
    for name in (name for name in found if name.startswith("refused")):
        print(f"  {name}: {found[name]}")
        good = good and "process" in str(found[name])
    return good


def kill_and_resume(number: int, moments: random.Random, expected: dict[str, np.ndarray]) -> bool:
    """Kills one of four processes at a random moment, and resumes its run with two.

    The other processes end with an error, or were done: by `LostProcessError` where an exchange
    with them failed, else by JAX, whose message names the process. Every second run has JAX's
    option ``jax_enable_recoverability``, under which they need not wait for the heartbeat.
    """
    phase, recoverable = tuple(PHASES)[number % len(PHASES)], number % 2 == 1
    victim = moments.randrange(4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options: dict[str, Any] = {"checkpoint_dir": str(folder / "checkpoints")}
        started = Run(folder, ("sgd",), 4, **options, recoverable=recoverable)
        wait_for(phase, started, folder / "checkpoints", moments)
        done = started.output(0).count("release")
        started.kill([victim])
        killed = time.monotonic()
        outcomes = started.finish(_END_LIMIT)
        took = time.monotonic() - killed
        others = [each for index, each in enumerate(outcomes) if index != victim]
        ends = [describe_end(each) for each in others]
        print(f"kill {number + 1}: process {victim}, {phase}, after {done} reports,", end=" ")
        print(
            f"recoverable {recoverable}: the others ended within {took:.1f} s: {ends}", flush=True
        )
        clear = all(ends) and (done == _NUM_REPORTS or "done" not in ends)
        if not clear or took > _END_LIMIT:
            _print_failures(outcomes)
            return False
        found = run(2, ("sgd",), **options)
    if found is None:
        return False
    moved = max(float(np.abs(found[name] - expected[name]).max()) for name in found)
    print(f"  resumed by two: parameters differ from one process's by at most {moved:.1e}")
    return moved <= _TOLERANCE


def wait_for(phase: str, started: Run, checkpoints: Path, moments: random.Random) -> None:
    """Waits for a random moment of one of `PHASES`."""
    reports = 0 if phase == "at the start" else moments.randrange(1, _NUM_REPORTS)
    if phase == "at the end":
        reports = _NUM_REPORTS
    end = time.monotonic() + _TIME_LIMIT
    while started.output(0).count("release") < reports and time.monotonic() < end:
        time.sleep(0.002)
    if phase == "in a checkpoint":
        while not any("tmp" in path.name for path in checkpoints.iterdir()):
            time.sleep(0.001)
    time.sleep(moments.random() * PHASES[phase])


def describe_end(outcome: Outcome) -> str:
    """How a process ended that was not killed; empty if without status and message."""
    if outcome.status == 0:
        return "done"
    for text, end in _ENDS.items():
        if text in outcome.output:
            return end
    return ""


def _print_failures(outcomes: list[Outcome]) -> None:
    for index, outcome in enumerate(outcomes):
        print(f"process {index} ended with status {outcome.status}:\n{outcome.output[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
