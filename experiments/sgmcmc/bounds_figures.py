"""The pictures of `sgmcmc_bounds`: bounds on the step against its number, and against epsilon."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_NUMBERS = np.geomspace(1, 10_000, 60)
_FALL = _NUMBERS ** (-1 / 3)
_BY_NUMBER = (
    "Upper bounds on the step size η against the step's number t, for batches of 1,000. Orange: the"
    " source's bound, whose ε is not certified; grey: the 2015 bound; green and blue: the largest"
    " constant and the largest t^(−1/3) steps that are certified, solid at temperature 1, dotted"
    " with the noise as printed."
)
_BY_EPSILON = (
    "The largest constant step against ε: certified at temperature 1, for each batch size (the"
    " curves meet where the noise is large), and what the two published formulas allow."
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the pictures if the steps of more than one epsilon were run."""
    steps = [record for record in records if record.settings["part"] == "steps"]
    if len(steps) < 2:
        return {}
    return {
        "steps": (_by_number(steps), _BY_NUMBER),
        "epsilons": (_by_epsilon(steps), _BY_EPSILON),
    }


def _by_number(records: Sequence[Record]) -> Figure:
    figure, panels = new_figure(rows=-(-len(records) // 2), columns=2, width=9.6, height=6.4)
    for axes, record in zip(panels, records, strict=False):
        _draw_bounds(axes, record)
        axes.set(title=f"ε = {record.settings['epsilon']:g}", xlabel="step number t", ylabel="η")
        axes.set(xscale="log", yscale="log", ylim=(3e-8, 100))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_bounds(axes: Axes, record: Record) -> None:
    slides, oldest = record.measured["η, slides' formula"], record.measured["η, 2015 formula"]
    constant, first = dict(record.series["constant"])[1_000], record.series["decreasing"]
    flat = np.ones_like(_FALL)
    for sizes, colour, style, words in (
        (slides * flat, PALETTE[1], "--", "slides, fixed"),
        (slides * _FALL, PALETTE[1], "-", "slides, t^(−1/3)"),
        (constant * flat, CERTIFIED, "-", "certified, constant"),
        (first * _FALL, MEASURED, "-", "certified, t^(−1/3)"),
        (oldest * flat, SOURCE, "-", "2015"),
    ):
        axes.plot(_NUMBERS, sizes, style, color=colour, label=words)
        if words.startswith("certified"):
            axes.plot(_NUMBERS, sizes / 2, ":", color=colour)


def _by_epsilon(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=4.4)
    epsilons = [record.settings["epsilon"] for record in records]
    for name, colour in (("η, slides' formula", PALETTE[1]), ("η, 2015 formula", SOURCE)):
        sizes = [record.measured[name] for record in records]
        axes.plot(epsilons, sizes, "--", color=colour, label=name.removeprefix("η, "))
    by_batch = np.array([record.series["constant"] for record in records])
    marks = "osD^"
    for column, (batch, colour) in enumerate(zip(by_batch[0, :, 0], PALETTE[2:], strict=False)):
        words = f"certified, batches of {batch:,.0f}"
        certified = by_batch[:, column, 1]
        axes.plot(
            epsilons, certified, color=colour, marker=marks[column], markersize=4, label=words
        )
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="largest constant η")
    axes.set_xticks(epsilons, labels=[f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    figure.legend(loc="outside right center")
    return figure
