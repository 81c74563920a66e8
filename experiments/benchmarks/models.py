"""Networks of the benchmarks, with synthetic data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from dpjax._typing import ArrayTree, PyTree
from experiments.lib.models import MeanEmbeddingClassifier, MnistCNN


class WideResNet16(nn.Module):
    """WRN-16 with group normalisation in place of batch normalisation; logits ``(batch, 10)``.

    Source: Zagoruyko & Komodakis (2016); De et al. (2022) for the normalisation.
    """

    widening: int = 4

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Conv(16, (3, 3), use_bias=False)(images)
        for number, width in enumerate((16, 32, 64)):
            for block in range(2):
                x = _block(x, self.widening * width, 2 if number and not block else 1)
        x = nn.relu(nn.GroupNorm(16)(x)).mean(axis=(1, 2))
        return nn.Dense(10)(x)


def _block(x: jax.Array, width: int, stride: int) -> jax.Array:
    """A residual block with normalisation and ReLU before its convolutions (in a compact call)."""
    h = nn.relu(nn.GroupNorm(16)(x))
    if x.shape[-1] != width:
        x = nn.Conv(width, (1, 1), strides=stride, use_bias=False)(h)
    h = nn.Conv(width, (3, 3), strides=stride, use_bias=False)(h)
    h = nn.relu(nn.GroupNorm(16)(h))
    return x + nn.Conv(width, (3, 3), use_bias=False)(h)


class VisionTransformer(nn.Module):
    """ViT-Ti on patches of 4 × 4 pixels; logits ``(batch, 10)``.

    Source: Dosovitskiy et al. (2021); Touvron et al. (2021) for the size.
    """

    width: int = 192
    depth: int = 12
    heads: int = 3

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Conv(self.width, (4, 4), strides=4)(images)
        x = x.reshape(len(x), -1, self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        for _ in range(self.depth):
            x = x + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x))
            hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        return nn.Dense(10)(jnp.mean(nn.LayerNorm()(x), axis=1))


VOCABULARY, REVIEW_LENGTH, TEXT_LENGTH = 10_000, 256, 128
BYTES, LAYERS, WIDTH, RANK = 256, 6, 256, 8  # of the stacked transformers
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A network and synthetic data for it."""

    name: str  # also its name in the torch worker
    title: str
    network: nn.Module  # from a batch to logits
    # from a number of examples to (inputs, labels)
    data: Callable[[int], Arrays]
    trained: tuple[str, ...] = ()  # names of the trained parameters; by default all

    def init(self) -> ArrayTree:
        """Returns initial trained parameters."""
        return self._split()[0]

    def _split(self) -> tuple[PyTree, PyTree]:
        """Trained and frozen parameters; trees by path if some are frozen."""
        inputs, _ = self.data(1)
        params = jax.jit(self.network.init)(jax.random.key(0), inputs)["params"]
        if not self.trained:
            return params, {}
        flat = flatten_dict(params)
        trained = {path: leaf for path, leaf in flat.items() if path[-1] in self.trained}
        return trained, {path: leaf for path, leaf in flat.items() if path not in trained}

    @functools.cached_property
    def _frozen(self) -> dict[Any, jax.Array]:
        with jax.ensure_compile_time_eval():
            return self._split()[1]

    def loss(self, params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Cross entropy of one example ``(x, label)``, averaged over tokens if it has several."""
        x, label = example
        if self.trained:
            params = unflatten_dict({**self._frozen, **params})
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
            x, _ = Block()(x, nn.make_causal_mask(tokens))
        return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))


class Block(nn.Module):
    """Pre-norm transformer block: ``(x, mask) -> (x, None)``, as `flax.linen.scan` takes it."""

    dense: type[nn.Module] = nn.Dense

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        """Returns the activations."""
        width = x.shape[-1]
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
        hidden = nn.gelu(self.dense(4 * width)(nn.LayerNorm()(x)))
        return x + self.dense(width)(hidden), None


class StackedTransformer(nn.Module):
    """Transformer of causal blocks, their weights stacked for `jax.lax.scan`; logits of bytes."""

    remat: bool = False  # whether the backward pass computes activations again
    dense: type[nn.Module] = nn.Dense

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Embed(BYTES, WIDTH)(tokens) + sinusoids(tokens.shape[1], WIDTH)
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        stack = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=LAYERS,
        )
        x, _ = stack(self.dense)(x, nn.make_causal_mask(tokens))
        return nn.Dense(BYTES)(nn.LayerNorm()(x))


class Gru(nn.Module):
    """Gated recurrent network on words; logits ``(batch, 2)`` from its last state."""

    @nn.compact
    def __call__(self, words: jax.Array) -> jax.Array:
        """Returns the logits."""
        states = jnp.asarray(nn.RNN(nn.GRUCell(128))(nn.Embed(VOCABULARY, 64)(words)))
        return nn.Dense(2)(states[:, -1])


class LowRankDense(nn.Module):
    """Dense layer with frozen weights in bfloat16 plus a product of two narrow matrices (LoRA)."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the outputs."""
        init = nn.initializers.lecun_normal()
        kernel = self.param("kernel", init, (x.shape[-1], self.features), jnp.bfloat16)
        down = self.param("down", init, (x.shape[-1], RANK))
        up = self.param("up", nn.initializers.normal(0.02), (RANK, self.features))
        return x @ kernel.astype(x.dtype) + (x @ down) @ up


def sinusoids(length: int, width: int) -> np.ndarray:
    """Returns sinusoidal positional encodings, ``(length, width)``."""
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


def _bytes(count: int) -> Arrays:
    inputs, labels = _texts(count)
    return inputs % BYTES, labels % BYTES


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
        Model("stacked", "stacked transformer", StackedTransformer(), _bytes),
        Model("remat", "stacked transformer, remat", StackedTransformer(remat=True), _bytes),
        Model("lora", "LoRA", StackedTransformer(dense=LowRankDense), _bytes, ("down", "up")),
        Model("gru", "GRU", Gru(), _reviews),
    )
}
