"""MNIST and SVHN, the slides' table: private Langevin chains, claimed and certified ε.

``python -m experiments run sgmcmc_mnist``: on two CPU cores a minute and a half (``quick``: an MLP
and 600 steps) or three hours (``paper``: a CNN and 10,000 steps; of each MNIST row three runs, of
each SVHN row, whose steps take three times as long, one).

Scores of predictive probabilities ``(n, num_classes)`` for labels ``(n,)``: likelihood,
calibration and out-of-distribution detection, with natural logarithms.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy.stats import mannwhitneyu

import dpjax
from dpjax._typing import PyTree
from dpjax.bayes.sgmcmc import (
    POSTERIOR_TEMPERATURE,
    PUBLISHED_TEMPERATURE,
    SGHMC,
    SGLD,
    Langevin,
    calibrate_step_size,
    sample,
)
from experiments.data import Dataset, Split, load_data
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.models import MnistCNN, MnistMLP, cross_entropy
from experiments.lib.plots import draw_bars
from experiments.lib.records import find_record, load_records
from experiments.lib.registry import (
    Finding,
    Record,
    Result,
    Row,
    RowContext,
    Values,
    experiment_of,
    select_rows,
)
from experiments.lib.runner import Plan, run_experiment
from experiments.lib.training import ShuffledEpochs, Task, initialize, train
from experiments.lib.verdicts import (
    compare_claim,
    compare_published,
    format_upper_bound,
)
from experiments.pate import mnist as pate_mnist
from experiments.pate import svhn as pate_svhn
from experiments.pate.accounts import BOTH, EPSILON
from experiments.pate.answers import STUDENT

PLAIN, NOISY_SGD, LANGEVIN, HAMILTONIAN = "SGD", "DP-SGD", "SGLD", "SGHMC"
# Training images: of MNIST as the slides state; of SVHN its whole training part, not stated there.
PUBLISHED_SIZES = {"mnist": 50_000, "svhn": 73_257}
PUBLISHED_STEPS = 10_000
BATCHES = (100, 256, 1_000, 5_000)
# Steps between two checkpoints: about ten of a run as published.
_STEPS_PER_CALL = 1000
_UNIT, _NUM_OUT_OF_DISTRIBUTION = "one image", 2_000
_LEAST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Settings:
    """Settings of one row; a method ignores those that it does not use."""

    method: str  # one of the names above
    data: str  # "mnist" or "svhn"
    network: str  # "MLP" or "CNN"
    num_steps: int  # T, as this profile runs
    delta: float
    batch_size: int = 256  # mean of the Poisson draw; of a plain run, the size of every batch
    step_size: float = 0.1  # eta of a chain
    l2_clip: float = 4.0  # L, the bound on one image's gradient
    temperature: float = 1.0  # 1/2 is the printed noise, 1 that of the true posterior
    friction: float = 0.1  # alpha of SGHMC
    target: float | None = None  # the epsilon to which the step size is scaled; None to leave it
    learning_rate: float = 0.5  # of the point estimates
    prior_std: float = 1.0  # standard deviation of the Gaussian prior on every weight
    num_kept: int = 20  # states that predictions average over, spread over the chain's second half
    seed: int = 0  # of the first run
    runs: int = 1  # with seeds of their own

    @property
    def model(self) -> nn.Module:
        """The network."""
        return MnistCNN() if self.network == "CNN" else MnistMLP()

    @property
    def is_chain(self) -> bool:
        """Whether the row samples a posterior."""
        return self.method in (LANGEVIN, HAMILTONIAN)

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.is_chain or self.method == NOISY_SGD

    def chain(self, num_examples: int, num_steps: int) -> Langevin:
        """Returns the chain on ``num_examples`` images; for DP-SGD, the SGLD with its noise."""
        sampling = dpjax.PoissonSampling(num_examples, min(1.0, self.batch_size / num_examples))
        is_hamiltonian = self.method == HAMILTONIAN
        sampler: Callable[..., Langevin] = SGHMC if is_hamiltonian else SGLD
        chain = sampler(
            sampling,
            l2_clip=self.l2_clip,
            step_size=self.step_size,
            num_steps=num_steps,
            adjacency="zero_out",
            temperature=self.temperature,
            unit=_UNIT,
            **({"friction": self.friction} if is_hamiltonian else {}),
        )
        if self.target is None:
            return chain
        return calibrate_step_size(chain, epsilon=self.target, delta=self.delta)


class Predictions(NamedTuple):
    """Predictive probabilities, averaged over the kept states and of the last state."""

    averaged: np.ndarray  # on the test images, (n, 10)
    last: np.ndarray  # likewise
    out_of_distribution: dict[str, np.ndarray]  # averaged, on out-of-distribution images


@functools.cache
def load_images(name: str) -> Dataset:
    """Returns the data set with at most as many training images as in `PUBLISHED_SIZES`."""
    data, size = load_data(name, stand_in=True), PUBLISHED_SIZES[name]
    train = Split(data.train.x[:size], data.train.y[:size])
    return dataclasses.replace(data, train=train)


def run(settings: Settings, data: Dataset, folder: Path) -> Predictions:
    """Runs one chain or training and predicts; an interrupted one resumes from ``folder``."""
    key, params = initialize(settings.model, data.train.x[:1], settings.seed)
    if settings.is_chain:
        states = _sample(settings, data, params, key, folder)
    else:
        states = [_train(settings, data, params, key, folder)]
    each = [_probabilities(settings.model, params, data.test.x) for params in states]
    others = {
        name: np.mean([_probabilities(settings.model, params, images) for params in states], axis=0)
        for name, images in out_of_distribution_images(
            data.test.x[:_NUM_OUT_OF_DISTRIBUTION]
        ).items()
    }
    return Predictions(np.mean(each, axis=0), each[-1], others)


def _sample(settings: Settings, data: Dataset, params: PyTree, key: Any, folder: Path) -> list[Any]:
    """Returns the kept states of a chain."""
    loss_fn, burn_in = cross_entropy(settings.model), settings.num_steps // 2

    def log_prior(params: PyTree) -> jax.Array:
        squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)])
        return -0.5 * squares.sum() / settings.prior_std**2

    result = sample(
        key,
        lambda params, example: -loss_fn(params, example),
        log_prior,
        params,
        tuple(data.train),
        mechanism=settings.chain(len(data.train.y), settings.num_steps),
        burn_in=burn_in,
        thinning=(settings.num_steps - burn_in) // settings.num_kept,
        steps_per_call=_STEPS_PER_CALL,
        checkpoint_dir=folder,
    )
    return [
        jax.tree.map(lambda leaf, at=at: np.asarray(leaf[0, at]), result.samples)
        for at in range(settings.num_kept)
    ]


def _train(settings: Settings, data: Dataset, params: PyTree, key: Any, folder: Path) -> Any:
    """Returns parameters trained by DP-SGD, or by Adam without privacy."""
    num_examples = len(data.train.y)
    plan: dpjax.SubsampledGaussian | ShuffledEpochs
    if settings.is_private:
        plan = noisy_sgd_mechanism(settings.chain(num_examples, settings.num_steps))
        optimizer = optax.sgd(settings.learning_rate)
    else:
        size = min(settings.batch_size, num_examples)
        plan = ShuffledEpochs(-(-settings.num_steps * size // num_examples), size)
        optimizer = optax.adam(1e-3)
    task = Task(cross_entropy(settings.model), tuple(data.train), optimizer)
    return train(key, task, params, plan, folder=folder).params


def noisy_sgd_mechanism(chain: Langevin) -> dpjax.SubsampledGaussian:
    """Returns the subsampled Gaussian mechanism of ``chain`` with clip bound one."""
    return dataclasses.replace(chain.gaussian, l2_clip=1.0)


@functools.cache
def published_epsilon(settings: Settings) -> float:
    """Returns the certified ε of a chain with as many images and steps as in the slides."""
    chain = settings.chain(PUBLISHED_SIZES[settings.data], PUBLISHED_STEPS)
    return dpjax.accounting.epsilon(
        chain.event, settings.delta, adjacency=chain.adjacency, method="pld"
    )


def epsilon_by_batch(temperature: float) -> dict[int, float]:
    """Returns `published_epsilon` of DP-SGLD by batch size.

    >>> {batch: round(epsilon, 2) for batch, epsilon in epsilon_by_batch(0.5).items()}
    {100: 36.18, 256: 3.51, 1000: 2.35, 5000: 2.29}
    """
    at = Settings(LANGEVIN, "mnist", "CNN", PUBLISHED_STEPS, 1e-5, temperature=temperature)
    return {
        batch: published_epsilon(dataclasses.replace(at, batch_size=batch)) for batch in BATCHES
    }


def out_of_distribution_images(images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns out-of-distribution images: rotated, with shuffled pixels and, if grey, inverted.

    In SVHN, the colour data set, digits are lighter or darker than their background, so that
    inverted images are in the distribution.
    """
    order = np.random.default_rng(0).permutation(images[0].size)
    shuffled = images.reshape(len(images), -1)[:, order].reshape(images.shape)
    turned = np.rot90(images, axes=(1, 2))
    found = {"on their side": turned, "shuffled": shuffled}
    return {"inverted": 1 - images, **found} if images.shape[-1] == 1 else found


@functools.partial(jax.jit, static_argnums=0)
def _softmax(model: nn.Module, params: PyTree, images: jax.Array) -> jax.Array:
    logits: Any = model.apply({"params": params}, images)
    return jax.nn.softmax(logits)


def _probabilities(model: nn.Module, params: PyTree, images: np.ndarray) -> np.ndarray:
    parts = range(0, len(images), _NUM_OUT_OF_DISTRIBUTION)
    return np.concatenate(
        [_softmax(model, params, images[i : i + _NUM_OUT_OF_DISTRIBUTION]) for i in parts]
    )


class Reliability(NamedTuple):
    """Predictions binned by confidence, the probability of the predicted class."""

    confidence: np.ndarray  # mean of each bin that is not empty
    accuracy: np.ndarray  # share of a bin's predictions that are right
    share: np.ndarray  # of all predictions, those in a bin


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    """The mean of ``-log p(label)``.

    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 3)
    0.49
    """
    probabilities = np.asarray(probabilities)
    of_labels = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.log(np.maximum(of_labels, _LEAST)).mean())


def reliability(probabilities: Any, labels: Any, num_bins: int = 10) -> Reliability:
    """Accuracy by confidence, in bins of equal width.

    >>> found = reliability([[0.9, 0.1], [0.92, 0.08], [0.4, 0.6]], [0, 1, 1])
    >>> found.confidence.round(2).tolist(), found.accuracy.tolist()
    ([0.6, 0.91], [1.0, 0.5])
    """
    probabilities = np.asarray(probabilities, np.float64)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == np.asarray(labels)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    counts, confidences, rights = (
        np.bincount(bins, weights, num_bins) for weights in (None, confidence, right)
    )
    filled = counts > 0
    counts, confidences, rights = counts[filled], confidences[filled], rights[filled]
    return Reliability(confidences / counts, rights / counts, counts / len(right))


def calibration_error_percent(probabilities: Any, labels: Any, num_bins: int = 10) -> float:
    """Expected calibration error, in percentage points.

    Source: Guo, Pleiss, Sun, Weinberger (2017), equation 3.

    >>> round(calibration_error_percent([[0.9, 0.1], [0.9, 0.1]], [0, 1]), 1)
    40.0
    """
    bins = reliability(probabilities, labels, num_bins)
    return 100 * float((bins.share * abs(bins.confidence - bins.accuracy)).sum())


def entropies(probabilities: Any) -> np.ndarray:
    """Returns the entropy of each prediction, in nats.

    >>> entropies([[0.5, 0.5], [1.0, 0.0]]).round(2).tolist()
    [0.69, 0.0]
    """
    probabilities = np.maximum(np.asarray(probabilities, np.float64), _LEAST)
    return -(probabilities * np.log(probabilities)).sum(axis=1)


def auroc_percent(known: Any, unknown: Any) -> float:
    """AUROC (%) of out-of-distribution detection by the entropies ``unknown`` against ``known``.

    >>> auroc_percent([0.1, 0.2], [0.3, 0.15])
    75.0
    """
    known, unknown = np.asarray(known), np.asarray(unknown)
    return 100 * float(mannwhitneyu(unknown, known).statistic) / (known.size * unknown.size)


ACCURACY, DEVIATION = "test accuracy %", "accuracy, s.d."
LAST, NLL, NLL_LAST = "last state %", "NLL", "NLL, last state"
AUROC = "AUROC, no digit %"
AS_RUN, PUBLISHED = "ε, as run", "ε, published T"
DEPENDENT = "PATE: ε of the votes (not publishable)"
FRONTIER = "frontier, "
_RELIABILITY, _ENTROPY = "reliability", "mean entropy"
_SGLD, _NOISY_SGD = "MNIST: DP-SGLD, temperature 1", "MNIST: DP-SGD"

_QUICK: dict[str, Any] = {"network": "MLP", "num_steps": 600, "num_kept": 10}
_PAPER: dict[str, Any] = {
    "network": "CNN",
    "num_steps": PUBLISHED_STEPS,
    "num_kept": 100,
    "runs": 3,
}
# Of DP-SGD. In the paper profile that of Bu et al. (2020) for this network, batch size and clip
# bound at noise multiplier 1.28, and a twelfth of it at 15.8.
_LEARNING_RATES = {
    "quick": {"MNIST: DP-SGD": 0.5, "MNIST: DP-SGD at ε = 0.1": 0.25},
    "paper": {"MNIST: DP-SGD": 0.15, "MNIST: DP-SGD at ε = 0.1": 0.012},
}
_TARGETS = {"quick": (0.1, 2.0), "paper": (0.1, 0.3, 1.0, 3.0)}
_SGHMC = {"method": HAMILTONIAN, "step_size": 0.01}

# By row: changed settings, and the published accuracy and epsilon.
_MNIST: dict[str, tuple[Values, tuple[float, ...]]] = {
    "MNIST: non-private": ({"method": PLAIN}, (99.23,)),
    "MNIST: PATE(100)": ({}, (98.00, 2.04)),
    "MNIST: PATE(1000)": ({}, (98.10, 8.03)),
    "MNIST: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (99.12, 0.10)),
    "MNIST: DP-SGLD, temperature 1": ({}, ()),
    "MNIST: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (99.28, 0.24)),
    "MNIST: DP-SGHMC, temperature 1": (_SGHMC, ()),
    "MNIST: DP-SGD": ({"method": NOISY_SGD}, ()),
    "MNIST: DP-SGD at ε = 0.1": ({"method": NOISY_SGD, "target": 0.1}, ()),
}
_SVHN: dict[str, tuple[Values, tuple[float, ...]]] = {
    "SVHN: non-private": ({"method": PLAIN}, (92.80,)),
    "SVHN: PATE(100)": ({}, (82.76, 5.04)),
    "SVHN: PATE(1000)": ({}, (90.66, 8.19)),
    "SVHN: DP-SGLD": ({"temperature": PUBLISHED_TEMPERATURE}, (92.14, 0.12)),
    "SVHN: DP-SGHMC": ({**_SGHMC, "temperature": PUBLISHED_TEMPERATURE}, (92.84, 0.43)),
}
# Experiment and row that the rows of PATE are taken from.
_ENSEMBLES = {
    "MNIST: PATE(100)": (pate_mnist, "LNMax, 100 queries"),
    "MNIST: PATE(1000)": (pate_mnist, "LNMax, 1,000 queries"),
    "SVHN: PATE(100)": (pate_svhn, "LNMax, 500 queries"),
    "SVHN: PATE(1000)": (pate_svhn, "LNMax, 1,000 queries"),
}
# Labels of rows in the calibration figure.
_COMPARED = {
    "MNIST: non-private": "non-private",
    _NOISY_SGD: "DP-SGD",
    _SGLD: "DP-SGLD, whole chain",
}
# Series of the frontier figure: rows, colour and marker.
_GROUPS: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "DP-SGLD, temperature 1": (
        lambda row: row.startswith((FRONTIER, "MNIST: DP-SGLD, ")),
        CERTIFIED,
        "o",
    ),
    "DP-SGD": (lambda row: row.startswith(_NOISY_SGD), PALETTE[1], "D"),
    "DP-SGLD, noise as printed": (lambda row: row == "MNIST: DP-SGLD", MEASURED, "s"),
    "DP-SGHMC, temperature 1": (
        lambda row: row.startswith("MNIST: DP-SGHMC, "),
        PALETTE[3],
        "^",
    ),
    "PATE, any votes": (lambda row: row.startswith("MNIST: PATE"), PALETTE[5], "P"),
    "DP-SGHMC, noise as printed": (lambda row: row == "MNIST: DP-SGHMC", PALETTE[4], "v"),
}


def rows(profile: str) -> list[Row]:
    size = _QUICK if profile == "quick" else _PAPER
    mnist = Settings(LANGEVIN, "mnist", delta=1e-5, **size)
    svhn = Settings(LANGEVIN, "svhn", delta=1e-6, **{**size, "runs": 1})
    frontier = {f"{FRONTIER}ε = {at:g}": ({"target": at}, ()) for at in _TARGETS[profile]}

    def settings_of(name: str, common: Settings, changes: Values) -> Values:
        if name in _ENSEMBLES:
            return _ensemble_settings(name, profile)
        rate = _LEARNING_RATES[profile].get(name, common.learning_rate)
        return dataclasses.asdict(dataclasses.replace(common, learning_rate=rate, **changes))

    return [
        Row(
            name,
            settings_of(name, settings, changes),
            dict(zip((ACCURACY, "ε"), printed, strict=False)),
        )
        for settings, table in ((mnist, _MNIST), (svhn, _SVHN), (mnist, frontier))
        for name, (changes, printed) in table.items()
    ]


def _ensemble_settings(name: str, profile: str) -> Values:
    """Returns the settings of the row of `pate_mnist` or `pate_svhn`, and its name."""
    module, row = _ENSEMBLES[name]
    experiment = experiment_of(module)
    (chosen,) = select_rows(experiment, profile, row)
    return {"experiment": experiment.name, "row": row, **chosen.settings}


def run_row(row: Row, context: RowContext) -> Result:
    if row.name in _ENSEMBLES:
        return _run_ensemble(row.name, context)
    settings = Settings(**row.settings)
    data = load_images(settings.data)
    found = [
        _score(settings, data.test.y, run(each, data, context.folder / f"seed_{each.seed}"))
        for each in _single_runs(settings)
    ]
    measured, series, note = _mean([run for run, _ in found]), found[0][1], _note(settings, data)
    if not settings.is_private:
        return Result(measured, {}, note, series)
    chain = settings.chain(len(data.train.y), settings.num_steps)
    mechanism: dpjax.Mechanism = chain if settings.is_chain else noisy_sgd_mechanism(chain)
    certificate = mechanism.certificate(settings.delta)
    certified = {AS_RUN: certificate.epsilon}
    if settings.is_chain and settings.target is not None:
        measured["step size"] = float(chain.step_sizes[0])
    elif settings.is_chain:
        certified[PUBLISHED] = published_epsilon(settings)
    return Result(measured, certified, note, series, str(certificate))


def _run_ensemble(name: str, context: RowContext) -> Result:
    """Returns the record of a row of PATE, which is run first if there is none."""
    module, row = _ENSEMBLES[name]
    experiment = experiment_of(module)
    results = context.folder.parents[2]
    plan = Plan(context.profile, results, fresh=False)
    if not run_experiment(experiment, plan, row):
        raise RuntimeError(f"the row {row} of {experiment.name} failed")
    (chosen,) = select_rows(experiment, context.profile, row)
    record = find_record(load_records(results, experiment.name), chosen, context.profile)
    assert record is not None, "run above"
    return Result(
        {ACCURACY: record.measured[STUDENT], DEPENDENT: record.measured[BOTH]},
        {AS_RUN: record.certified[EPSILON]},
        f"{name}: the row {row} of {experiment.name}. {record.note}",
        certificate=record.certificate,
    )


def _single_runs(settings: Settings) -> list[Settings]:
    """Returns the settings of each run."""
    seeds = range(settings.seed, settings.seed + settings.runs)
    return [dataclasses.replace(settings, seed=seed, runs=1) for seed in seeds]


def _mean(runs: Sequence[Values]) -> dict[str, float]:
    """Returns the measured values' means over runs, and the deviation of the accuracy."""
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    if len(runs) > 1:
        means[DEVIATION] = float(np.std([run[ACCURACY] for run in runs], ddof=1))
    return means


def _score(
    settings: Settings, labels: Any, predictions: Predictions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the measured values, and the series of the calibration figure."""

    def accuracy(probabilities: np.ndarray) -> float:
        return 100 * float((probabilities.argmax(axis=1) == labels).mean())

    averaged, last = predictions.averaged, predictions.last
    others = {name: entropies(p) for name, p in predictions.out_of_distribution.items()}
    known = entropies(averaged)
    detected = [auroc_percent(known, other) for other in others.values()]
    measured = {
        ACCURACY: accuracy(averaged),
        NLL: negative_log_likelihood(averaged, labels),
        **(
            {LAST: accuracy(last), NLL_LAST: negative_log_likelihood(last, labels)}
            if settings.is_chain
            else {}
        ),
        "ECE %": calibration_error_percent(averaged, labels),
        AUROC: sum(detected) / len(detected),
    }
    bins = reliability(averaged, labels)
    series = {
        _RELIABILITY: {name: values.tolist() for name, values in bins._asdict().items()},
        _ENTROPY: {
            name: float(entropy.mean())
            for name, entropy in {"test images": known, **others}.items()
        },
    }
    return measured, series


def _note(settings: Settings, data: Dataset) -> str:
    words = [data.note, f"The {settings.network} is trained on {len(data.train.y):,} images."]
    if settings.runs > 1:
        words.append(f"Means over {settings.runs} runs; every ε is that of one run.")
    elif settings.num_steps == PUBLISHED_STEPS:
        words.append("One run, since three would take two hours.")
    if settings.is_private:
        words.append("Seeded key: the noise is reproducible, so this run is not private.")
    if settings.num_steps < PUBLISHED_STEPS:
        words.append(f"Shortened: {settings.num_steps:,} of the published 10,000 steps.")
    return " ".join(words)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    mnist = [record for record in records if "SVHN" not in record.row]
    return {
        "frontier": _frontier_figure(mnist),
        "calibration": _calibration_figure(mnist),
    }


def _frontier_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=7.2, height=4.4)
    for label, (wanted, colour, marker) in _GROUPS.items():
        points = sorted(
            (record.certified[AS_RUN], record.measured[ACCURACY])
            for record in records
            if record.certified and wanted(record.row)
        )
        if points:
            at, heights = zip(*points, strict=True)
            axes.plot(at, heights, color=colour, marker=marker, mfc="none", label=label)
    for record in records:
        if "ε" in record.source:
            place = (record.source["ε"], record.source[ACCURACY])
            axes.plot(*place, "x", color=SOURCE)
            text, offset = record.row.removeprefix("MNIST: "), (5, 4)
            axes.annotate(text, place, offset, textcoords="offset points", color=SOURCE, fontsize=8)
    axes.set(xscale="log", xlim=(0.08, 20), xlabel="ε", ylabel="test accuracy (%)")
    axes.legend(loc="lower right")
    return figure


def _calibration_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    compared = [record for record in records if record.row in _COMPARED]
    left.plot([0, 1], [0, 1], ":", color=SOURCE)
    for record, colour in zip(compared, PALETTE, strict=False):
        bins = record.series[_RELIABILITY]
        place = bins["confidence"], bins["accuracy"]
        left.plot(*place, color=colour, label=_COMPARED[record.row])
        left.scatter(*place, 120 * np.sqrt(bins["share"]), color=colour)
    left.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    left.legend(loc="upper left")
    draw_bars(right, {_COMPARED[record.row]: record.series[_ENTROPY] for record in compared})
    right.axhline(np.log(10), color=SOURCE, linestyle=":", linewidth=1)
    right.set(ylabel="mean entropy of predictions (nats)")
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    claims = [
        record for record in records if "ε" in record.source and PUBLISHED in record.certified
    ]
    printed, true = (
        ", ".join(
            f"{format_upper_bound(epsilon)} ({batch:,})"
            for batch, epsilon in epsilon_by_batch(temperature).items()
        )
        for temperature in (PUBLISHED_TEMPERATURE, POSTERIOR_TEMPERATURE)
    )
    return [
        *map(_claim, claims),
        "The slides' DP-SGLD at claimed ε = 0.1, by batch size, which they do not state: the"
        f" certified ε is {printed} with the printed noise, and {true} at temperature 1. It is"
        " above 0.1 for every batch size.",
    ]


def _claim(record: Record) -> str:
    claim, certified = record.source["ε"], record.certified[PUBLISHED]
    data = record.settings["data"]
    known = "their N, T, L" if data == "mnist" else "MNIST's T and L, the whole training part"
    return (
        f"{record.row}: the slides claim ε = {claim:g}; {known} (N ="
        f" {PUBLISHED_SIZES[data]:,}) and printed noise, at step size"
        f" {record.settings['step_size']:g} and batches of {record.settings['batch_size']},"
        f" have certified ε = {format_upper_bound(certified)}. The claim"
        f" {compare_claim(claim, certified)} the certified value."
    )


def finding(records: Sequence[Record]) -> Finding:
    claims = [r for r in records if "ε" in r.source and PUBLISHED in r.certified]
    low = [r for r in claims if r.source["ε"] < r.certified[PUBLISHED]]
    found = "; ".join(
        f"{r.row} {r.source['ε']:g} claimed, {format_upper_bound(r.certified[PUBLISHED])} certified"
        for r in low
    )
    comparison = compare_published(
        records,
        ACCURACY,
        0.5,
        "published accuracies",
        "points",
        # The quick profile is shortened, and of SVHN a part of the images may be at hand.
        lambda record: record.profile == "paper" and record.row.startswith("MNIST: "),
    )
    return comparison.finding(
        f"ε of the slides' settings: {found}" if low else "no claimed ε is below the certified one",
        bool(low),
    )


def data() -> str:
    return f"{load_images('mnist').name}, {load_images('svhn').name}"
