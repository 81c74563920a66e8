"""The command ``python -m experiments``: runs experiments, reports, and publishes their records."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.lib.formatting import format_seconds
from experiments.lib.planning import Forecast, forecast, summary
from experiments.lib.publication import PUBLISHED, load_publication, publication_path, publish
from experiments.lib.records import load_records
from experiments.lib.registry import (
    PROFILES,
    Experiment,
    Record,
    load_experiments,
    select,
    select_rows,
)
from experiments.lib.repetition import check_rows
from experiments.lib.report import write_report
from experiments.lib.runner import Plan, run_experiment, run_in_processes
from experiments.lib.tables import finished_records, table_lines, text_table


def main(argv: Sequence[str] | None = None, experiments: Sequence[Experiment] | None = None) -> int:
    """Runs the command on the given experiments, by default those of the registry.

    Returns:
      The exit status: 0; 1 if a row, a figure or a remark failed; 130 if interrupted.

    Raises:
      SystemExit: status 2 for unknown arguments, 0 after ``--help``.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    known = load_experiments() if experiments is None else experiments
    try:
        chosen = select(arguments.names, known)
        if arguments.row is not None:
            for experiment in chosen:
                select_rows(experiment, arguments.profile, arguments.row)
    except ValueError as error:
        parser.error(str(error))
    try:
        return 0 if arguments.command(chosen, arguments) else 1
    except KeyboardInterrupt:
        print("stopped; the rows finished so far are kept", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results (%(default)s)"
    )
    common.set_defaults(names=["all"], row=None)
    parser = argparse.ArgumentParser(
        "python -m experiments", description="Reproduction of published results."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("list", _list, "list the experiments and the number of rows run"),
        ("run", _run, "run the rows without a result"),
        ("plan", _plan, "estimate the run time of rows without a result"),
        ("report", _report, "write results/report.html"),
        ("publish", _publish, "write finished records and figures to be committed"),
        ("check", _check, "run rows again and compare with the committed records"),
    ):
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(command=command)
        if name not in ("list", "report"):
            required = name in ("run", "check")
            count, default = ("+", None) if required else ("*", ["all"])
            added.add_argument(
                "names", nargs=count, default=default, metavar="NAME", help="an experiment, or all"
            )
            added.add_argument(
                "--profile", choices=PROFILES, default=PROFILES[0], help="(%(default)s)"
            )
        if name in ("run", "check"):
            added.add_argument("--row", help="the name of one row (all rows)")
        if name in ("plan", "publish", "check"):
            added.add_argument(
                "--published", type=Path, default=PUBLISHED, help="their folder (%(default)s)"
            )
        if name == "run":
            added.add_argument(
                "--fresh", action="store_true", help="also run rows with a result again"
            )
            added.add_argument(
                "--jobs",
                type=_positive,
                default=1,
                metavar="N",
                help="run N experiments side by side (%(default)s); the seconds of a row grow",
            )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _list(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    width = max((len(experiment.name) for experiment in experiments), default=0)
    for experiment in experiments:
        records = load_records(arguments.results, experiment.name)
        lines = {profile: table_lines(experiment, profile, records) for profile in PROFILES}
        done = ", ".join(
            f"{profile} {len(finished_records(rows))}/{len(rows)}"
            for profile, rows in lines.items()
        )
        print(f"{experiment.name.ljust(width)}  {done}  {experiment.page.title}")
    return True


def _run(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    plan = Plan(arguments.profile, arguments.results, arguments.fresh)
    if arguments.jobs > 1 and arguments.row is None:
        # The longest first, so that no process ends long before the others.
        longest = sorted(experiments, key=lambda each: _seconds(each, plan.profile), reverse=True)
        names = [experiment.name for experiment in longest]
        succeeded = run_in_processes(names, plan, arguments.jobs)
    else:
        rows = [run_experiment(experiment, plan, arguments.row) for experiment in experiments]
        succeeded = all(rows)
    _print_tables(experiments, arguments.results, [arguments.profile])
    return succeeded


def _seconds(experiment: Experiment, profile: str) -> float:
    """The time that an experiment's committed records took."""
    records = load_publication(PUBLISHED, experiment.name, profile).records
    return sum(record.seconds for record in records)


def _plan(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    """Forecasts from the records of ``results`` and, where there is none, the committed ones."""
    everything: list[Forecast] = []
    for experiment in experiments:
        known = {
            (record.profile, record.row): record
            for record in [
                *_committed(experiment, arguments.published),
                *load_records(arguments.results, experiment.name),
            ]
        }
        records = list(known.values())
        rows = forecast(experiment, arguments.profile, records)
        print(f"{experiment.name}, {arguments.profile} profile: {experiment.page.title}")
        for row in rows:
            print(f"  {row.line.row.name}: {_row_time(row)}")
        print(f"  {summary(rows)}", end="\n\n")
        everything += rows
    print(f"all: {summary(everything)}")
    return True


def _committed(experiment: Experiment, folder: Path) -> list[Record]:
    publications = (load_publication(folder, experiment.name, profile) for profile in PROFILES)
    return [record for publication in publications for record in publication.records]


def _row_time(row: Forecast) -> str:
    if row.is_done:
        return f"done in {row.line.outcome}"
    state = "failed" if row.line.state == "failed" else row.line.outcome
    if row.seconds is None:
        return f"{state}, not measured"
    return f"{state}, {format_seconds(row.seconds)} ({row.origin})"


def _report(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    path, complete = write_report(experiments, arguments.results)
    _print_tables(experiments, arguments.results, PROFILES)
    print(f"The report is {path}")
    return complete


def _publish(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    """Publishes the experiments that have a finished row under the profile."""
    profile, folder = arguments.profile, arguments.published
    for experiment in experiments:
        records = load_records(arguments.results, experiment.name)
        if not finished_records(table_lines(experiment, profile, records)):
            print(f"{experiment.name}: no finished row of the {profile} profile")
            continue
        publication = publish(experiment, profile, arguments.results, folder)
        path = publication_path(folder, experiment.name, profile)
        print(f"{path}: {len(publication.records)} rows")
        for row, state in publication.missing.items():
            print(f"  without row {row}: {state}")
    return True


def _check(experiments: Sequence[Experiment], arguments: argparse.Namespace) -> bool:
    agreed = []
    for experiment in experiments:
        publication = load_publication(arguments.published, experiment.name, arguments.profile)
        rows = select_rows(experiment, arguments.profile, arguments.row)
        agreed.append(check_rows(experiment, rows, publication.records, print))
    return all(agreed)


def _print_tables(
    experiments: Sequence[Experiment], results: Path, profiles: Sequence[str]
) -> None:
    """Prints the tables of these profiles, and the experiments that were not run."""
    for experiment in experiments:
        records = load_records(results, experiment.name)
        run = {record.profile for record in records}
        for profile in profiles:
            if profile in run:
                print(text_table(experiment, profile, records), end="\n\n")
        if not records:
            print(f"{experiment.name}: not run yet", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
