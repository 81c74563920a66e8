"""MNIST, Table 1 of Bu et al. (2020): NoisySGD on a small CNN at six levels of noise.

``python -m experiments run gdp_mnist``: on two CPU cores about five minutes (``quick``: row 1 in
full, 15 epochs, test accuracy 95 %; the other rows two epochs each) or hours (``paper``: all six in
full).
"""

import dataclasses
from collections.abc import Sequence
from decimal import ROUND_CEILING

from matplotlib.figure import Figure

import dpjax
from experiments.gdp.mnist_training import PUBLISHED_SIZE, Settings, load_mnist, note, train
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_SHORT_EPOCHS = 3

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
    return [row.mechanism(PUBLISHED_SIZE, row.epochs) for row in rows]


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
    settings, data = Settings(**row.settings), load_mnist()
    result, curve = train(settings, data, context.folder)
    published = settings.mechanism(PUBLISHED_SIZE, settings.published_epochs).certificate(
        settings.delta
    )
    as_run = result.certificate(settings.delta)
    epsilon = {estimate.accountant: estimate.epsilon for estimate in published.estimates}
    mu = dpjax.accounting.gdp.clt_mu(
        settings.noise_multiplier,
        settings.expected_batch_size / PUBLISHED_SIZE,
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
        note=note(settings, data),
        series={"accuracy % by epoch": curve},
        certificate=str(as_run),
    )


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
    source="Bu, Dong, Long and Su (2020), Table 1",
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
    data=lambda: load_mnist().name,
    figures=_figures,
    remarks=_remarks,
)
