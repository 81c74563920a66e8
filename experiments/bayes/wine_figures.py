"""The pictures of ``bayes_wine``: error against epsilon, and the gap against n."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_ERRORS = (
    "Mean absolute error of the grade against ε (δ = 1e-4; Laplace: δ = 0), mean over 40 splits;"
    " bands are two standard errors. Grey lines: not private, and predicting the mean."
)
_SIZES = (
    "The same error at ε = 1 against the number of training records, Gaussian noise. Left, the"
    " errors; right, how much of the error is the price of privacy."
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns those pictures whose rows were run."""
    private = [record for record in records if record.certified]
    lines = [record for record in private if len(record.settings["epsilons"]) > 1]
    fits = {record.settings["fit"] for record in private if record not in lines}
    sizes = [record for record in private if record.settings["fit"] in fits]
    drawn = {}
    if lines:
        drawn["errors"] = _errors_figure(lines), _ERRORS
    if len(sizes) > 1:
        drawn["sizes"] = _sizes_figure(sizes), _SIZES
    return drawn


def _errors_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=4.4)
    for record, colour in zip(records, PALETTE, strict=False):
        _draw_errors(axes, record, colour)
    for name in ("not private", "mean predicted"):
        level = records[0].series[name]
        axes.axhline(level, color=SOURCE, linewidth=1)
        axes.annotate(name, (10, level), (4, 2), textcoords="offset points", color=SOURCE, size=8)
    lowest, mean = records[0].series["not private"], records[0].series["mean predicted"]
    axes.set(xscale="log", xlabel="ε", ylabel="mean absolute error")
    axes.set_ylim(lowest - 0.1 * (mean - lowest), mean + 0.35 * (mean - lowest))
    figure.legend(loc="outside right center")
    return figure


def _draw_errors(axes: Axes, record: Record, colour: str) -> None:
    epsilons = np.array(record.settings["epsilons"])
    errors = np.array(record.series["errors"])
    width = 2 * np.array(record.series["spread"]) / np.sqrt(record.settings["repeats"])
    style = "--" if record.settings["fit"].startswith("naive") else "-"
    axes.plot(epsilons, errors, style, color=colour, marker="o", markersize=3, label=record.row)
    axes.fill_between(epsilons, errors - width, errors + width, color=colour, alpha=0.15, lw=0)


def _sizes_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    ordered = sorted(records, key=lambda record: record.settings["num_train"])
    sizes = [record.settings["num_train"] for record in ordered]
    plain = np.array([record.series["not private"] for record in ordered])
    private = np.array([_error_at_one(record) for record in ordered])
    left.plot(sizes, plain, color=SOURCE, marker="o", markersize=3, label="not private")
    left.plot(sizes, private, color=MEASURED, marker="o", markersize=3, label="ε = 1")
    left.legend()
    left.set(ylabel="mean absolute error")
    right.plot(sizes, 100 * (private / plain - 1), color=CERTIFIED, marker="o", markersize=3)
    right.set(ylabel="above not private (%)", ylim=(0, None))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="training records")
        axes.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
        axes.minorticks_off()
    return figure


def _error_at_one(record: Record) -> float:
    errors: Sequence[float] = record.series["errors"]
    return errors[list(record.settings["epsilons"]).index(1.0)]
