"""Neural collaborative filtering: its network, and its loss on one rating or on one user."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.datasets import RatingsDataset, Split


class NeuralFiltering(nn.Module):
    """Two branches, as Bu et al. (2020) simplify neural collaborative filtering.

    Five factors of the user times five of the item, beside ten of either; one dense layer on the
    25 numbers. Input ``(batch, 2)`` of user and item, output logits ``(batch, num_classes)``.
    """

    num_users: int
    num_items: int
    num_classes: int

    @nn.compact
    def __call__(self, pairs: jax.Array) -> jax.Array:
        """Returns the logits."""
        users, items = pairs[:, 0], pairs[:, 1]
        product = self._embed("user", 5)(users) * self._embed("item", 5)(items)
        beside = [self._embed("user", 10)(users), self._embed("item", 10)(items)]
        hidden = jnp.concatenate([product, *beside], axis=-1)
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.glorot_uniform())(hidden)

    def _embed(self, side: str, num_factors: int) -> nn.Embed:
        count = self.num_users if side == "user" else self.num_items
        return nn.Embed(count, num_factors, embedding_init=_uniform, name=f"{side}_{num_factors}")


def _uniform(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    """Small and around zero: Keras' customary first values of an embedding."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


class UserRecords(NamedTuple):
    """One record a user: what user-level privacy protects as a whole.

    Attributes:
      user: positions, int32 ``(users,)``.
      items: of up to K ratings each, int32 ``(users, K)``; some valid position where masked out.
      classes: the ratings' classes, int32 ``(users, K)``.
      mask: float32 ``(users, K)``, 1 for a rating, 0 for padding.
    """

    user: jax.Array | np.ndarray
    items: jax.Array | np.ndarray
    classes: jax.Array | np.ndarray
    mask: jax.Array | np.ndarray


def user_records(data: RatingsDataset, num_kept: int, seed: int) -> UserRecords:
    """Returns every user's training ratings, at most ``num_kept`` of them, chosen at random.

    Which of a user's ratings are kept depends on no other user: record ``u`` is a function of what
    user ``u`` rated, as user-level privacy needs. A user without ratings has an empty record.

    Args:
      data: its training part is taken.
      num_kept: the records' length K.
      seed: of the choice.
    """
    shape = (data.num_users, num_kept)
    records = UserRecords(
        np.arange(data.num_users, dtype=np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.float32),
    )
    order = np.argsort(data.train.x[:, 0], kind="stable")
    ends = np.searchsorted(data.train.x[order, 0], np.arange(data.num_users + 1))
    for user in range(data.num_users):
        own = order[ends[user] : ends[user + 1]]
        own = own[np.argsort(data.train.x[own, 1])]
        kept = np.random.default_rng([seed, user]).permutation(own)[:num_kept]
        records.items[user, : len(kept)] = data.train.x[kept, 1]
        records.classes[user, : len(kept)] = data.train.y[kept]
        records.mask[user, : len(kept)] = 1
    return records


def user_loss(model: nn.Module) -> Callable[[Any, UserRecords], jax.Array]:
    """The mean loss of one user's ratings, zero where there are none: one example, one gradient."""

    def loss_fn(params: Any, record: UserRecords) -> jax.Array:
        user, items, classes, mask = record
        pairs = jnp.stack([jnp.broadcast_to(user, items.shape), items], axis=1)
        logits = model.apply({"params": params}, pairs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
        return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)

    return loss_fn


def rmse(model: nn.Module, part: Split) -> Callable[[Any], float]:
    """``f(params) -> root mean squared error`` of the expected class on ``part``.

    The expectation is under the network's own probabilities; an error of one class is one star.
    """

    @jax.jit
    def squared_errors(params: Any, x: jax.Array, classes: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, x)
        probabilities = jax.nn.softmax(logits)
        expected = probabilities @ jnp.arange(probabilities.shape[1], dtype=probabilities.dtype)
        return (expected - classes) ** 2

    return lambda params: float(np.sqrt(np.mean(squared_errors(params, part.x, part.y))))
