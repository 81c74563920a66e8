"""The pictures of `experiments.bayes.conjugate`, drawn from its records."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record

_NAIVE = PALETTE[1]
_CONSISTENCY = (
    "Errors of the posterior mean over the number of records n, at ε = 1, root mean squares over"
    " repeated data. What the noise adds shrinks like 1/n (dotted), faster than the sampling error"
    " of the data themselves, 1/√n (dashed): with enough records privacy costs nothing."
)
_COVERAGE = (
    "How often 90 % intervals hold the parameter (parameters with several entries have one point"
    " each). Naive intervals are too short where the noise matters; noise-aware ones keep their"
    " promise. Shaded: 87 % to 93 %."
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the errors over n, and the coverage of both posteriors; of what was run."""
    slopes = [record for record in records if record.row.startswith("consistency")]
    covered = [record for record in records if record.row.startswith("coverage")]
    drawn = {}
    if slopes:
        drawn["consistency"] = (_consistency_figure(slopes), _CONSISTENCY)
    if covered:
        drawn["coverage"] = (_coverage_figure(covered), _COVERAGE)
    return drawn


def _consistency_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(2, 3, width=10.5, height=6.4)
    for axis, record in zip(axes, records, strict=False):
        _draw_errors(axis, record)
    for axis in axes[len(records) :]:
        axis.set_axis_off()
    return figure


def _draw_errors(axes: Axes, record: Record) -> None:
    series = record.series
    kinds = {"sampling": (MEASURED, 0.5, "--"), "private": (_NAIVE, 1.0, ":")}
    for kind, (colour, power, style) in kinds.items():
        slope = format_value(round(record.measured[f"slope, {kind}"], 2), decimals=2)
        label = f"{kind}: slope {slope}"
        axes.loglog(series["n"], series[kind], "o", color=colour, label=label)
        guide = [series[kind][0] * (series["n"][0] / n) ** power for n in series["n"]]
        axes.loglog(series["n"], guide, style, color=colour, linewidth=1.2)
    axes.set(title=record.settings["family"], xlabel="records n", ylabel="error")
    axes.legend(loc="lower left")


def _coverage_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=0.42 * len(records) + 1.2)
    axes.axvspan(87, 93, color="#e8e9ec")
    axes.axvline(90, color=SOURCE, linewidth=1)
    kinds = {"naive coverage %": (_NAIVE, "s"), "noise-aware coverage %": (MEASURED, "o")}
    for place, record in enumerate(records):
        for kind, (colour, marker) in kinds.items():
            shares = record.measured[kind]
            label = kind.removesuffix(" coverage %") if place == 0 else None
            axes.plot(shares, [place] * len(shares), marker, color=colour, label=label)
    names = [record.row.removeprefix("coverage: ") for record in records]
    axes.set_yticks(range(len(records)), names)
    axes.set(xlabel="coverage of 90 % intervals (%)", xlim=(0, 100))
    axes.invert_yaxis()
    axes.legend(loc="lower left")
    return figure
