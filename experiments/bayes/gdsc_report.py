"""Pictures and remarks of the drug-sensitivity experiment."""

from collections.abc import Sequence
from decimal import ROUND_CEILING
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record

BY_EPSILON = "Spearman by ε"
BY_SIZE = "Spearman by number of lines, ε = 2"
# The source's robust private regression at epsilon = 2: 100 to 800 private lines and 10 public.
_PUBLISHED_SIZES = tuple(range(100, 900, 100))
_PUBLISHED = (0.0888, 0.1363, 0.1663, 0.1822, 0.1950, 0.2032, 0.2108, 0.2148)
_PUBLISHED_EPSILONS = {1.0: 0.1831, 1.5: 0.2044, 2.0: 0.2149, 2.5: 0.2207, 3.0: 0.2245}
_SOURCE_LABEL = "source: projected, expression"
_ALONE = "genes alone"


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Scores against epsilon and against the number of lines."""
    figure, (left, right) = new_figure(columns=2, width=10.4, height=4.2)
    shown = [record for record in records if _ALONE not in record.row]
    for record, colour in zip(shown, PALETTE, strict=False):
        _draw(left, record, BY_EPSILON, colour)
        _draw(right, record, BY_SIZE, colour)
    if any(record.data == "gdsc" for record in records):
        grey: dict[str, Any] = {"color": SOURCE, "linestyle": ":", "label": _SOURCE_LABEL}
        left.plot(list(_PUBLISHED_EPSILONS), list(_PUBLISHED_EPSILONS.values()), **grey)
        right.plot(_PUBLISHED_SIZES, _PUBLISHED, **grey)
    left.set(xscale="log", xlabel="ε of one drug's model, δ = 1e-5", ylabel="Spearman correlation")
    left.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    left.minorticks_off()
    right.set(xlabel="training lines, at ε = 2")
    for axes in (left, right):
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    caption = (
        "Rank correlation of predicted and measured responses over lines held out, mean over drugs;"
        " bands: one standard error over the splits. Dotted: the source's robust private"
        " regression, on other features."
    )
    return {"spearman": (figure, caption)}


def _draw(axes: Axes, record: Record, series: str, colour: str) -> None:
    places, means, errors = np.array(record.series[series], float).T
    style = "--" if "non-private" in record.row else "-"
    axes.plot(places, means, style, color=colour, marker="o", markersize=3, label=record.row)
    axes.fill_between(places, means - errors, means + errors, color=colour, alpha=0.15, linewidth=0)


def remarks(records: Sequence[Record]) -> list[str]:
    """What the numbers do not say themselves."""
    said = [
        "Bounds, ridges and the number of features were fixed after a look at these data, which no"
        " certificate counts. The lines themselves are public.",
        "The source adds Laplace noise (pure ε), has ten public lines beside the private ones,"
        " centres features and responses by their private means and clips at multiples of their"
        " private standard deviations, none of which its ε counts.",
    ]
    rows = {record.row: record for record in records}
    projected, plain = rows.get("projected"), rows.get("non-private")
    without = rows.get("no projection")
    if projected and plain and without:
        said.append(_gain(projected, plain, without))
    if projected:
        every = format_value(projected.certified["ε, all drugs"], rounding=ROUND_CEILING)
        said.append(
            f"With a model for every drug released, the guarantee of a line is ε = {every}: the"
            " budget has to be shared among the drugs, or spent on few."
        )
    return said


def _gain(projected: Record, plain: Record, without: Record) -> str:
    name = "Spearman, ε = 1"
    values = [
        format_value(round(record.measured[name], 3)) for record in (projected, without, plain)
    ]
    return (
        f"At ε = 1 the projected regression scores {values[0]}, with bounds at the data's extremes"
        f" {values[1]}, and without noise {values[2]}: projecting outliers is where the gain is."
    )
