"""The command ``python -m dpjax.federated``: files, keys, a check of the plans, and one party."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dpjax.federated.messages import ProtocolError
from dpjax.federated.processes.config import read_role, read_settings, read_study


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Returns:
      The exit status: 0; 1 if the round ended without what the party is for, or plans differ; 2 for
      an argument or a configuration that is not allowed.

    Raises:
      SystemExit: status 2 for unknown arguments, 0 after ``--help``.
    """
    arguments = _parser().parse_args(argv)
    _log_to_stderr(quiet=arguments.quiet, verbose=arguments.verbose)
    if getattr(arguments, "config", None) is not None:
        logging.getLogger("dpjax.federated").info("reads %s", arguments.config)
    try:
        return arguments.run(arguments)
    except ProtocolError as error:
        print(f"refused: {error.code}", flush=True)
        return 1
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    # What every command takes, before its name or after it.
    options = {
        "quiet": "print no progress on stderr",
        "verbose": "print why a node is not reached, too",
    }
    parser = argparse.ArgumentParser(prog="python -m dpjax.federated", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    for name, text in options.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
        common.add_argument(f"--{name}", action="store_true", help=text, default=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=[common])
        command.set_defaults(run=run)
        return command

    # Before a round.
    init = add("init", _write_files, "write the TOML files of all parties, from that of the study")
    init.add_argument(
        "study", type=Path, help="TOML file of the study; if it is not there, an example is written"
    )
    init.add_argument("--holders", type=int, help="number of holders of the example")
    init.add_argument("--nodes", type=int, help="number of nodes of the example")
    init.add_argument("--training", action="store_true", help="the example is one of many rounds")
    init.add_argument(
        "--arrays", nargs="+", default=["x", "y"], help="names in a holder's npz file"
    )
    init.add_argument("--delta", type=float, default=1e-5, help="of the analyst's certificate")
    keys = add("keys", _make_keys, "make keys and certificates for a trial on one machine")
    keys.add_argument("folder", type=Path)
    keys.add_argument("--holders", type=int, required=True, help="number of holders")
    keys.add_argument("--nodes", type=int, required=True, help="number of nodes")
    check = add("check", _check_plans, "compare the plans of all parties, before a round")
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--config", type=Path, help="TOML file of a holder or the analyst: ask the nodes that run"
    )
    which.add_argument("files", type=Path, nargs="*", default=[], help="or TOML files to compare")

    # The parties.
    parties: dict[str, Callable[[argparse.Namespace], int]] = {
        "holder": _run_holder,
        "node": _run_node,
        "analyst": _run_analyst,
    }
    for role, run in parties.items():
        command = add(role, run, f"run the process of one {role}")
        command.add_argument("--config", type=Path, required=True, help="TOML file of the party")
    return parser


def _log_to_stderr(*, quiet: bool, verbose: bool) -> None:
    """Prints the log of this package: progress, and texts of connection errors if ``verbose``."""
    logger = logging.getLogger("dpjax.federated")
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


def _write_files(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.party_files import write_example_study, write_party_files

    # An example of a study, where there is none.
    path: Path = arguments.study
    is_new = not path.exists()
    if is_new:
        if arguments.holders is None or arguments.nodes is None:
            remedy = "give --holders and --nodes to have an example written"
            raise ValueError(f"study must be a file, got {str(path)!r}; {remedy}")
        path.parent.mkdir(parents=True, exist_ok=True)
        written = write_example_study(
            path,
            num_holders=arguments.holders,
            num_nodes=arguments.nodes,
            training=arguments.training,
        )
        print("written:", ", ".join(map(str, written)))
    elif (arguments.holders, arguments.nodes, arguments.training) != (None, None, False):
        raise ValueError(
            f"holders, nodes and training must be left out: {str(path)!r} is there, and has them"
        )

    # The files of its parties.
    written = write_party_files(path, arrays=arguments.arrays, delta=arguments.delta)
    print("written:", ", ".join(map(str, written)))

    # What is left to do.
    parties = read_study(path).plan.parties
    keys = f"{path.parent / 'keys'} --holders {parties.num_holders} --nodes {parties.num_nodes}"
    if is_new:
        print(f"edit {path.name}: nodes (host and port of each), plan.mechanism and its bounds")
    if arguments.training:
        print("edit train.py: the loss, the first parameters and the optimizer")
    print("edit holder-*.toml: data (the holder's npz file) and arrays (the names in it)")
    print("edit analyst.toml: delta and result")
    print(f"keys for a trial on one machine: python -m dpjax.federated keys {keys}")
    return 0


def _make_keys(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.trial_keys import make_trial_keys

    make_trial_keys(arguments.folder, num_holders=arguments.holders, num_nodes=arguments.nodes)
    return 0


def _check_plans(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.plan_check import (
        differing_settings,
        plan_of_name,
        run_plan_check,
        study_name,
    )

    # Over the network.
    if arguments.config is not None:
        role = read_role(arguments.config)
        if role not in ("holder", "analyst"):
            raise ValueError(
                f"config must be the file of a holder or the analyst, got that of a {role}:"
                " nodes answer while they run"
            )
        settings = read_settings(arguments.config, role)
        party = role if role == "analyst" else f"{role}-{settings.index}"
        plans = run_plan_check(settings, party)
        print(plans, flush=True)
        return 0 if plans.is_agreed else 1

    # Copies of files on this machine.
    names = {}
    for path in arguments.files:
        role = read_role(path)
        study = read_study(path) if role == "study" else read_settings(path, role).study
        names[path] = study_name(study)
        print(f"plan {plan_of_name(names[path])}: {path}")

    # Each is compared with the first.
    first, *others = names.values()
    if any(plan_of_name(name) != plan_of_name(first) for name in others):
        print("the plans differ")
    keys = [key for name in others for key in differing_settings(first, name)]
    for key in dict.fromkeys(keys):
        print(f"{key} differs")
    return int(len(set(names.values())) > 1)


def _run_holder(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.holder import run_holder

    settings = read_settings(arguments.config, "holder")
    outcome = run_holder(settings)
    for node, code in outcome.codes.items():
        print(f"node {node}: {code or 'accepted'}")
    num_rounds = settings.study.plan.mechanism.num_rounds
    print(f"spent: {len(outcome.spent)} of {num_rounds} rounds of the plan", flush=True)
    return 0 if outcome.is_complete else 1


def _run_node(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.node import run_node

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings = read_settings(arguments.config, "node")
    outcome = run_node(settings, stop)
    if settings.study.program is not None:
        last, over = settings.study.plan.mechanism.num_rounds, outcome.round_number or 0
        print(f"rounds that are over: {over} of {last}", flush=True)
        return 0 if over == last else 1
    opened = outcome.holders
    what = "nothing" if opened is None else f"the sum of {len(opened)} holders"
    print(f"opened: {what}", flush=True)
    return 1 if opened is None else 0


def _run_analyst(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.analyst import run_analyst, run_training_analyst

    settings = read_settings(arguments.config, "analyst")
    if settings.study.program is None:
        result = run_analyst(settings)
        print(f"released: the sum of {len(result.holders)} holders, in {settings.result}")
    else:
        number = run_training_analyst(settings)
        print(f"released: the parameters after {number} rounds, in {settings.result}")
    print(settings.study.plan.certificate(settings.delta), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
