"""Plots of the report, from the records: each kind of data has one function that draws it.

A series of points for each record is drawn by :func:`draw_series`, or as a figure of its own by
:func:`series_figure`; one column against another, or against a setting, by :func:`draw_column`;
columns by row as dots by :func:`draw_by_row`; the values of all experiments against the published
ones by :func:`draw_published_against_measured`. :func:`draw_nonempty` draws the figures whose rows
were run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record
from experiments.lib.sweeps import column

_GROUP_STYLES = {
    "source": (SOURCE, "s"),
    "measured": (MEASURED, "o"),
    "certified": (CERTIFIED, "^"),
}


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
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    band: tuple[ArrayLike, ArrayLike] | None = None,
    **style: Any,
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
    **properties: Any,
) -> None:
    """Draws one curve for each record that has this series: ``(x, y)`` or ``(x, y, error)`` points.

    Errors are drawn as a band; ``label`` and ``style`` give a record's label and line style, and
    ``properties`` are those of the axes, such as ``xlabel``.
    """
    drawn = [record for record in records if series in record.series]
    for record, colour in zip(drawn, PALETTE, strict=False):
        x, y, *error = np.array(record.series[series], float).T
        band = (y - error[0], y + error[0]) if error else None
        draw_curve(axes, x, y, band, **{"color": colour, "label": label(record), **style(record)})
    axes.set(**properties)


def series_figure(
    records: Sequence[Record],
    series: str,
    label: Callable[[Record], str] = lambda record: record.row,
    **properties: Any,
) -> Figure:
    """Returns a figure of one panel with a series of all records, drawn as by :func:`draw_series`.

    >>> curve = {"accuracy": [(1, 50.0), (2, 70.0)]}
    >>> record = Record("toy", "NoisySGD", "quick", {}, {}, {}, {}, 1.0, series=curve)
    >>> figure = series_figure([record], "accuracy", xlabel="epoch", ylabel="accuracy (%)")
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['NoisySGD']
    """
    figure, (axes,) = new_figure()
    draw_series(axes, records, series, label, **properties)
    axes.legend(loc="best")
    return figure


def draw_column(
    axes: Axes, records: Sequence[Record], x: str, y: str, error: str = "", **style: Any
) -> None:
    """Draws a curve of one column against another, with a point for each record.

    ``x``, ``y`` and ``error`` are names of settings or of measured or certified values; the bars
    are two standard errors ``error`` long in either direction.

    >>> figure, (axes,) = new_figure()
    >>> record = Record("toy", "1", "quick", {"n": 100}, {}, {"MAE": 0.5, "of it": 0.1}, {}, 1.0)
    >>> draw_column(axes, [record], "n", "MAE", error="of it", label="private")
    """
    bars = [2 * value for value in column(records, error)] if error else None
    draw_error_bars(axes, column(records, x), column(records, y), bars, **style)


def draw_nonempty(**figures: tuple[Callable[[Any], Figure], Sequence[Any]]) -> dict[str, Figure]:
    """Returns the figures that have records, by stem; each is given as ``(draw, records)``.

    >>> draw_nonempty(accuracy=(lambda records: new_figure()[0], []))
    {}
    """
    return {stem: draw(records) for stem, (draw, records) in figures.items() if records}


def draw_error_bars(
    axes: Axes, x: ArrayLike, y: ArrayLike, bars: ArrayLike | None, **style: Any
) -> None:
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
    axes: Axes,
    records: Sequence[Record],
    columns: Mapping[str, tuple[str, ...]],
    label: Callable[[Record], str] = lambda record: record.row,
) -> None:
    """Draws dots on one horizontal line for each record, the first record on top.

    ``columns`` maps a label to a group, "source", "measured" or "certified", and the name of a
    column, whose cells are numbers or lists of numbers; then, if they are not to be those of the
    group, to a colour and a marker.

    >>> figure, (axes,) = new_figure()
    >>> record = Record("toy", "1", "quick", {}, {"ε": 1.0}, {}, {"ε": 1.2}, 1.0)
    >>> draw_by_row(axes, [record], {"claimed": ("source", "ε"), "true": ("certified", "ε")})
    """
    for legend, (group, name, *style) in columns.items():
        colour, marker = style or _GROUP_STYLES[group]
        for place, record in enumerate(records):
            # Absent values leave their place empty.
            shown = np.atleast_1d(np.array(getattr(record, group).get(name), float))
            text = legend if place == 0 else None
            axes.plot(shown, [place] * len(shown), marker, color=colour, label=text)
    axes.set_yticks(range(len(records)), [label(record) for record in records])
    axes.set_ylim(len(records) - 0.5, -0.5)


def draw_published_against_measured(
    records: Sequence[Record], rows: int = 2, width: float = 4.4, height: float = 6.6
) -> Figure | None:
    """Draws every published number against the measured or certified one of the same name.

    Percentages are in one panel; other positive numbers, of any unit, on logarithmic axes in the
    other, where accuracies of different experiments would not be seen. ``rows`` is 2 for panels one
    above the other, and 1 for panels side by side.

    Returns:
      The figure, or ``None`` if no number has one to compare with.
    """
    # The pairs, by panel and group.
    percentages: dict[str, list[tuple[float, float]]] = {"measured": [], "certified": []}
    others: dict[str, list[tuple[float, float]]] = {"measured": [], "certified": []}
    for record in records:
        for group in ("measured", "certified"):
            values = getattr(record, group)
            for name in record.source.keys() & values.keys():
                pair = record.source[name], values[name]
                if all(isinstance(value, int | float) and math.isfinite(value) for value in pair):
                    if name.endswith("%"):
                        percentages[group].append(pair)
                    elif min(pair) > 0:
                        others[group].append(pair)
    if not any([*percentages.values(), *others.values()]):
        return None

    figure, panels = new_figure(rows, 2 // rows, width, height)
    panels[1].set(xscale="log", yscale="log")
    for axes, pairs in zip(panels, (percentages, others), strict=True):
        for group, points in pairs.items():
            colour, marker = _GROUP_STYLES[group]
            axes.plot(
                *np.array(points).reshape(-1, 2).T, marker, color=colour, alpha=0.5, label=group
            )
        axes.axline((1, 1), (10, 10), color="#9a9da3", linewidth=0.8, zorder=0)
        axes.set(xlabel="published", ylabel="measured or certified")
    panels[0].set_title("percentages, most of them accuracies")
    panels[1].set_title("ε, errors and other numbers")
    panels[0].legend(loc="upper left", frameon=False)
    return figure
