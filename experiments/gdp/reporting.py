"""What the smaller tables of Bu et al. (2020) show alike: results of rows, a figure, remarks."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.gdp.training import PrivateSettings, Run, Task, accounts, spending
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record, Result

ACCURACY = "test accuracy %"
CERTIFIED_EPSILON = "ε, published size"
_ACCURACY_CURVES = "accuracy % by epoch, each seed"
_SPENDING_CURVES = "ε by epoch"

DIVISOR_REMARK = (
    "The printed algorithm divides by the drawn batch size, which is private under Poisson"
    " sampling: these runs divide by the expected size."
)


def over_seeds(accuracies: Sequence[float]) -> dict[str, Any]:
    """Mean and range of the runs' accuracies, as a record holds them.

    >>> over_seeds([84.0, 85.0])
    {'test accuracy %': 84.5, 'lowest, highest %': [84.0, 85.0]}
    """
    mean = sum(accuracies) / len(accuracies)
    return {ACCURACY: mean, "lowest, highest %": [min(accuracies), max(accuracies)]}


def plain_result(accuracies: Mapping[str, Any], note: str, runs: Sequence[Run]) -> Result:
    """The result of a row without privacy: nothing is certified."""
    curves = {_ACCURACY_CURVES: [run.curve for run in runs]} if runs else {}
    return Result(dict(accuracies), {}, note, curves)


def private_result(
    accuracies: Mapping[str, Any],
    note: str,
    runs: Sequence[Run],
    settings: PrivateSettings,
    task: Task,
    published_size: int,
) -> Result:
    """The result of a private row.

    Args:
      accuracies: as measured, by name.
      note: on the data.
      runs: one for each seed.
      settings: of the runs.
      task: what was trained, on which data.
      published_size: the training records that the source had.

    Returns:
      Accuracies and the source's accounts at the published size as measured; the tight account of
      one run as certified, for the published size and for the size that was run.
    """
    costs, certified = accounts(settings.mechanism(published_size, task.unit), settings.delta)
    as_run = settings.mechanism(len(task.data.train.y), task.unit).certificate(settings.delta)
    return Result(
        measured={**accuracies, **costs},
        certified={CERTIFIED_EPSILON: certified, "ε, as run": as_run.epsilon},
        note=f"{note} Every ε is that of one run, and the accuracy a mean over seeds. Seeded keys:"
        " the noise is reproducible, so these runs are not private.",
        series={
            _ACCURACY_CURVES: [run.curve for run in runs],
            _SPENDING_CURVES: spending(settings, published_size, task.unit),
        },
        certificate=str(as_run),
    )


def training_figure(records: Sequence[Record], published: Mapping[str, float]) -> Figure:
    """Accuracy by epoch of the rows that were trained so, and what the first private one spends.

    Args:
      records: of all rows; those without such curves are left out.
      published: the source's accuracies, by the name of their row.
    """
    figure, (left, right) = new_figure(columns=2, width=9.6)
    trained = [record for record in records if _ACCURACY_CURVES in record.series]
    for record, colour in zip(trained, PALETTE, strict=False):
        _draw_accuracy(left, record, colour)
        if record.row in published:
            left.axhline(published[record.row], color=colour, linestyle=":", linewidth=1)
    left.set(xlabel="epoch", ylabel="test accuracy (%)")
    left.legend(loc="lower right")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    for private in [record for record in trained if record.certified][:1]:
        _draw_spending(right, private)
    return figure


def mean_accuracy(record: Record, epoch: int) -> float:
    """The mean over the seeds at an index of the curve by epoch (0 the first, -1 the last)."""
    curves = record.series[_ACCURACY_CURVES]
    return sum(curve[epoch][1] for curve in curves) / len(curves)


def _draw_accuracy(axes: Axes, record: Record, colour: str) -> None:
    """The mean over the seeds as a line, their range as a band."""
    curves = np.array(record.series[_ACCURACY_CURVES])
    epochs, accuracies = curves[0, :, 0], curves[:, :, 1]
    axes.plot(epochs, accuracies.mean(axis=0), color=colour, label=record.row)
    lowest, highest = accuracies.min(axis=0), accuracies.max(axis=0)
    axes.fill_between(epochs, lowest, highest, color=colour, alpha=0.2, linewidth=0)


def _draw_spending(axes: Axes, record: Record) -> None:
    colours = {"MA ε": SOURCE, "certified": CERTIFIED, "CLT ε": MEASURED}
    for name, colour in colours.items():
        epochs, epsilons = zip(*record.series[_SPENDING_CURVES][name], strict=True)
        axes.plot(epochs, epsilons, color=colour, label=name)
    delta = format_value(record.settings["delta"])
    axes.set(xlabel="epoch", ylabel=f"{record.row}: ε at δ = {delta}", ylim=(0, None))
    axes.legend(loc="lower right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def account_remarks(record: Record) -> list[str]:
    """What the source's two accounts of a private row are worth beside the certified epsilon."""
    epsilon = record.certified[CERTIFIED_EPSILON]
    certified = format_value(epsilon, rounding=ROUND_CEILING)
    clt, moments = record.measured["CLT ε"], record.measured["MA ε"]
    claim = f"{record.row}: the source's CLT ε = {clt:.2f}, against a certified {certified}, "
    verdict = (
        "promises too much: an approximation is no guarantee."
        if clt < epsilon
        else "errs to the safe side here."
    )
    return [
        claim + verdict,
        f"{record.row}: the moments accountant is loose by its conversion: the classical one gives"
        f" {moments:.2f}, the improved one {record.measured['Rényi ε, improved']:.2f}.",
    ]
