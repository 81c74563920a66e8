"""Plots of the report: curves with bands, error bars, bars, and dots by row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lib.figures import MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

Values = npt.ArrayLike
_PALE = "#dcdee2"


def panel_grid(
    count: int, columns: int, width: float, height: float
) -> tuple[Figure, tuple[Axes, ...]]:
    """Returns a figure of ``count`` panels in rows of ``columns``; width and height in inches.

    >>> len(panel_grid(5, 3, 9.6, 6.0)[1])
    5
    """
    figure, axes = new_figure(-(-count // columns), columns, width, height)
    for blank in axes[count:]:
        blank.set_axis_off()
    return figure, axes[:count]


def legend_below(figure: Figure, axes: Sequence[Axes], ncols: int = 3) -> None:
    """Adds one legend below all panels, each label once."""
    known = [axis.get_legend_handles_labels() for axis in axes]
    handles = {label: handle for each in known for handle, label in zip(*each, strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=ncols)


def set_log_ticks(axes: Axes, ticks: Sequence[float], label: str = "ε", along: str = "x") -> None:
    """Makes the axis ``along`` ("x" or "y") logarithmic, with ticks at these values only."""
    names = [f"{tick:,}" if isinstance(tick, int) else f"{tick:g}" for tick in ticks]
    axes.set(**{f"{along}scale": "log", f"{along}label": label})
    getattr(axes, f"set_{along}ticks")(ticks, labels=names)
    axes.minorticks_off()


def set_epoch_axis(axes: Axes, label: str = "epoch") -> None:
    """Sets integer ticks on the horizontal axis."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_curve(
    axes: Axes, x: Values, y: Values, band: tuple[Values, Values] | None = None, **style: Any
) -> None:
    """Draws a curve, and a band between two other curves in its colour, ``style["color"]``."""
    axes.plot(x, y, **{"marker": "o", "markersize": 3, **style})
    if band is not None:
        axes.fill_between(x, *band, color=style["color"], alpha=0.15, linewidth=0)


def draw_series(
    axes: Axes,
    records: Sequence[Record],
    series: str,
    label: Callable[[Record], str] = lambda record: record.row,
    style: Callable[[Record], Mapping[str, Any]] = lambda record: {},
) -> None:
    """Draws one curve for each record that has this series: ``(x, y)`` or ``(x, y, error)`` points.

    Errors are drawn as a band; ``label`` and ``style`` give a record's label and line style.
    """
    drawn = [record for record in records if series in record.series]
    for record, colour in zip(drawn, PALETTE, strict=False):
        x, y, *error = np.array(record.series[series], float).T
        band = (y - error[0], y + error[0]) if error else None
        draw_curve(axes, x, y, band, **{"color": colour, "label": label(record), **style(record)})


def draw_error_bars(axes: Axes, x: Values, y: Values, bars: Values, **style: Any) -> None:
    """Draws points with error bars, joined by lines."""
    axes.errorbar(x, y, bars, **{"marker": "o", "markersize": 3, **style})


def draw_bars(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draws grouped bars; ``groups`` maps a group's label to its values by name."""
    width = 0.8 / max(1, len(groups))
    for number, ((label, values), colour) in enumerate(zip(groups.items(), PALETTE, strict=False)):
        places = np.arange(len(values)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(places, list(values.values()), width, color=colour, label=label)
        axes.set_xticks(range(len(values)), list(values))
    axes.grid(visible=False, axis="x")


def draw_by_row(
    axes: Axes, names: Sequence[str], values: Mapping[str, tuple[Sequence[Values], str, str]]
) -> None:
    """Draws dots on one horizontal line for each row, the first row on top.

    ``values`` maps a label to each row's value or values, a colour and a marker.
    """
    for label, (by_row, colour, marker) in values.items():
        for place, found in enumerate(by_row):
            shown = np.atleast_1d(np.asarray(found, float))
            name = label if place == 0 else None
            axes.plot(shown, [place] * len(shown), marker, color=colour, label=name)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def draw_source_and_measured(
    axes: Axes, records: Sequence[Record], name: str, expected: str = ""
) -> None:
    """Draws the source's and the measured values of a column, by row.

    ``expected`` names the measured column that holds the closed form, drawn as bars.
    """
    places = np.arange(len(records))
    if expected:
        heights = [record.measured[expected] for record in records]
        axes.bar(places, heights, width=0.6, color=_PALE, label="closed form")
    for group, offset, marker, colour in (
        ("source", -0.12, "s", SOURCE),
        ("measured", 0.12, "o", MEASURED),
    ):
        values = [getattr(record, group).get(name, np.nan) for record in records]
        axes.plot(places + offset, values, marker, color=colour, label=group)
    axes.set_xticks(places, [record.row.replace(", ", "\n") for record in records])
