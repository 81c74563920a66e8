"""The pictures of the two logistic regressions: accuracy against epsilon, clip bound and rate."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.dpvi.accounts import ADD, REPLACE
from experiments.dpvi.study import ACCURACY, ERROR, LANGEVIN, PLAIN
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_ACCURACY = (
    "Test accuracy of the same runs against ε by three accounts, and of Langevin chains. Left,"
    " neighbours differ by the value of one record (as in the source: the moments accountant and"
    " advanced composition are its own, read as its code reads them), right by the presence of one."
    " Bars are two standard errors over repeats; grey line: no privacy. Crosses: accuracies stored"
    " with the published code, at its moments accountant's ε."
)
_SETTINGS = (
    "Left, accuracy against the source's clip bound c (on gradients multiplied by 1/q); right,"
    " against the sampling rate q, at a few noise levels. Bars are two standard errors; faint"
    " crosses: accuracies stored with the published code; grey line: no privacy."
)
_ACCOUNTS = (
    (CERTIFIED, "ε", "certified"),
    (MEASURED, "MA ε", "moments accountant"),
    (PALETTE[1], "AC ε", "advanced composition"),
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns those pictures whose rows were run."""
    parts = {
        part: [record for record in records if record.settings["part"] == part]
        for part in (PLAIN, "noise", "clip", "rate", LANGEVIN)
    }
    drawn = {}
    if parts["noise"]:
        drawn["accuracy"] = _accuracy_figure(parts), _ACCURACY
    if parts["clip"] and parts["rate"]:
        drawn["settings"] = _settings_figure(parts), _SETTINGS
    return drawn


def _accuracy_figure(parts: dict[str, list[Record]]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    records, chains = parts["noise"], parts[LANGEVIN]
    for axes, adjacency in ((left, REPLACE), (right, ADD)):
        for colour, name, words in _ACCOUNTS:
            epsilons = [_epsilon(record, f"{name}, {adjacency}") for record in records]
            _draw(axes, epsilons, records, colour, words)
        if chains:
            at = [_epsilon(record, f"ε, {adjacency}") for record in chains]
            _draw(axes, at, chains, PALETTE[3], f"{LANGEVIN}, certified")
        _draw_plain(axes, parts[PLAIN])
        axes.set(xscale="log", xlabel=f"ε, {adjacency}", ylabel="test accuracy (%)")
    known = [record for record in records if ACCURACY in record.source]
    claimed = [_epsilon(record, f"MA ε, {REPLACE}") for record in known]
    _draw_published(left, claimed, known)
    left.legend(loc="lower right")
    right.sharey(left)
    return figure


def _epsilon(record: Record, name: str) -> float:
    return float({**record.measured, **record.certified}[name])


def _draw(axes: Axes, at: Any, records: Sequence[Record], colour: str, words: str) -> None:
    heights = [record.measured[ACCURACY] for record in records]
    bars = [2 * record.measured[ERROR] for record in records]
    axes.errorbar(at, heights, bars, color=colour, marker="o", markersize=3, label=words)


def _draw_plain(axes: Axes, plain: Sequence[Record]) -> None:
    for record in plain:
        axes.axhline(record.measured[ACCURACY], color=SOURCE, linewidth=1)


def _draw_published(axes: Axes, at: Any, records: Sequence[Record]) -> None:
    heights = [record.source[ACCURACY] for record in records]
    if heights:
        axes.plot(at, heights, "x", color=SOURCE, markersize=7, label="published")


def _settings_figure(parts: dict[str, list[Record]]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    for axes, part, setting, words in (
        (left, "clip", "c", "clip bound c of the source"),
        (right, "rate", "sampling_rate", "sampling rate q"),
    ):
        _draw_setting(axes, parts[part], setting)
        _draw_plain(axes, parts[PLAIN])
        axes.set(xlabel=words, ylabel="test accuracy (%)")
        axes.set_xticks(sorted({record.settings[setting] for record in parts[part]}))
        axes.legend(loc="lower right")
    return figure


def _draw_setting(axes: Axes, records: Sequence[Record], setting: str) -> None:
    sigmas = sorted({record.settings["sigma"] for record in records})
    for sigma, colour in zip(sigmas, PALETTE, strict=False):
        line = [record for record in records if record.settings["sigma"] == sigma]
        at = [record.settings[setting] for record in line]
        _draw(axes, at, line, colour, f"σ = {sigma:g}")
        known = [record for record in line if ACCURACY in record.source]
        axes.plot(
            [record.settings[setting] for record in known],
            [record.source[ACCURACY] for record in known],
            "x--",
            color=colour,
            alpha=0.5,
            linewidth=1,
        )
