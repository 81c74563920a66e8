"""One row of the slides' table, run: chains of networks, and the point estimates beside them."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.bayes.sgmcmc import SGHMC, SGLD, Langevin, calibrate_step_size, sample
from dpjax.datasets import Dataset, Split
from experiments.lib.models import MnistCNN, cross_entropy
from experiments.lib.training import ShuffledEpochs, classification, initialize, train

QUOTED, PLAIN, NOISY_SGD, LANGEVIN, HAMILTONIAN = "quoted", "SGD", "DP-SGD", "SGLD", "SGHMC"
NUM_EXAMPLES = 50_000
UNIT = "one image"
_NUM_STRANGE = 2_000


class MnistMLP(nn.Module):
    """One hidden layer of 100 ReLU: 79,510 parameters for 28x28 images; input as `MnistCNN`'s."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.relu(nn.Dense(100)(images.reshape(images.shape[0], -1)))
        return nn.Dense(self.num_classes)(x)


@dataclass(frozen=True)
class Settings:
    """How one row is run; what a method does not use is ignored.

    Attributes:
      method: one of the names above.
      data: ``"mnist"`` or ``"digits"``.
      network: ``"MLP"`` or ``"CNN"``.
      num_steps: T, as this profile runs.
      delta: at which epsilon is read.
      batch_size: mean of the Poisson draw; of a plain run, the size of every batch.
      step_size: eta of a chain.
      l2_clip: L, the bound on one image's gradient.
      temperature: 1/2 is the printed noise, 1 that of the true posterior.
      friction: alpha of SGHMC.
      target: the epsilon to which the step size is scaled; None to leave it.
      learning_rate: of the point estimates.
      prior_std: standard deviation of the Gaussian prior on every weight.
      num_kept: states that predictions average over, spread over the chain's second half.
      seed: of the parameters, the batches and the noise.
    """

    method: str
    data: str
    network: str
    num_steps: int
    delta: float
    batch_size: int = 256
    step_size: float = 0.1
    l2_clip: float = 4.0
    temperature: float = 1.0
    friction: float = 0.1
    target: float | None = None
    learning_rate: float = 0.5
    prior_std: float = 1.0
    num_kept: int = 20
    seed: int = 0

    @property
    def model(self) -> nn.Module:
        """The network."""
        return MnistCNN() if self.network == "CNN" else MnistMLP()

    @property
    def is_chain(self) -> bool:
        """Whether the row samples a posterior."""
        return self.method in (LANGEVIN, HAMILTONIAN)

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.is_chain or self.method == NOISY_SGD

    def chain(self, num_examples: int, num_steps: int) -> Langevin:
        """The chain on so many images; of DP-SGD, the SGLD whose noise it borrows."""
        sampling = dpjax.PoissonSampling(num_examples, min(1.0, self.batch_size / num_examples))
        is_hamiltonian = self.method == HAMILTONIAN
        sampler: Callable[..., Langevin] = SGHMC if is_hamiltonian else SGLD
        chain = sampler(
            sampling,
            l2_clip=self.l2_clip,
            step_size=self.step_size,
            num_steps=num_steps,
            adjacency="zero_out",
            temperature=self.temperature,
            unit=UNIT,
            **({"friction": self.friction} if is_hamiltonian else {}),
        )
        if self.target is None:
            return chain
        return calibrate_step_size(chain, epsilon=self.target, delta=self.delta)


class Predictions(NamedTuple):
    """Predictive probabilities, as averages over the kept states and by the last of them alone.

    Attributes:
      averaged: on the test images, ``(n, 10)``.
      last: likewise.
      strange: by name, averaged, on images that are no digits.
    """

    averaged: np.ndarray
    last: np.ndarray
    strange: dict[str, np.ndarray]


@functools.cache
def load_images(name: str) -> Dataset:
    """Returns the data, MNIST with the slides' 50,000 training images."""
    data = dpjax.datasets.load(name)
    train = Split(data.train.x[:NUM_EXAMPLES], data.train.y[:NUM_EXAMPLES])
    return dataclasses.replace(data, train=train)


def run(settings: Settings, data: Dataset, folder: Path) -> Predictions:
    """Runs the row and predicts; a stopped chain goes on from ``folder``."""
    key, init_key = jax.random.split(jax.random.key(settings.seed))
    params = settings.model.init(init_key, data.train.x[:1])["params"]
    if settings.is_chain:
        states = _sample(settings, data, params, key, folder)
    elif settings.is_private:
        states = _noisy_sgd(settings, data, params, key, folder)
    else:
        states = _plain(settings, data)
    return _predict(settings.model, states, data)


def _sample(settings: Settings, data: Dataset, params: Any, key: Any, folder: Path) -> list[Any]:
    loss_fn, burn_in = cross_entropy(settings.model), settings.num_steps // 2
    result = sample(
        key,
        lambda params, example: -loss_fn(params, example),
        _log_prior(settings.prior_std),
        params,
        tuple(data.train),
        settings.chain(len(data.train.y), settings.num_steps),
        burn_in=burn_in,
        thinning=(settings.num_steps - burn_in) // settings.num_kept,
        checkpoint_dir=folder,
    )
    return [
        jax.tree.map(lambda leaf, at=at: np.asarray(leaf[0, at]), result.samples)
        for at in range(settings.num_kept)
    ]


def _log_prior(std: float) -> Callable[[Any], jax.Array]:
    def log_prior(params: Any) -> jax.Array:
        squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)])
        return -0.5 * squares.sum() / std**2

    return log_prior


def mechanism_of_noisy_sgd(chain: Langevin) -> dpjax.SubsampledGaussian:
    """The event of ``chain``, step for step, with gradients clipped at one."""
    return dataclasses.replace(chain.gaussian, l2_clip=1.0)


def _noisy_sgd(settings: Settings, data: Dataset, params: Any, key: Any, folder: Path) -> list[Any]:
    chain = settings.chain(len(data.train.y), settings.num_steps)
    result = dpjax.train(
        key,
        cross_entropy(settings.model),
        params,
        tuple(data.train),
        mechanism_of_noisy_sgd(chain),
        optax.sgd(settings.learning_rate),
        checkpoint_dir=folder,
    )
    return [result.params]


def _plain(settings: Settings, data: Dataset) -> list[Any]:
    size = min(settings.batch_size, len(data.train.y))
    epochs = -(-settings.num_steps * size // len(data.train.y))
    task = classification(settings.model, data, optax.adam(1e-3))
    key, params = initialize(settings.model, data.train.x[:1], settings.seed)
    return [train(key, task, params, ShuffledEpochs(epochs, size)).params]


def _predict(model: nn.Module, states: list[Any], data: Dataset) -> Predictions:
    each = [_probabilities(model, params, data.test.x) for params in states]
    strange = {
        name: np.mean([_probabilities(model, params, images) for params in states], axis=0)
        for name, images in strange_images(data.test.x[:_NUM_STRANGE]).items()
    }
    return Predictions(np.mean(each, axis=0), each[-1], strange)


def strange_images(images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns images that are no digits: inverted, on their side, and with their pixels shuffled.

    >>> sorted(strange_images(np.zeros((2, 28, 28, 1))))
    ['inverted', 'on their side', 'shuffled']
    """
    order = np.random.default_rng(0).permutation(images[0].size)
    shuffled = images.reshape(len(images), -1)[:, order].reshape(images.shape)
    turned = np.rot90(images, axes=(1, 2))
    return {"inverted": 1 - images, "on their side": turned, "shuffled": shuffled}


@functools.partial(jax.jit, static_argnums=0)
def _softmax(model: nn.Module, params: Any, images: jax.Array) -> jax.Array:
    logits: Any = model.apply({"params": params}, images)
    return jax.nn.softmax(logits)


def _probabilities(model: nn.Module, params: Any, images: np.ndarray) -> np.ndarray:
    parts = range(0, len(images), _NUM_STRANGE)
    return np.concatenate([_softmax(model, params, images[i : i + _NUM_STRANGE]) for i in parts])
