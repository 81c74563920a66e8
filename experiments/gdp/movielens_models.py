"""Recommenders of Table 4 of Bu et al. (2020): neural collaborative filtering and baselines.

The baselines reimplement algorithms of the library Surprise on arrays; they are not private. A
predictor maps the data to grades of the test ratings, from 1 to the number of classes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import sparse

from experiments.data import RatingsDataset, Split
from experiments.lib.models import small_uniform

Predictor = Callable[..., np.ndarray]

_SEED = 0


class NeuralFiltering(nn.Module):
    """Neural collaborative filtering with two branches, simplified as by Bu et al. (2020).

    Products of five user and five item factors, concatenated with ten factors of each; one dense
    layer. Input ``(batch, 2)`` of user and item, output logits ``(batch, num_classes)``.
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
        return nn.Embed(
            count, num_factors, embedding_init=small_uniform, name=f"{side}_{num_factors}"
        )


class UserRecords(NamedTuple):
    """One record for each user with all of the user's ratings."""

    user: jax.Array | np.ndarray  # positions, int32 (users,)
    # of up to K ratings each, int32 (users, K); some valid position where masked out
    items: jax.Array | np.ndarray
    classes: jax.Array | np.ndarray  # the ratings' classes, int32 (users, K)
    mask: jax.Array | np.ndarray  # float32 (users, K), 1 for a rating, 0 for padding


def user_records(data: RatingsDataset, num_kept: int, seed: int) -> UserRecords:
    """Returns at most ``num_kept`` random training ratings of every user.

    Privacy:
      Record ``u`` depends only on the ratings of user ``u``.
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
    """Returns the loss of one user: the mean over the user's ratings, or zero."""

    def loss_fn(params: Any, record: UserRecords) -> jax.Array:
        user, items, classes, mask = record
        pairs = jnp.stack([jnp.broadcast_to(user, items.shape), items], axis=1)
        logits = model.apply({"params": params}, pairs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
        return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)

    return loss_fn


def rmse(model: nn.Module, part: Split) -> Callable[[Any], float]:
    """Returns ``f(params) -> root mean squared error`` of the expected class on ``part``."""

    @jax.jit
    def squared_errors(params: Any, x: jax.Array, classes: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, x)
        probabilities = jax.nn.softmax(logits)
        expected = probabilities @ jnp.arange(probabilities.shape[1], dtype=probabilities.dtype)
        return (expected - classes) ** 2

    return lambda params: float(np.sqrt(np.mean(squared_errors(params, part.x, part.y))))


def baseline_rmse(predictor: Predictor, data: RatingsDataset, settings: Mapping[str, Any]) -> float:
    """Returns the test RMSE of ``predictor(data, **settings)``, clipped to valid grades."""
    predicted = np.clip(predictor(data, **settings), 1, data.num_classes)
    return float(np.sqrt(np.mean((predicted - _grades(data.test.y)) ** 2)))


def global_average(data: RatingsDataset) -> np.ndarray:
    """Returns the mean of all training grades, for every test rating."""
    return np.full(len(data.test.y), _grades(data.train.y).mean())


def user_based_filtering(data: RatingsDataset, num_neighbours: int) -> np.ndarray:
    """Returns grades predicted from the most similar users who rated the item ("KNNBasic").

    Two users' similarity is one over one plus the mean squared difference of their grades of the
    items that both rated; the prediction is the average, weighted by similarity, of the grades of
    the ``num_neighbours`` most similar users. Without any, it is the global average.
    """
    similarity = _similarities(data)
    ratings = _matrix(data).tocsc()
    predicted = global_average(data)
    users, items = data.test.x.T
    for item in np.unique(items):
        asked = np.flatnonzero(items == item)
        column = slice(ratings.indptr[item], ratings.indptr[item + 1])
        raters, grades = ratings.indices[column], ratings.data[column]
        weights = similarity[np.ix_(users[asked], raters)]
        if len(raters) > num_neighbours:
            nearest = np.argpartition(-weights, num_neighbours, axis=1)[:, :num_neighbours]
            weights, grades = np.take_along_axis(weights, nearest, 1), grades[nearest]
        total = weights.sum(axis=1)
        known = total > 0
        predicted[asked[known]] = ((weights * grades).sum(axis=1) / np.maximum(total, 1e-9))[known]
    return predicted


def _similarities(data: RatingsDataset) -> np.ndarray:
    """Returns similarities of users, zero for users without common items."""
    ratings = _matrix(data).toarray().astype(np.float32)
    rated = (ratings > 0).astype(np.float32)
    common, squares = rated @ rated.T, ratings**2 @ rated.T
    distance = squares + squares.T - 2 * ratings @ ratings.T
    return common / np.maximum(common + distance, 1)


def nonnegative_factorization(
    data: RatingsDataset, num_factors: int, num_epochs: int, penalty: float
) -> np.ndarray:
    """Returns grades predicted as products of nonnegative factors of user and item ("NMF").

    Multiplicative updates on the observed grades, with a penalty for each.
    """
    rng = np.random.default_rng(_SEED)
    ratings = _matrix(data).tocsr()
    rows, columns = ratings.nonzero()
    per_user, per_item = (
        np.bincount(place, minlength=size)[:, None]
        for place, size in zip((rows, columns), ratings.shape, strict=True)
    )
    user, item = (rng.random((n, num_factors)) for n in ratings.shape)
    for _ in range(num_epochs):
        fitted = ratings.copy()
        fitted.data = np.einsum("ij,ij->i", user[rows], item[columns])
        user_shrunk = fitted @ item + penalty * per_user * user
        item_shrunk = fitted.T @ user + penalty * per_item * item
        user, item = (
            user * _quotient(ratings @ item, user_shrunk),
            item * _quotient(ratings.T @ user, item_shrunk),
        )
    users, items = data.test.x.T
    known = (per_user[users, 0] > 0) & (per_item[items, 0] > 0)
    return np.where(known, np.einsum("ij,ij->i", user[users], item[items]), global_average(data))


def biased_factorization(
    data: RatingsDataset,
    num_factors: int,
    num_epochs: int,
    step_size: float,
    penalty: float,
) -> np.ndarray:
    """Returns grades predicted as mean, both biases and product of factors ("SVD", by S. Funk).

    Stochastic gradient descent on the penalised squared error. Grades on a diagonal of the matrix
    share neither user nor item, so that they are updated together; Surprise goes user by user.
    """
    rng = np.random.default_rng(_SEED)
    shapes = [(size, 2 + num_factors) for size in (data.num_users, data.num_items)]
    users, items = (rng.normal(0, 0.1, shape) for shape in shapes)
    # Two columns of either side make the biases part of the product: (bias, 1) and (1, bias).
    (users[:, 0], users[:, 1]), (items[:, 0], items[:, 1]) = (0, 1), (1, 0)
    moves = step_size * np.where(np.arange(2 + num_factors) == [[1], [0]], 0, 1)
    grades = _grades(data.train.y) - _grades(data.train.y).mean()
    diagonals = _diagonals(data)
    for _ in range(num_epochs):
        for part in diagonals:
            user, item = data.train.x[part].T
            p, q = users[user], items[item]
            error = (grades[part] - np.einsum("ij,ij->i", p, q))[:, None]
            users[user] += moves[0] * (error * q - penalty * p)
            items[item] += moves[1] * (error * p - penalty * q)
    user, item = data.test.x.T
    return global_average(data) + np.einsum("ij,ij->i", users[user], items[item])


def _diagonals(data: RatingsDataset) -> list[np.ndarray]:
    """Splits the training ratings into parts without common users or items."""
    diagonal = data.train.x.sum(axis=1) % max(data.num_users, data.num_items)
    order = np.argsort(diagonal, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(diagonal[order])) + 1)


def _grades(classes: np.ndarray) -> np.ndarray:
    return (classes + 1).astype(np.float32)


def _matrix(data: RatingsDataset) -> sparse.coo_array:
    """Returns the training grades as a sparse matrix, users by items."""
    users, items = data.train.x.T
    shape = (data.num_users, data.num_items)
    return sparse.coo_array((_grades(data.train.y), (users, items)), shape=shape)


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides, with quotient one if the denominator is zero."""
    return np.divide(numerator, denominator, out=np.ones_like(numerator), where=denominator > 0)
