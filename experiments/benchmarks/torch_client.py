"""Client of a separate process for torch and Opacus, so that they do not share memory with JAX."""

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import jax

from experiments.benchmarks.models import Model

TORCH_METHODS = ("torch, plain", "Opacus, hooks", "Opacus, ew", "Opacus, ghost")
PER_EXAMPLE_METHODS = frozenset({"Opacus, hooks", "Opacus, ew"})


@contextmanager
def torch_worker() -> "Iterator[TorchWorker]":
    """Context manager of a worker, which is started at the first request."""
    with tempfile.TemporaryFile() as log:
        worker = TorchWorker(log)
        try:
            yield worker
        finally:
            worker.stop()


class TorchWorker:
    """Client of the worker process, which is restarted if it ended."""

    def __init__(self, log: IO[bytes]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = log  # the worker's standard error

    def prepare(self, method: str, model: Model, size: int) -> float | None:
        """Builds one method's model and optimiser; returns the peak memory of a step in MiB.

        Raises:
          RuntimeError: if the worker fails, with its error.
        """
        device = "cuda" if jax.default_backend() == "gpu" else "cpu"
        return self._ask("prepare", method, model.name, model.data(size), device)

    def step(self, method: str) -> float:
        """Runs one prepared step and returns its seconds in the worker."""
        return self._ask("step", method)

    def forget(self) -> None:
        """Frees the prepared steps."""
        self._ask("forget")

    def stop(self) -> None:
        """Ends the worker."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, *request: Any) -> Any:
        if self._process is None:
            command = [sys.executable, "-m", "experiments.benchmarks.torch_worker"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log)
        process: Any = self._process
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            error, answer = pickle.load(process.stdout)
        except (EOFError, OSError) as problem:
            self.stop()
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "it was killed, perhaps for its memory"
            raise RuntimeError(f"the torch worker ended: {reason}") from problem
        if error:
            raise RuntimeError(error)
        return answer
