"""MNIST, Table 1 of source 004: NoisySGD on a small CNN at six levels of noise.

``python -m experiments run gdp_mnist``: on two CPU cores about five minutes (``quick``: row 1 in
full, 15 epochs, test accuracy 95 %; the other rows two epochs each) or hours (``paper``: all six in
full).
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax.datasets import Dataset
from experiments.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.formatting import format_value
from experiments.models import MnistCNN, accuracy_percent, cross_entropy
from experiments.registry import Experiment, Record, Result, Row, RowContext

_PUBLISHED_SIZE = 60_000
_SHORT_EPOCHS = 3
# Two of these hold nearly every draw, and each keeps XLA's buffers small.
_PHYSICAL_BATCH_SIZE = 152


@dataclass(frozen=True)
class Settings:
    """One row's settings; the defaults hold for all rows.

    Attributes:
      learning_rate: constant step size.
      l2_clip: clip bound on one image's gradient.
      noise_multiplier: noise standard deviation over the clip bound.
      published_epochs: as the source trained.
      epochs: as this profile trains.
      expected_batch_size: mean of the Poisson draw.
      delta: at which epsilon is read.
      seed: of the parameters, the batches and the noise.
    """

    learning_rate: float
    l2_clip: float
    noise_multiplier: float
    published_epochs: int
    epochs: int
    expected_batch_size: int = 256
    delta: float = 1e-5
    seed: int = 0

    def mechanism(self, num_examples: int, epochs: int) -> dpjax.SubsampledGaussian:
        """NoisySGD's mechanism: ``floor(epochs n / B)`` steps, one image the unit of privacy."""
        return dpjax.SubsampledGaussian(
            sampling=dpjax.PoissonSampling(
                num_examples, self.expected_batch_size / num_examples, _PHYSICAL_BATCH_SIZE
            ),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            num_steps=epochs * num_examples // self.expected_batch_size,
            adjacency="add_remove",
            unit="one image",
        )


# learning rate, clip, noise multiplier, epochs; then accuracy, CLT mu, CLT epsilon, MA epsilon.
_TABLE_1 = (
    ((0.25, 1.5, 1.3, 15), (95.0, 0.23, 0.83, 1.19)),
    ((0.15, 1.0, 1.1, 60), (96.6, 0.57, 2.32, 3.01)),
    ((0.25, 1.5, 0.7, 45), (97.0, 1.13, 5.07, 7.10)),
    ((0.25, 1.5, 0.6, 62), (97.6, 2.00, 9.98, 13.27)),
    ((0.25, 1.5, 0.55, 68), (97.8, 2.76, 14.98, 18.72)),
    ((0.25, 1.5, 0.5, 100), (98.0, 4.78, 31.12, 32.40)),
)
_COLUMNS = ("test accuracy %", "CLT μ", "CLT ε", "MA ε")


def published_mechanisms() -> list[dpjax.SubsampledGaussian]:
    """The six mechanisms of the table, on 60,000 images and for the published epochs."""
    rows = [Settings(*published, epochs=published[-1]) for published, _ in _TABLE_1]
    return [row.mechanism(_PUBLISHED_SIZE, row.epochs) for row in rows]


@functools.cache
def _data() -> Dataset:
    return dpjax.datasets.load("mnist")


def _rows(profile: str) -> list[Row]:
    rows = []
    for number, (published, figures) in enumerate(_TABLE_1, start=1):
        short = profile == "quick" and number > 1
        epochs = _SHORT_EPOCHS if short else published[-1]
        settings = Settings(*published, epochs=epochs)
        source = dict(zip(_COLUMNS, figures, strict=True))
        rows.append(Row(str(number), dataclasses.asdict(settings), source))
    return rows


def _run_row(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), _data()
    result, curve = _train(settings, data, context)
    published = settings.mechanism(_PUBLISHED_SIZE, settings.published_epochs).certificate(
        settings.delta
    )
    as_run = result.certificate(settings.delta)
    epsilon = {reading.accountant: reading.epsilon for reading in published.readings}
    mu = dpjax.accounting.gdp.clt_mu(
        settings.noise_multiplier,
        settings.expected_batch_size / _PUBLISHED_SIZE,
        published.num_releases,
    )
    return Result(
        measured={
            "test accuracy %": curve[-1][1],
            "CLT μ": float(mu),
            "CLT ε": epsilon["gdp_clt"],
            "MA ε": epsilon["moments"],
            "Rényi ε, improved": epsilon["rdp"],
        },
        certified={"ε, published epochs": published.epsilon, "ε, as run": as_run.epsilon},
        note=_note(settings, data),
        series={"accuracy % by epoch": curve},
        certificate=str(as_run),
    )


def _train(
    settings: Settings, data: Dataset, context: RowContext
) -> tuple[dpjax.training.TrainResult, list[tuple[float, float]]]:
    """Trains as the row says; the accuracy after each epoch survives an interruption on disk."""
    model = MnistCNN(data.num_classes)
    key, init_key = jax.random.split(jax.random.key(settings.seed))
    params = model.init(init_key, data.train.x[:1])["params"]
    mechanism = settings.mechanism(len(data.train.y), settings.epochs)
    accuracy, curve_file = accuracy_percent(model), context.folder / "accuracy.txt"
    steps_per_epoch = len(data.train.y) // settings.expected_batch_size

    def note_accuracy(report: dpjax.training.Report) -> None:
        with curve_file.open("a") as file:
            file.write(f"{report.num_releases} {accuracy(report.params, data.test)}\n")

    result = dpjax.train(
        cross_entropy(model),
        params,
        tuple(data.train),
        mechanism,
        optax.sgd(settings.learning_rate),
        key,
        steps_per_call=steps_per_epoch,
        on_report=note_accuracy,
        checkpoint_dir=context.folder / "checkpoints",
    )
    curve = dict(np.loadtxt(curve_file, ndmin=2).tolist())
    return result, [(step / steps_per_epoch, curve[step]) for step in sorted(curve)]


def _note(settings: Settings, data: Dataset) -> str:
    words = [data.note, "Seeded key: the noise is reproducible, so this run is not private."]
    if settings.epochs < settings.published_epochs:
        words.append("Shortened: fewer epochs than published, so not the source's accuracy.")
    return " ".join(words)


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    accuracy = (
        "Test accuracy as training goes on. Dotted: the accuracy that the source prints for the end"
        " of its schedule, where the row was run in full."
    )
    epsilon = (
        "What the six mechanisms cost by each account, over the certified ε, at δ = 1e-5 and the"
        " published number of epochs. The central limit errs on both sides; the moments accountant"
        " stays above."
    )
    return {
        "accuracy": (_accuracy_figure(records), accuracy),
        "epsilon": (_epsilon_figure(records), epsilon),
    }


def _accuracy_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure()
    for record, colour in zip(records, PALETTE, strict=False):
        epochs, accuracies = zip(*record.series["accuracy % by epoch"], strict=True)
        label = f"row {record.row}: σ = {record.settings['noise_multiplier']}"
        axes.plot(epochs, accuracies, color=colour, marker="o", markersize=3, label=label)
        if record.settings["epochs"] == record.settings["published_epochs"]:
            axes.axhline(record.source["test accuracy %"], color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)")
    axes.legend(loc="lower right")
    return figure


def _epsilon_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure()
    names = [f"{record.row}\nσ = {record.settings['noise_multiplier']}" for record in records]
    certified = [record.certified["ε, published epochs"] for record in records]
    for name, colour, marker in (("MA ε", SOURCE, "s"), ("CLT ε", MEASURED, "o")):
        ratios = [
            record.measured[name] / exact for record, exact in zip(records, certified, strict=True)
        ]
        axes.plot(names, ratios, marker, color=colour, label=name)
    axes.axhline(1, color=CERTIFIED, label="certified (PLD)")
    axes.set(xlabel="row of Table 1", ylabel="ε over the certified ε")
    axes.legend(loc="upper right")
    return figure


def _remarks(records: Sequence[Record]) -> list[str]:
    first = records[0]
    return [
        "The printed algorithm divides by the drawn batch size, which is private under Poisson"
        " sampling: these runs divide by the expected size, 256.",
        *map(_check_claim, records),
        f"The moments accountant is loose by its conversion: for row {first.row} the classical one"
        f" gives {first.measured['MA ε']:.2f}, the improved one"
        f" {first.measured['Rényi ε, improved']:.2f}, and {_certified(first)} is certified.",
    ]


def _check_claim(record: Record) -> str:
    claim = record.source["CLT ε"]
    beside = f"the source's CLT ε = {claim}, against a certified {_certified(record)}"
    if claim >= record.certified["ε, published epochs"]:
        return f"Row {record.row}: {beside}, errs to the safe side here."
    return f"Row {record.row}: {beside}, promises too much: an approximation is no guarantee."


def _certified(record: Record) -> str:
    return format_value(record.certified["ε, published epochs"], rounding=ROUND_CEILING)


EXPERIMENT = Experiment(
    name="gdp_mnist",
    title="NoisySGD on MNIST",
    source="Source 004, Deep Learning with Gaussian Differential Privacy, Table 1",
    description=(
        "A CNN of 26,010 parameters trained by NoisySGD (Poisson batches of 256 on average) at six"
        " levels of noise, δ = 1e-5, neighbours differ by the presence of one image.\n\n"
        "CLT and MA are the source's two accounts, the central limit of Gaussian differential"
        " privacy and the moments accountant; they are recomputed for the published number of"
        " epochs. The certified ε is a tight account (PLD) of the same mechanism, once for the"
        " published epochs and once for the epochs that were run."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: _data().name,
    figures=_figures,
    remarks=_remarks,
)
