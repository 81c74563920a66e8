"""Classifier training with DP and BDP accounting of the same steps."""

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
from dpjax._files import write_atomically
from dpjax._typing import LossFn, Params, PRNGKey, PyTree
from dpjax.training import Report
from dpjax.transforms.noise import AddGaussianNoiseState
from experiments.data import Dataset
from experiments.lib import training
from experiments.lib.models import accuracy_percent, cross_entropy

PLAIN, MEAN, EXAMPLES = "not private", "mean clipped", "examples clipped"
ORDERS = (*range(1, 33), 40, 48, 64, 96, 128)
_PHYSICAL_BATCH_SIZE = 144
# Exceeds every gradient norm, so that nothing is clipped.
_NO_CLIP = 1e9
_NUM_PAIRS = 256


@dataclass(frozen=True)
class Settings:
    """Training and privacy settings of one row."""

    way: str  # what is clipped: PLAIN, MEAN (the source's code) or EXAMPLES
    optimizer: str
    learning_rate: float
    epochs: int
    published_epochs: int
    batch_size: int  # mean Poisson batch size
    l2_clip: float = 1.0  # on the mean gradient, or on each example's
    # on the mean or the sum; None to calibrate to target
    noise_std: float | None = None
    # DP (epsilon, delta) to calibrate the noise to
    target: tuple[float, float] | None = None
    share_of_weights: float = 1.0  # probability that a step updates a weight
    # of DP, and of BDP for 99.999 % of the records
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, unit: str) -> dpjax.SubsampledGaussian:
        """Returns the subsampled Gaussian mechanism of the run, under zero-out.

        For a clipped mean the sensitivity of the sum is ``2 l2_clip batch_size``: one example can
        move the mean from one end of the clipping ball to the other.
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
    """A network, its data and the unit of privacy."""

    model: nn.Module
    data: Dataset
    unit: str


class Program(NamedTuple):
    """Arguments of a private training step."""

    loss_fn: LossFn
    params: Params  # weights; with random weight masks, (weights, step number)
    # of the sums; without clipping and noise, unless examples are clipped
    mechanism: dpjax.SubsampledGaussian
    optimizer: optax.GradientTransformation  # clips and perturbs the mean if way is MEAN
    key: PRNGKey  # for batches and noise

    @staticmethod
    def weights(params: PyTree) -> PyTree:
        """Returns the network's weights."""
        return params[0] if isinstance(params, tuple) else params


class Run(NamedTuple):
    """A trained network, its gradient norms and its privacy accounts."""

    weights: PyTree
    # that was run; of a run without privacy, that of its batches
    mechanism: dpjax.SubsampledGaussian
    curve: training.Curve  # test accuracy (%) by epoch
    # of the drawn examples' gradients: 0.5, 0.9, 0.99 quantile and largest, by epoch
    norms: list[list[float]]
    share_clipped: float  # of the drawn examples, those whose norm reached the bound
    account: bdp.AccountantState  # BDP account under zero-out, from gradient norms
    # the source's formula on pairs; not an upper bound
    published: bdp.AccountantState


def train(settings: Settings, task: Task, folder: Path) -> Run:
    """Trains a network with a BDP account of its gradient norms; resumes from ``folder``.

    If an epoch was checkpointed but its norms were not saved, the account assumes the worst case.
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
        write_atomically(path, json.dumps(epochs).encode())

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
    weights: PyTree,
    mechanism: dpjax.SubsampledGaussian,
) -> Program:
    """Returns the arguments of the private step for these settings."""
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
    # The optimiser adds the noise after clipping the mean; the sum itself has none.
    noiseless = dataclasses.replace(mechanism, l2_clip=_NO_CLIP, noise_multiplier=0.0)
    return Program(loss_fn, params, noiseless, optimizer, key)


def clip_mean(
    key: PRNGKey, settings: Settings, mechanism: dpjax.SubsampledGaussian
) -> optax.GradientTransformation:
    """Clips the mean gradient of a batch and adds noise to it, as the source's code does.

    `dpjax.train` refuses optimisers with noise, which belongs to the mechanism: the state of this
    one is a plain tuple.
    """
    size, noise = settings.batch_size, mechanism.noise(key)
    clip = optax.clip_by_global_norm(settings.l2_clip)

    def init(params: PyTree) -> tuple[Any, ...]:
        return tuple(noise.init(params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> PyTree:
        clipped, _ = clip.update(updates, optax.EmptyState(), params)
        of_batch = jax.tree.map(lambda leaf: size * leaf, clipped)
        noisy, after = noise.update(of_batch, AddGaussianNoiseState(*state), params)
        return jax.tree.map(lambda leaf: (1 / size) * leaf, noisy), tuple(after)

    return optax.GradientTransformation(init, update)


def _update_drawn_weights(
    key: PRNGKey, loss_fn: LossFn, optimizer: optax.GradientTransformation, share: float
) -> tuple[LossFn, optax.GradientTransformation]:
    """Returns loss and optimiser of (weights, step number), where a step updates random weights."""

    def drawn(params: PyTree) -> PyTree:
        weights, step = params
        return draw_weights(jax.random.fold_in(key, step.astype(jnp.int32)), weights, share)

    def loss(params: PyTree, example: PyTree) -> jax.Array:
        return _freeze_others(loss_fn, drawn(params))(params[0], example)

    def update(updates: PyTree, state: PyTree, params: PyTree) -> PyTree:
        kept = jax.tree.map(lambda keep, u: jnp.where(keep, u, 0), drawn(params), updates[0])
        kept, state = optimizer.update(kept, state, params[0])
        return (kept, jnp.ones(())), state

    return loss, optax.GradientTransformation(lambda params: optimizer.init(params[0]), update)


def draw_weights(key: PRNGKey, weights: PyTree, share: float) -> PyTree:
    """Returns random boolean masks of the weights, True with probability ``share``."""
    leaves, treedef = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    masks = [
        jax.random.bernoulli(k, share, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, masks)


def _freeze_others(loss_fn: LossFn, kept: Any) -> LossFn:
    """Returns the loss with zero gradient for the weights that are not kept."""

    def hold(keep: jax.Array, leaf: jax.Array) -> jax.Array:
        return jnp.where(keep, leaf, jax.lax.stop_gradient(leaf))

    return lambda weights, example: loss_fn(jax.tree.map(hold, kept, weights), example)


def _pair_distances(
    keys: jax.Array, loss_fn: LossFn, weights: PyTree, data: Dataset, settings: Settings
) -> np.ndarray:
    """Returns gradient distances of disjoint pairs of examples, on masked weights."""
    num_pairs = min(_NUM_PAIRS, len(data.train.y) // 2)
    pairs = bdp.sample_disjoint_pairs(keys[0], len(data.train.y), num_pairs=num_pairs)
    kept = draw_weights(keys[1], weights, settings.share_of_weights)
    first, second = ((data.train.x[rows], data.train.y[rows]) for rows in np.asarray(pairs))
    found = bdp.gradient_pairs(_freeze_others(loss_fn, kept), weights, first, second)
    return np.asarray(found.distances)


def _account_of_pairs(
    account: bdp.AccountantState, epochs: list[dict[str, Any]]
) -> bdp.AccountantState:
    """Accounts by the source's formula, from pair distances instead of norms."""
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
