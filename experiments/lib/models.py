"""Neural networks of the published experiments, their loss and their accuracy."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from dpjax._typing import PyTree

_INIT = nn.initializers.glorot_uniform()


class MnistCNN(nn.Module):
    """The tutorial CNN of Bu et al. (2020): two convolutions, 26,010 parameters, for 28x28 images.

    Input ``(batch, 28, 28, 1)``, output logits ``(batch, num_classes)``.
    """

    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        first = nn.Conv(16, (8, 8), 2, padding=3, kernel_init=_INIT, conv_general_dilated=convolve)
        x = max_pool_2x2(nn.relu(first(images)))
        x = nn.Conv(32, (4, 4), strides=2, padding="VALID", kernel_init=_INIT)(x)
        x = max_pool_2x2(nn.relu(x))
        x = nn.relu(nn.Dense(32, kernel_init=_INIT)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.num_classes, kernel_init=_INIT)(x)


class MnistMLP(nn.Module):
    """One hidden layer of 100 ReLU: 79,510 parameters for 28x28x1 images."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.relu(nn.Dense(100)(images.reshape(images.shape[0], -1)))
        return nn.Dense(self.num_classes)(x)


class TabularMLP(nn.Module):
    """The network of Bu et al. (2020) for Adult: one hidden layer of 16 ReLU; 2,018 parameters.

    Input ``(batch, features)``, output logits ``(batch, num_classes)``.
    """

    num_classes: int = 2

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.relu(nn.Dense(16, kernel_init=_INIT)(features))
        return nn.Dense(self.num_classes, kernel_init=_INIT)(x)


class MeanEmbeddingClassifier(nn.Module):
    """The network of Bu et al. (2020) for IMDb: mean of token embeddings, then 16 ReLU.

    The mean is over all positions, the padding (token 0) included. Input int ``(batch, length)`` of
    tokens below ``num_tokens``, output logits ``(batch, num_classes)``; 160,306 parameters for
    10,000 tokens.
    """

    num_tokens: int  # vocabulary size
    num_classes: int = 2
    # Whether padding is a zero vector or has a trained embedding. A short text looks padding up
    # more than a hundred times, so its trained embedding dominates the gradient that is clipped.
    padding_is_zero: bool = True

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.Embed(self.num_tokens, 16, embedding_init=small_uniform)(tokens)
        if self.padding_is_zero:
            # Multiplied by the mask instead, XLA's program for CPUs is eight times slower.
            x = jnp.where((tokens != 0)[..., None], x, 0.0)
        x = nn.relu(nn.Dense(16, kernel_init=_INIT)(x.mean(axis=1)))
        return nn.Dense(self.num_classes, kernel_init=_INIT)(x)


def small_uniform(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    """Returns uniform values in ±0.05, the default of Keras for embeddings."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    **_defaults: Any,
) -> jax.Array:
    """Convolution as a product of patches and kernel, for ``conv_general_dilated`` of ``nn.Conv``.

    With one input channel XLA's own convolution is slow on CPU: the clipped gradient of the MNIST
    network takes a third longer with it. The strides are equal and divide the kernel's sizes; the
    other arguments of ``nn.Conv`` have their defaults.

    >>> image, kernel = jnp.arange(16.0).reshape(1, 4, 4, 1), jnp.ones((2, 2, 1, 1))
    >>> convolve(image, kernel, (2, 2), ((0, 0), (0, 0))).squeeze().tolist()
    [[10.0, 18.0], [42.0, 50.0]]
    """
    stride = strides[0]
    height, width = kernel.shape[0] // stride, kernel.shape[1] // stride
    # Blocks of stride x stride pixels become channels, of images and of the kernel.
    blocks = _space_to_depth(jnp.pad(images, ((0, 0), *padding, (0, 0))), stride)
    rows, columns = blocks.shape[1] - height + 1, blocks.shape[2] - width + 1
    patches = [
        blocks[:, y : y + rows, x : x + columns] for y in range(height) for x in range(width)
    ]
    weights = jnp.moveaxis(_space_to_depth(jnp.moveaxis(kernel, -1, 0), stride), 0, -1)
    return jnp.concatenate(patches, axis=-1) @ weights.reshape(-1, kernel.shape[-1])


def _space_to_depth(x: jax.Array, size: int) -> jax.Array:
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // size, size, width // size, size, channels)
    return x.swapaxes(2, 3).reshape(batch, height // size, width // size, -1)


def max_pool_2x2(x: jax.Array) -> jax.Array:
    """Maximum over 2x2 windows with stride 1, unpadded; ``x`` is ``(batch, height, width, ...)``.

    Written by slices: the gradient of XLA's window reduction is slow on CPU (the whole CNN's plain
    step takes three times as long with it).

    >>> max_pool_2x2(jnp.arange(4.0).reshape(1, 2, 2, 1)).item()
    3.0
    """
    rows = jnp.maximum(x[:, :-1], x[:, 1:])
    return jnp.maximum(rows[:, :, :-1], rows[:, :, 1:])


def cross_entropy(model: nn.Module) -> Callable[[PyTree, PyTree], jax.Array]:
    """Returns the cross-entropy loss of one example ``(x, label)``."""

    def loss_fn(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, label = example
        logits = model.apply({"params": params}, x[None])[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    return loss_fn


def accuracy_percent(model: nn.Module, batch_size: int = 1000) -> Callable[[PyTree, PyTree], float]:
    """Returns ``f(params, (x, labels)) -> accuracy in %``, computed in batches."""

    @jax.jit
    def num_right(params: PyTree, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, x)
        return jnp.sum(logits.argmax(axis=-1) == labels)

    def accuracy(params: PyTree, data: PyTree) -> float:
        x, labels = data
        parts = range(0, len(labels), batch_size)
        right = sum(
            int(num_right(params, x[i : i + batch_size], labels[i : i + batch_size])) for i in parts
        )
        return 100 * right / len(labels)

    return accuracy
