"""All parties of a federated study as processes on this machine, connected by TLS."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax.federated import Parties
from dpjax.federated.processes.party_files import write_party_files
from dpjax.federated.processes.trial_keys import make_trial_keys

_ROOT = Path(__file__).parents[2]


class Limits(NamedTuple):
    """Time limits of a study in seconds, as in `dpjax.federated.processes.Study`."""

    waiting_time: float
    time_limit: float


def write_study(
    folder: Path,
    mechanism: str,
    parties: Parties,
    records: Sequence[Mapping[str, np.ndarray]],
    *,
    delta: float,
    limits: Limits,
    program: Path | None = None,
) -> None:
    """Writes keys, configurations and records of every party into ``folder``.

    Args:
      folder: an empty folder.
      mechanism: TOML tables of the mechanism.
      parties: of the plan.
      records: arrays of each holder by name, in the order of the mechanism's ``sum_records``.
      delta: of the certificate.
      limits: of the study.
      program: of a training.
    """
    make_trial_keys(folder / "keys", num_holders=parties.num_holders, num_nodes=parties.num_nodes)
    nodes = [f"127.0.0.1:{port}" for port in _free_ports(parties.num_nodes)]
    study = [
        *([] if program is None else [f'program = "{program}"']),
        f"nodes = {nodes}",
        *(f"{name} = {value}" for name, value in limits._asdict().items()),
        "[plan.parties]",
        *(f"{name} = {_toml(value)}" for name, value in vars(parties).items() if value is not None),
        mechanism,
    ]
    (folder / "study.toml").write_text("\n".join(study))
    for holder, arrays in enumerate(records):
        np.savez(folder / f"records-{holder}.npz", **dict(arrays))  # type: ignore[arg-type]
    write_party_files(folder / "study.toml", arrays=list(records[0]), delta=delta)


def start(
    folder: Path, party: str, *, command: str | None = None, progress: bool = False
) -> subprocess.Popen[str]:
    """Starts a process of ``"holder-<i>"``, ``"node-<i>"`` or ``"analyst"``.

    Args:
      folder: of the study.
      party: whose file is the configuration.
      command: by default that of the party's role.
      progress: whether lines on the progress are printed on this process's stderr.
    """
    options = [command or party.partition("-")[0], "--config", str(folder / f"{party}.toml")]
    return subprocess.Popen(
        [sys.executable, "-m", "dpjax.federated", *options, *([] if progress else ["--quiet"])],
        cwd=_ROOT,
        # The programs are small: without LLVM's optimisations they start in half the time.
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.STDOUT,
        text=True,
    )


def start_all(
    folder: Path, parties: Parties, *, progress: bool = False
) -> dict[str, subprocess.Popen[str]]:
    """Starts every party, and returns the processes by name; the analyst prints its progress."""
    names = [
        *(f"node-{index}" for index in range(parties.num_nodes)),
        *(f"holder-{index}" for index in range(parties.num_holders)),
        "analyst",
    ]
    return {name: start(folder, name, progress=progress and name == "analyst") for name in names}


def finish(
    processes: Mapping[str, subprocess.Popen[str]], *, timeout: float
) -> dict[str, tuple[int, str]]:
    """Waits for holders and analyst, ends the nodes, and returns status and output of each.

    A process that still runs after ``timeout`` seconds is killed.
    """
    found = {}
    for name in sorted(processes):  # the nodes last
        process = processes[name]
        if name.startswith("node"):
            process.terminate()
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        found[name] = process.returncode, output
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
