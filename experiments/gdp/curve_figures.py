"""The pictures of figures 2, 3 and A.1 of Bu et al. (2020), drawn from their records."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record

# At which the records hold each curve.
LEVELS = np.concatenate([np.logspace(-6, -1, 80, endpoint=False), np.linspace(0.1, 1, 91)])
_SHOWN_DELTA = 1e-9
_PALE = "#b9bcc2"
_RATIOS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns those pictures whose rows were run."""
    rows = {record.row: record for record in records}
    table = [record for record in records if "deltas" in record.series]
    drawn = {}
    if "2" in rows:
        drawn["profiles"] = _profiles_figure(rows["2"]), _PROFILES
    if table:
        drawn["trade_offs"] = _trade_offs_figure(table), _TRADE_OFFS
        drawn["attacks"] = _attacks_figure(table), _ATTACKS
    if "A.1" in rows:
        drawn["one_epoch"] = _one_epoch_figure(rows["A.1"]), _ONE_EPOCH
    return drawn


_PROFILES = (
    "Figure 2, for row 2 of Table 1: δ(ε) left, ε(δ) right. The true profile lies between the"
    " certified bounds, which are drawn both and hardly differ."
)
_TRADE_OFFS = (
    "Figure 3: the least type II error at each type I error; higher is more private. The moments"
    " accountant at its one pair (ε, 1e-5), and the envelope of all its pairs; the central limit;"
    " and the band in which the mechanism's own curve lies. Numbers: the least"
    " sum of both errors, by the pair in brackets."
)
_ATTACKS = (
    "What Figure 3 hides near its corners: how much more often a test of type I error α detects a"
    " record than the central limit says, as bounds. Above 1 the central limit promises too much."
)
_ONE_EPOCH = (
    "Figure A.1: 234 steps composed numerically, with bounds on both sides, against the limit."
    " Left, as the source draws it; right, the difference, a hundred times enlarged."
)


def _profiles_figure(record: Record) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    epsilons = np.array(record.series["epsilons"])
    for name, style in _STYLES.items():
        deltas = np.array(record.series["deltas"][name])
        left.plot(epsilons, deltas, **style)
        seen = deltas > _SHOWN_DELTA
        right.semilogx(deltas[seen], epsilons[seen], **style)
    left.set(xlabel="ε", ylabel="δ(ε)", xlim=(0, 2.5), ylim=(0, None))
    right.set(xlabel="δ", ylabel="ε(δ)", xlim=(_SHOWN_DELTA, 1e-1), ylim=(0, None))
    right.axvline(1e-5, color=_PALE, linewidth=1, zorder=0)
    right.legend(loc="upper right")
    return figure


_STYLES: Mapping[str, dict[str, Any]] = {
    "MA": {"color": SOURCE, "label": "moments accountant"},
    "lower": {"color": CERTIFIED, "label": "certified"},
    "CLT": {"color": MEASURED, "linestyle": "--", "label": "central limit (approximation)"},
    "upper": {
        "color": "black",
        "linestyle": (0, (1, 3)),
        "linewidth": 1.2,
        "label": "no account can certify less",
    },
}


def _trade_offs_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(2, 3, width=9.6, height=6.6)
    for axis, record in zip(axes, records, strict=False):
        _draw_trade_offs(axis, record)
        axis.set_title(f"row {record.row}: σ = {record.settings['noise_multiplier']}")
        _name_axes(axis)
    for axis in axes[len(records) :]:
        axis.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_trade_offs(axes: Axes, record: Record) -> None:
    curves = {name: 1 - np.array(seen) for name, seen in record.series["detected"].items()}
    axes.plot([0, 1], [1, 0], color=_PALE, linewidth=1, label="perfect privacy")
    axes.plot(LEVELS, curves["MA pair"], color=SOURCE, linestyle=":", label="MA, one pair")
    axes.plot(LEVELS, curves["MA"], color=SOURCE, label="MA, all pairs")
    axes.fill_between(LEVELS, curves["lower"], curves["upper"], color=CERTIFIED, linewidth=1.8)
    axes.plot(LEVELS, curves["lower"], color=CERTIFIED, label="certified")
    axes.plot(LEVELS, curves["CLT"], color=MEASURED, linestyle="--", label="central limit")
    _write_sums(axes, record)


def _write_sums(axes: Axes, record: Record) -> None:
    """The least sums of errors, in the curves' colours, where no curve is."""
    measured, lower = record.measured, record.certified["errors, lower %"]
    lines = [
        (f"≥ {format_value(lower, '%', 1, ROUND_FLOOR)} %", CERTIFIED),
        (f"{measured['errors, CLT %']:.1f} %", MEASURED),
        (f"{measured['errors, MA envelope %']:.1f} %", SOURCE),
        (f"({measured['errors, MA pair %']:.1f} %)", SOURCE),
    ]
    for place, (text, colour) in enumerate(lines):
        axes.text(0.97, 0.92 - 0.09 * place, text, color=colour, ha="right", fontsize=9)


def _name_axes(axes: Axes) -> None:
    axes.set(xlabel="type I error α", ylabel="type II error", xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")


def _attacks_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(height=4.2)
    for record in records:
        seen = {name: np.array(rates) for name, rates in record.series["detected"].items()}
        least, most = seen["upper"] / seen["CLT"], seen["lower"] / seen["CLT"]
        label = f"row {record.row}: σ = {record.settings['noise_multiplier']}"
        (line,) = axes.loglog(LEVELS, most, linewidth=1, label=label)
        axes.fill_between(LEVELS, least, most, color=line.get_color(), alpha=0.4, linewidth=0)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yticks(_RATIOS, labels=map(str, _RATIOS))
    axes.minorticks_off()
    axes.set(xlabel="type I error α", ylabel="detection: true over central limit")
    axes.legend()
    return figure


def _one_epoch_figure(record: Record) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    curves = {name: 1 - np.array(seen) for name, seen in record.series["detected"].items()}
    left.plot(LEVELS, curves["lower"], color=CERTIFIED, linewidth=3, label="f, 234 steps")
    left.plot(LEVELS, curves["CLT"], color=MEASURED, linestyle="--", label="G with μ = 0.57")
    _name_axes(left)
    left.legend()
    differences = [100 * (curves[end] - curves["CLT"]) for end in ("lower", "upper")]
    right.fill_between(LEVELS, *differences, color=CERTIFIED, label="f − G, bounds")
    right.axhline(0, color=MEASURED, linestyle="--")
    right.set(xlabel="type I error α", ylabel="100 (f − G)", xlim=(0, 1))
    right.legend()
    return figure
