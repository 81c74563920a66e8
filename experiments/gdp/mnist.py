"""MNIST, Table 1 of Bu et al. (2020): NoisySGD on a small CNN at six levels of noise.

``python -m experiments run gdp_mnist``: on two CPU cores about three minutes (``quick``: row 1 in
full with one seed, 15 epochs, test accuracy 95 %; the other rows a fifth of an epoch each) or
under two hours (``paper``: all six in full, with three seeds).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from experiments.data import Dataset, load_data
from experiments.gdp.classifiers import (
    account_finding,
    account_remarks,
    compute_accounts,
    summarize,
)
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.models import MnistCNN
from experiments.lib.plots import draw_series, panel_grid, set_epoch_axis
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.training import Training, classification, initialize, stack_curves, train
from experiments.lib.verdicts import compare_published

PUBLISHED_SIZE = 60_000
ACCURACY, CURVE = "test accuracy %", "accuracy % by epoch"
_BY_SEED = "final accuracy % by seed"
_CERTIFIED_EPSILON = "ε, published epochs"
_SHORT_EPOCHS = 0.2
_NUM_SEEDS = {"quick": 1, "paper": 3}
# Two physical batches hold nearly every Poisson batch.
_PHYSICAL_BATCH_SIZE = 152

# Learning rate, clip, noise multiplier, epochs; accuracy, CLT mu, CLT epsilon, MA epsilon.
_TABLE_1 = (
    ((0.25, 1.5, 1.3, 15), (95.0, 0.23, 0.83, 1.19)),
    ((0.15, 1.0, 1.1, 60), (96.6, 0.57, 2.32, 3.01)),
    ((0.25, 1.5, 0.7, 45), (97.0, 1.13, 5.07, 7.10)),
    ((0.25, 1.5, 0.6, 62), (97.6, 2.00, 9.98, 13.27)),
    ((0.25, 1.5, 0.55, 68), (97.8, 2.76, 14.98, 18.72)),
    ((0.25, 1.5, 0.5, 100), (98.0, 4.78, 31.12, 32.40)),
)
_COLUMNS = (ACCURACY, "CLT μ", "CLT ε", "MA ε")


@dataclass(frozen=True)
class Settings:
    """Settings of one run of NoisySGD; the source trained for ``published_epochs``."""

    learning_rate: float
    l2_clip: float
    noise_multiplier: float
    published_epochs: int
    epochs: float
    expected_batch_size: int = 256
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, epochs: float) -> dpjax.SubsampledGaussian:
        """Returns ``floor(epochs n / B)`` steps of NoisySGD, one image the unit of privacy."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(
                num_examples,
                self.expected_batch_size / num_examples,
                physical_batch_size=_PHYSICAL_BATCH_SIZE,
            ),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=math.floor(epochs * num_examples / self.expected_batch_size),
            adjacency="zero_out",
            unit="one image",
        )

    @property
    def published(self) -> dpjax.SubsampledGaussian:
        """The DP-SGD mechanism with the published settings: 60,000 images, all epochs."""
        return self.mechanism(PUBLISHED_SIZE, self.published_epochs)


@functools.cache
def data_set() -> Dataset:
    """Returns MNIST, or its stand-in if it is not available."""
    return load_data("mnist", stand_in=True)


def published_mechanisms() -> list[dpjax.SubsampledGaussian]:
    """Returns the six mechanisms of the table, on 60,000 images and for the published epochs."""
    return [Settings(*published, epochs=0).published for published, _ in _TABLE_1]


def fit(settings: Settings, data: Dataset, folder: Path) -> Training:
    """Trains the CNN from ``settings.seed``; the curve has one test accuracy (%) for each epoch."""
    model, size = MnistCNN(data.num_classes), len(data.train.y)
    key, params = initialize(model, data.train.x[:1], settings.seed)
    training = train(
        key,
        classification(model, data, optax.sgd(settings.learning_rate)),
        params,
        settings.mechanism(size, settings.epochs),
        steps_per_report=size // settings.expected_batch_size,
        folder=folder,
    )
    # The remaining steps at the end belong to the last epoch, which may be a part of the first.
    last = settings.epochs
    by_epoch = {min(float(round(epoch)) or last, last): value for epoch, value in training.curve}
    return training._replace(curve=list(by_epoch.items()))


def note(settings: Settings, data: Dataset) -> str:
    """Returns the note on a run: data, seeded key, and shortened training."""
    words = [data.note, "Seeded key: the noise is reproducible, so this run is not private."]
    if settings.epochs < settings.published_epochs:
        words.append(
            "Shortened: fewer epochs than published, so accuracies are lower than the source's."
        )
    return " ".join(words)


def rows(profile: str) -> list[Row]:
    rows = []
    for number, (published, figures) in enumerate(_TABLE_1, start=1):
        short = profile == "quick" and number > 1
        settings = Settings(*published, epochs=_SHORT_EPOCHS if short else published[-1])
        source = dict(zip(_COLUMNS, figures, strict=True))
        seeds = {"seeds": _NUM_SEEDS[profile]}
        rows.append(Row(str(number), {**dataclasses.asdict(settings), **seeds}, source))
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    arguments = dict(row.settings)
    num_seeds = arguments.pop("seeds")
    settings, data = Settings(**arguments), data_set()
    runs = [
        fit(dataclasses.replace(settings, seed=settings.seed + n), data, context.folder / str(n))
        for n in range(num_seeds)
    ]
    costs, certified = compute_accounts(settings.published, settings.delta)
    as_run = runs[0].certificate(settings.delta)
    curves = stack_curves(runs)
    return Result(
        measured={**summarize(curves[:, -1, 1].tolist()), **costs},
        certified={_CERTIFIED_EPSILON: certified, "ε, as run": as_run.epsilon},
        note=f"{note(settings, data)} Seeds: {num_seeds}; accuracies are means over them, and every"
        " ε is that of one run.",
        series={CURVE: curves.mean(axis=0), _BY_SEED: curves[:, -1, 1]},
        certificate=str(as_run),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    return {
        "accuracy": _accuracy_figure(records),
        "epsilon": _epsilon_figure(records),
    }


def _accuracy_figure(records: Sequence[Record]) -> Figure:
    """Draws each row in a panel of its own: the curves of short runs are nearly the same."""
    figure, panels = panel_grid(len(records), 3, 9.6, 2.6 * -(-len(records) // 3))
    lowest = min(accuracy for record in records for _, accuracy, *_ in record.series[CURVE])
    for panel, record in zip(panels, records, strict=True):
        set_epoch_axis(panel, "")
        draw_series(panel, [record], CURVE, title=row_label(record), ylim=(lowest - 2, 100))
        if record.settings["epochs"] < 1:
            panel.set_xlim(0, 1)
        if record.settings["epochs"] == record.settings["published_epochs"]:
            panel.axhline(record.source[ACCURACY], color=SOURCE, linestyle=":", linewidth=1)
    figure.supxlabel("epoch", fontsize=10)
    figure.supylabel("test accuracy (%)", fontsize=10)
    return figure


def row_label(record: Record) -> str:
    """Returns the label of a row: its number and noise multiplier."""
    return f"row {record.row}: σ = {record.settings['noise_multiplier']}"


def _epsilon_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure()
    names = [f"{record.row}\nσ = {record.settings['noise_multiplier']}" for record in records]
    for name, colour, marker in (("MA ε", SOURCE, "s"), ("CLT ε", MEASURED, "o")):
        ratios = [r.measured[name] / r.certified[_CERTIFIED_EPSILON] for r in records]
        axes.plot(names, ratios, marker, color=colour, label=name)
    axes.axhline(1, color=CERTIFIED, label="certified (PLD)")
    axes.set(xlabel="row of Table 1", ylabel="ε over the certified ε")
    axes.legend(loc="upper right")
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    pairs = [
        account_remarks(
            f"Row {record.row}",
            record.source["CLT ε"],
            record.measured,
            record.certified[_CERTIFIED_EPSILON],
        )
        for record in records
    ]
    # The remark on the moments accountant is the same for all rows.
    limits = (limit for limit, _ in pairs)
    remarks = [*limits, pairs[0][1]]
    if repeated := [record for record in records if len(record.series[_BY_SEED]) > 1]:
        remarks.insert(0, _seeds_remark(repeated))
    return remarks


def _seeds_remark(records: Sequence[Record]) -> str:
    """Compares the source's accuracies with the means over seeds, and with each seed's."""
    source = np.array([record.source[ACCURACY] for record in records])
    distances = np.array([record.series[_BY_SEED] for record in records]) - source[:, None]
    means, by_seed = distances.mean(axis=1), distances.mean(axis=0)
    listed = ", ".join(f"{distance:+.2f}" for distance in by_seed)
    return (
        f"Accuracy: the mean over seeds is {means.min():+.2f} to {means.max():+.2f} points from the"
        f" source's, row by row. Averaged over the rows, seed by seed: {listed} points. The rows of"
        " one seed start from the same parameters, so their deviations are not independent. The"
        " source does not state its number of runs; TensorFlow Privacy's MNIST tutorial, which has"
        " rows 1 to 3 with the same accuracies, reports means of ten."
    )


def finding(records: Sequence[Record]) -> Finding:
    comparison = compare_published(
        records,
        ACCURACY,
        0.3,
        "published accuracies",
        "points",
        lambda record: record.settings["epochs"] == record.settings["published_epochs"],
    )
    return account_finding(comparison, records, _CERTIFIED_EPSILON)
