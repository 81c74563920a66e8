"""Plots of Figures 1, 3, 4 and 5 of Triastcyn and Faltings (2020), from the saved records."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_STYLES: Mapping[str, dict[str, Any]] = {
    "MA, published": {"color": SOURCE, "label": "moments accountant, as published"},
    "pairs, published": {
        "color": PALETTE[1],
        "label": "Bayesian, pairs, as published (no upper bound)",
    },
    "MA": {"color": SOURCE, "linestyle": "--", "label": "moments accountant, best λ"},
    "norms": {"color": MEASURED, "label": "Bayesian, norms, best λ"},
    "norms, clipped": {
        "color": PALETTE[5],
        "linestyle": "--",
        "label": "Bayesian, clipped norms, best λ",
    },
}
_ADJACENCIES: Mapping[str, dict[str, Any]] = {
    "replace_one": {"label": "certified DP, clipped: replace one"},
    "add_remove": {"label": "certified DP, clipped: add or remove", "linestyle": ":"},
}


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns those pictures whose rows were run."""
    by_figure: dict[str, list[Record]] = {}
    for record in records:
        by_figure.setdefault(record.settings["figure"], []).append(record)
    drawn = {}
    if "1" in by_figure:
        drawn["steps"] = _steps_figure(by_figure["1"]), _STEPS
    if "3" in by_figure:
        drawn["noise_clipped"] = _noise_figure(by_figure["3"]), _CLIPPED
    if "4" in by_figure:
        drawn["noise_unclipped"] = _noise_figure(by_figure["4"]), _UNCLIPPED
    if "5" in by_figure:
        drawn["orders"] = _orders_figure(by_figure["5"]), _ORDERS
    return drawn


_STEPS = (
    "Figure 1: ε after each step, with the noise at 2C and C at a quantile of the norms. Bands:"
    " range over the draws of the gradients. As published: one order, distances of pairs, not an"
    " upper bound for replacing a record (see the counterexample in the last row); the moments"
    " accountant has the distance 2C. From the norms: for adding or removing a record. The"
    " Bayesian accounts are of unclipped gradients where not said otherwise, whose DP ε is infinite"
    " and whose expectation, too: they show the draws."
)
_CLIPPED = (
    "Figure 3: ε of one step against the noise over 2C, gradients clipped at C. Bands: range over"
    " the draws. Both Bayesian curves are below the moments accountant's at the same λ, and above"
    " what is certified."
)
_UNCLIPPED = (
    "Figure 4: as Figure 3, and the Bayesian accounts of gradients that are not clipped: of these"
    " the DP ε is infinite, and certified is only the ε of clipped ones."
)
_ORDERS = (
    "Figure 5: ε at each order λ after 10,000 steps, every norm C. Lines: the Bayesian accountant;"
    " points: the moments accountant, equal. Dotted: the certified DP ε. A bad λ costs orders of"
    " magnitude; for small C the best one is beyond the range."
)


def _steps_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(1, len(records), width=9.6, height=4.4)
    for axis, record in zip(axes, records, strict=True):
        steps = np.arange(1, record.settings["num_steps"] + 1)
        _draw_curves(axis, steps, record.series)
        axis.set(xlabel="step", title=f"C: {record.settings['level']:g} quantile")
    _finish(figure, axes)
    return figure


def _noise_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(1, len(records), width=9.6, height=4.4)
    for axis, record in zip(axes, records, strict=True):
        _draw_curves(axis, record.settings["noises"], record.series)
        axis.set(xlabel="σ", title=f"C: {record.settings['level']:g} quantile")
    _finish(figure, axes)
    return figure


def _draw_curves(axes: Axes, places: Any, series: Mapping[str, Any]) -> None:
    for name, style in _STYLES.items():
        if name in series:
            curves = np.atleast_2d(series[name])
            axes.semilogy(places, np.median(curves, axis=0), **style)
            ends = curves.min(axis=0), curves.max(axis=0)
            axes.fill_between(places, *ends, color=style["color"], alpha=0.25, linewidth=0)
    for adjacency, style in _ADJACENCIES.items():
        certified = series["certified"][adjacency]
        axes.plot(series["certified at"], certified, color=CERTIFIED, **style)


def _finish(figure: Figure, axes: Sequence[Axes]) -> None:
    """One scale and one legend for all panels."""
    ends = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    axes[0].set_ylabel("ε at δ = 1e-5")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _orders_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(height=4.2)
    for record, colour in zip(records, PALETTE, strict=False):
        orders, series = record.series["orders"], record.series
        axes.semilogy(orders, series["bayesian"], color=colour, label=record.row.split(": ")[1])
        axes.semilogy(orders, series["MA"], ".", color=colour)
        axes.axhline(record.certified["DP ε"], color=colour, linestyle=":", linewidth=1.2)
    axes.set(xlabel="λ", ylabel="ε at δ = 1e-5")
    axes.legend()
    return figure
