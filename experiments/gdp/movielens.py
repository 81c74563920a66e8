"""MovieLens 1M, Table 4 of Bu et al. (2020): neural collaborative filtering by NoisyAdam.

``python -m experiments run gdp_movielens``: both profiles run every row as published, on two CPU
cores some minutes for MovieLens 1M and half a minute for the stand-in. The licence of MovieLens
forbids redistribution: put ``ml-1m.zip`` or ``ratings.dat`` into the folder ``DPJAX_DATA_DIR``.

The baselines reimplement algorithms of the library Surprise on arrays; they are not private. A
predictor maps the data to grades of the test ratings, from 1 to the number of classes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy import sparse

import dpjax
from dpjax._checks import check_count, check_delta, check_positive
from dpjax._typing import PyTree
from experiments.data import RatingsDataset, Split, load_data
from experiments.gdp.classifiers import account_finding, compute_accounts
from experiments.lib.formatting import format_value
from experiments.lib.models import cross_entropy, small_uniform
from experiments.lib.plots import series_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.training import Task, initialize, train
from experiments.lib.verdicts import compare_published, format_upper_bound

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

    def loss_fn(params: PyTree, record: UserRecords) -> jax.Array:
        user, items, classes, mask = record
        pairs = jnp.stack([jnp.broadcast_to(user, items.shape), items], axis=1)
        logits = model.apply({"params": params}, pairs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
        return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)

    return loss_fn


def rmse(model: nn.Module, part: Split) -> Callable[[PyTree], float]:
    """Returns ``f(params) -> root mean squared error`` of the expected class on ``part``."""

    @jax.jit
    def squared_errors(params: PyTree, x: jax.Array, classes: jax.Array) -> jax.Array:
        logits: Any = model.apply({"params": params}, x)
        probabilities = jax.nn.softmax(logits)
        expected = probabilities @ jnp.arange(probabilities.shape[1], dtype=probabilities.dtype)
        return (expected - classes) ** 2

    return lambda params: float(np.sqrt(np.mean(squared_errors(params, part.x, part.y))))


def baseline_rmse(predictor: Predictor, data: RatingsDataset, settings: Values) -> float:
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


_PRIVATE, _BY_USER = "private networks", "private networks, by user"
_PLAIN = "non-private networks"
_CURVE, _GROUPS = "RMSE by epoch", "groups"
_NUM_REPORTS = 20
# Exceeds every gradient norm.
_NO_CLIP = 1e6
# Certified ε of the row on single ratings, the target of the user-level row.
_TARGET_EPSILON = 12.75


@dataclass(frozen=True)
class Settings:
    """Settings of training with per-rating clipping, by default the source's."""

    learning_rate: float = 0.01
    l2_clip: float = 5.0
    noise_multiplier: float = 0.6
    sampling_rate: float = 1 / 80
    epochs: int = 20
    delta: float = 1e-6
    seed: int = 0

    def mechanism(self, num_ratings: int) -> dpjax.SubsampledGaussian:
        """Returns the mechanism of ``epochs / p`` steps, with one rating as the unit of privacy."""
        return _mechanism(self, num_ratings, self.noise_multiplier, "one rating (a user has many)")


@dataclass(frozen=True)
class UserSettings:
    """Settings of training with per-user clipping, which the source does not have."""

    learning_rate: float = 0.01
    l2_clip: float = 0.1  # clip bound on the mean gradient of one user's ratings
    epsilon: float = _TARGET_EPSILON  # target of the calibration
    sampling_rate: float = 0.1
    epochs: int = 100
    num_kept: int = 64  # maximum number of ratings per user
    delta: float = 1e-6
    seed: int = 0

    def mechanism(self, num_users: int) -> dpjax.SubsampledGaussian:
        """Returns the mechanism of ``epochs / q`` steps, calibrated to ``epsilon`` of one user."""
        mechanism = _mechanism(self, num_users, 1.0, "one user with all ratings")
        return dpjax.calibrate(mechanism, epsilon=self.epsilon, delta=self.delta)


def _mechanism(
    settings: Settings | UserSettings, num_examples: int, noise_multiplier: float, unit: str
) -> dpjax.SubsampledGaussian:
    return dpjax.SubsampledGaussian(
        sampling=dpjax.PoissonSampling(num_examples, settings.sampling_rate),
        l2_clip=settings.l2_clip,
        noise_multiplier=noise_multiplier,
        num_steps=round(settings.epochs / settings.sampling_rate),
        adjacency="zero_out",
        unit=unit,
    )


# Predictor, name and default settings of the algorithm in Surprise, and the source's RMSE.
_BASELINES: dict[str, tuple[Predictor, dict[str, Any], float]] = {
    "SVD": (
        biased_factorization,
        {
            "algorithm": "SVD",
            "num_factors": 100,
            "num_epochs": 20,
            "step_size": 0.005,
            "penalty": 0.02,
        },
        0.873,
    ),
    "NMF": (
        nonnegative_factorization,
        {"algorithm": "NMF", "num_factors": 15, "num_epochs": 50, "penalty": 0.06},
        0.916,
    ),
    "user-based CF": (
        user_based_filtering,
        {"algorithm": "KNNBasic", "num_neighbours": 40},
        0.923,
    ),
    "global average": (global_average, {"algorithm": "the mean"}, 1.117),
}


@functools.cache
def data_set() -> RatingsDataset:
    return load_data("movielens", stand_in=True)


def rows(profile: str) -> list[Row]:
    private, plain = Settings(), Settings(l2_clip=_NO_CLIP, noise_multiplier=0.0)
    printed = {"RMSE": 0.915, "CLT μ": 1.94, "CLT ε": 10.61, "MA ε": 15.39}
    return [
        Row(_PRIVATE, dataclasses.asdict(private), printed),
        Row(_BY_USER, dataclasses.asdict(UserSettings()), {"RMSE": "no such row"}),
        Row(_PLAIN, dataclasses.asdict(plain), {"RMSE": 0.893}),
        *(
            Row(name, settings, {"RMSE": error})
            for name, (_, settings, error) in _BASELINES.items()
        ),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    data = data_set()
    if row.name in _BASELINES:
        options = {name: value for name, value in row.settings.items() if name != "algorithm"}
        error = baseline_rmse(_BASELINES[row.name][0], data, options)
        return Result(measured={"RMSE": error}, certified={}, note=data.note)
    model = NeuralFiltering(data.num_users, data.num_items, data.num_classes)
    settings: Settings | UserSettings
    if row.name == _BY_USER:
        settings, loss_fn = UserSettings(**row.settings), user_loss(model)
        examples: PyTree = user_records(data, settings.num_kept, settings.seed)
        mechanism = settings.mechanism(data.num_users)
    else:
        settings, loss_fn = Settings(**row.settings), cross_entropy(model)
        examples, mechanism = tuple(data.train), settings.mechanism(len(data.train.y))
    optimizer = optax.adam(settings.learning_rate)
    key, params = initialize(model, data.train.x[:1], settings.seed)
    training = train(
        key,
        Task(loss_fn, examples, optimizer, rmse(model, data.test)),
        params,
        mechanism,
        steps_per_report=-(-mechanism.num_steps // _NUM_REPORTS),
        folder=context.folder,
    )
    measured, series = {"RMSE": training.curve[-1][1]}, {_CURVE: training.curve}
    if row.name == _PLAIN:
        note = f"{data.note} The private row's steps, but nothing is clipped and no noise added."
        return Result(measured, {}, note, series)
    costs, certified = compute_accounts(mechanism, settings.delta)
    if row.name == _PRIVATE:
        series[_GROUPS] = _groups(data, certified, costs["CLT μ"], settings.delta)
    return Result(
        measured={**measured, **costs},
        certified={"ε, one user" if row.name == _BY_USER else "ε, one rating": certified},
        note=f"{data.note} Seeded key: the noise is reproducible, so this run is not private.",
        series=series,
        certificate=str(training.certificate(settings.delta)),
    )


def _groups(data: RatingsDataset, epsilon: float, mu: float, delta: float) -> list[Any]:
    """Returns group-privacy guarantees for users of two, median and most ratings."""
    counts = np.bincount(np.concatenate([data.train.x[:, 0], data.test.x[:, 0]]))
    sizes = (2, int(np.median(counts[counts > 0])), int(counts.max()))
    limit = dpjax.accounting.gdp.epsilon
    return [(k, *group_guarantee(epsilon, delta, k), limit(k * mu, delta)) for k in sizes]


def group_guarantee(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Returns ``(k epsilon, delta (e^{k epsilon} - 1) / (e^epsilon - 1))``, delta at most one.

    A mechanism that is (epsilon, delta)-DP for one record is so for groups of k records together
    (Vadhan, "The Complexity of Differential Privacy", 2017, Lemma 2.2).

    Args:
      epsilon: for one record, above zero.
      delta: for one record, in (0, 1).
      size: the number k of records of the group.

    >>> epsilon, delta = group_guarantee(0.1, 1e-9, 3)
    >>> round(epsilon, 6), round(delta * 1e9, 3)
    (0.3, 3.327)
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_count("size", size)
    # In logarithms, since e^{k epsilon} overflows for a hundred ratings.
    growth = (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon) / -math.expm1(-epsilon))
    return size * epsilon, math.exp(min(0.0, math.log(delta) + growth))


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    curves = [record for record in records if _CURVE in record.series]
    axes: dict[str, Any] = {"xlabel": "passes over the training data", "ylabel": "test RMSE"}
    return {"training": series_figure(curves, _CURVE, **axes, xscale="log")} if curves else {}


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    private, plain = rows.get(_PRIVATE), rows.get(_PLAIN)
    remarks = _unit_remarks(private) if private else []
    if private and plain and private.measured["RMSE"] < plain.measured["RMSE"]:
        remarks.append(
            "On these data the private network has a smaller error than the non-private one,"
            " which overfits."
        )
    return remarks


def _unit_remarks(private: Record) -> list[str]:
    """Returns remarks on the guarantees by group privacy for all ratings of one user."""
    users = ("the smallest group", "the median user", "the most active user")
    remarks = []
    for user, (size, epsilon, delta, limit) in zip(users, private.series[_GROUPS], strict=True):
        worth = "which is vacuous" if delta >= 1 else "which is weak"
        remarks.append(
            f"For a user of {size:,} ratings ({user}), group privacy turns the one-rating"
            f" guarantee into ε = {format_upper_bound(epsilon)} at δ ="
            f" {format_upper_bound(delta)}, {worth}; the central limit's G_kμ, an approximation,"
            f" has ε = {format_value(limit)} at δ = {private.settings['delta']:g}."
        )
    return remarks


def finding(records: Sequence[Record]) -> Finding:
    comparison = compare_published(
        records,
        "RMSE",
        0.01,
        "published errors",
        is_full=lambda record: record.data == "movielens",
    )
    return account_finding(comparison, records, "ε, one rating")
