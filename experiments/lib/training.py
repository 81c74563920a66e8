"""Training with or without differential privacy, evaluated during training."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax._files import write_atomically
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey, PyTree
from dpjax.certificates import Certificate
from dpjax.training import Report, TrainResult
from dpjax.training.run import Update, compile_chunk
from experiments.data import Dataset
from experiments.lib.models import accuracy_percent, cross_entropy

# Pairs of epochs done and the evaluation at that point.
Curve = list[tuple[float, float]]


class Task(NamedTuple):
    """Loss, training data, optimiser and evaluation of a model."""

    loss_fn: LossFn
    examples: ArrayTree
    optimizer: optax.GradientTransformation
    evaluate: Callable[[PyTree], float] | None = None  # from parameters to a test score


class ShuffledEpochs(NamedTuple):
    """Training without privacy, on batches of the examples reshuffled in each epoch."""

    num_epochs: int
    batch_size: int  # an incomplete last batch is dropped


class Training(NamedTuple):
    """Trained parameters, and their evaluation during training."""

    params: PyTree
    curve: Curve
    result: TrainResult | None = None  # None without privacy

    def certificate(self, delta: float) -> Certificate:
        """Returns the certificate of the private run at ``delta``."""
        assert self.result is not None, "trained without privacy"
        return self.result.certificate(delta)


def classification(
    model: nn.Module, data: Dataset, optimizer: optax.GradientTransformation
) -> Task:
    """Returns the task of a classifier: cross entropy, evaluated by test accuracy in %."""
    accuracy = accuracy_percent(model)
    return Task(
        cross_entropy(model),
        tuple(data.train),
        optimizer,
        lambda params: accuracy(params, data.test),
    )


def initialize(model: nn.Module, inputs: ArrayTree, seed: int) -> tuple[PRNGKey, Params]:
    """Returns a key for training, and initial parameters for a batch of ``inputs``."""
    key, init_key = jax.random.split(jax.random.key(seed))
    return key, model.init(init_key, inputs)["params"]


def train(
    key: PRNGKey,
    task: Task,
    params: Params,
    plan: dpjax.SubsampledGaussian | ShuffledEpochs,
    *,
    steps_per_report: int | None = None,
    folder: Path | None = None,
    on_report: Callable[[Report], None] | None = None,
) -> Training:
    """Trains a model, privately by a mechanism or without privacy in shuffled epochs.

    Args:
      key: for batches and noise.
      task: loss, examples, optimiser and evaluation.
      params: initial parameters.
      plan: the mechanism of private training, or the epochs of training without privacy.
      steps_per_report: private steps between two evaluations; an epoch by default.
      folder: for the checkpoints of a private run, from which it resumes; None for none.
      on_report: called after every ``steps_per_report`` private steps.

    Privacy:
      Only released parameters are evaluated, on test data.
    """
    if isinstance(plan, ShuffledEpochs):
        return _train_plainly(key, task, params, plan)
    rate = plan.sampling.expected_batch_size / plan.sampling.num_examples
    path = folder / "curve.json" if folder else None
    curve = dict(json.loads(path.read_text("utf-8"))) if path and path.exists() else {}

    def record(report: Report) -> None:
        if task.evaluate:
            curve[report.num_releases * rate] = task.evaluate(report.params)
        if path:
            write_atomically(path, json.dumps(list(curve.items())).encode())
        if on_report:
            on_report(report)

    # Rounded, since 1 / rate may exceed a whole number in its last digit.
    every = steps_per_report or math.ceil(round(1 / rate, 6))
    result = dpjax.train(
        key,
        task.loss_fn,
        params,
        task.examples,
        task.optimizer,
        mechanism=plan,
        steps_per_call=every,
        on_report=record,
        checkpoint_dir=folder / "checkpoints" if folder else None,
    )
    end = plan.num_steps * rate
    if task.evaluate and end not in curve:  # stopped between the last checkpoint and its report
        curve[end] = task.evaluate(result.params)
    return Training(result.params, sorted(curve.items()), result)


def stack_curves(runs: Sequence[Training]) -> np.ndarray:
    """Returns the curves of several runs at the epochs that all have, ``(runs, epochs, 2)``.

    A run stopped between a checkpoint and its report has no value for that epoch.

    >>> one, other = ([(1.0, 80.0), (2.0, 90.0)], [(2.0, 92.0)])
    >>> stack_curves([Training(None, one), Training(None, other)]).tolist()
    [[[2.0, 90.0]], [[2.0, 92.0]]]
    """
    common = set.intersection(*({epoch for epoch, _ in run.curve} for run in runs))
    return np.array([[point for point in run.curve if point[0] in common] for run in runs])


def _train_plainly(key: PRNGKey, task: Task, params: Params, plan: ShuffledEpochs) -> Training:
    examples, curve = jax.tree.map(jnp.asarray, task.examples), []
    num_examples, size = len(jax.tree.leaves(examples)[0]), plan.batch_size
    num_steps = num_examples // size
    # Steps consume their state.
    state = jax.tree.map(jnp.array, (params, task.optimizer.init(params)))
    run = None
    for epoch, epoch_key in enumerate(jax.random.split(key, plan.num_epochs), start=1):
        order = jax.random.permutation(epoch_key, num_examples)[: num_steps * size]
        start, data = (jnp.int32(0), state), (examples, order.reshape(num_steps, size))
        run = run or compile_chunk(_plain_update(task), start, data, num_steps)
        (_, state), _ = run(start, data, num_steps)
        if task.evaluate:
            curve.append((float(epoch), task.evaluate(state[0])))
    return Training(state[0], curve)


def _plain_update(task: Task) -> Update:
    """Returns one step; its state is the step's number in the epoch, parameters and optimiser's."""

    def mean_loss(params: PyTree, batch: PyTree) -> jax.Array:
        return jax.vmap(task.loss_fn, in_axes=(None, 0))(params, batch).mean()

    def update(state: PyTree, data: PyTree) -> tuple[Any, tuple[()]]:
        (step, (params, optimizer_state)), (examples, order) = state, data
        batch = jax.tree.map(lambda leaf: leaf[order[step]], examples)
        gradient = jax.grad(mean_loss)(params, batch)
        updates, optimizer_state = task.optimizer.update(gradient, optimizer_state, params)
        return (step + 1, (optax.apply_updates(params, updates), optimizer_state)), ()

    return update
