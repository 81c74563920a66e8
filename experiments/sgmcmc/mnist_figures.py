"""The pictures of the MNIST table: claims against certificates, and calibration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record
from experiments.sgmcmc.mnist_table import ACCURACY, AS_RUN, FRONTIER

RELIABILITY, ENTROPY = "reliability", "mean entropy"
# By row: the name in the figures.
COMPARED = {
    "MNIST: non-private": "non-private",
    "MNIST: DP-SGD": "DP-SGD",
    "MNIST: DP-SGLD, temperature 1": "DP-SGLD, whole chain",
}
# The lines and dots of the frontier: which rows belong to each.
_GROUPS: dict[str, Callable[[str], bool]] = {
    "DP-SGLD, temperature 1": lambda row: row.startswith((FRONTIER, "MNIST: DP-SGLD, ")),
    "DP-SGD": lambda row: row.startswith("MNIST: DP-SGD"),
    "DP-SGLD, noise as printed": lambda row: row == "MNIST: DP-SGLD",
    "DP-SGHMC, temperature 1": lambda row: row.startswith("MNIST: DP-SGHMC, "),
    "DP-SGHMC, noise as printed": lambda row: row == "MNIST: DP-SGHMC",
}
_COLOURS = (CERTIFIED, PALETTE[1], MEASURED, PALETTE[3], PALETTE[4])

_FRONTIER_CAPTION = (
    "MNIST: test accuracy against ε at δ = 1e-5. Grey: what the slides print, at the ε that they"
    " claim. In colour: this run (in the quick profile an MLP and 1,000 steps, so not the slides'"
    " accuracy), at the ε certified for it as it was run; lines join runs of one kind at several"
    " budgets."
)
_CALIBRATION_CAPTION = (
    "MNIST: left, accuracy of predictions by their confidence (on the dotted line a model is as"
    " often right as it says; dots in proportion to the share of predictions); right, mean entropy"
    " of predictions for test images and for images that are no digits. DP-SGD and DP-SGLD have the"
    " same certified ε."
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Both figures, each of the rows that are there."""
    mnist = [record for record in records if "SVHN" not in record.row]
    return {
        "frontier": (_frontier_figure(mnist), _FRONTIER_CAPTION),
        "calibration": (_calibration_figure(mnist), _CALIBRATION_CAPTION),
    }


def _frontier_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=7.2, height=4.4)
    for (label, wanted), colour, marker in zip(_GROUPS.items(), _COLOURS, "oDs^v", strict=True):
        group = [record for record in records if record.certified and wanted(record.row)]
        group.sort(key=_epsilon)
        accuracies = [record.measured[ACCURACY] for record in group]
        epsilons = list(map(_epsilon, group))
        axes.plot(epsilons, accuracies, color=colour, marker=marker, mfc="none", label=label)
    for record in records:
        if "ε" in record.source:
            _draw_claim(axes, record)
    axes.set(xscale="log", xlim=(0.08, 20), xlabel="ε", ylabel="test accuracy (%)")
    axes.legend(loc="lower right")
    return figure


def _epsilon(record: Record) -> float:
    return record.certified[AS_RUN]


def _draw_claim(axes: Axes, record: Record) -> None:
    at = (record.source["ε"], record.source[ACCURACY])
    axes.plot(*at, "x", color=SOURCE)
    text = record.row.removeprefix("MNIST: ")
    axes.annotate(text, at, (5, -11), textcoords="offset points", color=SOURCE, fontsize=8)


def _calibration_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    compared = [record for record in records if record.row in COMPARED]
    left.plot([0, 1], [0, 1], ":", color=SOURCE)
    for record, colour in zip(compared, PALETTE, strict=False):
        _draw_reliability(left, record, colour)
    left.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    left.legend(loc="upper left")
    _draw_entropies(right, {COMPARED[record.row]: record.series[ENTROPY] for record in compared})
    return figure


def _draw_reliability(axes: Axes, record: Record, colour: str) -> None:
    bins = record.series[RELIABILITY]
    axes.plot(bins["confidence"], bins["accuracy"], color=colour, label=COMPARED[record.row])
    sizes = 120 * np.sqrt(bins["share"])
    axes.scatter(bins["confidence"], bins["accuracy"], sizes, color=colour)


def _draw_entropies(axes: Axes, by_row: Mapping[str, Mapping[str, Any]]) -> None:
    width = 0.8 / max(1, len(by_row))
    for number, ((name, values), colour) in enumerate(zip(by_row.items(), PALETTE, strict=False)):
        at = np.arange(len(values)) + (number - (len(by_row) - 1) / 2) * width
        axes.bar(at, list(values.values()), width, color=colour, label=name)
        axes.set_xticks(range(len(values)), list(values))
    axes.axhline(np.log(10), color=SOURCE, linestyle=":", linewidth=1)
    axes.set(ylabel="mean entropy of predictions (nats)")
    axes.grid(visible=False, axis="x")
