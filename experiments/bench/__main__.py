"""The command: ``python -m experiments.bench``."""

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax

from experiments.bench.groups import KINDS, Selection, make_groups
from experiments.bench.measurements import Bench, measure, save
from experiments.bench.steps import default_limits
from experiments.bench.subjects import SUBJECTS
from experiments.bench.tables import text
from experiments.bench.timing import Effort
from experiments.bench.torch_peer import torch_worker
from experiments.bench.ways import why_missing
from experiments.lib.runner import versions


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench.json`` after each group, and prints the tables.

    Returns:
      The exit status: 0; 130 where it was interrupted, the finished groups being kept.

    Raises:
      SystemExit: status 2 for arguments it does not know, 0 after ``--help``.
    """
    # The torch worker, where there is one, needs room on an accelerator too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    arguments = _parser().parse_args(argv)
    selection = Selection(arguments.kinds, arguments.models, arguments.batches, default_limits())
    effort = Effort(arguments.seconds, arguments.repetitions)
    missing = missing_peers()
    bench = Bench(_versions(missing), _device(), missing)
    try:
        bench = run(bench, selection, effort, arguments.results, _say)
    except KeyboardInterrupt:
        _say("stopped; the groups finished so far are kept")
        return 130
    print(text(bench))
    return 0


def run(
    bench: Bench, selection: Selection, effort: Effort, results: Path, say: Callable[[str], None]
) -> Bench:
    """Measures group by group, and saves what there is after each.

    Returns:
      ``bench`` with the measurements.
    """
    with ExitStack() as stack:
        worker = None if "torch" in bench.missing else stack.enter_context(torch_worker())
        for title, make in make_groups(selection, worker):
            say(title)
            found = measure(make(), effort)
            bench = replace(bench, measurements=(*bench.measurements, *found))
            save(results, bench)
            jax.clear_caches()
    return bench


def missing_peers() -> dict[str, str]:
    """Returns the libraries that are not compared with, and why: ``make bench-setup`` gets them."""
    reasons = {"jax-privacy": why_missing("jax_privacy")}
    for name in ("torch", "opacus"):  # not imported here: the worker does
        found = importlib.util.find_spec(name)
        reasons[name] = "" if found else f"No module named {name!r}"
    return {name: reason for name, reason in reasons.items() if reason}


def _versions(missing: dict[str, str]) -> dict[str, str]:
    peers = ["optax", *({"jax-privacy", "torch", "opacus"} - missing.keys())]
    return versions() | {name: importlib.metadata.version(name) for name in sorted(peers)}


def _device() -> str:
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} CPU cores"
    return cores if device.platform == "cpu" else f"{device.device_kind}, {cores}"


def _parser() -> argparse.ArgumentParser:
    names = [subject.name for subject in SUBJECTS]
    parser = argparse.ArgumentParser(
        "python -m experiments.bench", description="What privacy costs in time and memory."
    )
    add = parser.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what to compare")
    add("--models", nargs="+", choices=names, default=names, help="what to train")
    add("--batches", nargs="+", type=int, default=[64, 256, 1024], help="(%(default)s)")
    add("--repetitions", type=int, default=50, help="of each case, at most (%(default)s)")
    add("--seconds", type=float, default=5.0, help="for each case, about (%(default)s)")
    add("--results", type=Path, default=Path("results"), help="folder (%(default)s)")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
