"""Gradients and averages of DPSVI at equal ε: logistic regression on Adult and Abalone.

``python -m experiments run dpvi_gradients``: two minutes on two CPU cores in the quick profile,
some minutes in the paper profile.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
import optax
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax.accounting import calibrate
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.gradient_trace import average_iterates, settled_burn_in
from experiments.data import Split, load_data
from experiments.dpvi.inference import Fits, Point, fit
from experiments.dpvi.logistic import model
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import grid, mean_and_error

Array = npt.NDArray[np.float64]
Records = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_RATES = {"adult_attributes": 0.01, "abalone": 0.05}
_TITLES = {"adult_attributes": "Adult", "abalone": "Abalone"}
_FACTOR = "factor on scales"
_LAST, _AVERAGED = "last", "averaged"


@dataclass(frozen=True)
class Settings:
    """Data set, gradient, which iterate, privacy budget, and the grid that is searched."""

    data_set: str
    gradient: Any  # "plain" or "aligned"
    iterate: str  # "last" or "averaged"
    epsilon: float
    delta: float = 1e-5
    num_steps: int = 1_500
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    l2_clips: tuple[float, ...] = (1.0, 3.0, 10.0)
    tuning_repeats: int = 2  # by which rate and bound are chosen
    repeats: int = 5  # others, which are measured


class Task(NamedTuple):
    """Data of a logistic regression, and scales of its mean-field posterior without privacy.

    Attributes:
      train: features (n, d) and labels (n,).
      test: held-out ones.
      scales: standard deviations of the best mean-field normal at the posterior mode, (d,).
    """

    train: Records
    test: Records
    scales: Array


@functools.cache
def load_task(name: str) -> Task:
    """Returns standardised records of a data set, and scales of its mean-field posterior."""
    data = load_data(name, stand_in=True)
    center, scale = data.train.x.mean(0), data.train.x.std(0)

    def standardise(split: Split) -> Records:
        features = (split.x - center) / scale
        x = np.column_stack([features, np.ones(len(features))])
        return x.astype(np.float32), split.y.astype(np.float32)

    train, test = standardise(data.train), standardise(data.test)

    # Newton steps to the mode; a normal's best mean-field scales are its conditional ones.
    (features, y), mode = train, np.zeros(train[0].shape[1])
    x = features.astype(float)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(len(mode))
        mode -= np.linalg.solve(hessian, x.T @ (p - y) + mode)
    return Task(train, test, np.diag(hessian) ** -0.5)


def score(task: Task, params: Any) -> dict[str, Array]:
    """Returns held-out scores of fitted guides, each (points, repeats), by column name."""
    x, y = task.test
    logits = np.asarray(params["weights_auto_loc"], float) @ x.T
    log_ratio = np.log(np.asarray(params["weights_auto_scale"], float) / task.scales)
    return {
        "log-likelihood": (y * logits - np.logaddexp(0, logits)).mean(-1),
        "accuracy %": 100 * ((logits > 0) == y).mean(-1),
        _FACTOR: np.exp(np.sqrt((log_ratio**2).mean(-1))),
    }


def averages(fits: Fits) -> dict[str, Array]:
    """Returns the parameters averaged over each run's tail, leaves with axes (points, repeats)."""
    positive = biject_to(AutoNormal.scale_constraint)
    by_run: dict[str, list[Array]] = {"weights_auto_loc": [], "weights_auto_scale": []}
    params: Any = fits.params
    shape = np.shape(params["weights_auto_loc"])
    for index in np.ndindex(shape[:2]):
        trace = jax.tree.map(lambda leaf, at=index: np.asarray(leaf)[at], fits.trace)
        burn_in = settled_burn_in(trace)
        averaged = average_iterates(trace, 0.5 if burn_in is None else burn_in)
        for name, values in by_run.items():
            values.append(averaged[name])
    means = {name: np.reshape(values, shape) for name, values in by_run.items()}
    return {**means, "weights_auto_scale": np.asarray(positive(means["weights_auto_scale"]))}


def data() -> str:
    return ", ".join(load_data(name, stand_in=True).name for name in _RATES)


def rows(profile: str) -> list[Row]:
    is_paper = profile == "paper"
    epsilons = (0.3, 1.0, 3.0) if is_paper else (1.0,)
    data_sets = tuple(_RATES) if is_paper else ("abalone",)
    iterates = (_LAST, _AVERAGED)
    points = grid(
        data_set=data_sets, epsilon=epsilons, gradient=("plain", "aligned"), iterate=iterates
    )
    return [Row(_name(**point), dataclasses.asdict(Settings(**point)), {}) for point in points]


def _name(data_set: str, epsilon: float, gradient: str, iterate: str) -> str:
    averaged = ", averaged" if iterate == _AVERAGED else ""
    return f"{_TITLES[data_set]}, ε = {epsilon:g}: {gradient}{averaged}"


class _Scores(NamedTuple):
    """Learning rate and clip bound that were chosen, and the scores of the runs with them."""

    point: Point
    by_column: dict[str, Array]


@functools.cache
def _scores(settings: Settings) -> dict[str, _Scores]:
    """Returns the scores of the last iterate and of the average, of the same tuning runs."""
    task = load_task(settings.data_set)
    mechanism = _mechanism(settings)

    def make(point: Point, num_steps: int) -> DPSVI:
        at_point = dataclasses.replace(
            mechanism, l2_clip=point.l2_clip, noise_multiplier=2 * point.sigma
        )
        optim = optax.adam(point.learning_rate)
        guide = AutoNormal(model)
        return DPSVI(model, guide, optim, mechanism=at_point, gradient=settings.gradient)

    def run(points: list[Point], seed: int, repeats: int) -> dict[str, dict[str, Array]]:
        key, steps = jax.random.key(seed), settings.num_steps
        fits = fit(key, make, points, task.train, num_steps=steps, repeats=repeats)
        return {_LAST: score(task, fits.params), _AVERAGED: score(task, averages(fits))}

    # The rate and bound of the best held-out log-likelihood, for each iterate.
    sigma = float(mechanism.noise_multiplier) / 2
    points = [
        Point(sigma, l2_clip, rate)
        for rate, l2_clip in itertools.product(settings.learning_rates, settings.l2_clips)
    ]
    tuning = run(points, 0, settings.tuning_repeats)
    chosen = [points[scores["log-likelihood"].mean(1).argmax()] for scores in tuning.values()]

    # Measured by other runs.
    measured = run(chosen, 1, settings.repeats)
    return {
        iterate: _Scores(point, {name: values[number] for name, values in scores.items()})
        for number, (point, (iterate, scores)) in enumerate(
            zip(chosen, measured.items(), strict=True)
        )
    }


def _mechanism(settings: Settings) -> Any:
    """The noise for the row's budget; the clip bound changes nothing of it."""
    num_examples = len(load_task(settings.data_set).train[1])
    return calibrate(
        dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(num_examples, _RATES[settings.data_set]),
            num_steps=settings.num_steps,
            l2_clip=1.0,
            noise_multiplier=1.0,
            adjacency="zero_out",
        ),
        epsilon=settings.epsilon,
        delta=settings.delta,
    )


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    point, scores = _scores(dataclasses.replace(settings, iterate=_LAST))[settings.iterate]
    measured: dict[str, Any] = {}
    for name, values in scores.items():
        measured[name], measured[f"{name} (standard error)"] = mean_and_error(values)
    measured |= {"learning rate": point.learning_rate, "clip bound": point.l2_clip}
    certificate = _mechanism(settings).certificate(settings.delta)
    return Result(
        measured,
        {"ε": certificate.epsilon},
        "Seeded keys: the noise is reproducible, so these runs are not private. The certified ε is"
        " that of one run; choosing learning rate and clip bound, and standardising, are not"
        " accounted for.",
        certificate=str(certificate),
    )


def finding(records: Sequence[Record]) -> Finding:
    parts = []
    for gradient in ("plain", "aligned"):
        factors = [
            record.measured[_FACTOR]
            for record in records
            if (record.settings["gradient"], record.settings["iterate"]) == (gradient, _LAST)
        ]
        if factors:
            parts.append(f"{min(factors):.2f} to {max(factors):.2f} with {gradient} gradients")

    # By how much the scores of the average exceed those of the last iterate.
    by_row = {record.row: record.measured for record in records}
    pairs = [
        (measured, by_row[f"{name}, averaged"])
        for name, measured in by_row.items()
        if f"{name}, averaged" in by_row
    ]

    def gains(column: str, digits: int) -> str:
        differences = [averaged[column] - last[column] for last, averaged in pairs]
        return f"{min(differences):.{digits}f} to {max(differences):.{digits}f}".replace("-", "−")

    text = (
        "The source's figures are of other settings; scales of the guide are off by a factor of"
        f" {' and '.join(parts)}"
    )
    if pairs:
        text += (
            "; the average of the iterates has a held-out log-likelihood above the last one's by"
            f" {gains('log-likelihood', 3)} and an accuracy by {gains('accuracy %', 2)} points"
        )
    return Finding("not compared", text + ".")
