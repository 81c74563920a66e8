"""Networks of the benchmarks, with synthetic data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax._typing import ArrayTree
from experiments.benchmarks.vision import VisionTransformer, WideResNet16
from experiments.lib.models import MeanEmbeddingClassifier, MnistCNN

VOCABULARY, REVIEW_LENGTH, TEXT_LENGTH = 10_000, 256, 128
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A network and synthetic data for it."""

    name: str  # also its name in the torch worker
    title: str
    network: nn.Module  # from a batch to logits
    # from a number of examples to (inputs, labels)
    data: Callable[[int], Arrays]

    def init(self) -> ArrayTree:
        """Returns initial parameters."""
        inputs, _ = self.data(1)
        return jax.jit(self.network.init)(jax.random.key(0), inputs)["params"]

    def loss(self, params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Cross entropy of one example ``(x, label)``, averaged over tokens if it has several."""
        x, label = example
        logits = jnp.asarray(self.network.apply({"params": params}, x[None]))
        return optax.softmax_cross_entropy_with_integer_labels(logits[0], label).mean()

    def batch(self, size: int) -> tuple[jax.Array, jax.Array]:
        """Returns one batch, on the device."""
        inputs, labels = self.data(size)
        return jnp.asarray(inputs), jnp.asarray(labels)


class Mlp(nn.Module):
    """Dense layers with ReLU between them, on images; logits ``(batch, 10)``."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = images.reshape(len(images), -1)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class Transformer(nn.Module):
    """Transformer of two causal pre-norm blocks; logits ``(batch, length, vocabulary)``."""

    width: int = 128

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Embed(VOCABULARY, self.width)(tokens) + sinusoids(tokens.shape[1], self.width)
        for _ in range(2):
            attention = nn.MultiHeadDotProductAttention(num_heads=4)
            x = x + attention(nn.LayerNorm()(x), mask=nn.make_causal_mask(tokens))
            hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))


def sinusoids(length: int, width: int) -> np.ndarray:
    """Returns sinusoidal position encodings, ``(length, width)``.

    >>> sinusoids(128, 16).shape
    (128, 16)
    """
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _images(count: int, shape: tuple[int, ...] = (28, 28, 1)) -> Arrays:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(count, *shape)).astype(np.float32)
    return images, generator.integers(0, 10, count, np.int32)


def _colour_images(count: int) -> Arrays:
    return _images(count, (32, 32, 3))


def _reviews(count: int) -> Arrays:
    generator = np.random.default_rng(0)
    return _words(generator, count, REVIEW_LENGTH), generator.integers(0, 2, count, np.int32)


def _texts(count: int) -> Arrays:
    words = _words(np.random.default_rng(0), count, TEXT_LENGTH + 1)
    return words[:, :-1], words[:, 1:]


def _words(generator: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Draws tokens with Zipf frequencies."""
    return (generator.zipf(1.3, (count, length)) % VOCABULARY).astype(np.int32)


_EMBEDDING = MeanEmbeddingClassifier(VOCABULARY, padding_is_zero=False)
MODELS = {
    model.name: model
    for model in (
        Model("mlp", "MLP 784-256-10", Mlp((256,)), _images),
        Model("wide_mlp", "MLP 784-1024-1024-10", Mlp((1024, 1024)), _images),
        Model("cnn", "tutorial CNN", MnistCNN(), _images),
        Model("wide_resnet", "WRN-16-4", WideResNet16(), _colour_images),
        Model("vision", "ViT-Ti", VisionTransformer(), _colour_images),
        Model("embedding", "IMDb embedding", _EMBEDDING, _reviews),
        Model("transformer", "transformer", Transformer(), _texts),
    )
}
