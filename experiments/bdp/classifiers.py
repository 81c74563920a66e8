"""A classifier trained with a differential and a Bayesian account of the same steps."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import bdp
from dpjax._typing import LossFn, Params, PRNGKey
from dpjax.datasets import Dataset
from dpjax.training import Report
from experiments.lib import training
from experiments.lib.models import accuracy_percent, cross_entropy
from experiments.lib.records import write_atomically

PLAIN, MEAN, EXAMPLES = "not private", "mean clipped", "examples clipped"
ORDERS = (*range(1, 33), 40, 48, 64, 96, 128)
_PHYSICAL_BATCH_SIZE = 144
# More than any gradient's norm: nothing is clipped by it.
_NO_CLIP = 1e9
_NUM_PAIRS = 256


@dataclass(frozen=True)
class Settings:
    """Training and privacy settings of one row.

    Attributes:
      way: what is clipped: nothing, the batch's mean (the source's code), or each example.
      batch_size: mean of the Poisson draw.
      l2_clip: bound on the mean's gradient, or on each example's.
      noise_std: of the noise on the mean, or on the sum; None to calibrate it to the target.
      target: the differential epsilon to calibrate the noise to, and its delta.
      share_of_weights: probability with which a step updates a weight.
      delta: of the differential epsilon, and of the Bayesian one for 99.999 % of the records.
    """

    way: str
    optimizer: str
    learning_rate: float
    epochs: int
    published_epochs: int
    batch_size: int
    l2_clip: float = 1.0
    noise_std: float | None = None
    target: tuple[float, float] | None = None
    share_of_weights: float = 1.0
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, unit: str) -> dpjax.SubsampledGaussian:
        """Returns noisy sums of Poisson batches, under zero-out.

        A clipped mean, times the batch size, is a sum that one example can move from one end of
        the ball to the other: its bound is ``2 l2_clip batch_size``.
        """
        of_mean = self.way == MEAN
        bound = 2 * self.l2_clip * self.batch_size if of_mean else self.l2_clip
        multiplier = 1.0
        if self.noise_std is not None:
            multiplier = self.noise_std * (self.batch_size if of_mean else 1) / bound
        mechanism = dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(
                num_examples,
                self.batch_size / num_examples,
                physical_batch_size=_PHYSICAL_BATCH_SIZE,
            ),
            l2_clip=bound,
            noise_multiplier=multiplier,
            num_steps=self.epochs * num_examples // self.batch_size,
            adjacency="zero_out",
            unit=unit,
        )
        if self.target is None:
            return mechanism
        return dpjax.calibrate(mechanism, epsilon=self.target[0], delta=self.target[1])


class Task(NamedTuple):
    """A network, its data, and the unit of privacy in words."""

    model: nn.Module
    data: Dataset
    unit: str


class Program(NamedTuple):
    """The arguments of a private step that trains as the settings say.

    Attributes:
      loss_fn: of ``params``.
      params: the weights; with fewer weights updated than all, also the number of the step.
      mechanism: of the sums; without clipping and noise, unless examples are clipped.
      optimizer: clips and noises the mean where the settings say so.
      key: of the batches, and of the noise on sums.
    """

    loss_fn: LossFn
    params: Params
    mechanism: dpjax.SubsampledGaussian
    optimizer: optax.GradientTransformation
    key: PRNGKey

    @staticmethod
    def weights(params: Any) -> Any:
        """Returns the network's weights."""
        return params[0] if isinstance(params, tuple) else params


class Run(NamedTuple):
    """A trained network, its gradients' norms and its accounts.

    Attributes:
      weights: after the last step.
      mechanism: that was run; of a run without privacy, that of its batches.
      curve: test accuracy (%) after each epoch.
      norms: of the drawn examples' gradients: 0.5, 0.9, 0.99 quantile and largest, by epoch.
      share_clipped: of the drawn examples, those whose norm reached the bound.
      account: by zero-out, from the norms of the drawn examples.
      published: by the source's formula from pairs of examples: **not an upper bound**.
    """

    weights: Any
    mechanism: dpjax.SubsampledGaussian
    curve: training.Curve
    norms: list[list[float]]
    share_clipped: float
    account: bdp.AccountantState
    published: bdp.AccountantState


def train(settings: Settings, task: Task, folder: Path) -> Run:
    """Trains a network, and accounts for the norms that training computes.

    Args:
      settings: of the row.
      task: network and data.
      folder: for checkpoints; a stopped run resumes from there. The norms of an epoch that was
        saved but not reported are lost, and count as worst cases in the account.
    """
    data, loss_fn = task.data, cross_entropy(task.model)
    key, init_key, pair_key = jax.random.split(jax.random.key(settings.seed), 3)
    weights = task.model.init(init_key, data.train.x[:1])["params"]
    mechanism = settings.mechanism(len(data.train.y), task.unit)
    program = make_program(key, settings, loss_fn, weights, mechanism)
    accuracy, path = accuracy_percent(task.model), folder / "epochs.json"
    account = bdp.init(mechanism, orders=ORDERS)
    accountant = bdp.TrainingAccountant(account, folder / "account.npz")
    epochs = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def record(report: Report) -> None:
        accountant(report._replace(mechanism=mechanism))
        epoch = round(report.num_releases * settings.batch_size / len(data.train.y))
        norms, mask = np.asarray(report.infos.norms), np.asarray(report.infos.mask)
        quantiles = [*np.quantile(norms[mask], (0.5, 0.9, 0.99)).tolist(), float(norms[mask].max())]
        share_clipped = float((norms[mask] >= mechanism.l2_clip).mean())
        found = {"steps": len(mask), "norms": quantiles, "share_clipped": share_clipped}
        if settings.way == MEAN:
            keys = jax.random.split(jax.random.fold_in(pair_key, epoch))
            params = program.weights(report.params)
            found["distances"] = _pair_distances(keys, loss_fn, params, data, settings).tolist()
        epochs[str(epoch)] = found
        write_atomically(path, json.dumps(epochs))

    trained = training.train(
        program.key,
        training.Task(
            program.loss_fn,
            tuple(data.train),
            program.optimizer,
            lambda params: accuracy(program.weights(params), data.test),
        ),
        program.params,
        program.mechanism,
        steps_per_report=-(-mechanism.num_steps // settings.epochs),
        folder=folder,
        on_report=record,
    )
    weights, state = program.weights(trained.params), accountant.state
    curve = [(float(round(epoch)), percent) for epoch, percent in trained.curve]
    if state.num_done < mechanism.num_steps:
        state = bdp.update_worst_case(state, mechanism.num_steps - state.num_done)
    if curve[-1][0] < settings.epochs:
        curve.append((float(settings.epochs), accuracy(weights, data.test)))
    found = list(epochs.values())
    steps = [epoch["steps"] for epoch in found]
    return Run(
        weights,
        mechanism,
        curve,
        [epoch["norms"] for epoch in found],
        float(np.average([epoch["share_clipped"] for epoch in found], weights=steps)),
        state,
        _account_of_pairs(account, found) if settings.way == MEAN else account,
    )


def make_program(
    key: PRNGKey,
    settings: Settings,
    loss_fn: LossFn,
    weights: Any,
    mechanism: dpjax.SubsampledGaussian,
) -> Program:
    """Returns the loss, optimiser and mechanism of the settings' steps."""
    weights_key, noise_key, key = jax.random.split(key, 3)
    optimizer = getattr(optax, settings.optimizer)(settings.learning_rate)
    params = weights
    if settings.share_of_weights < 1:
        loss_fn, optimizer = _update_drawn_weights(
            weights_key, loss_fn, optimizer, settings.share_of_weights
        )
        params = (weights, jnp.zeros(()))
    if settings.way == EXAMPLES:
        return Program(loss_fn, params, mechanism, optimizer, key)
    if settings.way == MEAN:
        optimizer = optax.chain(clip_mean(noise_key, settings, mechanism), optimizer)
    # The noise, if any, comes after the mean is clipped, so that of the sum is zero.
    noiseless = dataclasses.replace(mechanism, l2_clip=_NO_CLIP, noise_multiplier=0.0)
    return Program(loss_fn, params, noiseless, optimizer, key)


def clip_mean(
    key: PRNGKey, settings: Settings, mechanism: dpjax.SubsampledGaussian
) -> optax.GradientTransformation:
    """Clips the mean gradient of a batch and adds noise to it, as the source's code does."""
    size = settings.batch_size
    return optax.chain(
        optax.clip_by_global_norm(settings.l2_clip),
        optax.scale(size),
        mechanism.noise(key),
        optax.scale(1 / size),
    )


def _update_drawn_weights(
    key: PRNGKey, loss_fn: LossFn, optimizer: optax.GradientTransformation, share: float
) -> tuple[LossFn, optax.GradientTransformation]:
    """Returns loss and optimiser of (weights, number of the step): a step updates drawn weights.

    The number is a parameter so that the loss, and with it clipping, depends on the step.
    """

    def drawn(params: Any) -> Any:
        weights, step = params
        return draw_weights(jax.random.fold_in(key, step.astype(jnp.int32)), weights, share)

    def loss(params: Any, example: Any) -> jax.Array:
        return _hold_others(loss_fn, drawn(params))(params[0], example)

    def update(updates: Any, state: Any, params: Any) -> Any:
        kept = jax.tree.map(lambda keep, u: jnp.where(keep, u, 0), drawn(params), updates[0])
        kept, state = optimizer.update(kept, state, params[0])
        return (kept, jnp.ones(())), state

    return loss, optax.GradientTransformation(lambda params: optimizer.init(params[0]), update)


def draw_weights(key: PRNGKey, weights: Any, share: float) -> Any:
    """Returns booleans of the shapes of ``weights``, each True with probability ``share``."""
    leaves, treedef = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    masks = [
        jax.random.bernoulli(k, share, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, masks)


def _hold_others(loss_fn: LossFn, kept: Any) -> LossFn:
    """The loss with all other weights held fixed: their gradient is zero before any clipping."""

    def hold(keep: jax.Array, leaf: jax.Array) -> jax.Array:
        return jnp.where(keep, leaf, jax.lax.stop_gradient(leaf))

    return lambda weights, example: loss_fn(jax.tree.map(hold, kept, weights), example)


def _pair_distances(
    keys: jax.Array, loss_fn: LossFn, weights: Any, data: Dataset, settings: Settings
) -> np.ndarray:
    """Returns distances of the gradients of disjoint pairs of examples, over drawn weights."""
    num_pairs = min(_NUM_PAIRS, len(data.train.y) // 2)
    pairs = bdp.sample_disjoint_pairs(keys[0], len(data.train.y), num_pairs=num_pairs)
    kept = draw_weights(keys[1], weights, settings.share_of_weights)
    first, second = ((data.train.x[rows], data.train.y[rows]) for rows in np.asarray(pairs))
    found = bdp.gradient_pairs(_hold_others(loss_fn, kept), weights, first, second)
    return np.asarray(found.distances)


def _account_of_pairs(
    account: bdp.AccountantState, epochs: list[dict[str, Any]]
) -> bdp.AccountantState:
    """Accounts for steps by the printed formula, with the distances of pairs for norms."""
    mechanism: Any = account.mechanism
    for epoch in epochs:
        moments = bdp.subsampled_gaussian_log_moments(
            account.orders,
            np.array(epoch["distances"], np.float32),
            sampling_rate=mechanism.sampling.sampling_rate,
            noise_std=mechanism.noise_multiplier * mechanism.l2_clip,
        )
        steps = np.broadcast_to(moments, (epoch["steps"], *moments.shape))
        account = bdp.update_from_log_moments(account, steps)
    return account
