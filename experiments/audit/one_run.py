"""One-run audit of DP-SGD on MNIST, by canaries among the images.

White box: canaries with orthogonal gradients, scored by the noisy sums along them, of which the
final parameters of plain gradient descent are made. Black box: images with wrong labels, scored by
their loss after the last step.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import audit
from experiments.data import Dataset, Split, load_data
from experiments.lib.models import TabularMLP, accuracy_percent

GRADIENTS, LOSSES = "gradients of canaries", "losses of wrong labels"
# Images with their labels, and canaries of each kind.
NUM_IMAGES, NUM_CANARIES = 2_000, 1_000
_NUM_STEPS, _LEARNING_RATE = 40, 2.0


class Audited(NamedTuple):
    """A trained model and the audits of its run, by the kind of canaries."""

    reports: dict[str, audit.OneRunReport]
    accuracy: float  # on the test images, in %


@functools.cache
def data_set() -> Dataset:
    """Returns MNIST as rows of pixels, or its stand-in if it is not available."""
    data = load_data("mnist", stand_in=True)
    train, test = (Split(x.reshape(len(x), -1), y) for x, y in (data.train, data.test))
    return dataclasses.replace(data, train=train, test=test)


@functools.cache
def audit_run(epsilon: float, delta: float, seed: int, *, noise_factor: float = 1.0) -> Audited:
    """Trains once on images and canaries, all of them in every step, and audits the run.

    Args:
      epsilon: certified, under zero-out.
      delta: at which epsilon is stated.
      seed: of parameters, canaries and noise.
      noise_factor: of the run's noise to that of the mechanism that it is claimed to be.
    """
    data = data_set()
    model = TabularMLP(data.num_classes)
    init_key, label_key, *coin_keys, train_key = jax.random.split(jax.random.key(seed), 5)

    # Canaries of both kinds; those that are out contribute nothing.
    size = min(NUM_IMAGES + NUM_CANARIES, len(data.train.y))
    images, labels = data.train.x[:size], data.train.y[:size]
    shifts = np.asarray(jax.random.randint(label_key, (NUM_CANARIES,), 1, data.num_classes))
    wrong = (labels[-NUM_CANARIES:] + shifts) % data.num_classes
    directions, is_in = audit.orthogonal_canaries(coin_keys[0], NUM_CANARIES, l2_clip=1.0)
    is_wrong_in = jax.random.bernoulli(coin_keys[1], shape=(NUM_CANARIES,))

    # Records of one structure: images have no direction, canaries of gradients no image.
    num_examples = size + NUM_CANARIES
    records = {
        "image": np.concatenate([images, np.zeros((NUM_CANARIES, images.shape[1]), np.float32)]),
        "label": np.concatenate([labels[:-NUM_CANARIES], wrong, np.zeros(NUM_CANARIES, int)]),
        "weight": np.concatenate(
            [np.ones(size - NUM_CANARIES), is_wrong_in, np.zeros(NUM_CANARIES)]
        ).astype(np.float32),
        "direction": np.concatenate([np.zeros((size, NUM_CANARIES), np.float32), directions]),
    }

    def image_loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, image[None])[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    def loss(params: Any, record: Any) -> jax.Array:
        of_image = image_loss(params["model"], record["image"], record["label"])
        of_canary = audit.canary_loss(params["canaries"], record["direction"])
        return record["weight"] * of_image + of_canary

    # The run, with the noise of its certificate.
    mechanism = dpjax.calibrate(
        dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(num_examples, 1.0),
            l2_clip=1.0,
            noise_multiplier=1.0,
            num_steps=_NUM_STEPS,
            adjacency="zero_out",
            unit="one image",
        ),
        epsilon=epsilon,
        delta=delta,
    )
    params = {
        "model": model.init(init_key, images[:1])["params"],
        "canaries": jnp.zeros(NUM_CANARIES),
    }
    result = dpjax.train(
        train_key,
        loss,
        params,
        records,
        optax.sgd(_LEARNING_RATE),
        mechanism=mechanism.with_privacy_factor(noise_factor),
        microbatch_size=500,
        progress=False,
    )

    # Scores: the sum of all noisy sums along each direction, and minus the final losses.
    noise: Any = mechanism.noise_multiplier
    sums = -np.asarray(result.params["canaries"]) * num_examples / _LEARNING_RATE
    losses = jax.vmap(image_loss, (None, 0, 0))(
        result.params["model"], jnp.asarray(images[-NUM_CANARIES:]), jnp.asarray(wrong)
    )
    gradients = audit.one_run(
        sums[is_in],
        sums[~is_in],
        mechanism,
        delta=delta,
        noise_std=noise_factor * noise * np.sqrt(_NUM_STEPS),
    )
    final = audit.one_run(-losses[is_wrong_in], -losses[~is_wrong_in], mechanism, delta=delta)
    return Audited(
        {GRADIENTS: gradients, LOSSES: final},
        accuracy_percent(model)(result.params["model"], data.test),
    )
