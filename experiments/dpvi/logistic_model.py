"""Bayesian logistic regression as the source has it: N(0, I) prior, no constant, mean field."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.distributions import constraints

_WINDOW = 10
_OFFSET = 0.1


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Labels y (n,), 0 or 1, given features x (n, d)."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def guide(x: jax.Array, y: jax.Array | None = None) -> None:
    """Independent normal weights, N(0, 1) at first; the logarithms of their scales are fitted."""
    mean = numpyro.param("mean", jnp.zeros(x.shape[1]))
    scale = numpyro.param("scale", jnp.ones(x.shape[1]), constraint=constraints.positive)
    numpyro.sample("weights", dist.Normal(mean, scale).to_event(1))


def accuracy_percent(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the share of labels guessed right by the variational means, as the source guesses.

    The average over the variational distribution is on the same side of one half.

    >>> x = jnp.array([[1.0], [2.0], [-1.0]])
    >>> float(accuracy_percent({"mean": jnp.ones(1)}, x, jnp.array([1, 1, 1]))).__round__(1)
    66.7
    """
    return 100 * jnp.mean((x @ params["mean"] > 0) == (y == 1))


def accuracy_percent_of_draws(
    params: Any, x: jax.Array, y: jax.Array, key: jax.Array, num_draws: int
) -> jax.Array:
    """Returns the same by an average over draws of the weights (Triastcyn and Faltings 2020)."""
    normal = jax.random.normal(key, (num_draws, x.shape[1]))
    weights = params["mean"] + params["scale"] * normal
    probability = jax.nn.sigmoid(x @ weights.T).mean(axis=1)
    return 100 * jnp.mean((probability > 0.5) == (y == 1))


class _Window(NamedTuple):
    squares: Any
    num_updates: jax.Array


def windowed_adagrad(learning_rate: float) -> optax.GradientTransformation:
    """AdaGrad over the last ten gradients, the optimiser that the published code describes.

    A step is ``learning_rate`` times the gradient over the root of their sum of squares: about
    a third of ``learning_rate`` where noise prevails, a third of what Adam takes.

    >>> optimizer = windowed_adagrad(0.1)
    >>> updates, _ = optimizer.update(jnp.array(30.0), optimizer.init(jnp.array(0.0)))
    >>> float(updates).__round__(3)
    -0.1
    """

    def init(params: Any) -> _Window:
        squares = jax.tree.map(lambda leaf: jnp.zeros((_WINDOW, *leaf.shape), leaf.dtype), params)
        return _Window(squares, jnp.zeros((), jnp.int32))

    def update(gradients: Any, state: _Window, params: Any = None) -> tuple[Any, _Window]:
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
