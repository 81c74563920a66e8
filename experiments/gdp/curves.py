"""Figures 2, 3 and A.1 of Bu et al. (2020): trade-off curves and certified bounds on them.

``python -m experiments run gdp_curves``: half a minute, the same in both profiles; nothing is
trained.
"""

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpjax
from dpjax.accounting import gdp, log_moments, tradeoff
from dpjax.accounting.tradeoff import TradeOff
from experiments.gdp import mnist
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_nonempty, legend_below, panel_grid
from experiments.lib.registry import DETERMINISTIC, Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import Comparison, format_upper_bound, join_row_names

_DELTA = 1e-5
# Numbers of computed and of plotted points of a privacy profile.
_NUM_EPSILONS, _NUM_SHOWN = 4_001, 161
# Type I errors at which curves are stored.
_LEVELS = np.concatenate([np.logspace(-6, -1, 80, endpoint=False), np.linspace(0.1, 1, 91)])
_ONE_EPOCH = "A.1"
_NUMERIC_STEPS = 234
_PRINTED_MU = 0.57
# Of row 2.
_PRINTED_ERRORS = {"errors, CLT %": 77.6, "errors, MA pair %": 9.4}
_SHOWN_DELTA = 1e-9
_PALE = "#b9bcc2"
_STYLES: dict[str, Values] = {
    "MA": {"color": SOURCE, "label": "moments accountant"},
    "lower": {"color": CERTIFIED, "label": "certified"},
    "CLT": {"color": MEASURED, "linestyle": "--", "label": "central limit (approximation)"},
    "upper": {
        "color": "black",
        "linestyle": (0, (1, 3)),
        "linewidth": 1.2,
        "label": "limit of any guarantee",
    },
}


class Bounds(NamedTuple):
    """Lower and upper bound on a trade-off function."""

    lower: TradeOff  # certified
    upper: TradeOff  # limit of any guarantee


def clt_curve(**settings: Any) -> tradeoff.Gaussian:
    """Returns G_mu of the central limit theorem, an approximation."""
    return tradeoff.Gaussian(gdp.poisson_clt_mu(**settings))


def moments_curves(**settings: Any) -> tuple[TradeOff, TradeOff]:
    """Returns the moments accountant's trade-off by its pair at delta = 1e-5, and by all pairs."""
    epsilon = log_moments.compute_epsilon(**settings, delta=_DELTA)
    profile = log_moments.compute_profile(**settings)
    return tradeoff.ApproximateDP(epsilon, slack=_DELTA), tradeoff.from_profile(*profile)


def tradeoff_bounds(mechanism: dpjax.SubsampledGaussian, largest_epsilon: float) -> Bounds:
    """Returns bounds on the mechanism's symmetric trade-off function."""
    epsilons = np.linspace(0.0, largest_epsilon, _NUM_EPSILONS)
    deltas = dpjax.accounting.profile_bounds(
        mechanism.event, epsilons, adjacency=mechanism.adjacency
    )
    # Between two epsilons delta is at least its value at the larger one.
    least = np.append(np.maximum(deltas.lower[1:], 0.0), 0.0)
    return Bounds(
        tradeoff.from_profile(epsilons, deltas.upper), tradeoff.from_profile(epsilons, least)
    )


def one_epoch(noise_multiplier: float, sampling_rate: float, num_steps: int) -> Bounds:
    """Returns bounds on (p G_(1 / sigma) + (1 - p) Id)^(x T), composed numerically.

    It is asymmetric, as in the source: data without the record against data with it.
    """
    step = tradeoff.mixture(tradeoff.Gaussian(1 / noise_multiplier), sampling_rate)
    return Bounds(*tradeoff.power(step, num_steps, grid_size=2048))


def min_error_sum(curve: TradeOff) -> float:
    """Returns the smallest sum of type I and II errors (%), for a symmetric trade-off function.

    >>> round(min_error_sum(tradeoff.Gaussian(0.57)), 1)
    77.6
    """
    return 100 * (1 - float(curve.delta(0.0)))


def rows(profile: str) -> list[Row]:
    rows = []
    for row, mechanism in zip(mnist.rows("paper"), mnist.published_mechanisms(), strict=True):
        settings = {
            "noise_multiplier": row.settings["noise_multiplier"],
            "sampling_rate": row.settings["expected_batch_size"] / mnist.PUBLISHED_SIZE,
            "num_steps": mechanism.num_steps,
        }
        source = {name: row.source[name] for name in ("CLT μ", "CLT ε", "MA ε")}
        rows.append(Row(row.name, settings, source | (_PRINTED_ERRORS if row.name == "2" else {})))
    # Fewer steps at a larger rate p, with p sqrt(T) as in row 2.
    whole = rows[1].settings
    rate = whole["sampling_rate"] * math.sqrt(whole["num_steps"] / _NUMERIC_STEPS)
    short = {**whole, "sampling_rate": rate, "num_steps": _NUMERIC_STEPS}
    return [*rows, Row(_ONE_EPOCH, short, {"CLT μ": _PRINTED_MU})]


def run_row(row: Row, context: RowContext) -> Result:
    clt = clt_curve(**row.settings)
    if row.name == _ONE_EPOCH:
        bounds, printed = one_epoch(**row.settings), tradeoff.Gaussian(_PRINTED_MU)
        distances = [tradeoff.distance(bound, printed) for bound in bounds]
        least = max(distances) - tradeoff.distance(*bounds)
        return Result(
            measured={"CLT μ": clt.mu},
            certified={"sup |f − G|": max(distances), "sup |f − G|, lower": max(least, 0.0)},
            series={"detected": _detected({"CLT": printed, **bounds._asdict()})},
        )
    pair, envelope = moments_curves(**row.settings)
    largest = 1.5 * pair.epsilon(_DELTA)
    bounds = tradeoff_bounds(mnist.published_mechanisms()[int(row.name) - 1], largest)
    curves: dict[str, TradeOff] = {"CLT": clt, "MA": envelope, **bounds._asdict()}
    epsilons = np.linspace(0.0, largest, _NUM_SHOWN)
    return Result(
        measured={
            "CLT μ": clt.mu,
            "CLT ε": clt.epsilon(_DELTA),
            "MA ε": pair.epsilon(_DELTA),
            "errors, CLT %": min_error_sum(clt),
            "errors, MA pair %": min_error_sum(pair),
            "errors, MA envelope %": min_error_sum(envelope),
        },
        certified={
            "ε": bounds.lower.epsilon(_DELTA),
            "ε, lower": bounds.upper.epsilon(_DELTA),
            "errors, lower %": min_error_sum(bounds.lower),
            "errors, upper %": min_error_sum(bounds.upper),
        },
        series={
            "epsilons": epsilons,
            "deltas": {name: curve.delta(epsilons) for name, curve in curves.items()},
            "detected": _detected({**curves, "MA pair": pair}),
        },
    )


def _detected(curves: dict[str, TradeOff]) -> Values:
    """Returns true positive rates at the stored levels, which are accurate near level 0."""
    return {name: curve.true_positive_rate(_LEVELS) for name, curve in curves.items()}


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    table = [record for record in records if record.row != _ONE_EPOCH]
    return draw_nonempty(
        profiles=(_profiles_figure, [record for record in records if record.row == "2"]),
        trade_offs=(_trade_offs_figure, table),
        one_epoch=(_one_epoch_figure, [record for record in records if record not in table]),
    )


def _profiles_figure(records: Sequence[Record]) -> Figure:
    (record,) = records
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


def _trade_offs_figure(records: Sequence[Record]) -> Figure:
    figure, axes = panel_grid(len(records), 3, width=9.6, height=3.3 * -(-len(records) // 3))
    for axis, record in zip(axes, records, strict=True):
        curves = {name: 1 - rates for name, rates in _detection_rates(record).items()}
        axis.plot([0, 1], [1, 0], color=_PALE, linewidth=1, label="perfect privacy")
        axis.plot(_LEVELS, curves["MA pair"], color=SOURCE, linestyle=":", label="MA, one pair")
        axis.plot(_LEVELS, curves["MA"], color=SOURCE, label="MA, all pairs")
        axis.fill_between(_LEVELS, curves["lower"], curves["upper"], color=CERTIFIED, linewidth=1.8)
        axis.plot(_LEVELS, curves["lower"], color=CERTIFIED, label="certified")
        axis.plot(_LEVELS, curves["CLT"], color=MEASURED, linestyle="--", label="central limit")
        # Smallest sums of errors, in the curves' colours.
        measured, lower = record.measured, record.certified["errors, lower %"]
        lines = [
            (f"≥ {format_value(lower, '%', 1, ROUND_FLOOR)} %", CERTIFIED),
            (f"{measured['errors, CLT %']:.1f} %", MEASURED),
            (f"{measured['errors, MA envelope %']:.1f} %", SOURCE),
            (f"({measured['errors, MA pair %']:.1f} %)", SOURCE),
        ]
        for place, (text, colour) in enumerate(lines):
            axis.text(0.97, 0.92 - 0.09 * place, text, color=colour, ha="right", fontsize=9)
        axis.set_title(mnist.row_label(record))
        _name_axes(axis)
    legend_below(figure, axes)
    return figure


def _detection_rates(record: Record) -> dict[str, np.ndarray]:
    return {name: np.array(rates) for name, rates in record.series["detected"].items()}


def _name_axes(axes: Axes) -> None:
    axes.set(xlabel="type I error α", ylabel="type II error", xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")


def _one_epoch_figure(records: Sequence[Record]) -> Figure:
    (record,) = records
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    curves = {name: 1 - rates for name, rates in _detection_rates(record).items()}
    left.plot(_LEVELS, curves["lower"], color=CERTIFIED, linewidth=3, label="f, 234 steps")
    left.plot(_LEVELS, curves["CLT"], color=MEASURED, linestyle="--", label="G with μ = 0.57")
    _name_axes(left)
    left.legend()
    differences = [100 * (curves[end] - curves["CLT"]) for end in ("lower", "upper")]
    right.fill_between(_LEVELS, *differences, color=CERTIFIED, label="f − G, bounds")
    right.axhline(0, color=MEASURED, linestyle="--")
    right.set(xlabel="type I error α", ylabel="100 (f − G)", xlim=(0, 1))
    right.legend()
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    table = [record for record in records if record.row != _ONE_EPOCH]
    remarks = []
    for verdict, holds in _VERDICTS.items():
        names = [record.row for record in table if holds(record)]
        if names:
            plural = "rows" if len(names) > 1 else "row"
            remarks.append(f"The central limit's {verdict} in {plural} {', '.join(names)}.")
    if _ONE_EPOCH in rows:
        rates = _detection_rates(rows[_ONE_EPOCH])
        excess = float(np.max(rates["upper"] - rates["CLT"]))
        distance = format_upper_bound(rows[_ONE_EPOCH].certified["sup |f − G|"])
        remarks.append(
            f"A.1: after one epoch the curve and its limit differ by at most {distance}; at small"
            f" type I errors the detection rate exceeds that of the limit by up to {excess:.4f}."
        )
    return remarks


_VERDICTS: dict[str, Callable[[Record], bool]] = {
    "sum of errors is above the certified upper bound": lambda record: (
        record.measured["errors, CLT %"] > record.certified["errors, upper %"]
    ),
    "sum of errors is below the certified lower bound": lambda record: (
        record.measured["errors, CLT %"] <= record.certified["errors, lower %"]
    ),
    "ε at δ = 1e-5 is below the certified lower bound": lambda record: (
        record.measured["CLT ε"] < record.certified["ε, lower"]
    ),
    "ε at δ = 1e-5 is above the certified upper bound": lambda record: (
        record.measured["CLT ε"] >= record.certified["ε"]
    ),
}


def finding(records: Sequence[Record]) -> Finding:
    pairs = [
        (record.measured[name], record.source[name])
        for record in records
        for name in ("CLT ε", "MA ε")
        if name in record.source
    ]
    table = [record for record in records if record.row != _ONE_EPOCH]
    low = join_row_names(table, lambda r: r.measured["CLT ε"] < r.certified["ε, lower"])
    errors = join_row_names(
        table, lambda r: r.measured["errors, CLT %"] < r.certified["errors, lower %"]
    )
    clause = (
        f"the central limit's ε is below the certified lower bound in rows {low or 'none'}, and so"
        f" is its sum of errors in rows {errors or 'none'}"
    )
    comparison = Comparison("published values of ε", tuple(pairs), 1.0, "%")
    return comparison.finding(clause, bool(low))


TOLERANCE = DETERMINISTIC
