"""The command: ``python -m experiments.benchmarks [PART...]``, of the parts in `PARTS`."""

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.benchmarks.accounting import accounting_groups
from experiments.benchmarks.imports import import_groups
from experiments.benchmarks.inference import inference_groups
from experiments.benchmarks.meshes import mesh_groups
from experiments.benchmarks.methods import import_error
from experiments.benchmarks.results import Benchmark, Groups, format_text, measure, save
from experiments.benchmarks.routes import route_groups
from experiments.benchmarks.sources import source_groups
from experiments.benchmarks.steps import step_groups
from experiments.benchmarks.teachers import teacher_groups
from experiments.lib.runner import versions


class Part(NamedTuple):
    """One part of the benchmarks."""

    groups: Callable[[Sequence[int]], Groups]  # groups for given batch sizes
    libraries: tuple[str, ...]  # libraries with a recorded version
    # optional libraries to compare with
    peers: tuple[str, ...] = ()


PARTS = {
    "steps": Part(step_groups, ("optax",), ("jax_privacy", "torch", "opacus")),
    "routes": Part(route_groups, ("flax",)),
    "accounting": Part(
        lambda _: accounting_groups(), ("numpy", "scipy", "dp-accounting"), ("prv_accountant",)
    ),
    "inference": Part(lambda _: inference_groups(), ("numpyro", "optax"), ("blackjax",)),
    "sources": Part(lambda _: source_groups(), ("array-record", "optax")),
    "meshes": Part(lambda _: mesh_groups(), ("flax", "optax")),
    "teachers": Part(lambda _: teacher_groups(), ("flax", "optax")),
    "imports": Part(lambda _: import_groups(), ("numpyro", "optax")),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmarks, saves the results after each group, and prints the tables.

    Returns:
      The exit status: 0, or 130 if interrupted; finished groups are kept.

    Raises:
      SystemExit: status 2 for unknown arguments, 0 after ``--help``.
    """
    # Leaves accelerator memory for the torch worker.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    arguments = _parser().parse_args(argv)
    try:
        for name in PARTS if "all" in arguments.parts else arguments.parts:
            print(format_text(run(name, arguments)))
    except KeyboardInterrupt:
        _say("stopped; the groups finished so far are kept")
        return 130
    return 0


def run(name: str, arguments: argparse.Namespace) -> Benchmark:
    """Measures the groups of one part whose title contains ``arguments.only``, and saves them."""
    part = PARTS[name]
    missing = missing_libraries(part)
    found = {*part.libraries, *(peer.replace("_", "-") for peer in part.peers)} - missing.keys()
    library_versions = {library: importlib.metadata.version(library) for library in sorted(found)}
    device, cores = jax.devices()[0], f"{os.cpu_count()} CPU cores"
    described = cores if device.platform == "cpu" else f"{device.device_kind}, {cores}"
    benchmark = Benchmark(name, versions() | library_versions, described, missing)
    for title, make in part.groups(arguments.batches):
        if arguments.only not in title:
            continue
        _say(title)
        group = make()
        options = {key: vars(arguments)[key] for key in ("seconds", "repetitions")}
        given = {key: value for key, value in options.items() if value is not None}
        effort = replace(group.effort, **given)
        benchmark = replace(benchmark, tables=(*benchmark.tables, measure(group, effort)))
        save(arguments.results, benchmark)
        jax.clear_caches()
    return benchmark


def missing_libraries(part: Part) -> dict[str, str]:
    """Returns the missing optional libraries (see ``make bench-setup``) and their errors."""
    reasons = {}
    for peer in part.peers:
        if peer in ("torch", "opacus"):  # imported by the worker only
            found = importlib.util.find_spec(peer)
            reason = "" if found else f"No module named {peer!r}"
        else:
            reason = import_error(peer)
        reasons[peer.replace("_", "-")] = reason
    return {name: reason for name, reason in reasons.items() if reason}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m experiments.benchmarks",
        description="Time and memory of private training, accounting, inference and imports.",
    )
    add = parser.add_argument
    # argparse rejects an empty list as a default of an argument with choices.
    choices = [*PARTS, "all"]
    add("parts", nargs="*", default="all", metavar="PART", choices=choices, help=", ".join(choices))
    add("--only", default="", metavar="TEXT", help="tables whose title contains this")
    add("--batches", nargs="+", type=int, default=[32, 64, 256], help="of steps (%(default)s)")
    add("--repetitions", type=int, help="of each case, at most")
    add("--seconds", type=float, help="for each case, about")
    add("--results", type=Path, default=Path("results"), help="folder (%(default)s)")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
