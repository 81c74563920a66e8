"""The networks of :mod:`experiments.bench.subjects` again, in torch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

# Not from the module of the JAX networks: this process must not load JAX.
VOCABULARY = 10_000


class Words(nn.Module):
    """The mean of the words' embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)

    def forward(self, words: Tensor) -> Tensor:
        """Returns ``(batch, width)``."""
        return self.embedding(words).mean(dim=1)


class Attention(nn.Module):
    """Causal attention with four heads, from plain layers, which Opacus knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        heads = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (4, -1)).transpose(1, 2)


class Block(nn.Module):
    """One pre-norm block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width))
        self.dense = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        x = x + self.attention(x)
        return x + self.dense(x)


class Positions(nn.Module):
    """The tokens' embeddings plus fixed encodings of their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns ``(batch, length, width)``."""
        x = self.embedding(tokens)
        length, width = x.shape[1:]
        powers = torch.arange(0, width, 2, device=x.device) / width
        angles = torch.arange(length, device=x.device)[:, None] / 10_000**powers
        return x + torch.cat([angles.sin(), angles.cos()], dim=1)


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


def _embedding() -> nn.Module:
    return nn.Sequential(Words(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def _transformer() -> nn.Module:
    layers = (Positions(128), Block(128), Block(128), nn.LayerNorm(128))
    return nn.Sequential(*layers, nn.Linear(128, VOCABULARY))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: _mlp(256),
    "wide_mlp": lambda: _mlp(1024, 1024),
    "cnn": _cnn,
    "embedding": _embedding,
    "transformer": _transformer,
}
