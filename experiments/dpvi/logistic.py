"""Bayesian logistic regression by DP-SVI and DP-SGLD: N(0, I) prior, no intercept, mean field."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.distributions import constraints

import dpjax
from dpjax._typing import PRNGKey, PyTree
from dpjax.bayes.sgmcmc import SGLD, sample
from experiments.data import Dataset
from experiments.dpvi.inference import (
    MakeInference,
    Point,
    fit,
    make_inference,
    stack_points,
)

_WINDOW = 10
_OFFSET = 0.1
_THINNING = 10


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Logistic regression of labels y (n,) on features x (n, d), with N(0, I) prior."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def guide(x: jax.Array, y: jax.Array | None = None) -> None:
    """Mean-field normal guide, initialised at N(0, I)."""
    mean = numpyro.param("mean", jnp.zeros(x.shape[1]))
    scale = numpyro.param("scale", jnp.ones(x.shape[1]), constraint=constraints.positive)
    numpyro.sample("weights", dist.Normal(mean, scale).to_event(1))


class _Window(NamedTuple):
    squares: PyTree
    num_updates: jax.Array


def windowed_adagrad(learning_rate: float) -> optax.GradientTransformation:
    """AdaGrad over the last ten gradients, the optimiser of the published code.

    A step is ``learning_rate`` times the gradient over the root of their sum of squares.

    >>> optimizer = windowed_adagrad(0.1)
    >>> updates, _ = optimizer.update(jnp.array(30.0), optimizer.init(jnp.array(0.0)))
    >>> float(updates).__round__(3)
    -0.1
    """

    def init(params: PyTree) -> _Window:
        squares = jax.tree.map(lambda leaf: jnp.zeros((_WINDOW, *leaf.shape), leaf.dtype), params)
        return _Window(squares, jnp.zeros((), jnp.int32))

    def update(gradients: Any, state: _Window, params: PyTree = None) -> tuple[Any, _Window]:
        slot = state.num_updates % _WINDOW
        squares = jax.tree.map(
            lambda kept, gradient: kept.at[slot].set(gradient**2), state.squares, gradients
        )
        updates = jax.tree.map(
            lambda kept, gradient: -learning_rate * gradient / jnp.sqrt(kept.sum(0) + _OFFSET),
            squares,
            gradients,
        )
        return updates, _Window(squares, state.num_updates + 1)

    return optax.GradientTransformation(init, update)


@functools.cache
def logistic_inference(
    num_examples: int, sampling_rate: float, learning_rate: float
) -> MakeInference:
    """Returns the argument ``make`` of `fit`, cached for its compilation."""
    optimizer = windowed_adagrad(learning_rate)
    return functools.partial(make_inference, model, guide, optimizer, num_examples, sampling_rate)


def accuracy_percent(params: Mapping[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the accuracy (%) of predictions by the variational mean, as in the source.

    >>> x = jnp.array([[1.0], [2.0], [-1.0]])
    >>> float(accuracy_percent({"mean": jnp.ones(1)}, x, jnp.array([1, 1, 1]))).__round__(1)
    66.7
    """
    return 100 * jnp.mean((x @ params["mean"] > 0) == (y == 1))


def accuracy_percent_of_draws(
    params: Mapping[str, jax.Array], x: jax.Array, y: jax.Array, key: PRNGKey, num_draws: int
) -> jax.Array:
    """Returns the accuracy (%) of predictions averaged over weight samples."""
    normal = jax.random.normal(key, (num_draws, x.shape[1]))
    weights = params["mean"] + params["scale"] * normal
    probability = jax.nn.sigmoid(x @ weights.T).mean(axis=1)
    return 100 * jnp.mean((probability > 0.5) == (y == 1))


def svi_accuracies(
    data: Dataset,
    points: list[Point],
    *,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    repeats: int,
    seed: int,
) -> np.ndarray:
    """Returns test accuracies (%) of DP-SVI, ``(points, repeats)``; arguments as in `fit`."""
    make = logistic_inference(len(data.train.y), sampling_rate, learning_rate)
    key = jax.random.key(seed)
    fits = fit(key, make, points, tuple(data.train), num_steps=num_steps, repeats=repeats)
    return np.asarray(_score(fits.params, data.test.x, data.test.y), float)


def source_accuracies(
    data: Dataset,
    points: list[Point],
    *,
    sampling_rate: float,
    num_steps: int,
    learning_rate: float,
    repeats: int,
    seed: int,
) -> np.ndarray:
    """Returns test accuracies (%) of the published code's own step, ``(points, repeats)``.

    Each record's clipped gradient contains its share of the gradients of the log prior and of the
    entropy, and batches have a fixed size, drawn with replacement; arguments as in `fit`.
    """
    keys = jax.random.split(jax.random.key(seed), repeats)
    train = jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    batch_size = max(1, int(sampling_rate * len(data.train.y)))  # stand-in data may be few
    means = _fit_by_source(batch_size, num_steps, learning_rate, keys, stack_points(points), train)
    return np.asarray(_score({"mean": means}, data.test.x, data.test.y), float)


def _negative_elbo(
    params: PyTree, record: PyTree, normal: jax.Array, num_examples: int
) -> jax.Array:
    """Returns minus one record's term of the ELBO, with its share of log prior and entropy."""
    (mean, log_scale), (x, y) = params, record
    weights = mean + jnp.exp(log_scale) * normal
    shared = -0.5 * jnp.sum(weights**2) + jnp.sum(log_scale)
    return -jax.nn.log_sigmoid((2 * y - 1) * (x @ weights)) - shared / num_examples


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _fit_by_source(
    batch_size: int,
    num_steps: int,
    learning_rate: float,
    keys: PRNGKey,
    points: Point,
    records: tuple[jax.Array, jax.Array],
) -> jax.Array:
    """Returns the variational means, ``(points, repeats, d)``."""
    num_examples, num_features = records[0].shape
    optimizer = windowed_adagrad(learning_rate)

    def run(key: PRNGKey, point: Point) -> jax.Array:
        def step(state: PyTree, key: PRNGKey) -> tuple[Any, None]:
            params, optimizer_state = state
            batch_key, weights_key, noise_key = jax.random.split(key, 3)
            chosen = jax.random.randint(batch_key, (batch_size,), 0, num_examples)
            normal = jax.random.normal(weights_key, (num_features,))
            clipped_sum, _ = dpjax.clipped_grad(
                functools.partial(_negative_elbo, normal=normal, num_examples=num_examples),
                point.l2_clip,
            )(params, jax.tree.map(lambda leaf: leaf[chosen], records), None)
            noise = jax.random.normal(noise_key, (2, num_features))
            gradient = clipped_sum + 2 * point.sigma * point.l2_clip * noise
            scaled = gradient * (num_examples / batch_size)
            updates, optimizer_state = optimizer.update(scaled, optimizer_state)
            return (optax.apply_updates(params, updates), optimizer_state), None

        start = jnp.zeros((2, num_features))
        state = start, optimizer.init(start)
        (params, _), _ = jax.lax.scan(step, state, jax.random.split(key, num_steps))
        return params[0]

    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, points)


@jax.jit
def _score(params: PyTree, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.vmap(jax.vmap(lambda one: accuracy_percent(one, x, y)))(params)


def make_chain(
    num_examples: int, l2_clip: float, sampling_rate: float, num_steps: int, step_size: float
) -> SGLD:
    """Returns one DP-SGLD chain at temperature 1, whose injected noise is the DP noise."""
    sampling = dpjax.PoissonSampling(num_examples, sampling_rate)
    return SGLD(
        sampling, l2_clip=l2_clip, step_size=step_size, num_steps=num_steps, adjacency="zero_out"
    )


def chain_accuracies(data: Dataset, chain: SGLD, repeats: int, seed: int) -> np.ndarray:
    """Returns test accuracies (%) of ``repeats`` independent chains.

    Predictions average over every tenth state of a chain's second half.
    """
    records = tuple(map(jnp.asarray, data.train))
    weights = sample(
        jax.random.key(seed),
        lambda w, record: jax.nn.log_sigmoid((2 * record[1] - 1) * (record[0] @ w)),
        lambda w: -0.5 * jnp.sum(w**2),
        jnp.zeros(records[0].shape[1]),
        records,
        mechanism=dataclasses.replace(chain, num_chains=repeats),
        burn_in=_THINNING * (chain.num_steps // (2 * _THINNING)),
        thinning=_THINNING,
        progress=False,
    ).samples
    probabilities = jax.nn.sigmoid(jnp.asarray(weights) @ data.test.x.T).mean(axis=1)
    return np.asarray(100 * jnp.mean((probabilities > 0.5) == (data.test.y == 1), axis=1), float)
