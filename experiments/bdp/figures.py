"""Figures 1, 3, 4 and 5 of Triastcyn and Faltings (2020), as published, and certified.

``python -m experiments run bdp_figures``: a quarter of a minute on two CPU cores; the paper profile
uses ten times as many seeds.

Gradients have 1,000 Weibull coordinates of shape 1/2, with 50 gradients in a step. As published:
one order, distance 2C for the moments accountant, and all pair distances of a batch for BDP. In
addition: the best of many orders, and BDP accounts from gradient norms.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax.accounting import log_moments as moments
from dpjax.adjacency import Adjacency
from dpjax.bdp import subsampled_gaussian_log_moments
from dpjax.bdp.replace_one import replace_one_log_moments
from experiments.bdp import costs
from experiments.bdp.costs import ORDERS, Array, epsilons, epsilons_by_step, step_costs
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, draw_nonempty, legend_below
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.verdicts import (
    direction_finding,
    format_upper_bound,
    group_by,
)
from experiments.published.bdp import published_reverse_log_moments

SHAPE, DIMENSION, BATCH = 0.5, 1_000, 50
DELTA, RATE = 1e-5, 1e-3
LONG_SIZE, LONG_RATE, LONG_STEPS = 60_000, 64 / 60_000, 10_000
_SOURCE_FAILURE = 1e-16
_REFERENCE_STEPS, _REFERENCE_SEED = 200, 2**31


class Distances(NamedTuple):
    """Norms and pair distances of the gradients of one or several steps."""

    norms: Array  # gradient norms, (..., 50)
    pairs: Array  # distances of all pairs, (..., 1225)


def inner_products(num_steps: int, seed: int) -> Array:
    """Returns the inner products of the gradients of each step, ``(num_steps, 50, 50)``."""
    generator = np.random.default_rng(seed)
    gradients = generator.weibull(SHAPE, (num_steps, BATCH, DIMENSION))
    return np.asarray(gradients @ gradients.swapaxes(-1, -2))


def distances(products: Array, l2_clip: npt.ArrayLike = np.inf) -> Distances:
    """Returns norms and pair distances of clipped gradients from their inner products.

    >>> clipped = distances(np.array([[9.0, 0.0], [0.0, 16.0]]), l2_clip=1.0)
    >>> clipped.norms, clipped.pairs
    (array([1., 1.]), array([1.4142]))
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    factors = np.minimum(1.0, np.asarray(l2_clip)[..., None] / np.sqrt(squares))
    clipped = factors[..., :, None] * products * factors[..., None, :]
    squares = np.diagonal(clipped, axis1=-2, axis2=-1)
    first, second = np.triu_indices(squares.shape[-1], 1)
    apart = squares[..., first] + squares[..., second] - 2 * clipped[..., first, second]
    return Distances(np.sqrt(squares), np.sqrt(np.maximum(apart, 0.0)))


def norm_quantile(level: float) -> float:
    """Returns a quantile of the norms, estimated from 10,000 separate samples."""
    return float(np.quantile(_reference_norms(), level))


@functools.cache
def _reference_norms() -> Array:
    seeds = range(_REFERENCE_SEED, _REFERENCE_SEED + 4)
    drawn = [distances(inner_products(_REFERENCE_STEPS // 4, seed)).norms for seed in seeds]
    return np.concatenate(drawn).ravel()


def published_costs(
    products: Array, level: float, order: int, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at one order by the source's estimate, ``(steps, 1)``.

    C is a quantile of each step's own norms; all pair distances are treated as independent, in the
    formula for adding a record. It is not an upper bound for replacing one.
    """
    clip = np.quantile(distances(products).norms, level, axis=-1)
    pairs = distances(products, clip if is_clipped else np.inf).pairs
    std = noise * 2 * clip[:, None]
    found = subsampled_gaussian_log_moments((order,), pairs, sampling_rate=RATE, noise_std=std)
    return step_costs(found, planned, _SOURCE_FAILURE)


def norm_costs(
    products: Array, level: float, *, noise: float, planned: int, is_clipped: bool
) -> Array:
    """Returns each step's cost at all orders from gradient norms, ``(steps, orders)``.

    C is a quantile of the distribution of norms, so that the noise does not depend on the batch.
    """
    clip = norm_quantile(level)
    settings: dict[str, Any] = {"sampling_rate": RATE, "noise_std": noise * 2 * clip}
    norms = distances(products, clip if is_clipped else np.inf).norms
    worst = costs.log_moments(np.array(clip), **settings) if is_clipped else None
    return step_costs(costs.log_moments(norms, **settings), planned, worst=worst)


def _moments_curves(noise: npt.ArrayLike, steps: npt.ArrayLike, order: int) -> dict[str, Any]:
    """Returns ε by the moments accountant, at the source's order and at the best one."""
    best = [each + 1 for each in ORDERS]
    return {
        "MA, published": moments.compute_epsilon(noise, RATE, steps, DELTA, (order + 1,)),
        "MA": moments.compute_epsilon(noise, RATE, steps, DELTA, best),
    }


def steps_curves(level: float, num_steps: int, order: int, seeds: Sequence[int]) -> Values:
    """Returns ε after every step (Figure 1), with BDP ε for each seed."""
    setting: dict[str, Any] = {"noise": 1.0, "planned": num_steps}
    curves = _moments_curves(1.0, np.arange(1, num_steps + 1), order)
    curves |= {"pairs, published": [], "norms": [], "norms, clipped": []}
    for seed in seeds:
        products = inner_products(num_steps, seed)
        published = published_costs(products, level, order, is_clipped=False, **setting)
        curves["pairs, published"].append(
            epsilons_by_step(published, DELTA, _SOURCE_FAILURE, (order,))
        )
        for name, is_clipped in (("norms", False), ("norms, clipped", True)):
            costs = norm_costs(products, level, is_clipped=is_clipped, **setting)
            curves[name].append(epsilons_by_step(costs, DELTA))
    return curves


def noise_curves(
    level: float, noises: Array, order: int, seeds: Sequence[int], is_clipped: bool
) -> Values:
    """Returns ε of one step at each noise over 2C (Figures 3 and 4), by the same accounts."""
    curves = _moments_curves(noises, 1, order) | {"pairs, published": [], "norms": []}
    setting: dict[str, Any] = {"planned": 1, "is_clipped": is_clipped}
    for seed in seeds:
        products = inner_products(1, seed)
        published = [published_costs(products, level, order, noise=s, **setting) for s in noises]
        norms = [norm_costs(products, level, noise=s, **setting) for s in noises]
        curves["pairs, published"].append(
            epsilons(np.concatenate(published), DELTA, _SOURCE_FAILURE, (order,))
        )
        curves["norms"].append(epsilons(np.concatenate(norms), DELTA, 1e-15))
    return curves


def order_curves(distance: float, orders: range) -> tuple[Array, Array]:
    """Returns ε at each order (Figure 5) by the BDP and the moments accountant, for equal norms."""
    settings = {"sampling_rate": LONG_RATE, "noise_std": 1.0}
    drawn = subsampled_gaussian_log_moments(orders, np.full(BATCH, distance), **settings)
    costs = LONG_STEPS * step_costs(drawn, LONG_STEPS)
    bayesian = [float(epsilons(costs[i : i + 1], DELTA, 0.0, (o,))) for i, o in enumerate(orders)]
    known = [
        moments.compute_epsilon(1 / distance, LONG_RATE, LONG_STEPS, DELTA, (o + 1,))
        for o in orders
    ]
    return np.array(bayesian), np.array(known)


_SEEDS = {"quick": 5, "paper": 50}
_STEPS, _STEPS_ORDER, _NOISE_ORDER = 100, 16, 24
_NOISES = np.linspace(0.55, 1.4, 18)
_LEVELS = {"1": (0.05, 0.5, 0.75, 0.99), "3": (0.05, 0.5, 0.99), "4": (0.05, 0.5, 0.99)}
_DISTANCES = (0.1, 0.7, 1.0)
_ORDERS = range(1, 51)
_CERTIFIED_STEPS, _CERTIFIED_NOISES = (1, 10, 40, 100), (0.55, 0.8, 1.1, 1.4)
REVERSE, PAIRS = "c^R as printed", "pair formula"
PRINTED, EXACT = "log moment, source's", "log moment, exact"
SOURCES_MA, SOURCES_PAIRS = "MA ε, source's λ", "Bayesian ε, source's λ, pairs"
BEST_MA, NORMS, CLIPPED = "MA ε", "Bayesian ε, norms", "Bayesian ε, clipped norms"
_COLUMNS = {
    "MA, published": SOURCES_MA,
    "pairs, published": SOURCES_PAIRS,
    "MA": BEST_MA,
    "norms": NORMS,
    "norms, clipped": CLIPPED,
}


def rows(profile: str) -> list[Row]:
    common = {"seeds": _SEEDS[profile]}
    steps = {**common, "num_steps": _STEPS, "order": _STEPS_ORDER}
    noises = {**common, "noises": _NOISES.round(2).tolist(), "order": _NOISE_ORDER}
    return [
        *(_quantile_row("1", level, steps) for level in _LEVELS["1"]),
        *(_quantile_row(name, level, noises) for name in "34" for level in _LEVELS[name]),
        *(Row(f"5: C = {c:g}", {"figure": "5", "distance": c}, {}) for c in _DISTANCES),
        Row(REVERSE, {"figure": "", "rate": 0.01, "distance": 1.0, "noise": 1.0}, {}),
        Row(PAIRS, {"figure": "", "rate": 0.01, "cosine": 0.5, "noise": 0.7}, {}),
    ]


def _quantile_row(figure: str, level: float, settings: Values) -> Row:
    return Row(f"{figure}: {level:g} quantile", {"figure": figure, "level": level, **settings}, {})


def run_row(row: Row, context: RowContext) -> Result:
    run = {"1": _run_curves, "3": _run_curves, "4": _run_curves, "5": _run_orders}
    return run.get(row.settings["figure"], _run_formula)(row)


_NOTE = (
    "Gradients are simulated. BDP ε is the median over seeds. DP ε is for gradients clipped at C;"
    " for unclipped gradients, as in the BDP accounts of Figures 1 and 4, it is infinite. Rows of"
    " Figures 3 and 4 have the values at σ = 0.55 and σ = 1.4."
)


def _run_curves(row: Row) -> Result:
    """Returns the result of a row of Figures 1, 3 or 4: ε over steps or over noise."""
    settings, columns = row.settings, _COLUMNS
    level, order, seeds = settings["level"], settings["order"], range(settings["seeds"])
    is_clipped = settings["figure"] == "3"
    if settings["figure"] == "1":
        num_steps = settings["num_steps"]
        curves = steps_curves(level, num_steps, order, seeds)
        measured_at, ends = [-1], [(2.0, num_steps)]
        places: Sequence[float] = _CERTIFIED_STEPS
        runs = [(2.0, steps) for steps in _CERTIFIED_STEPS]
    else:
        noises = np.array(settings["noises"])
        curves = noise_curves(level, noises, order, seeds, is_clipped)
        places, measured_at = _CERTIFIED_NOISES, [0, -1]
        ends = [(2 * noises[0], 1), (2 * noises[-1], 1)]
        runs = [(2 * noise, 1) for noise in places]
        columns = {**_COLUMNS, "norms": CLIPPED if is_clipped else NORMS}
    measured = {
        columns[name]: _one_or_all(np.median(np.atleast_2d(curve), axis=0)[measured_at].tolist())
        for name, curve in curves.items()
    }
    certified = {
        "DP ε": _one_or_all(_certified(ends, "add_remove")),
        "DP ε, replace one": _one_or_all(_certified(ends, "replace_one")),
        **({} if is_clipped else {"DP ε, unclipped": np.inf}),
    }
    bounds = {adjacency: _certified(runs, adjacency) for adjacency in ("add_remove", "replace_one")}
    series = {**curves, "certified": bounds, "certified at": places}
    return Result(measured, certified, _NOTE, series)


def _one_or_all(values: list[float]) -> float | list[float]:
    return values[0] if len(values) == 1 else values


def _certified(runs: Sequence[tuple[float, int]], adjacency: Adjacency) -> list[float]:
    """Returns the certified ε of runs (noise multiplier, steps) with clipped gradients."""
    shape = round(BATCH / RATE), RATE
    return [costs.certified_epsilon(*shape, *run, adjacency, DELTA) for run in runs]


def _run_orders(row: Row) -> Result:
    bayesian, known = order_curves(row.settings["distance"], _ORDERS)
    best = int(np.argmin(bayesian))
    run = LONG_SIZE, LONG_RATE, 1 / row.settings["distance"], LONG_STEPS
    certified = costs.certified_epsilon(*run, "add_remove", DELTA)
    return Result(
        measured={
            BEST_MA: known[best],
            "best λ ≤ 50": _ORDERS[best],
            "ε at λ = 1, 50": [bayesian[0], bayesian[-1]],
            "Bayesian ε less MA ε, at most": float(np.abs(bayesian / known - 1).max()),
        },
        certified={"DP ε": certified},
        series={"orders": list(_ORDERS), "bayesian": bayesian, "MA": known},
    )


def _run_formula(row: Row) -> Result:
    """Returns a formula of the source at one point of order 2, and the exact log moment."""
    settings: dict[str, Any] = {
        "sampling_rate": row.settings["rate"],
        "noise_std": row.settings["noise"],
    }
    if row.name == REVERSE:
        distance = row.settings["distance"]
        printed = published_reverse_log_moments((1,), distance, **settings)
        exact = moments.compute_log_moment(
            2.0, row.settings["noise"] / distance, row.settings["rate"], direction="add"
        )
    else:
        # Two gradients of norm one.
        cosine = row.settings["cosine"]
        printed = subsampled_gaussian_log_moments((1,), np.sqrt(2 - 2 * cosine), **settings)
        exact = float(replace_one_log_moments((1,), 1.0, 1.0, cosine, **settings)[0])
    return Result({PRINTED: float(printed[0]), EXACT: exact}, {})


def remarks(records: Sequence[Record]) -> list[str]:
    by_figure = group_by(records, "figure")
    return [
        *([_order_remark(by_figure["1"])] if "1" in by_figure else []),
        *([_clipped_remark(by_figure["3"])] if "3" in by_figure else []),
    ]


def _order_remark(steps: Sequence[Record]) -> str:
    first, last = steps[0], steps[-1]
    ratio = first.measured[SOURCES_PAIRS] / first.measured[SOURCES_MA]
    least = min(record.measured[name] for record in steps for name in (NORMS, CLIPPED))
    added, replaced = (
        format_upper_bound(first.certified[name]) for name in ("DP ε", "DP ε, replace one")
    )
    return (
        f"At the source's order λ = {first.settings['order']} Figure 1 is reproduced: with C at"
        f" the {first.settings['level']:g} quantile the BDP ε after the last step is"
        f" {first.measured[SOURCES_PAIRS]:.0f}, {ratio:.1f} times the moments accountant's"
        f" {first.measured[SOURCES_MA]:.0f}, and at the {last.settings['level']:g} quantile at"
        f" {last.measured[SOURCES_PAIRS]:.2f}. The order is far from optimal: with the best order"
        f" of 1 to 64 the moments accountant's ε is {first.measured[BEST_MA]:.2f}. The certified ε"
        f" with clipping at C is {replaced} for replacing a record ({added} for adding one), below"
        f" all BDP ε of the figure, the smallest being {least:.2f}. (By Corollary 1, ε exceeds"
        f" log(1/δ)/λ, {-math.log(DELTA) / costs.ORDERS[-1]:.2f} at the largest order.)"
    )


def _clipped_remark(clipped: Sequence[Record]) -> str:
    found = [f"{record.measured[SOURCES_PAIRS][0]:.1f}" for record in clipped]
    levels = [f"{record.settings['level']:g}" for record in clipped]
    return (
        "Figure 3: the BDP curve does not approach the DP curve as more gradients are clipped. At"
        f" σ = 0.55 the BDP ε is {', '.join(found)} with C at the quantiles {', '.join(levels)},"
        f" and the moments accountant's ε is {clipped[0].measured[SOURCES_MA][0]:.1f}: clipped"
        " gradients of random directions have distance about 1.3 C, and 2C only if they are"
        " opposite. The BDP ε from norms, at the best order, equals the moments accountant's ε"
        " for adding a record once most gradients are clipped."
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    by_figure = group_by(records, "figure")
    return draw_nonempty(
        steps=(_curves_figure, by_figure.get("1", [])),
        noise_clipped=(_curves_figure, by_figure.get("3", [])),
        noise_unclipped=(_curves_figure, by_figure.get("4", [])),
        orders=(_orders_figure, by_figure.get("5", [])),
    )


_STYLES: Mapping[str, Values] = {
    "MA, published": {"color": SOURCE, "label": "moments accountant, as published"},
    "pairs, published": {
        "color": PALETTE[1],
        "label": "Bayesian, pairs, as published (no upper bound)",
    },
    "MA": {"color": SOURCE, "linestyle": "--", "label": "moments accountant, best λ"},
    "norms": {"color": MEASURED, "label": "Bayesian, norms, best λ"},
    "norms, clipped": {
        "color": PALETTE[5],
        "linestyle": "--",
        "label": "Bayesian, clipped norms, best λ",
    },
}
_ADJACENCIES: Mapping[str, Values] = {
    "replace_one": {"label": "certified DP, clipped: replace one"},
    "add_remove": {"label": "certified DP, clipped: add or remove", "linestyle": ":"},
}


def _curves_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(1, len(records), width=9.6, height=4.4)
    for axis, record in zip(axes, records, strict=True):
        settings = record.settings
        steps = np.arange(1, settings["num_steps"] + 1) if "num_steps" in settings else None
        _draw_curves(axis, settings["noises"] if steps is None else steps, record.series)
        label = "σ" if steps is None else "step"
        axis.set(xlabel=label, title=f"C: {settings['level']:g} quantile")
    ends = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    axes[0].set_ylabel("ε at δ = 1e-5")
    legend_below(figure, axes)
    return figure


def _draw_curves(axes: Axes, places: npt.ArrayLike, series: Values) -> None:
    for name, style in _STYLES.items():
        if name in series:
            curves = np.atleast_2d(series[name])
            ends = curves.min(axis=0), curves.max(axis=0)
            draw_curve(axes, places, np.median(curves, axis=0), ends, marker="", **style)
    axes.set_yscale("log")
    for adjacency, style in _ADJACENCIES.items():
        certified = series["certified"][adjacency]
        axes.plot(series["certified at"], certified, color=CERTIFIED, **style)


def _orders_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(height=4.2)
    for record, colour in zip(records, PALETTE, strict=False):
        orders, series = record.series["orders"], record.series
        axes.semilogy(orders, series["bayesian"], color=colour, label=record.row.split(": ")[1])
        axes.semilogy(orders, series["MA"], ".", color=colour)
        axes.axhline(record.certified["DP ε"], color=colour, linestyle=":", linewidth=1.2)
    axes.set(xlabel="λ", ylabel="ε at δ = 1e-5")
    axes.legend()
    return figure


def finding(records: Sequence[Record]) -> Finding:
    rows = {record.row: record.measured for record in records}
    steps = group_by(records, "figure").get("1", [])
    ratios = [r.measured[SOURCES_PAIRS] / r.measured[SOURCES_MA] for r in steps]
    low = PAIRS in rows and rows[PAIRS][PRINTED] < rows[PAIRS][EXACT]
    clause = "is below the exact value" if low else "is not shown to be below the exact value"
    return direction_finding(
        [ratios[0] > 1, ratios[-1] < 1] if ratios else [],
        "At the source's order the BDP ε is"
        f" {', '.join(f'{ratio:.2g}' for ratio in ratios) or 'not measured'} times the moments"
        " accountant's, in the order of Figure 1's quantiles; the source's formula on pairs"
        f" {clause}, so that it is {'not ' if low else ''}an upper bound for replacing a record.",
        contradicted=low,
    )
