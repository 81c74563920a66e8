"""The command ``python -m dpjax.federated.processes``: one party, and keys for a trial."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dpjax.federated.messages import ProtocolError
from dpjax.federated.processes.config import read_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Returns:
      The exit status: 0; 1 if the round ended without what the party is for; 2 for an argument or a
      configuration that is not allowed.

    Raises:
      SystemExit: status 2 for unknown arguments, 0 after ``--help``.
    """
    arguments = _parser().parse_args(argv)
    if arguments.verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        return arguments.run(arguments)
    except ProtocolError as error:
        print(f"refused: {error.code}", flush=True)
        return 1
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dpjax.federated.processes", description=__doc__
    )
    parser.add_argument("--verbose", action="store_true", help="print why a node is not reached")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    keys = commands.add_parser("keys", help="make keys and certificates for a trial")
    keys.add_argument("folder", type=Path)
    keys.add_argument("--holders", type=int, required=True, help="number of holders")
    keys.add_argument("--nodes", type=int, required=True, help="number of nodes")
    keys.set_defaults(run=_make_keys)
    parties: dict[str, Callable[[argparse.Namespace], int]] = {
        "holder": _run_holder,
        "node": _run_node,
        "analyst": _run_analyst,
    }
    for role, run in parties.items():
        command = commands.add_parser(role, help=f"run the process of one {role}")
        command.add_argument("--config", type=Path, required=True, help="TOML file of the party")
        command.set_defaults(run=run)
    return parser


def _make_keys(arguments: argparse.Namespace) -> int:
    from dpjax.federated.processes.trial_keys import make_trial_keys

    make_trial_keys(arguments.folder, num_holders=arguments.holders, num_nodes=arguments.nodes)
    return 0


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
