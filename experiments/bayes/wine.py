"""Linear regression on Wine Quality, white: error against epsilon, and against n.

``python -m experiments run bayes_wine``: half a minute, the same in both profiles.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from matplotlib.figure import Figure

from dpjax.accounting import epsilon as certified_epsilon
from experiments.bayes.wine_fits import (
    ADJACENCY,
    METHODS,
    Fit,
    Records,
    Splits,
    Task,
    draw_splits,
    scale_records,
    score,
)
from experiments.data import load_data
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import grid, make_rows
from experiments.lib.verdicts import direction_finding

_DELTA, _NUM_REPEATS, _SEED = 1e-4, 40, 0
_EPSILONS, _AT = (0.1, 0.3, 1.0, 3.0, 10.0), 1.0
_NUM_TRAIN, _SIZES = 2_000, (250, 500, 1_000, 4_000)
_PLAIN, _BEST = "not private", "trusted, Gaussian"
ABOVE = "above not private, ε = 1 %"
COVERAGE = "coverage of 90 % intervals, ε = 1 %"


def column(epsilon: float) -> str:
    """Returns the name of the column of errors at an epsilon."""
    return f"MAE, ε = {epsilon:g}"


@functools.cache
def _records() -> Records:
    return scale_records(load_data("wine", stand_in=True))


@functools.cache
def _splits(num_train: int) -> Splits:
    return draw_splits(_records(), num_train, _NUM_REPEATS, _SEED)


@functools.cache
def _plain_error(num_train: int) -> float:
    splits = _splits(num_train)
    return float(score(_fit(_PLAIN, splits, _AT).posteriors, _records(), splits).error.mean())


def _fit(method: str, splits: Splits, epsilon: float) -> Fit:
    return METHODS[method](Task(_records(), splits, jax.random.key(_SEED), epsilon, _DELTA))


def rows(profile: str) -> list[Row]:
    common = {"delta": _DELTA, "repeats": _NUM_REPEATS, "seed": _SEED}
    whole = {**common, "num_train": _NUM_TRAIN, "epsilons": list(_EPSILONS)}
    sizes = grid(num_train=_SIZES, epsilons=[[_AT]], fit=[_BEST])
    return [
        *make_rows("{fit}", grid(fit=METHODS), whole),
        *make_rows("{fit}, n = {num_train:,}", sizes, common),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings, records = row.settings, _records()
    splits, epsilons = _splits(settings["num_train"]), list(settings["epsilons"])
    at, plain = epsilons.index(_AT), _plain_error(settings["num_train"])
    fits = [_fit(settings["fit"], splits, epsilon) for epsilon in epsilons]
    scores = [score(fit.posteriors, records, splits) for fit in fits]
    errors = [float(one.error.mean()) for one in scores]
    mechanisms = [fit.mechanism for fit in fits if fit.mechanism is not None]
    epsilons_certified = [
        certified_epsilon(each.event, _DELTA, adjacency=ADJACENCY) for each in mechanisms
    ]
    y = np.asarray(records.y) * records.half_width
    means = y[splits.train].mean(axis=1, keepdims=True)
    return Result(
        measured={
            **{column(epsilon): error for epsilon, error in zip(epsilons, errors, strict=True)},
            ABOVE: 100 * (errors[at] / plain - 1),
            COVERAGE: 100 * float(scores[at].coverage.mean()),
        },
        certified={"ε, in this order": epsilons_certified} if epsilons_certified else {},
        note=f"{data_set().note} {len(splits.train)} random splits: {splits.test.shape[1]}"
        " records for testing, the others for training. Seeded keys: the noise is reproducible,"
        " so these runs are not private. Every ε is that of one run.",
        series={
            "errors": errors,
            "spread": [float(one.error.std(ddof=1)) for one in scores],
            "not private": plain,
            "mean predicted": float(np.abs(y[splits.test] - means).mean()),
        },
        certificate=str(mechanisms[at].certificate(_DELTA)) if mechanisms else "",
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if record.certified]
    lines = [record for record in private if len(record.settings["epsilons"]) > 1]
    fits = {record.settings["fit"] for record in private if record not in lines}
    sizes = [record for record in private if record.settings["fit"] in fits]
    drawn = {}
    if lines:
        drawn["errors"] = _errors_figure(lines)
    if len(sizes) > 1:
        drawn["sizes"] = _sizes_figure(sizes)
    return drawn


def _errors_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=4.4)
    for record, colour in zip(records, PALETTE, strict=False):
        errors = np.array(record.series["errors"])
        width = 2 * np.array(record.series["spread"]) / np.sqrt(record.settings["repeats"])
        style = "--" if record.settings["fit"].startswith("naive") else "-"
        at, band = record.settings["epsilons"], (errors - width, errors + width)
        draw_curve(axes, at, errors, band, color=colour, linestyle=style, label=record.row)
    lowest, mean = (records[0].series[name] for name in ("not private", "mean predicted"))
    for name, level in (("not private", lowest), ("mean predicted", mean)):
        axes.axhline(level, color=SOURCE, linewidth=1)
        axes.annotate(name, (10, level), (4, 2), textcoords="offset points", color=SOURCE, size=8)
    axes.set(xscale="log", xlabel="ε", ylabel="mean absolute error")
    axes.set_ylim(lowest - 0.1 * (mean - lowest), mean + 0.35 * (mean - lowest))
    figure.legend(loc="outside right center")
    return figure


def _sizes_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    ordered = sorted(records, key=lambda record: record.settings["num_train"])
    sizes = [record.settings["num_train"] for record in ordered]
    plain = np.array([record.series["not private"] for record in ordered])
    private = np.array([record.measured[column(_AT)] for record in ordered])
    draw_curve(left, sizes, plain, color=SOURCE, label="not private")
    draw_curve(left, sizes, private, color=MEASURED, label="ε = 1")
    draw_curve(right, sizes, 100 * (private / plain - 1), color=CERTIFIED)
    for axes in (left, right):
        set_log_ticks(axes, sizes, "training records")
    left.set(ylabel="mean absolute error")
    left.legend()
    right.set(ylabel="above not private (%)", ylim=(0, None))
    return figure


def finding(records: Sequence[Record]) -> Finding:
    above = {record.row: record.measured[ABOVE] for record in records}
    trusted = [value for row, value in above.items() if row in METHODS and "trusted" in row]
    naive = [value for row, value in above.items() if "naive" in row]
    if not (trusted and naive):
        return Finding("not compared", "Only a part of the methods was run.")
    return direction_finding(
        [max(trusted) < min(naive)],
        "At ε = 1 a trusted aggregator's regressions have an error"
        f" {min(trusted):.1f} to {max(trusted):.1f} % above the non-private one, and naive local"
        f" ones {min(naive):.1f} to {max(naive):.1f} %.",
    )


data_set = functools.partial(load_data, "wine", stand_in=True)
