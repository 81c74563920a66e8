"""Torch and Opacus in a process of their own, whose steps take turns with JAX's.

Apart, neither's threads nor memory disturb the other's. Messages are pickled tuples through pipes.
"""

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import jax

from experiments.bench.subjects import Subject

TORCH_WAYS = ("torch, plain", "Opacus, hooks", "Opacus, ew", "Opacus, ghost")
FORMS_GRADIENTS = frozenset({"Opacus, hooks", "Opacus, ew"})


@contextmanager
def torch_worker() -> "Iterator[TorchWorker]":
    """Gives a worker, started at the first request, and ends it."""
    with tempfile.TemporaryFile() as log:
        worker = TorchWorker(log)
        try:
            yield worker
        finally:
            worker.stop()


class TorchWorker:
    """This side's end of the worker. One that ended is started again at the next request."""

    def __init__(self, log: IO[bytes]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = log  # the worker's standard error

    def prepare(self, way: str, subject: Subject, size: int) -> float | None:
        """Makes one way's model and optimiser and runs a first step.

        Returns:
          The memory of a step at its peak in MiB, parameters and batch included.

        Raises:
          RuntimeError: if the worker cannot do it, with its reason.
        """
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        return self._ask("prepare", way, subject.name, subject.data(size), device)

    def step(self, way: str) -> float:
        """Runs one step of what was prepared and returns the seconds it took in the worker."""
        return self._ask("step", way)

    def forget(self) -> None:
        """Frees what was prepared."""
        self._ask("forget")

    def stop(self) -> None:
        """Ends the worker."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, *request: Any) -> Any:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            error, answer = pickle.load(process.stdout)
        except (EOFError, OSError) as problem:
            self.stop()
            raise RuntimeError(f"the torch worker ended: {self._last_words()}") from problem
        if error:
            raise RuntimeError(error)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "experiments.bench.torch_worker"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it was killed, perhaps for its memory"
