"""Worker process that times steps of torch and Opacus.

Requests are pickled tuples on standard input, answers pickled pairs ``(error or "", result)``.
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
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

Step = Callable[[], None]

# Not imported from `models`: this process must not load JAX.
VOCABULARY, BYTES, LAYERS, WIDTH, RANK = 10_000, 256, 6, 256, 8


class Words(nn.Module):
    """The mean of the token embeddings of each text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)

    def forward(self, words: Tensor) -> Tensor:
        """Returns ``(batch, width)``."""
        return self.embedding(words).mean(dim=1)


class Attention(nn.Module):
    """Multi-head attention from linear layers, which Opacus supports."""

    def __init__(self, width: int, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        heads = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """One pre-norm block."""

    def __init__(
        self,
        width: int,
        heads: int = 4,
        causal: bool = True,
        linear: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal))
        self.dense = nn.Sequential(
            nn.LayerNorm(width),
            linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        x = x + self.attention(x)
        return x + self.dense(x)


class Positions(nn.Module):
    """Token embeddings plus sinusoidal position encodings."""

    def __init__(self, width: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns ``(batch, length, width)``."""
        x = self.embedding(tokens)
        length, width = x.shape[1:]
        powers = torch.arange(0, width, 2, device=x.device) / width
        angles = torch.arange(length, device=x.device)[:, None] / 10_000**powers
        return x + torch.cat([angles.sin(), angles.cos()], dim=1)


class Recomputed(nn.Module):
    """A layer whose activations are computed again in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer."""
        return checkpoint(self.layer, x, use_reentrant=False)


class LowRankLinear(nn.Module):
    """Linear layer with frozen weights in bfloat16 plus a product of two narrow matrices (LoRA)."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.randn(width, width_in).bfloat16() / width_in**0.5)
        self.down = nn.Linear(width_in, RANK, bias=False)
        self.up = nn.Linear(RANK, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs."""
        return nn.functional.linear(x, self.kernel.to(x.dtype)) + self.up(self.down(x))


class Recurrent(nn.Module):
    """Gated recurrent network on words; logits ``(batch, 2)`` from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.cells = nn.GRU(64, 128, batch_first=True)
        self.out = nn.Linear(128, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Returns the logits."""
        return self.out(self.cells(self.embedding(words))[0][:, -1])


class Patches(nn.Module):
    """Embeddings of patches of 4 × 4 pixels plus learned positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(4 * 4 * 3, width)
        self.positions = nn.Embedding(64, width)

    def forward(self, images: Tensor) -> Tensor:
        """Returns ``(batch, patches, width)``."""
        patches = images.unflatten(2, (8, 4)).unflatten(1, (8, 4)).transpose(2, 3)
        numbers = torch.arange(64, device=images.device).repeat(len(images), 1)
        return self.embedding(patches.flatten(3).flatten(1, 2)) + self.positions(numbers)


class ResidualBlock(nn.Module):
    """A block of the wide residual network, with normalisation before its convolutions."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm, same = nn.GroupNorm(16, width_in), width_in == width
        self.shortcut = None if same else nn.Conv2d(width_in, width, 1, stride, bias=False)
        self.layers = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.GroupNorm(16, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``(batch, channels, height, width)``."""
        h = nn.functional.relu(self.norm(x))
        return (x if self.shortcut is None else self.shortcut(h)) + self.layers(h)


class Mean(nn.Module):
    """The mean over some axes."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Removes the axes."""
        return x.mean(self.axes)


class ChannelsFirst(nn.Module):
    """Images with the channels as the second axis."""

    def forward(self, images: Tensor) -> Tensor:
        """Returns ``(batch, channels, height, width)``."""
        return images.permute(0, 3, 1, 2)


def _wide_resnet() -> nn.Module:
    widths = [16, 64, 64, 128, 128, 256, 256]
    strides = [1, 1, 2, 1, 2, 1]
    blocks = [ResidualBlock(*sizes) for sizes in zip(widths, widths[1:], strides, strict=False)]
    return nn.Sequential(
        ChannelsFirst(),
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        *blocks,
        nn.GroupNorm(16, 256),
        nn.ReLU(),
        Mean(2, 3),
        nn.Linear(256, 10),
    )


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for rows, columns in zip((784, *widths), (*widths, 10), strict=True):
        layers += [nn.Linear(rows, columns), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Flatten(3),
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _language_model(*blocks: nn.Module) -> nn.Module:
    embedding = Positions(WIDTH, BYTES)
    return nn.Sequential(embedding, *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES))


def _low_rank() -> nn.Module:
    model = _language_model(*(Block(WIDTH, linear=LowRankLinear) for _ in range(LAYERS)))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".down." in name or ".up." in name)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: _mlp(256),
    "wide_mlp": lambda: _mlp(1024, 1024),
    "cnn": _cnn,
    "wide_resnet": _wide_resnet,
    "vision": lambda: nn.Sequential(
        Patches(192),
        *(Block(192, 3, causal=False) for _ in range(12)),
        nn.LayerNorm(192),
        Mean(1),
        nn.Linear(192, 10),
    ),
    "embedding": lambda: nn.Sequential(Words(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)),
    "transformer": lambda: nn.Sequential(
        Positions(128), Block(128), Block(128), nn.LayerNorm(128), nn.Linear(128, VOCABULARY)
    ),
    "stacked": lambda: _language_model(*(Block(WIDTH) for _ in range(LAYERS))),
    "remat": lambda: _language_model(*(Recomputed(Block(WIDTH)) for _ in range(LAYERS))),
    "lora": _low_rank,
    "gru": Recurrent,
}


class Worker:
    """Prepared steps by method."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    def prepare(self, method: str, name: str, data: Any, device: str) -> float | None:
        """Prepares a training step and returns its peak memory in MiB."""
        if name not in NETWORKS:
            raise ValueError(f"no torch network is written for {name}")
        x, y = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in data)
        y = y.long()
        model = NETWORKS[name]().to(device)
        step = make_step(model, x, y, method)
        held = sum(t.nbytes for t in [x, y, *model.parameters()])
        peak = _peak_bytes(step, device, held)
        self.steps[method] = step
        return peak / 2**20

    def step(self, method: str) -> float:
        """Runs a step and returns its seconds."""
        start = time.perf_counter()
        self.steps[method]()
        _wait()
        return time.perf_counter() - start

    def forget(self) -> None:
        """Deletes the prepared steps to free their memory."""
        self.steps.clear()


def make_step(model: Any, x: Tensor, y: Tensor, method: str) -> Step:
    """Returns a step of SGD, plain or by one of Opacus' modes."""
    mode = method.removeprefix("Opacus, ")
    private = method != "torch, plain"
    model = _with_opacus_layers(model) if private else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.SGD(trained, lr=0.1)
    criterion: Any = nn.CrossEntropyLoss()
    if private:
        from opacus import PrivacyEngine

        model, optimizer, *others = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
            noise_multiplier=1.1,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        criterion = others[0] if mode == "ghost" else criterion

    def step() -> None:
        optimizer.zero_grad()
        logits = model(x)
        # Ghost clipping needs the shape to count a text's tokens as one example.
        shape = {"shape": logits.shape} if mode == "ghost" and logits.ndim == 3 else {}
        criterion(logits.flatten(0, -2), y.flatten(), **shape).backward()
        optimizer.step()

    return step


def _with_opacus_layers(model: nn.Module) -> nn.Module:
    """Replaces recurrent layers by those of Opacus, which can be clipped.

    Raises:
      ValueError: for layers that are computed again: Opacus' hooks would count them twice.
    """
    from opacus.validators import ModuleValidator

    if any(isinstance(layer, Recomputed) for layer in model.modules()):
        raise ValueError("Opacus does not support layers that are computed again")
    fixed: nn.Module = ModuleValidator.fix(model)
    return fixed


def _peak_bytes(step: Step, device: str, held: int) -> float:
    """Returns the peak memory of a step: ``held`` plus its allocations."""
    step()  # the first call also allocates persistent buffers
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
    """Answers requests on standard input until it is closed."""
    # Output of libraries goes to standard error.
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
        except Exception as error:  # reported to the client
            answer = (f"{type(error).__name__}: {error}", None)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
