"""MovieLens 1M, Table 4 of Bu et al. (2020): neural collaborative filtering by NoisyAdam.

``python -m experiments run gdp_movielens``: both profiles run every row as published, on two CPU
cores some minutes for MovieLens 1M and half a minute for the stand-in. The licence of MovieLens
forbids to pass it on: put ``ml-1m.zip`` or ``ratings.dat`` into the folder ``DPJAX_DATA_DIR``.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import dpjax
from dpjax.datasets import RatingsDataset
from experiments.gdp import movielens_baselines as baselines
from experiments.gdp.movielens_model import NeuralFiltering, rmse, user_loss, user_records
from experiments.gdp.movielens_report import figures, remarks
from experiments.gdp.training import Curve, accounts
from experiments.gdp.user_level import group_guarantee
from experiments.lib.models import cross_entropy
from experiments.lib.registry import Experiment, Result, Row, RowContext

_CURVE = "RMSE by epoch"
_NUM_REPORTS = 20
# So large that nothing is clipped.
_NO_CLIP = 1e6
# What is certified for one rating of the private row, and so the user-level row's target.
_TARGET_EPSILON = 12.75


@dataclass(frozen=True)
class Settings:
    """How the network is trained on single ratings; the defaults are the source's.

    Attributes:
      learning_rate: Adam's, constant.
      l2_clip: clip bound on one rating's gradient.
      noise_multiplier: noise standard deviation over the clip bound.
      sampling_rate: of the Poisson batches of ratings.
      epochs: expected passes over the training ratings.
      delta: at which epsilon is read.
      seed: of the parameters, the batches and the noise.
    """

    learning_rate: float = 0.01
    l2_clip: float = 5.0
    noise_multiplier: float = 0.6
    sampling_rate: float = 1 / 80
    epochs: int = 20
    delta: float = 1e-6
    seed: int = 0

    def mechanism(self, num_ratings: int) -> dpjax.SubsampledGaussian:
        """``epochs / p`` noisy sums; one rating is the unit of privacy."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(num_ratings, self.sampling_rate),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=round(self.epochs / self.sampling_rate),
            adjacency="zero_out",
            unit="one rating (a user has many)",
        )


@dataclass(frozen=True)
class UserSettings:
    """How the network is trained on whole users; our own, the source has no such run.

    Attributes:
      learning_rate: Adam's, constant.
      l2_clip: clip bound on the mean gradient of one user's ratings.
      epsilon: what the noise is calibrated to.
      sampling_rate: of the Poisson batches of users.
      epochs: expected passes over the users.
      num_kept: how many of a user's ratings count at most.
      delta: at which epsilon is read.
      seed: of the kept ratings, the parameters, the batches and the noise.
    """

    learning_rate: float = 0.01
    l2_clip: float = 0.1
    epsilon: float = _TARGET_EPSILON
    sampling_rate: float = 0.1
    epochs: int = 100
    num_kept: int = 64
    delta: float = 1e-6
    seed: int = 0

    def mechanism(self, num_users: int) -> dpjax.SubsampledGaussian:
        """``epochs / q`` noisy sums with the least noise for ``epsilon``; the unit is one user."""
        mechanism = dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(num_users, self.sampling_rate),
            l2_clip=self.l2_clip,
            noise_multiplier=1.0,
            num_steps=round(self.epochs / self.sampling_rate),
            adjacency="zero_out",
            unit="one user with all ratings",
        )
        return dpjax.calibrate(mechanism, epsilon=self.epsilon, delta=self.delta)


class _Task(NamedTuple):
    """What a network is trained on, and how."""

    records: Any
    loss: Callable[[Any], Any]
    mechanism: dpjax.SubsampledGaussian
    settings: Settings | UserSettings


# predictor, its name in Surprise and the default settings there; then the source's RMSE.
_BASELINES: dict[str, tuple[baselines.Predictor, dict[str, Any], float]] = {
    "SVD": (
        baselines.biased_factorization,
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
        baselines.nonnegative_factorization,
        {"algorithm": "NMF", "num_factors": 15, "num_epochs": 50, "penalty": 0.06},
        0.916,
    ),
    "user-based CF": (
        baselines.user_based_filtering,
        {"algorithm": "KNNBasic", "num_neighbours": 40},
        0.923,
    ),
    "global average": (baselines.global_average, {"algorithm": "the mean"}, 1.117),
}


@functools.cache
def _data() -> RatingsDataset:
    return dpjax.datasets.load_movielens()


def _rows(profile: str) -> list[Row]:
    """The same under both profiles: every row is run as published."""
    del profile
    private, plain = Settings(), Settings(l2_clip=_NO_CLIP, noise_multiplier=0.0)
    printed = {"RMSE": 0.915, "CLT μ": 1.94, "CLT ε": 10.61, "MA ε": 15.39}
    return [
        Row("private networks", dataclasses.asdict(private), printed),
        Row(
            "private networks, by user", dataclasses.asdict(UserSettings()), {"RMSE": "no such row"}
        ),
        Row("non-private networks", dataclasses.asdict(plain), {"RMSE": 0.893}),
        *(Row(name, known, {"RMSE": error}) for name, (_, known, error) in _BASELINES.items()),
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    if row.name in _BASELINES:
        return _run_baseline(row)
    return _run_users(row, context) if "num_kept" in row.settings else _run_ratings(row, context)


def _run_baseline(row: Row) -> Result:
    predictor, data = _BASELINES[row.name][0], _data()
    settings = {name: value for name, value in row.settings.items() if name != "algorithm"}
    error = baselines.rmse_of(predictor, data, settings)
    return Result(measured={"RMSE": error}, certified={}, note=data.note)


def _run_ratings(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), _data()
    mechanism = settings.mechanism(len(data.train.y))
    task = _Task(tuple(data.train), cross_entropy, mechanism, settings)
    if settings.noise_multiplier > 0:
        result = _private_result(task, "ε, one rating", data, context)
        groups = _groups(data, result, settings.delta)
        return dataclasses.replace(result, series={**result.series, "groups": groups})
    curve = _train(task, data, context)[1]
    note = f"{data.note} The private row's steps, but nothing is clipped and no noise added."
    return Result({"RMSE": curve[-1][1]}, {}, note, {_CURVE: curve})


def _run_users(row: Row, context: RowContext) -> Result:
    settings, data = UserSettings(**row.settings), _data()
    records = user_records(data, settings.num_kept, settings.seed)
    task = _Task(records, user_loss, settings.mechanism(data.num_users), settings)
    return _private_result(task, "ε, one user", data, context)


def _private_result(task: _Task, whose: str, data: RatingsDataset, context: RowContext) -> Result:
    trained, curve = _train(task, data, context)
    costs, certified = accounts(trained.mechanism, task.settings.delta)
    return Result(
        measured={"RMSE": curve[-1][1], **costs},
        certified={whose: certified},
        note=f"{data.note} Seeded key: the noise is reproducible, so this run is not private.",
        series={_CURVE: curve},
        certificate=str(trained.certificate(task.settings.delta)),
    )


def _train(
    task: _Task, data: RatingsDataset, context: RowContext
) -> tuple[dpjax.training.TrainResult, Curve]:
    """Trains a network; its errors on the way survive an interruption on disk."""
    model = NeuralFiltering(data.num_users, data.num_items, data.num_classes)
    key, init_key = jax.random.split(jax.random.key(task.settings.seed))
    params = model.init(init_key, data.train.x[:1])["params"]
    error, curve_file = rmse(model, data.test), context.folder / "rmse.txt"

    def note_error(report: dpjax.training.Report) -> None:
        epoch = report.num_releases * task.settings.sampling_rate
        with curve_file.open("a") as file:
            file.write(f"{epoch} {error(report.params)}\n")

    trained = dpjax.train(
        key,
        task.loss(model),
        params,
        task.records,
        task.mechanism,
        optax.adam(task.settings.learning_rate),
        steps_per_call=-(-task.mechanism.num_steps // _NUM_REPORTS),
        on_report=note_error,
        checkpoint_dir=context.folder / "checkpoints",
    )
    # A run that was interrupted between a report and its checkpoint reports an error twice.
    return trained, sorted(dict(np.loadtxt(curve_file, ndmin=2).tolist()).items())


def _groups(
    data: RatingsDataset, result: Result, delta: float
) -> list[tuple[int, float, float, float]]:
    """What one rating's guarantee leaves to a user of two, of the median and of the most ratings.

    Each as number of ratings, epsilon, delta, and the epsilon of ``G_{k mu}`` at the first delta.
    """
    counts = np.bincount(np.concatenate([data.train.x[:, 0], data.test.x[:, 0]]))
    sizes = (2, int(np.median(counts[counts > 0])), int(counts.max()))
    epsilon, mu = result.certified["ε, one rating"], result.measured["CLT μ"]
    limit = dpjax.accounting.gdp.epsilon
    return [(k, *group_guarantee(epsilon, delta, k), limit(k * mu, delta)) for k in sizes]


EXPERIMENT = Experiment(
    name="gdp_movielens",
    title="NoisyAdam on MovieLens 1M",
    source="Bu, Dong, Long and Su (2020), Table 4",
    description=(
        "Neural collaborative filtering (five factors of user times film, ten of either beside"
        " them, one dense layer to the five grades) trained by NoisyAdam on 80 % of a million"
        " ratings. The error is the root mean square over the other 20 %, where the network"
        " predicts the expected grade under its own probabilities: the source does not say how it"
        " gets from five classes to one number.\n\n"
        "The unit of privacy is one rating, not one user: the row's ε protects whether one film was"
        " rated and how, not the taste of a user with a hundred ratings. The row by user clips each"
        " user's whole gradient instead, so that its ε is for all ratings of one user at once; the"
        " source has no such row. Both are calibrated to the same certified ε at δ = 1e-6.\n\n"
        "CLT and MA are the source's two accounts, recomputed; the certified ε is a tight account"
        " (PLD) of the mechanism as it was run. SVD, NMF, user-based CF and global average are the"
        " algorithms of the library Surprise in its default settings, written out on arrays; SVD"
        " visits the ratings in another order."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: _data().name,
    figures=figures,
    remarks=remarks,
)
