"""The pictures of `bdp_limits`, drawn from its records."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bdp.costs import ORDERS
from experiments.bdp.limits_populations import share_bounds
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Record

_STUDENT, _FREE = PALETTE[1], MEASURED
_ESTIMATORS: Mapping[str, dict[str, Any]] = {
    "student": {"color": _STUDENT, "label": "Student (Theorem 4)"},
    "bernstein": {"color": _FREE, "label": "empirical Bernstein"},
}
_MARKERS = ("o", "s")
_LEAST_SHARE = 2e-4


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns those pictures whose rows were run."""
    parts: dict[str, list[Record]] = {}
    for record in records:
        parts.setdefault(record.settings["part"], []).append(record)
    drawn = {}
    if "coverage" in parts:
        drawn["coverage"] = _coverage_figure(parts["coverage"]), _COVERAGE
    if "number" in parts:
        drawn["draws"] = _draws_figure(parts["number"][0]), _DRAWS
    if "tails" in parts:
        drawn["tails"] = _tails_figure(parts["tails"]), _TAILS
    if "composition" in parts:
        drawn["composition"] = _composition_figure(parts["composition"]), _COMPOSITION
    return drawn


_COVERAGE = (
    "How often an estimate of E z is below it, against the number of draws, with 99 % intervals"
    " (Clopper and Pearson): circles at γ = 0.05, squares at γ = 0.001, dotted what γ allows; no"
    " failure in any trial lies on the edge. Only the first population is inside Theorem 4's"
    " assumption."
)
_DRAWS = (
    "ε of 1,000 steps against the number of draws at γ = 1e-15. Student's estimate is below the"
    " truth while the draws miss what carries it. What no assumption can exclude keeps ε near that"
    " of every record (DP). Bands: 5 to 95 % of repeats."
)
_TAILS = (
    "Student's ε of the same run with Weibull norms. Left: clipped at C, with the exact values"
    " dotted. Right: not clipped, where the exact value is infinite for all three: of the heavier"
    " tails ε grows with the draws without end, and of shape 2 they do not show it. Bands: 5 to"
    " 95 % of repeats."
)
_COMPOSITION = (
    "Privacy loss L of 20 steps over release and record. Left: log E exp(λ L), exact (lines) and by"
    " Theorem 1 (dashed, the same for all three). Right: Pr[L ≥ ε], simulated, and the bounds on"
    " it that the moments give. Where records keep their norms Theorem 1 loses nothing."
)


def _coverage_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(2, 4, width=9.6, height=5.2)
    for axis, record in zip(axes, records, strict=False):
        _draw_shares(axis, record)
        axis.set(title=record.row, ylim=(_LEAST_SHARE, 1.4), xscale="log", yscale="log")
    for axis in axes[len(records) :]:
        axis.set_axis_off()
    for axis in axes[::4]:
        axis.set_ylabel("share too small")
    for axis in axes[4 : len(records)]:
        axis.set_xlabel("draws")
    handles, labels = _legend(axes)
    figure.legend(handles, labels, loc="lower right", bbox_to_anchor=(0.98, 0.12))
    return figure


def _legend(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """One handle for each label of all panels."""
    known = [axis.get_legend_handles_labels() for axis in axes]
    found = {label: handle for each in known for handle, label in zip(*each, strict=True)}
    return list(found.values()), list(found)


def _draw_shares(axes: Axes, record: Record) -> None:
    trials, sizes = record.settings["trials"], record.settings["draws"]
    for place, (gamma, marker) in enumerate(zip(record.settings["gammas"], _MARKERS, strict=True)):
        axes.axhline(gamma, color=SOURCE, linestyle=":", linewidth=1.2)
        for name, style in _ESTIMATORS.items():
            if name in record.series:
                counts = np.array(record.series[name])[:, place]
                shares = np.maximum(counts / trials, _LEAST_SHARE)
                low, high = share_bounds(counts, trials)
                bars = np.maximum(shares - low, 0), np.maximum(high - shares, 0)
                plain = {**style, "label": style["label"] if place == 0 else None}
                axes.errorbar(
                    sizes, shares, bars, marker=marker, markersize=4, linewidth=1.2, **plain
                )


def _draw_band(axes: Axes, places: Any, ends: Any, **style: Any) -> None:
    low, middle, high = np.array(ends).T
    axes.fill_between(places, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.plot(places, middle, **style)


def _draws_figure(record: Record) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.2)
    sizes, series, measured = record.settings["draws"], record.series, record.measured
    levels = {
        "DP, moments accountant": (measured["MA ε"], SOURCE, "-"),
        "DP, certified": (record.certified["DP ε"], CERTIFIED, "-"),
        "Bayesian, distribution known": (measured["Bayesian ε, exact"], "black", ":"),
    }
    for label, (level, colour, line) in levels.items():
        axes.axhline(level, color=colour, linestyle=line, label=label)
    for name, style in _ESTIMATORS.items():
        _draw_band(axes, sizes, series[name], **{**style, "label": f"Bayesian, {style['label']}"})
    axes.plot(sizes, series["limit"], "--", color=_FREE, label="the least without assumption")
    axes.set(xscale="log", xlabel="draws", ylabel="ε at δ = 1e-5", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _tails_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    for record, colour in zip(records, PALETTE, strict=False):
        sizes, style = record.settings["draws"], {"color": colour, "marker": "o", "markersize": 4}
        label = f"shape {record.settings['shape']:g}"
        _draw_band(left, sizes, record.series["clipped"], label=label, **style)
        left.axhline(record.measured["Bayesian ε, exact"], color=colour, linestyle=":")
        _draw_band(right, sizes, record.series["unclipped"], **style)
    left.axhline(records[0].certified["DP ε"], color="black", label="DP, certified")
    left.set(xscale="log", xlabel="draws", ylabel="ε at δ = 1e-5", ylim=(0, None))
    left.set_title("clipped")
    right.set(xscale="log", yscale="log", xlabel="draws", title="not clipped")
    left.legend()
    return figure


def _composition_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.0)
    shown = np.array(ORDERS) <= 12
    for record, colour in zip(records, PALETTE, strict=False):
        series, kept = record.series, 100 * record.settings["kept"]
        orders, exact = np.array(ORDERS)[shown], np.array(series["exact"])
        left.semilogy(orders, exact[shown], color=colour, label=f"{kept:.0f} % kept")
        right.loglog(series["losses"], series["levels"], color=colour, label="simulated")
        epsilons, bounds = _chernoff(exact)
        right.plot(epsilons, bounds, "--", color=colour, linewidth=1.2)
    left.semilogy(orders, np.array(series["bound"])[shown], "--", color="black", label="Theorem 1")
    right.plot(*_chernoff(np.array(series["bound"])), "--", color="black", linewidth=1.2)
    left.set(xlabel="λ", ylabel="log E exp(λ L)")
    right.set(xscale="linear", xlabel="ε", ylabel="Pr[L ≥ ε]", xlim=(0, 4), ylim=(1e-4, 1))
    left.legend()
    return figure


def _chernoff(moments: Any) -> tuple[Any, Any]:
    """Theorem 2's bounds on the probability of a loss of each epsilon."""
    epsilons = np.linspace(0.0, 4.0, 81)
    exponents = moments - np.array(ORDERS) * epsilons[:, None]
    return epsilons, np.exp(np.minimum(exponents.min(axis=1), 0.0))
