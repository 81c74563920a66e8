"""The student: a model trained on public inputs, of which some have a released label.

The loss is the cross-entropy of the labelled inputs, and with unlabelled ones that of FixMatch: the
class predicted for an input is the target for a randomly transformed copy of it, where the
prediction is confident. Nothing private is used but the released labels, so everything computed
here is post-processing of them.

Source: Sohn, Berthelot, Li, Zhang, Carlini, Cubuk, Kurakin, Zhang & Raffel (2020), "FixMatch:
Simplifying Semi-Supervised Learning with Consistency and Confidence", equations 3 and 4; averaged
parameters as in Section 2.3 there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from tqdm import tqdm

from dpjax._typing import PRNGKey, PyTree
from dpjax.pate import NO_ANSWER
from dpjax.training.run import compile_chunk

_STEPS_PER_CALL = 50
# augment_fn(key, inputs) -> transformed inputs, of the same shape
AugmentFn = Callable[[PRNGKey, Any], Any]


class _State(NamedTuple):
    """Training state of a student."""

    step: jax.Array
    key: PRNGKey
    params: PyTree
    opt_state: optax.OptState
    average: PyTree  # of the parameters, exponentially weighted


def train_student(
    key: PRNGKey,
    apply_fn: Callable[[PyTree, PyTree], jax.Array],
    params: PyTree,
    inputs: PyTree,
    labels: npt.ArrayLike,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    batch_size: int = 32,
    augment_fn: AugmentFn = lambda key, inputs: inputs,
    unlabeled_batch_size: int = 0,
    confidence: float = 0.95,
    average_decay: float = 0.99,
    progress: bool = True,
) -> PyTree:
    """Returns parameters trained on public inputs and the labels released for some of them.

    Args:
      key: a JAX key.
      apply_fn: ``apply_fn(params, inputs) -> logits (batch, num_classes)``.
      params: initial parameters, a tree of float arrays.
      inputs: a tree of arrays with a leading axis of inputs; public.
      labels: ``(num_inputs,)``, the labels of `Answers`; `NO_ANSWER` (-1) where none was released,
        also for inputs that were no queries.
      optimizer: any optax optimiser.
      num_steps: number of steps.
      batch_size: number of labelled inputs in a step, drawn with replacement.
      augment_fn: ``augment_fn(key, inputs)`` transforms a batch at random without changing its
        classes, such as `random_affine`; applied to labelled inputs and to the copies of unlabelled
        ones. By default no transformation.
      unlabeled_batch_size: number of inputs in a step whose own predicted class is a target, drawn
        from all inputs; zero for supervised training.
      confidence: least probability of a predicted class that is a target.
      average_decay: of the exponential average of the parameters, in [0, 1); zero for none.
      progress: show a progress bar.

    Returns:
      The averaged parameters, a tree like ``params``.

    Raises:
      ValueError: no input has a label, or a label is no class.

    Privacy:
      Nothing is released beyond ``labels``: this is post-processing of them, as long as ``inputs``,
      ``params`` and all settings are public.
    """
    known = _check_labels(labels, num_classes=jax.eval_shape(apply_fn, params, inputs).shape[1])
    answered = jnp.asarray(np.flatnonzero(known != NO_ANSWER))
    data = jax.device_put((inputs, jnp.asarray(known), answered))

    def supervised(params: PyTree, key: PRNGKey, data: PyTree) -> jax.Array:
        inputs, labels, answered = data
        draw_key, augment_key = jax.random.split(key)
        chosen = answered[jax.random.randint(draw_key, (batch_size,), 0, len(answered))]
        logits = apply_fn(params, augment_fn(augment_key, _take(inputs, chosen)))
        return jnp.mean(_cross_entropy(logits, labels[chosen]))

    def consistency(params: PyTree, key: PRNGKey, data: PyTree) -> jax.Array:
        draw_key, augment_key = jax.random.split(key)
        size = unlabeled_batch_size
        batch = _take(data[0], jax.random.randint(draw_key, (size,), 0, len(data[1])))
        predicted = jax.lax.stop_gradient(jax.nn.softmax(apply_fn(params, batch)))
        is_target = jnp.max(predicted, axis=-1) >= confidence
        logits = apply_fn(params, augment_fn(augment_key, batch))
        return jnp.mean(is_target * _cross_entropy(logits, jnp.argmax(predicted, axis=-1)))

    def loss(params: PyTree, key: PRNGKey, data: PyTree) -> jax.Array:
        one, two = jax.random.split(key)
        labeled = supervised(params, one, data)
        return labeled + consistency(params, two, data) if unlabeled_batch_size else labeled

    def update(state: _State, data: PyTree) -> tuple[_State, tuple[()]]:
        grads = jax.grad(loss)(state.params, jax.random.fold_in(state.key, state.step), data)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # from equal weights on: the first steps do not stay in the average
        decay = jnp.minimum(average_decay, state.step / (state.step + 1))
        average = optax.incremental_update(params, state.average, 1 - decay)
        return _State(state.step + 1, state.key, params, opt_state, average), ()

    state = _State(jnp.int32(0), key, params, optimizer.init(params), params)
    state = jax.tree.map(jnp.array, state)  # its own copies: the loop donates them
    run = compile_chunk(update, state, data, min(num_steps, _STEPS_PER_CALL))
    with tqdm(total=num_steps, unit="step", disable=not progress) as bar:
        for done in range(0, num_steps, _STEPS_PER_CALL):
            count = min(_STEPS_PER_CALL, num_steps - done)
            state, _ = jax.block_until_ready(run(state, data, count))
            bar.update(count)
    return state.average


def random_affine(
    key: PRNGKey,
    images: jax.Array,
    *,
    max_shift: float = 2.0,
    max_rotation: float = 0.26,
    max_scale: float = 0.15,
    max_shear: float = 0.2,
) -> jax.Array:
    """Returns images, each under a random affine transformation about its center.

    Pixels in between are interpolated, those outside are zero.

    Args:
      key: a JAX key.
      images: ``(batch, height, width, channels)``.
      max_shift: in pixels.
      max_rotation: in radians.
      max_scale: largest change of the factor along each axis.
      max_shear: largest shear.
    """
    draws = jax.random.uniform(key, (len(images), 6), minval=-1.0, maxval=1.0)
    limits = jnp.array([max_shift, max_shift, max_rotation, max_scale, max_scale, max_shear])
    return jax.vmap(_transform)(images, draws * limits)


def _transform(image: jax.Array, draws: jax.Array) -> jax.Array:
    """Returns one image, shifted, rotated, scaled and sheared."""
    height, width, _ = image.shape
    *shift, angle, down, across, shear = draws
    rotation = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    matrix = rotation @ jnp.array([[1 + down, shear], [0.0, 1 + across]])

    # where each pixel of the result comes from
    center = jnp.array([height - 1, width - 1])[:, None] / 2
    pixels = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"))
    places = matrix @ (pixels.reshape(2, -1) - center) + center + jnp.stack(shift)[:, None]

    interpolate = jax.vmap(
        lambda channel: jax.scipy.ndimage.map_coordinates(channel, list(places), order=1),
        in_axes=-1,
        out_axes=-1,
    )
    return interpolate(image).reshape(image.shape)


def _check_labels(labels: npt.ArrayLike, num_classes: int) -> npt.NDArray[np.int32]:
    """Returns the labels after checking that they are classes or `NO_ANSWER`, with one answer."""
    known = np.asarray(labels)
    valid = np.isin(known, np.arange(NO_ANSWER, num_classes))
    if not np.all(valid) or not np.any(known != NO_ANSWER):
        raise ValueError(
            f"labels must be classes 0 .. {num_classes - 1}, of at least one input, or NO_ANSWER ="
            f" {NO_ANSWER}, got {np.unique(known)}"
        )
    return known.astype(np.int32)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def _take(tree: PyTree, indices: jax.Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[indices], tree)
