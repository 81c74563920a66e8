"""Starts the processes of one run on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.distributed.worker import Config

_ROOT = Path(__file__).parents[2]
NUM_DEVICES = 4


class Outcome(NamedTuple):
    """How a process ended.

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
      folder: an empty folder for configurations and the result.
      jobs: see `Config`.
      num_processes: that share the devices.
      options: further fields of `Config`.
    """

    def __init__(
        self, folder: Path, jobs: Sequence[str], num_processes: int, **options: object
    ) -> None:
        self.result = folder / "result.npz"
        self._begin, address = time.monotonic(), f"127.0.0.1:{free_port()}"
        self.processes, self._logs = [], []
        devices = str(NUM_DEVICES // num_processes)
        environment = {
            # Compiling is most of the time: what it makes is kept, as that of the tests.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(_ROOT / ".cache" / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": devices,
        }
        for index in range(num_processes):
            config = Config(tuple(jobs), address, num_processes, index, str(self.result))
            path = folder / f"config-{index}.json"
            path.write_text(json.dumps({**config._asdict(), **options}))
            self._logs.append((folder / f"log-{index}").open("w+"))
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "experiments.distributed.worker", str(path)],
                    cwd=_ROOT,
                    env=environment,
                    stdout=self._logs[-1],
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def output(self, index: int) -> str:
        """Returns what a process has written so far.

        Args:
          index: of the process.
        """
        self._logs[index].seek(0)
        return self._logs[index].read()

    def finish(self, timeout: float) -> list[Outcome]:
        """Waits for every process, and kills those that still run at the end.

        Args:
          timeout: seconds from now.
        """
        end = time.monotonic() + timeout
        outcomes: dict[int, float] = {}
        while len(outcomes) < len(self.processes):
            for index, process in enumerate(self.processes):
                if index not in outcomes and process.poll() is not None:
                    outcomes[index] = time.monotonic() - self._begin
            if time.monotonic() > end:
                self.kill()
            time.sleep(0.05)
        return [
            Outcome(process.returncode, self.output(index), outcomes[index])
            for index, process in enumerate(self.processes)
        ]

    def kill(self, indices: Sequence[int] | None = None) -> None:
        """Kills processes, by default all that still run.

        Args:
          indices: of the processes.
        """
        for index, process in enumerate(self.processes):
            if (indices is None or index in indices) and process.poll() is None:
                process.kill()

    def released(self) -> dict[str, np.ndarray]:
        """Returns what process 0 wrote."""
        with np.load(self.result) as file:
            return dict(file)


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
