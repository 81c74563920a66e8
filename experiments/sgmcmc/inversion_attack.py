"""Model inversion: from a classifier's confidence in a class to a picture of that class."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_STEP, _MOST_STEPS = 0.05, 2_000


@jax.jit
def invert(weights: jax.Array, confidence: jax.Array | float = 0.99) -> jax.Array:
    """Climbs from a blank image to one that the model is sure of, for every class.

    Steps of fixed length along the gradient of ``log p(class | image)``, each pixel held in
    [0, 1], until the probability reaches ``confidence``: all that the attack sees is the model.

    Args:
      weights: ``(num_pixels, num_classes)``: of a softmax regression without constants.
      confidence: in (0, 1).

    Returns:
      ``(num_classes, num_pixels)``.

    Source: Fredrikson, Jha, Ristenpart (2015), algorithm 1, without its denoising.

    >>> invert(jnp.array([[9.0, 0.0], [0.0, 9.0]])).round(1).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    def log_probability(image: jax.Array, label: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(image @ weights)[label]

    def climb(image: jax.Array, label: jax.Array) -> jax.Array:
        value, slope = jax.value_and_grad(log_probability)(image, label)
        step = _STEP * slope / (jnp.linalg.norm(slope) + 1e-12)
        return jnp.where(value < jnp.log(confidence), jnp.clip(image + step, 0, 1), image)

    def attack(label: jax.Array) -> jax.Array:
        blank = jnp.zeros(weights.shape[0])
        return jax.lax.fori_loop(0, _MOST_STEPS, lambda _, image: climb(image, label), blank)

    return jax.vmap(attack)(jnp.arange(weights.shape[1]))


def class_means(images: Any, labels: Any, num_classes: int = 10) -> np.ndarray:
    """Returns the mean image of each class, ``(num_classes, num_pixels)``.

    >>> class_means([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]], [0, 0, 1], 2).tolist()
    [[0.5, 1.0], [0.5, 0.0]]
    """
    images, labels = np.asarray(images), np.asarray(labels)
    return np.stack([images[labels == label].mean(axis=0) for label in range(num_classes)])


def correlations(pictures: Any, images: Any) -> np.ndarray:
    """Returns the correlation of each of ``pictures`` with each of ``images``, over the pixels.

    A picture of one shade correlates with nothing.

    >>> correlations([[0.0, 1.0, 0.0]], [[0.0, 2.0, 0.0], [1.0, 0.0, 1.0]]).round(2).tolist()
    [[1.0, -1.0]]
    """
    return _standardised(pictures) @ _standardised(images).T


def _standardised(images: Any) -> np.ndarray:
    centred = np.asarray(images) - np.mean(images, axis=1, keepdims=True)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
