"""The command: ``python -m experiments.bench_accounting``."""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import logging

from experiments.bench.timing import Effort
from experiments.bench.ways import why_missing
from experiments.bench_accounting.measurements import (
    MANY,
    AccountingBench,
    Measurement,
    measure_many,
    measure_single,
    save,
)
from experiments.bench_accounting.section import text
from experiments.bench_accounting.ways import PRV, SETTINGS, many_ways, single_ways
from experiments.lib.runner import versions


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench_accounting.json`` after each question, and prints the tables.

    Returns:
      The exit status: 0.

    Raises:
      SystemExit: status 2 for arguments it does not know, 0 after ``--help``.
    """
    arguments = _parser().parse_args(argv)
    logging.set_verbosity(logging.ERROR)  # of the orders that dp-accounting leaves out
    effort = Effort(arguments.seconds, arguments.repetitions)
    reason = why_missing(PRV)
    missing = {"prv-accountant": reason} if reason else {}
    bench = AccountingBench(_versions(missing), f"{os.cpu_count()} CPU cores", missing)
    for name in arguments.settings:
        print(name, file=sys.stderr, flush=True)
        bench = replace(bench, measurements=(*bench.measurements, *_measure(name, effort)))
        save(arguments.results, bench)
    print(text(bench))
    return 0


def _measure(name: str, effort: Effort) -> list[Measurement]:
    if name == MANY:
        return measure_many(tuple(many_ways()), effort)
    (setting,) = [setting for setting in SETTINGS if setting.name == name]
    return measure_single(setting, tuple(single_ways()), effort)


def _versions(missing: dict[str, str]) -> dict[str, str]:
    libraries = ["numpy", "scipy", "dp-accounting", *({"prv-accountant"} - missing.keys())]
    return versions() | {name: importlib.metadata.version(name) for name in libraries}


def _parser() -> argparse.ArgumentParser:
    names = [*(setting.name for setting in SETTINGS), MANY]
    parser = argparse.ArgumentParser(
        "python -m experiments.bench_accounting",
        description="What an epsilon costs and how tight it is.",
    )
    add = parser.add_argument
    add("--settings", nargs="+", choices=names, default=names, help="what to account for")
    add("--repetitions", type=int, default=10, help="of each way, at most (%(default)s)")
    add("--seconds", type=float, default=1.0, help="for each way, about (%(default)s)")
    add("--results", type=Path, default=Path("results"), help="folder (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
