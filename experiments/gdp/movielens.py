"""MovieLens 1M, Table 4 of Bu et al. (2020): neural collaborative filtering by NoisyAdam.

``python -m experiments run gdp_movielens``: both profiles run every row as published, on two CPU
cores some minutes for MovieLens 1M and half a minute for the stand-in. The licence of MovieLens
forbids redistribution: put ``ml-1m.zip`` or ``ratings.dat`` into the folder ``DPJAX_DATA_DIR``.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax._checks import check_count, check_delta, check_positive
from experiments.data import RatingsDataset, load_data
from experiments.gdp import movielens_models as models
from experiments.gdp.accounts import account_finding, compute_accounts
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import cross_entropy
from experiments.lib.plots import draw_nonempty, series_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.training import Task, initialize, train
from experiments.lib.verdicts import compare_published, format_upper_bound

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
_BASELINES: dict[str, tuple[models.Predictor, dict[str, Any], float]] = {
    "SVD": (
        models.biased_factorization,
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
        models.nonnegative_factorization,
        {"algorithm": "NMF", "num_factors": 15, "num_epochs": 50, "penalty": 0.06},
        0.916,
    ),
    "user-based CF": (
        models.user_based_filtering,
        {"algorithm": "KNNBasic", "num_neighbours": 40},
        0.923,
    ),
    "global average": (models.global_average, {"algorithm": "the mean"}, 1.117),
}


@functools.cache
def data_set() -> RatingsDataset:
    return load_data("movielens")


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
        error = models.baseline_rmse(_BASELINES[row.name][0], data, options)
        return Result(measured={"RMSE": error}, certified={}, note=data.note)
    model = models.NeuralFiltering(data.num_users, data.num_items, data.num_classes)
    settings: Settings | UserSettings
    if row.name == _BY_USER:
        settings, loss_fn = UserSettings(**row.settings), models.user_loss(model)
        examples: Any = models.user_records(data, settings.num_kept, settings.seed)
        mechanism = settings.mechanism(data.num_users)
    else:
        settings, loss_fn = Settings(**row.settings), cross_entropy(model)
        examples, mechanism = tuple(data.train), settings.mechanism(len(data.train.y))
    optimizer = optax.adam(settings.learning_rate)
    key, params = initialize(model, data.train.x[:1], settings.seed)
    training = train(
        key,
        Task(loss_fn, examples, optimizer, models.rmse(model, data.test)),
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
    return draw_nonempty(training=(_training_figure, curves), models=(_models_figure, records))


def _training_figure(records: Sequence[Record]) -> Figure:
    epochs = "passes over the training data"
    return series_figure(records, _CURVE, xlabel=epochs, ylabel="test RMSE", xscale="log")


def _models_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    ordered = sorted(records, key=lambda record: -record.measured["RMSE"])
    for place, record in enumerate(ordered):
        printed = record.source["RMSE"]
        if record.data == "movielens" and isinstance(printed, float):
            axes.plot(printed, place, "s", color=SOURCE, markersize=7)
        colour = CERTIFIED if record.certified else MEASURED
        axes.plot(record.measured["RMSE"], place, "o", color=colour)
    axes.set_yticks(range(len(ordered)), [record.row for record in ordered])
    axes.set(xlabel="test RMSE", ylim=(-0.5, len(ordered) - 0.5))
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    private, by_user, plain = (rows.get(name) for name in (_PRIVATE, _BY_USER, _PLAIN))
    remarks = _unit_remarks(private) if private else []
    if by_user:
        beside = f" instead of {format_value(private.measured['RMSE'])}" if private else ""
        certified = format_upper_bound(by_user.certified["ε, one user"])
        remarks.append(
            f"With per-user clipping the certified ε = {certified} holds for all ratings of a"
            f" user; the RMSE is {format_value(by_user.measured['RMSE'])}{beside}. At most"
            f" {by_user.settings['num_kept']} ratings of a user are used."
        )
    remarks += [
        "The films are numbered as in the published catalogue, 1 to 3,952; the source has 3,706,"
        " those with a rating. Which films have a rating is itself private.",
        "Step size, clip bound and batch size of the row by user were chosen on MovieLens 100K;"
        " the certificate does not account for a choice on the same data.",
    ]
    if private and plain and private.measured["RMSE"] < plain.measured["RMSE"]:
        remarks.append(
            "On these data the private network has a smaller error than the non-private one,"
            " which overfits."
        )
    return remarks


def _unit_remarks(private: Record) -> list[str]:
    """Returns remarks on the guarantees for one rating and, by group privacy, for one user."""
    source, certified = private.source, format_upper_bound(private.certified["ε, one rating"])
    remarks = [
        f"The source's CLT ε = {source['CLT ε']} is below the certified {certified}. Its MA ε ="
        f" {source['MA ε']} is a loose upper bound. All three are for one rating."
    ]
    users = ("the smallest group", "the median user", "the most active user")
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
