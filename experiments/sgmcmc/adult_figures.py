"""The picture of `sgmcmc_adult`: accuracy and likelihood against epsilon, method by method."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_CAPTION = (
    "Test accuracy (left) and mean negative log-likelihood (right) against the certified ε at"
    " δ = 1e-5. OPS and the hybrid, dashed: against the ε of an exact sample, which they are not."
    " Bars: two standard errors over the runs. Grey line: SGLD without a budget."
)
_PLAIN, _OF_EXACT = "SGLD, no privacy asked", "ε of an exact sample"


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the picture if any method was run within a budget."""
    private = [record for record in records if "epsilon" in record.settings]
    plain = [record for record in records if record.row == _PLAIN]
    return {"accuracy": (_figure(private, plain), _CAPTION)} if private else {}


def _figure(private: Sequence[Record], plain: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.4)
    epsilons = sorted({record.settings["epsilon"] for record in private})
    methods = dict.fromkeys(record.settings["method"] for record in private)
    for method, colour in zip(methods, PALETTE, strict=False):
        _draw(left, right, [r for r in private if r.settings["method"] == method], colour)
    for axes, name in ((left, "test accuracy %"), (right, "NLL")):
        for record in plain:
            axes.axhline(record.measured[name], color=SOURCE, linewidth=1)
        axes.set(xscale="log", xlabel="ε")
        axes.set_xticks(epsilons, labels=[f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    left.set(ylabel="test accuracy (%)")
    right.set(ylabel="negative log-likelihood")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _draw(left: Axes, right: Axes, records: Sequence[Record], colour: str) -> None:
    at: Any = [record.certified.get("ε", record.measured.get(_OF_EXACT)) for record in records]
    style = "-" if all("ε" in record.certified for record in records) else "--"
    heights = [record.measured["test accuracy %"] for record in records]
    bars = [record.measured["two standard errors"] for record in records]
    name = records[0].settings["method"]
    drawn: dict[str, Any] = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3}
    left.errorbar(at, heights, bars, label=name, **drawn)
    right.plot(at, [record.measured["NLL"] for record in records], **drawn)
