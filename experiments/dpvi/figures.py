"""Figures of the logistic regressions of Honkela (2017): accuracy by ε, clip bound and rate."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.dpvi.inference import ADD, REPLACE
from experiments.dpvi.study import ACCURACY, ERROR, LANGEVIN, PLAIN
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_error_bars
from experiments.lib.registry import Record
from experiments.lib.sweeps import column
from experiments.lib.verdicts import group_by


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Draws accuracy against ε by three accountants, clip bound and sampling rate."""
    parts = group_by(records, "part")
    drawn = {}
    if "noise" in parts:
        drawn["accuracy"] = _accuracy_figure(parts)
    if "clip" in parts and "rate" in parts:
        drawn["settings"] = _settings_figure(parts)
    return drawn


def _accuracy_figure(parts: Mapping[Any, list[Record]]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    records, chains = parts["noise"], parts.get(LANGEVIN, [])
    for axes, adjacency in ((left, REPLACE), (right, ADD)):
        for name, colour, label in (
            ("ε", CERTIFIED, "certified"),
            ("MA ε", MEASURED, "moments accountant"),
            ("AC ε", PALETTE[1], "advanced composition"),
        ):
            _draw(axes, column(records, f"{name}, {adjacency}"), records, colour, label)
        if chains:
            epsilons = column(chains, f"ε, {adjacency}")
            _draw(axes, epsilons, chains, PALETTE[3], f"{LANGEVIN}, certified")
        _draw_plain(axes, parts)
        axes.set(xscale="log", xlabel=f"ε, {adjacency}", ylabel="test accuracy (%)")
    known = [record for record in records if ACCURACY in record.source]
    if known:
        accuracies = [record.source[ACCURACY] for record in known]
        style: dict[str, Any] = {"color": SOURCE, "markersize": 7, "label": "published"}
        left.plot(column(known, f"MA ε, {REPLACE}"), accuracies, "x", **style)
    left.legend(loc="lower right")
    right.sharey(left)
    return figure


def _draw(axes: Axes, at: Any, records: Sequence[Record], colour: str, label: str) -> None:
    bars = [2 * error for error in column(records, ERROR)]
    draw_error_bars(axes, at, column(records, ACCURACY), bars, color=colour, label=label)


def _draw_plain(axes: Axes, parts: Mapping[Any, list[Record]]) -> None:
    for accuracy in column(parts.get(PLAIN, []), ACCURACY):
        axes.axhline(accuracy, color=SOURCE, linewidth=1)


def _settings_figure(parts: Mapping[Any, list[Record]]) -> Figure:
    figure, panels = new_figure(columns=2, width=9.6, height=3.8)
    names = (
        ("clip", "c", "clip bound c of the source"),
        ("rate", "sampling_rate", "sampling rate q"),
    )
    for axes, (part, setting, label) in zip(panels, names, strict=True):
        by_sigma = group_by(parts[part], "sigma")
        for (sigma, records), colour in zip(sorted(by_sigma.items()), PALETTE, strict=False):
            at = [record.settings[setting] for record in records]
            _draw(axes, at, records, colour, f"σ = {sigma:g}")
            known = [record for record in records if ACCURACY in record.source]
            axes.plot(
                [record.settings[setting] for record in known],
                [record.source[ACCURACY] for record in known],
                "x--",
                color=colour,
                alpha=0.5,
                linewidth=1,
            )
        _draw_plain(axes, parts)
        axes.set(xlabel=label, ylabel="test accuracy (%)")
        axes.set_xticks(sorted({record.settings[setting] for record in parts[part]}))
        axes.legend(loc="lower right")
    return figure
