"""Errors of the BDP estimators of Triastcyn and Faltings (2020) on known distributions.

``python -m experiments run bdp_limits``: half a minute on two CPU cores; the paper profile runs
more trials and takes minutes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bdp import limits_estimates as estimates
from experiments.bdp.costs import ORDERS, epsilons
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_curve, panel_grid
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import format_upper_bound, group_by

_COUNTS: Mapping[str, dict[str, int]] = {
    "quick": {"trials": 4_000, "repeats": 10, "losses": 400_000},
    "paper": {"trials": 100_000, "repeats": 200, "losses": 10_000_000},
}
_GAMMAS = (0.05, 0.001)
_DRAWS, _TAIL_DRAWS = (16, 64, 256, 1_024, 4_096, 16_384), (64, 1_024, 16_384)
_SHAPES, _KEPT = (0.5, 1.0, 2.0), (1.0, 0.5, 0.0)
_MOMENT = 2
_LEVELS = np.geomspace(1e-4, 0.5, 40)
INSIDE, NUMBER = "normal", "number of draws"
_LABELS = {"student": "Student too small %", "bernstein": "Bernstein too small %"}
KNOWN, MOST = "Bayesian ε, exact", "Bayesian ε, exact, rarest given up"
STUDENT = "Bayesian ε, Student"
EXACT, BOUND, SIMULATED = "E exp(2L), exact", "E exp(2L), Theorem 1", "E exp(2L), simulated"


def rows(profile: str) -> list[Row]:
    counts = _COUNTS[profile]
    coverage = {"trials": counts["trials"], "gammas": _GAMMAS, "seed": 0}
    repeated = {"repeats": counts["repeats"], "seed": 0}
    composition = {"losses": counts["losses"], "seed": 1}
    # Numbers of pairs closest to the other sizes.
    pairs = [n * (n - 1) // 2 for n in estimates.RECORDS]
    sizes: dict[str, Sequence[int]] = dict.fromkeys(estimates.populations(), estimates.SIZES)
    settings: dict[str, dict[str, Any]] = {
        **{
            name: {"part": "coverage", "draws": draws, **coverage}
            for name, draws in (sizes | {"all pairs": pairs}).items()
        },
        NUMBER: {"part": "number", "draws": _DRAWS, **repeated},
        **{
            f"tails: Weibull, shape {shape:g}": {
                "part": "tails", "shape": shape, "draws": _TAIL_DRAWS, **repeated
            }
            for shape in _SHAPES
        },
        **{
            f"composition: {100 * kept:.0f} % of norms kept": {
                "part": "composition", "kept": kept, **composition
            }
            for kept in _KEPT
        },
    }  # fmt: skip
    return [Row(name, each, {}) for name, each in settings.items()]


def run_row(row: Row, context: RowContext) -> Result:
    run = {
        "coverage": _run_coverage,
        "number": _run_number,
        "tails": _run_tails,
        "composition": _run_composition,
    }
    return run[row.settings["part"]](row)


def _run_coverage(row: Row) -> Result:
    settings, population = row.settings, estimates.populations()[row.name]
    counts = [
        estimates.num_too_small(
            population, settings["trials"], n, settings["gammas"], settings["seed"]
        )
        for n in settings["draws"]
    ]
    return Result(
        measured={
            f"γ = {gamma:g}: {_LABELS[name]}": [
                100 * each[name][place] / settings["trials"] for each in counts
            ]
            for name in counts[0]
            for place, gamma in enumerate(settings["gammas"])
        },
        certified={},
        note="Shares of trials by sample size: 16, 64, 256, 1,024 and 4,096.",
        series={name: [each[name] for each in counts] for name in counts[0]},
    )


def _run_number(row: Row) -> Result:
    settings = row.settings
    curves = estimates.draws_curves(settings["draws"], settings["repeats"], settings["seed"])
    return Result(
        measured={
            "MA ε": estimates.moments_epsilon(),
            KNOWN: estimates.exact_epsilon(),
            MOST: estimates.exact_epsilon_without_rarest(),
            STUDENT: [each[1] for each in curves["student"]],
            "Bayesian ε, Bernstein": [each[1] for each in curves["bernstein"]],
            "Bayesian ε, least without assumption": curves["limit"],
        },
        certified={"DP ε": estimates.certified_run_epsilon()},
        note="Medians over repeats by sample size: 16, 64, ..., 16,384.",
        series=curves,
    )


def _run_tails(row: Row) -> Result:
    settings, shape = row.settings, row.settings["shape"]
    curves = estimates.tail_curves(shape, settings["draws"], settings["repeats"], settings["seed"])
    return Result(
        measured={
            KNOWN: estimates.exact_epsilon(estimates.weibull_norm_at(shape)),
            MOST: estimates.exact_epsilon_without_rarest(estimates.weibull_norm_at(shape)),
            STUDENT: [each[1] for each in curves["clipped"]],
            f"{KNOWN}, unclipped": math.inf,
            f"{STUDENT}, unclipped": [each[1] for each in curves["unclipped"]],
        },
        certified={"DP ε": estimates.certified_run_epsilon(), "DP ε, unclipped": math.inf},
        note="Tails: medians over repeats by sample size: 64, 1,024 and 16,384.",
        series=curves,
    )


def _run_composition(row: Row) -> Result:
    settings, delta = row.settings, estimates.MODEL_DELTA
    norms = estimates.norms_by_step(settings["kept"])
    losses = estimates.simulated_losses(norms, settings["losses"], settings["seed"])
    exact, bound = estimates.exact_moments(norms), estimates.theorem_moments(norms)
    simulated = estimates.simulated_moment(losses, _MOMENT)
    return Result(
        measured={
            EXACT: float(np.exp(estimates.exact_moments(norms, (_MOMENT,))[0])),
            BOUND: float(np.exp(estimates.theorem_moments(norms, (_MOMENT,))[0])),
            SIMULATED: simulated.mean,
            f"{SIMULATED}, standard error": simulated.error,
            "Bayesian ε, exact moments": float(epsilons(exact, delta)),
            "Bayesian ε, Theorem 1": float(epsilons(bound, delta)),
            "Bayesian ε, simulated": float(np.quantile(losses, 1 - delta)),
        },
        certified={"DP ε, composition": estimates.certified_model_epsilon()},
        series={
            "exact": exact,
            "bound": bound,
            "levels": _LEVELS,
            "losses": np.quantile(losses, 1 - _LEVELS),
        },
    )


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    remarks = {
        INSIDE: _inside_remark,
        "one in 1,000": _rare_remark,
        "all pairs": _pairs_remark,
        NUMBER: _number_remark,
        "tails: Weibull, shape 0.5": _tails_remark,
        "tails: Weibull, shape 2": _rarest_remark,
        "composition: 0 % of norms kept": _composition_remark,
    }
    return [remark(rows[name]) for name, remark in remarks.items() if name in rows]


def _inside_remark(record: Record) -> str:
    shares = record.measured[f"γ = 0.05: {_LABELS['student']}"]
    return (
        f"Theorem 4 holds for normal z: its estimate is too small in {min(shares):.1f} to"
        f" {max(shares):.1f} % of trials at γ = 5 %. The costs exp(Tλ D) are not normal: they are"
        " non-negative and have a long tail."
    )


def _rare_remark(record: Record) -> str:
    few, many = record.settings["draws"][0], record.settings["draws"][-1]
    return (
        "If one record in 1,000 determines the mean, a sample without such a record has variance"
        " zero, and Student's estimate is too small for every γ, including the source's 1e-15:"
        f" with probability {100 * 0.999**few:.0f} % for sample size {few} and"
        f" {100 * 0.999**many:.1f} % for {many:,}. The empirical Bernstein bound assumes only a"
        " bounded z, which clipping provides, and its failure rate is at most γ."
    )


def _pairs_remark(record: Record) -> str:
    shares = record.measured[f"γ = 0.001: {_LABELS['student']}"]
    return (
        "All pairs of one sample are not independent, as the source assumes: at γ = 0.1 % the"
        f" estimate from {record.settings['draws'][-1]:,} pairs of {estimates.RECORDS[-1]} records"
        f" is too small in {shares[-1]:.0f} % of trials, and the share grows with the number of"
        " pairs."
    )


def _number_remark(record: Record) -> str:
    measured, few = record.measured, record.settings["draws"][0]
    certified = format_upper_bound(record.certified["DP ε"])
    return (
        "A sample of size N cannot exclude that a share 1 − γ^(1/N) of the population has norm C"
        f" ({100 * estimates.unseen_share(1_024):.1f} % for N = 1,024 and γ = 1e-15). Without"
        " distributional assumptions ε is therefore at least"
        f" {estimates.least_distribution_free_epsilon(1_024):.2f}; the moments accountant gives"
        f" {measured['MA ε']:.2f} for every record, and {certified} is certified. Student's ε is"
        f" {measured[STUDENT][0]:.2f} for sample size {few}, below the exact value"
        f" {measured[KNOWN]:.2f}: it is smaller for smaller samples."
    )


def _tails_remark(record: Record) -> str:
    unclipped = record.measured[f"{STUDENT}, unclipped"]
    return (
        "For unclipped Weibull norms E z is infinite in this run, and Corollary 1 gives no ε."
        f" Student's ε then grows with the sample size: {format_value(unclipped[0])} for"
        f" {record.settings['draws'][0]} and {format_value(unclipped[-1])} for"
        f" {record.settings['draws'][-1]:,} samples of shape 1/2."
    )


def _rarest_remark(record: Record) -> str:
    measured, most = record.measured, record.settings["draws"][-1]
    return (
        "With light tails, Weibull of shape 2, samples of this size do not contain the records"
        " that determine E z: one record in 1e13 is clipped, and these dominate at the relevant"
        f" orders. Corollary 1 gives ε = {measured[KNOWN]:.2f} for the known distribution,"
        f" Student's estimate {measured[STUDENT][-1]:.2f} for {most:,} samples, clipped or not. If"
        f" the rarest records are counted as half of δ, ε = {measured[MOST]:.2f} holds; this does"
        " not follow from Theorem 4."
    )


def _composition_remark(record: Record) -> str:
    measured = record.measured
    return (
        "Theorem 1 is exact only if each record has the same norm in every step. If the norms"
        " rotate among the records, so that all records have the same total, it gives the worst"
        f" case, ε = {measured['Bayesian ε, Theorem 1']:.2f} instead of"
        f" {measured['Bayesian ε, exact moments']:.2f}. The simulated privacy loss exceeds"
        f" {measured['Bayesian ε, simulated']:.2f} with probability δ."
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """Returns the figures whose rows were run."""
    draw = {
        "coverage": ("coverage", _coverage_figure),
        "number": ("draws", _draws_figure),
        "tails": ("tails", _tails_figure),
        "composition": ("composition", _composition_figure),
    }
    parts = group_by(records, "part")
    return {stem: make(parts[part]) for part, (stem, make) in draw.items() if part in parts}


_ESTIMATORS: Mapping[str, dict[str, Any]] = {
    "student": {"color": PALETTE[1], "label": "Student (Theorem 4)"},
    "bernstein": {"color": MEASURED, "label": "empirical Bernstein"},
}
_LEAST_SHARE = 2e-4


def _coverage_figure(records: Sequence[Record]) -> Figure:
    figure, axes = panel_grid(len(records), 4, width=9.6, height=5.2)
    for axis, record in zip(axes, records, strict=True):
        _draw_shares(axis, record)
        axis.set(title=record.row, ylim=(_LEAST_SHARE, 1.4), xscale="log", yscale="log")
    for axis in axes[::4]:
        axis.set_ylabel("share too small")
    for axis in axes[4:]:
        axis.set_xlabel("sample size")
    known = [axis.get_legend_handles_labels() for axis in axes]
    handles = {label: handle for each in known for handle, label in zip(*each, strict=True)}
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (0.98, 0.12)}
    figure.legend(list(handles.values()), list(handles), **place)
    return figure


def _draw_shares(axes: Axes, record: Record) -> None:
    trials, sizes = record.settings["trials"], record.settings["draws"]
    for place, (gamma, marker) in enumerate(zip(record.settings["gammas"], "os", strict=True)):
        axes.axhline(gamma, color=SOURCE, linestyle=":", linewidth=1.2)
        for name in record.series:
            counts = np.array(record.series[name])[:, place]
            shares = np.maximum(counts / trials, _LEAST_SHARE)
            low, high = estimates.share_bounds(counts, trials)
            bars = np.maximum(shares - low, 0), np.maximum(high - shares, 0)
            style = _ESTIMATORS[name] | ({"label": None} if place else {})
            axes.errorbar(sizes, shares, bars, marker=marker, markersize=4, linewidth=1.2, **style)


def _draw_band(axes: Axes, places: Any, quantiles: Any, **style: Any) -> None:
    low, middle, high = np.array(quantiles).T
    draw_curve(axes, places, middle, (low, high), **style)


def _draws_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.2)
    sizes, series = records[0].settings["draws"], records[0].series
    measured, certified = records[0].measured, records[0].certified
    for label, level, colour, line in (
        ("DP, moments accountant", measured["MA ε"], SOURCE, "-"),
        ("DP, certified", certified["DP ε"], CERTIFIED, "-"),
        ("Bayesian, distribution known", measured[KNOWN], "black", ":"),
    ):
        axes.axhline(level, color=colour, linestyle=line, label=label)
    for name, style in _ESTIMATORS.items():
        label = f"Bayesian, {style['label']}"
        _draw_band(axes, sizes, series[name], **style | {"label": label, "marker": ""})
    axes.plot(sizes, series["limit"], "--", color=MEASURED, label="distribution-free lower limit")
    axes.set(xscale="log", xlabel="sample size", ylabel="ε at δ = 1e-5", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _tails_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    for record, colour in zip(records, PALETTE, strict=False):
        sizes, style = record.settings["draws"], {"color": colour, "marker": "o", "markersize": 4}
        label = f"shape {record.settings['shape']:g}"
        _draw_band(left, sizes, record.series["clipped"], label=label, **style)
        left.axhline(record.measured[KNOWN], color=colour, linestyle=":")
        _draw_band(right, sizes, record.series["unclipped"], **style)
    left.axhline(records[0].certified["DP ε"], color="black", label="DP, certified")
    left.set(
        xscale="log", xlabel="sample size", ylabel="ε at δ = 1e-5", ylim=(0, None), title="clipped"
    )
    right.set(xscale="log", yscale="log", xlabel="sample size", title="not clipped")
    left.legend()
    return figure


def _composition_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.0)
    orders = [order for order in ORDERS if order <= 12]
    for record, colour in zip(records, PALETTE, strict=False):
        series, kept = record.series, 100 * record.settings["kept"]
        exact = np.array(series["exact"])
        left.semilogy(orders, exact[: len(orders)], color=colour, label=f"{kept:.0f} % kept")
        right.loglog(series["losses"], series["levels"], color=colour, label="simulated")
        right.plot(*_chernoff(exact), "--", color=colour, linewidth=1.2)
    bound = np.array(series["bound"])
    left.semilogy(orders, bound[: len(orders)], "--", color="black", label="Theorem 1")
    right.plot(*_chernoff(bound), "--", color="black", linewidth=1.2)
    left.set(xlabel="λ", ylabel="log E exp(λ L)")
    right.set(xscale="linear", xlabel="ε", ylabel="Pr[L ≥ ε]", xlim=(0, 4), ylim=(1e-4, 1))
    left.legend()
    return figure


def _chernoff(moments: Any) -> tuple[Any, Any]:
    """Returns Chernoff bounds (Theorem 2) on the probability of a loss of each epsilon."""
    epsilons = np.linspace(0.0, 4.0, 81)
    exponents = moments - np.array(ORDERS) * epsilons[:, None]
    return epsilons, np.exp(np.minimum(exponents.min(axis=1), 0.0))


def finding(records: Sequence[Record]) -> Finding:
    name, nominal = f"γ = 0.05: {_LABELS['student']}", 5.0
    shares = {r.row: max(r.measured[name]) for r in records if name in r.measured}
    normal = shares.pop(INSIDE, None)
    worst = max(shares, key=lambda row: shares[row], default=None)
    if normal is None or worst is None:
        return Finding("not compared", "Only a part of the populations was run.")
    verdict = "reproduced; claim contradicted" if shares[worst] > 2 * nominal else "reproduced"
    return Finding(
        verdict if normal <= nominal + 2 else "not reproduced",
        f"Theorem 4's estimate is too small in at most {normal:.1f} % of trials for normal costs"
        f" (γ = {nominal:g} %), and in up to {shares[worst]:.0f} % for other ones ({worst}).",
        "2 points",
    )
