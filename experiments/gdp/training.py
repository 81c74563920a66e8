"""One network trained with and without privacy, and what privacy costs by each account.

For the smaller tables of Bu et al. (2020), whose rows are all run as published in both profiles.
"""

import dataclasses
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
from dpjax.datasets import Dataset
from dpjax.training import Report
from experiments.lib.models import accuracy_percent, cross_entropy

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class PrivateSettings:
    """How a network is trained privately.

    Attributes:
      learning_rate: constant step size.
      l2_clip: clip bound on one record's gradient.
      noise_multiplier: noise standard deviation over the clip bound.
      epochs: of training.
      expected_batch_size: mean of the Poisson draw.
      delta: at which epsilon is read.
      seeds: of the parameters, the batches and the noise; one run for each.
    """

    learning_rate: float
    l2_clip: float
    noise_multiplier: float
    epochs: int
    expected_batch_size: int
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2)

    def mechanism(self, num_examples: int, unit: str) -> dpjax.SubsampledGaussian:
        """``floor(epochs n / B)`` noisy sums of Poisson batches, neighbours by zero-out."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(num_examples, self.expected_batch_size / num_examples),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=self.epochs * num_examples // self.expected_batch_size,
            adjacency="zero_out",
            unit=unit,
        )


@dataclass(frozen=True)
class PlainSettings:
    """How a network is trained without privacy: shuffled batches, nothing clipped, no noise.

    Attributes:
      learning_rate: constant step size.
      epochs: of training.
      batch_size: of every batch; what is left of an epoch is dropped.
      seeds: of the parameters and the batches; one run for each.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    seeds: tuple[int, ...] = (0, 1, 2)


class Task(NamedTuple):
    """A network, how it is optimised, and its data.

    Attributes:
      model: from features to logits.
      optimizer: from a learning rate.
      data: to train on, and to follow the accuracy on.
      unit: the unit of privacy, in words.
    """

    model: nn.Module
    optimizer: Callable[[float], optax.GradientTransformation]
    data: Dataset
    unit: str

    def start(self, seed: int) -> tuple[Any, jax.Array]:
        """Returns the first parameters, and a key for everything after them."""
        key, init_key = jax.random.split(jax.random.key(seed))
        return self.model.init(init_key, self.data.train.x[:1])["params"], key


class Run(NamedTuple):
    """One seed's run: the parameters, and the test accuracy (%) after each epoch."""

    params: Any
    curve: Curve


def accounts(mechanism: dpjax.SubsampledGaussian, delta: float) -> tuple[dict[str, Any], float]:
    """Returns what the mechanism costs by the source's accounts, and the certified epsilon.

    >>> settings = PrivateSettings(0.15, 1.0, 0.55, epochs=18, expected_batch_size=256)
    >>> costs, certified = accounts(settings.mechanism(29_305, "one person"), delta=1e-5)
    >>> round(costs["CLT μ"], 2), round(costs["CLT ε"], 2), round(certified, 2)
    (2.03, 10.2, 11.81)
    """
    certificate = mechanism.certificate(delta)
    epsilon = {estimate.accountant: estimate.epsilon for estimate in certificate.estimates}
    costs = {
        "CLT μ": float(dpjax.accounting.gdp.mu_of_event(mechanism.event, mechanism.adjacency)),
        "CLT ε": epsilon["gdp_clt"],
        "MA ε": epsilon["moments"],
        "Rényi ε, improved": epsilon["rdp"],
    }
    return costs, certificate.epsilon


def spending(
    settings: PrivateSettings, num_examples: int, unit: str
) -> dict[str, list[tuple[int, float]]]:
    """Returns epsilon after each epoch, as certified and by the source's two accounts."""
    curves: dict[str, list[tuple[int, float]]] = {"certified": [], "MA ε": [], "CLT ε": []}
    for epoch in range(1, settings.epochs + 1):
        so_far = dataclasses.replace(settings, epochs=epoch).mechanism(num_examples, unit)
        costs, certified = accounts(so_far, settings.delta)
        for name, curve in curves.items():
            curve.append((epoch, costs.get(name, certified)))
    return curves


def train_privately(task: Task, settings: PrivateSettings, folder: Path) -> list[Run]:
    """Trains as the settings say, once for each seed; a stopped run goes on from ``folder``."""
    return [_train_privately(task, settings, seed, folder / str(seed)) for seed in settings.seeds]


def _train_privately(task: Task, settings: PrivateSettings, seed: int, folder: Path) -> Run:
    data, curve_file = task.data, folder / "accuracy.txt"
    folder.mkdir(exist_ok=True)
    params, key = task.start(seed)
    accuracy = accuracy_percent(task.model)

    def note_accuracy(report: Report) -> None:
        epoch = report.num_releases * settings.expected_batch_size / len(data.train.y)
        with curve_file.open("a") as file:
            file.write(f"{epoch} {accuracy(report.params, data.test)}\n")

    result = dpjax.train(
        key,
        cross_entropy(task.model),
        params,
        tuple(data.train),
        settings.mechanism(len(data.train.y), task.unit),
        task.optimizer(settings.learning_rate),
        steps_per_call=-(-len(data.train.y) // settings.expected_batch_size),
        on_report=note_accuracy,
        checkpoint_dir=folder / "checkpoints",
    )
    # A run that goes on may report an epoch twice: the dictionary keeps one of them.
    return Run(result.params, sorted(dict(np.loadtxt(curve_file, ndmin=2).tolist()).items()))


def train_plainly(task: Task, settings: PlainSettings) -> list[Run]:
    """Trains without privacy, once for each seed."""
    optimizer = task.optimizer(settings.learning_rate)
    run_epoch, accuracy = _epoch(task, optimizer, settings), accuracy_percent(task.model)

    def train(seed: int) -> Run:
        params, key = task.start(seed)
        state, curve = (params, optimizer.init(params)), []
        for epoch, epoch_key in enumerate(jax.random.split(key, settings.epochs), start=1):
            state = run_epoch(state, tuple(task.data.train), epoch_key)
            curve.append((float(epoch), accuracy(state[0], task.data.test)))
        return Run(state[0], curve)

    return [train(seed) for seed in settings.seeds]


def _epoch(
    task: Task, optimizer: optax.GradientTransformation, settings: PlainSettings
) -> Callable[[Any, Any, jax.Array], Any]:
    """``(params, optimizer's state), data, key -> the same after one epoch``."""
    loss_fn = jax.vmap(cross_entropy(task.model), in_axes=(None, 0))
    num_examples, batch_size = len(task.data.train.y), settings.batch_size
    num_steps = num_examples // batch_size

    @jax.jit
    def run(state: Any, data: Any, key: jax.Array) -> Any:
        def step(state: Any, indices: jax.Array) -> tuple[Any, None]:
            params, optimizer_state = state
            batch = jax.tree.map(lambda leaf: leaf[indices], data)
            gradient = jax.grad(lambda params: loss_fn(params, batch).mean())(params)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            return (optax.apply_updates(params, updates), optimizer_state), None

        order = jax.random.permutation(key, num_examples)[: num_steps * batch_size]
        return jax.lax.scan(step, state, order.reshape(num_steps, batch_size))[0]

    return lambda state, data, key: run(state, jax.tree.map(jnp.asarray, data), key)
