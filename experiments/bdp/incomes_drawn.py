"""The pictures of `bdp_incomes`, drawn from its records."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bdp import incomes_town as town
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_COLOURS = {town.AT_OUTLIER: CERTIFIED, town.AT_PERCENTILE: MEASURED, town.UNCLIPPED: PALETTE[1]}


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the attacks by epsilon, and for whom the Bayesian accounts hold."""
    return {
        "attacks": (_attacks_figure(records), _ATTACKS),
        "percentiles": (_percentiles_figure(records), _PERCENTILES),
    }


_ATTACKS = (
    "How often the attacker rightly says whether a resident is in, by income. Lines: the best"
    " attack in closed form; points: attacks that were run, on the outlier and on residents picked"
    " at random (at the median income). Grey: the bound e^ε / (1 + e^ε) for clipped incomes; of the"
    " release that does not clip there is none."
)
_PERCENTILES = (
    "Bayesian ε of the same releases at ε = 1, against the share of the population for whom it need"
    " not hold (lines: Student's estimate and Markov's inequality, δ = 1e-5), and the ε that the"
    " resident at that percentile really has, income over scale (dotted). An account is the largest"
    " draw's: beyond one in a thousand it is too small. Dashed: DP ε. The outlier is at no"
    " percentile."
)


def _attacks_figure(records: Sequence[Record]) -> Figure:
    epsilons = sorted({record.settings["epsilon"] for record in records})
    figure, axes = new_figure(1, len(epsilons), width=9.6, height=4.2)
    for axis, epsilon in zip(axes, epsilons, strict=True):
        shown = [record for record in records if record.settings["epsilon"] == epsilon]
        _draw_attacks(axis, shown)
        axis.set(title=f"ε = {epsilon:g}", xscale="log", xlabel="income", ylim=(48, 102))
    axes[0].set_ylabel("right answers (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_attacks(axes: Axes, records: Sequence[Record]) -> None:
    for record in records:
        colour, series = _COLOURS[record.settings["way"]], record.series
        shares = [100 * accuracy for accuracy in series["accuracies"]]
        axes.plot(series["incomes"], shares, color=colour, label=record.settings["way"])
        places = town.OUTLIER, float(town.income_at(math.log(2)))
        right = [record.measured[name] for name in ("outlier guessed %", "residents guessed %")]
        axes.plot(places, right, "o", color=colour, markersize=5)
    bounds = [record.source["attack bound %"] for record in records if record.source]
    if bounds:
        axes.axhline(bounds[0], color=SOURCE, linestyle="--", label="bound")


def _percentiles_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.4)
    least = min(record.settings["epsilon"] for record in records)
    for record in [record for record in records if record.settings["epsilon"] == least]:
        colour, series = _COLOURS[record.settings["way"]], record.series
        axes.loglog(series["shares"], series["bayesian"], color=colour)
        axes.plot(series["shares"], series["own"], ":", color=colour)
        axes.plot([], [], color=colour, label=record.settings["way"])
    axes.plot([], [], ":", color=SOURCE, label="what the resident there has")
    axes.axhline(least, color=SOURCE, linestyle="--", label="DP ε, clipped", zorder=1)
    axes.set(xlabel="share of the population left out", ylabel="ε")
    axes.invert_xaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
