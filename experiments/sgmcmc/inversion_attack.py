"""The model inversion attack of Fredrikson, Jha and Ristenpart (2015), and its success."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.ndimage import gaussian_filter

from experiments.data import Split
from experiments.sgmcmc.inversion_models import Params, flatten, logits

# Their alpha, beta, gamma and lambda.
MAX_STEPS, PATIENCE, CONFIDENCE, RATE = 5_000, 100, 0.99, 0.1


class _State(NamedTuple):
    """State of the attack on all classes, one in each row."""

    images: jax.Array
    best: jax.Array  # images of the lowest cost
    lowest: jax.Array  # that cost
    recent: jax.Array  # costs of the last steps, (num_classes, PATIENCE)
    active: jax.Array  # whether a class's descent continues
    step: jax.Array


@functools.partial(jax.jit, static_argnums=1)
def invert(params: Params, num_classes: int) -> jax.Array:
    """Returns a flat image of each class, reconstructed from a classifier alone.

    Projected gradient descent on ``1 - p(class | image)``, pixels in [0, 1], from a grey image. It
    stops when the cost is not below the largest of the last 100, or when the probability reaches
    0.99, and returns the image of the lowest cost.

    Source: Fredrikson, Jha, Ristenpart (2015), Algorithm 1, without the auxiliary term, and without
    processing other than to the range of pixels. Their threshold, printed as 0.99 of the cost, is
    taken as that of the probability.

    >>> invert({"output": jnp.array([[40.0, 0.0], [0.0, 40.0]])}, 2).round(1).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def cost(image: jax.Array, label: jax.Array) -> jax.Array:
        return 1 - jax.nn.softmax(logits(params, image))[label]

    labels = jnp.arange(num_classes)
    costs_and_slopes = jax.vmap(jax.value_and_grad(cost))

    def descend(state: _State) -> _State:
        costs, slopes = costs_and_slopes(state.images, labels)
        is_lower = state.active & (costs < state.lowest)
        falls = costs < state.recent.max(axis=1)
        active = state.active & falls & (costs > 1 - CONFIDENCE)
        moved = jnp.clip(state.images - RATE * slopes, 0, 1)
        return _State(
            images=jnp.where(active[:, None], moved, state.images),
            best=jnp.where(is_lower[:, None], state.images, state.best),
            lowest=jnp.where(is_lower, costs, state.lowest),
            recent=state.recent.at[:, state.step % PATIENCE].set(costs),
            active=active,
            step=state.step + 1,
        )

    weights = params["hidden"] if "hidden" in params else params["output"]
    grey = jnp.full((num_classes, weights.shape[0]), 0.5)
    start = _State(
        images=grey,
        best=grey,
        lowest=jnp.full(num_classes, jnp.inf),
        recent=jnp.full((num_classes, PATIENCE), jnp.inf),
        active=jnp.ones(num_classes, bool),
        step=jnp.zeros((), int),
    )
    return jax.lax.while_loop(
        lambda state: state.active.any() & (state.step <= MAX_STEPS), descend, start
    ).best


class Match(NamedTuple):
    """Success of the attack by comparison with a reference image of each class."""

    identified_percent: float  # of classes, whose image is most like their own reference
    correlation: float  # mean, of images with their own reference


def match_classes(images: Any, references: Any) -> Match:
    """Compares one image of each class with the references of all, by correlation over pixels.

    The mean over classes is subtracted from the images, and from the references.

    >>> match_classes([[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 1.0]])
    Match(identified_percent=100.0, correlation=1.0)
    """
    found = _standardize(images) @ _standardize(references).T
    right = found.argmax(axis=1) == np.arange(len(found))
    return Match(100 * float(right.mean()), float(np.diagonal(found).mean().round(12)))


def smooth(images: Any) -> np.ndarray:
    """Applies a Gaussian blur of 1/32 of the side to flat square images, against their noise."""
    images = np.asarray(images, np.float64)
    side = round(images.shape[1] ** 0.5)
    squares = images.reshape(-1, side, side)
    return gaussian_filter(squares, side / 32, axes=(1, 2)).reshape(images.shape)


def _standardize(images: Any) -> np.ndarray:
    """Subtracts the mean over images and each image's own mean, and scales to norm one."""
    images = np.asarray(images, np.float64)
    centred = images - images.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)


def class_means(part: Split, num_classes: int) -> np.ndarray:
    """Returns the mean image of each class, ``(num_classes, num_pixels)``."""
    images, labels = flatten(part)
    return np.stack([images[labels == label].mean(axis=0) for label in range(num_classes)])
