"""The worker: makes torch's and Opacus' steps and times them, one request at a time.

A request is a pickled tuple on standard input; the answer, on standard output, is a pickled pair
``(why it failed or "", result)``.
"""

import itertools
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from experiments.bench.torch_networks import NETWORKS

Step = Callable[[], None]


class Worker:
    """Holds the steps that were prepared."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    def prepare(self, way: str, name: str, data: Any, device: str) -> float | None:
        """Makes a step; returns its peak memory in MiB."""
        x, y = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in data)
        y = y.long()
        model = NETWORKS[name]().to(device)
        step = _plain(model, x, y) if way == "torch, plain" else _private(model, x, y, way)
        held = sum(t.nbytes for t in [x, y, *model.parameters()])
        peak = _peak_bytes(step, device, held)
        self.steps[way] = step
        return peak / 2**20

    def step(self, way: str) -> float:
        """Runs a step; returns its seconds."""
        start = time.perf_counter()
        self.steps[way]()
        _wait()
        return time.perf_counter() - start

    def forget(self) -> None:
        """Frees every step."""
        self.steps.clear()


def _plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _step(model, optimizer, nn.CrossEntropyLoss(), x, y, False)


def _private(model: nn.Module, x: torch.Tensor, y: torch.Tensor, way: str) -> Step:
    from opacus import PrivacyEngine

    mode = way.removeprefix("Opacus, ")
    private = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    ghost = mode == "ghost"
    return _step(
        private[0], private[1], private[2] if ghost else nn.CrossEntropyLoss(), x, y, ghost
    )


def _step(model: Any, optimizer: Any, criterion: Any, x: Any, y: Any, ghost: bool) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        logits = model(x)
        # Ghost clipping must be told that a text's tokens are one example.
        shape = {"shape": logits.shape} if ghost and logits.ndim == 3 else {}
        criterion(logits.flatten(0, -2), y.flatten(), **shape).backward()
        optimizer.step()

    return step


def _peak_bytes(step: Step, device: str, held: int) -> float:
    """What a step holds at its peak: ``held`` before it, and what it allocates."""
    step()  # the first one also allocates what stays
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return held + max(itertools.accumulate(number for _, number in changes))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Answers requests until there are no more."""
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = Worker()
    while True:
        try:
            command, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = ("", getattr(worker, command)(*arguments))
        except Exception as error:  # the other steps must go on
            answer = (f"{type(error).__name__}: {error}", None)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
