"""The models that Table 4 of Bu et al. (2020) compares with: those of the library Surprise.

Written out on arrays, so that the project depends on no compiled library for four reference rows.
A predictor takes the data and returns its grades of the test part, from 1 to the number of classes.
None is private.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from dpjax.datasets import RatingsDataset

Predictor = Callable[..., np.ndarray]

_SEED = 0


def rmse_of(predictor: Predictor, data: RatingsDataset, settings: Mapping[str, Any]) -> float:
    """Returns the root mean squared error on the test part of ``predictor(data, **settings)``.

    Predictions are cut to the grades there are, as Surprise cuts them.
    """
    predicted = np.clip(predictor(data, **settings), 1, data.num_classes)
    return float(np.sqrt(np.mean((predicted - _grades(data.test.y)) ** 2)))


def global_average(data: RatingsDataset) -> np.ndarray:
    """Predicts the mean of all training grades."""
    return np.full(len(data.test.y), _grades(data.train.y).mean())


def user_based_filtering(data: RatingsDataset, num_neighbours: int) -> np.ndarray:
    """Predicts from the users most alike who rated the item ("KNNBasic").

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
    """Float32 (users, users); zero where two users rated no item in common."""
    ratings = _matrix(data).toarray().astype(np.float32)
    rated = (ratings > 0).astype(np.float32)
    common, squares = rated @ rated.T, ratings**2 @ rated.T
    distance = squares + squares.T - 2 * ratings @ ratings.T
    return common / np.maximum(common + distance, 1)


def nonnegative_factorization(
    data: RatingsDataset, num_factors: int, num_epochs: int, penalty: float
) -> np.ndarray:
    """Predicts a grade as the product of nonnegative factors of its user and its item ("NMF").

    Multiplicative updates over the known grades alone, with a penalty for each of them.
    """
    rng = np.random.default_rng(_SEED)
    ratings = _matrix(data).tocsr()
    rows, columns = ratings.nonzero()
    per_user, per_item = (np.bincount(i, minlength=n)[:, None] for i, n in _axes(data))
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
    """Predicts mean + user's bias + item's bias + product of factors ("SVD", after S. Funk).

    Stochastic gradient descent on the penalised squared error, one grade after the other. Grades
    on one diagonal of the table share neither user nor item, so taking them all at once is the
    same as one after the other; Surprise goes user by user instead.
    """
    rng = np.random.default_rng(_SEED)
    users, items = (rng.normal(0, 0.1, (n, 2 + num_factors)) for _, n in _axes(data))
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
    """The training ratings in parts, none with two ratings of one user or of one item."""
    diagonal = data.train.x.sum(axis=1) % max(data.num_users, data.num_items)
    order = np.argsort(diagonal, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(diagonal[order])) + 1)


def _grades(classes: np.ndarray) -> np.ndarray:
    return (classes + 1).astype(np.float32)


def _matrix(data: RatingsDataset) -> sparse.coo_array:
    """The training grades, users by items; no grade is zero."""
    users, items = data.train.x.T
    shape = (data.num_users, data.num_items)
    return sparse.coo_array((_grades(data.train.y), (users, items)), shape=shape)


def _axes(data: RatingsDataset) -> tuple[tuple[np.ndarray, int], tuple[np.ndarray, int]]:
    users, items = data.train.x.T
    return (users, data.num_users), (items, data.num_items)


def _quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """One where there is nothing to go by: such a row keeps its first values."""
    return np.divide(numerator, denominator, out=np.ones_like(numerator), where=denominator > 0)
