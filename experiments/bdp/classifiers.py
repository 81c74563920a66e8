"""A classifier trained with a differential and a Bayesian account of the same steps."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import bdp
from dpjax.bdp.replace_one import gradient_pairs, sample_disjoint_pairs
from dpjax.datasets import Dataset
from dpjax.training import PrivateStep, private_step
from dpjax.training.loop import compile_steps
from experiments.lib.models import accuracy_percent, cross_entropy

PLAIN, MEAN, EXAMPLES = "not private", "mean clipped", "examples clipped"
ORDERS = (*range(1, 33), 40, 48, 64, 96, 128)
_PHYSICAL_BATCH_SIZE = 144
# More than any gradient's norm: nothing is clipped by it.
_NO_CLIP = 1e9
_NUM_PAIRS = 256

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Settings:
    """How one row is trained.

    Attributes:
      way: what is clipped: nothing, the batch's mean (the source's code), or each example.
      optimizer: ``"sgd"`` or ``"adam"``.
      learning_rate: constant step size.
      epochs: as this profile trains.
      published_epochs: as the source trained.
      batch_size: mean of the Poisson draw.
      l2_clip: bound on the mean's gradient, or on each example's.
      noise_std: of the noise on the mean, or on the sum; None to have it from the target.
      target: the differential epsilon to calibrate the noise to, and its delta.
      share_of_weights: how many of the weights a step updates, drawn at random.
      delta: of the differential epsilon, and of the Bayesian one for 99.999 % of the records.
      seed: of the parameters, the batches and the noise.
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
        """What is released: noisy sums of Poisson batches, neighbours by zero-out.

        A clipped mean, times the batch size, is a sum that one example can carry from one end of
        the ball to the other: its bound is ``2 l2_clip batch_size``.
        """
        sampling = dpjax.PoissonSampling(
            num_examples, self.batch_size / num_examples, physical_batch_size=_PHYSICAL_BATCH_SIZE
        )
        of_mean = self.way == MEAN
        bound = 2 * self.l2_clip * self.batch_size if of_mean else self.l2_clip
        multiplier = 1.0
        if self.noise_std is not None:
            multiplier = self.noise_std * (self.batch_size if of_mean else 1) / bound
        steps = self.epochs * num_examples // self.batch_size
        mechanism = dpjax.SubsampledGaussian(
            sampling,
            l2_clip=bound,
            noise_multiplier=multiplier,
            num_steps=steps,
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


class Run(NamedTuple):
    """What a run leaves.

    Attributes:
      params: after the last step.
      mechanism: that was run; of a run without privacy, what its batches would have been.
      curve: test accuracy (%) after each epoch.
      norms: of the drawn examples' gradients: 0.5, 0.9, 0.99 quantile and largest, by epoch.
      share_clipped: of the drawn examples, those whose norm reached the bound.
      account: by zero-out, from the norms of the drawn examples.
      published: by the source's formula from pairs of examples: **not an upper bound**.
    """

    params: Any
    mechanism: dpjax.SubsampledGaussian
    curve: Curve
    norms: list[list[float]]
    share_clipped: float
    account: bdp.AccountantState
    published: bdp.AccountantState


def train(settings: Settings, task: Task) -> Run:
    """Trains as the settings say, and accounts for the very norms that training has computed."""
    data, loss_fn = task.data, cross_entropy(task.model)
    key, init_key, pair_key = jax.random.split(jax.random.key(settings.seed), 3)
    params = task.model.init(init_key, data.train.x[:1])["params"]
    mechanism = settings.mechanism(len(data.train.y), task.unit)
    step = _step(settings, loss_fn, mechanism, key)
    state, examples = step.init(params), jax.device_put(tuple(data.train))
    per_epoch = -(-mechanism.num_steps // settings.epochs)
    advance = compile_steps(step.update, state, examples, per_epoch)
    accuracy, account = accuracy_percent(task.model), bdp.init(mechanism, orders=ORDERS)
    run = Run(params, mechanism, [], [], 0.0, account, account)
    for epoch in range(1, settings.epochs + 1):
        count = min(per_epoch, mechanism.num_steps - run.account.num_done)
        state, infos = advance(state, examples, count)
        run = _note(run, state.params, infos)
        run.curve.append((float(epoch), accuracy(state.params, data.test)))
        if settings.way == MEAN:
            keys = jax.random.split(jax.random.fold_in(pair_key, epoch))
            distances = _pair_distances(loss_fn, state.params, examples, settings, keys)
            run = run._replace(published=_by_pairs(run.published, distances, count))
    return run


def _note(run: Run, params: Any, infos: Any) -> Run:
    """The run after an epoch: its account, and what its norms were like."""
    norms, mask = np.asarray(infos.norms), np.asarray(infos.mask)
    drawn, before = norms[mask], run.account.num_done
    share = float((drawn >= run.mechanism.l2_clip).mean())
    quantiles = [*np.quantile(drawn, (0.5, 0.9, 0.99)).tolist(), float(drawn.max())]
    return run._replace(
        params=params,
        account=bdp.update(run.account, norms, mask),
        norms=[*run.norms, quantiles],
        share_clipped=(before * run.share_clipped + len(mask) * share) / (before + len(mask)),
    )


def _step(
    settings: Settings, loss_fn: Any, mechanism: dpjax.SubsampledGaussian, key: jax.Array
) -> PrivateStep:
    """One step; with fewer weights than all, those of each step are drawn by its number."""
    mask_key, noise_key, key = jax.random.split(key, 3)

    def build(kept: Any = None) -> PrivateStep:
        loss = loss_fn if kept is None else _held(loss_fn, kept)
        optimizer = optax.chain(
            _only(kept), getattr(optax, settings.optimizer)(settings.learning_rate)
        )
        if settings.way == EXAMPLES:
            return private_step(loss, optimizer, mechanism, key=key)
        # The noise, if any, comes after the mean is clipped, so that of the sum is zero.
        silent = dataclasses.replace(mechanism, l2_clip=_NO_CLIP, noise_multiplier=0.0)
        if settings.way == MEAN:
            optimizer = optax.chain(_clip_mean(settings, mechanism, noise_key), optimizer)
        return private_step(loss, optimizer, silent, key=key)

    def update(state: Any, data: Any) -> Any:
        kept = None
        if settings.share_of_weights < 1:
            step_key = jax.random.fold_in(mask_key, state.num_releases)
            kept = draw_weights(step_key, state.params, settings.share_of_weights)
        return build(kept).update(state, data)

    return PrivateStep(build().init, update)


def _clip_mean(
    settings: Settings, mechanism: dpjax.SubsampledGaussian, key: jax.Array
) -> optax.GradientTransformation:
    """The source's own way: the mean is clipped, and noised."""
    size = settings.batch_size
    return optax.chain(
        optax.clip_by_global_norm(settings.l2_clip),
        optax.scale(size),
        mechanism.noise(key),
        optax.scale(1 / size),
    )


def draw_weights(key: jax.Array, params: Any, share: float) -> Any:
    """Returns booleans of the shapes of ``params``, each True with probability ``share``."""
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    masks = [
        jax.random.bernoulli(k, share, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, masks)


def _held(loss_fn: Any, kept: Any) -> Any:
    """The loss with all other weights held fixed: their gradient is zero before any clipping."""

    def loss(params: Any, example: Any) -> jax.Array:
        return loss_fn(jax.tree.map(_released, kept, params), example)

    return loss


def _released(kept: jax.Array, leaf: jax.Array) -> jax.Array:
    return jnp.where(kept, leaf, jax.lax.stop_gradient(leaf))


def _only(kept: Any) -> optax.GradientTransformation:
    """Leaves the other weights as they are: the noise on them is not used."""

    def select(updates: Any, _: Any) -> Any:
        if kept is None:
            return updates
        return jax.tree.map(lambda keep, leaf: jnp.where(keep, leaf, 0), kept, updates)

    return optax.stateless(select)


def _pair_distances(
    loss_fn: Callable[..., Any], params: Any, examples: Any, settings: Settings, keys: Any
) -> np.ndarray:
    """How far the gradients of disjoint pairs of examples are apart, over the drawn weights."""
    num_examples = len(examples[1])
    num_pairs = min(_NUM_PAIRS, num_examples // 2)
    pairs = sample_disjoint_pairs(keys[0], num_examples, num_pairs=num_pairs)
    kept = draw_weights(keys[1], params, settings.share_of_weights)
    x, y = examples
    first, second = ((x[rows], y[rows]) for rows in pairs)
    return np.asarray(gradient_pairs(_held(loss_fn, kept), params, first, second).distances)


def _by_pairs(
    account: bdp.AccountantState, distances: np.ndarray, count: int
) -> bdp.AccountantState:
    """Steps by the printed formula, with the distances of pairs in the place of norms."""
    mechanism: Any = account.mechanism
    moments = bdp.subsampled_gaussian_log_moments(
        account.orders,
        distances,
        sampling_rate=mechanism.sampling.sampling_rate,
        noise_std=mechanism.noise_multiplier * mechanism.l2_clip,
    )
    return bdp.update_from_log_moments(account, np.broadcast_to(moments, (count, *moments.shape)))
