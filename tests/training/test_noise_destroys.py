"""Noise that drowns everything leaves nothing to learn, as every private example must show."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from dpjax import datasets
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import train


class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x)))


MODEL = Dense()


def loss(params, example):
    x, label = example
    logits = MODEL.apply({"params": params}, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def own_pixels(split) -> tuple[np.ndarray, np.ndarray]:
    """The digits at the 8x8 pixels they come from, one row each."""
    return split.x[:, 2:-2:3, 2:-2:3, 0].reshape(len(split.y), 64), split.y


def accuracy(digits, noise_multiplier, seed) -> float:
    """Of a model trained for 120 steps, on the held-out digits."""
    sampling = PoissonSampling(len(digits.train.y), 0.1)
    mechanism = SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=120,
        adjacency="add_remove",
    )
    key, init_key = jax.random.split(jax.random.key(seed))
    (x, labels), data = own_pixels(digits.test), own_pixels(digits.train)
    params = MODEL.init(init_key, x[0])["params"]
    result = train(key, loss, params, data, optax.sgd(1.0), mechanism=mechanism, progress=False)
    return float(np.mean(MODEL.apply({"params": result.params}, x).argmax(axis=-1) == labels))


@pytest.mark.slow
def test_at_a_noise_multiplier_of_1000_accuracy_is_chance_and_at_1_it_is_not():
    digits = datasets.load_digits()
    drowned = [accuracy(digits, 1000.0, seed) for seed in range(3)]
    # Ten classes of equal share: a network of noise guesses one in ten right. Single networks
    # scatter by 0.04 around that, so the mean of three is off by 0.1 less than once in 10,000.
    assert abs(np.mean(drowned) - 0.1) < 0.1
    assert accuracy(digits, 1.0, seed=0) > 0.7
