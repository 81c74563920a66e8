"""Starts the processes of one run on this machine."""

import multiprocessing
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.distributed.worker import Config, run_process

NUM_DEVICES = 4
# Forked from one that has imported everything: importing is most of a process's time here.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["experiments.distributed.worker"])


class Outcome(NamedTuple):
    """Exit status, output and run time of a process.

    Attributes:
      status: exit status; minus the signal's number if it was killed.
      output: what it wrote.
      seconds: from the start of the run to its end.
    """

    status: int
    output: str
    seconds: float


class Run:
    """The processes of one run, all with parts of the same ``NUM_DEVICES`` fake devices.

    Args:
      folder: an empty folder for logs and the result.
      jobs: see `Config`.
      num_processes: that share the devices.
      options: further fields of `Config`.
    """

    def __init__(
        self, folder: Path, jobs: Sequence[str], num_processes: int, **options: Any
    ) -> None:
        self.result = folder / "result.npz"
        self._begin, address = time.monotonic(), f"127.0.0.1:{free_port()}"
        self.processes, self._logs = [], []
        for index in range(num_processes):
            config = Config(
                tuple(jobs),
                address,
                num_processes,
                index,
                str(self.result),
                num_devices=NUM_DEVICES // num_processes,
                **options,
            )
            log = folder / f"log-{index}"
            process = _CONTEXT.Process(target=run_process, args=(config, str(log)))
            process.start()
            self.processes.append(process)
            self._logs.append(log)

    def output(self, index: int) -> str:
        """Returns what a process has written so far."""
        log = self._logs[index]
        return log.read_text(errors="replace") if log.exists() else ""

    def finish(self, timeout: float) -> list[Outcome]:
        """Waits for all processes up to a time limit, and kills those that still run then."""
        end = time.monotonic() + timeout
        outcomes: dict[int, float] = {}
        while len(outcomes) < len(self.processes):
            for index, process in enumerate(self.processes):
                if index not in outcomes and process.exitcode is not None:
                    outcomes[index] = time.monotonic() - self._begin
            if time.monotonic() > end:
                self.kill()
            time.sleep(0.05)
        return [
            Outcome(process.exitcode or 0, self.output(index), outcomes[index])
            for index, process in enumerate(self.processes)
        ]

    def kill(self, indices: Sequence[int] | None = None) -> None:
        """Kills processes, by default all that still run."""
        for index, process in enumerate(self.processes):
            if (indices is None or index in indices) and process.exitcode is None:
                process.kill()

    def released(self) -> dict[str, np.ndarray]:
        """Returns what process 0 wrote."""
        with np.load(self.result) as file:
            return dict(file)


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
