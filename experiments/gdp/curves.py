"""Figures 2, 3 and A.1 of Bu et al. (2020): its curves again, beside rigorous ones.

``python -m experiments run gdp_curves``: half a minute, the same in both profiles; nothing is
trained.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any, NamedTuple

import numpy as np

import dpjax
from dpjax.accounting import gdp, moments_accountant, tradeoff
from dpjax.accounting.tradeoff import TradeOff
from experiments.gdp import mnist
from experiments.gdp.curve_figures import LEVELS, figures
from experiments.gdp.mnist_training import PUBLISHED_SIZE, Settings
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_DELTA = 1e-5
# Of the profile that is computed, and of it what a picture needs.
_NUM_EPSILONS, _NUM_SHOWN = 4_001, 161
_ONE_EPOCH = "A.1"
_NUMERIC_STEPS = 234
_PRINTED_MU = 0.57
# Of row 2 alone.
_PRINTED_ERRORS = {"errors, CLT %": 77.6, "errors, MA pair %": 9.4}


class Bounds(NamedTuple):
    """Two curves with the true one between them.

    Attributes:
      lower: a guarantee.
      upper: no guarantee lies above it.
    """

    lower: TradeOff
    upper: TradeOff


def clt_curve(**settings: Any) -> tradeoff.Gaussian:
    """The central limit's G_mu with mu unrounded, an approximation; see ``moments_curves``."""
    return tradeoff.Gaussian(gdp.clt_mu(**settings))


def moments_curves(**settings: Any) -> tuple[TradeOff, TradeOff]:
    """The moments accountant's guarantee: by its pair at delta = 1e-5, and by all its pairs.

    Args:
      **settings: noise multiplier, sampling rate and number of steps, as ``moments`` takes them.
    """
    pair = tradeoff.ApproximateDP(
        moments_accountant.compute_epsilon(**settings, delta=_DELTA), slack=_DELTA
    )
    return pair, tradeoff.from_profile(*moments_accountant.compute_profile(**settings))


def true_curve(mechanism: dpjax.SubsampledGaussian, largest_epsilon: float) -> Bounds:
    """Bounds on the mechanism's own curve, which holds for neighbours in both orders.

    Args:
      mechanism: of which the curve is.
      largest_epsilon: up to which its profile is read.
    """
    epsilons = np.linspace(0.0, largest_epsilon, _NUM_EPSILONS)
    deltas = dpjax.accounting.profile_bounds(
        mechanism.event, epsilons, adjacency=mechanism.adjacency
    )
    # Between two epsilons delta is at least what it is at the larger one; beyond all, zero.
    least = np.append(np.maximum(deltas.lower[1:], 0.0), 0.0)
    return Bounds(
        tradeoff.from_profile(epsilons, deltas.upper), tradeoff.from_profile(epsilons, least)
    )


def one_epoch(noise_multiplier: float, sampling_rate: float, num_steps: int) -> Bounds:
    """Bounds on (p G_(1 / sigma) + (1 - p) Id)^(x T), composed numerically.

    It is asymmetric, as the source draws it: data without the record against data with it.
    """
    step = tradeoff.mixture(tradeoff.Gaussian(1 / noise_multiplier), sampling_rate)
    return Bounds(*tradeoff.power(step, num_steps, grid_size=2048))


def sum_of_errors(curve: TradeOff) -> float:
    """The least sum of the errors of type I and II (%) that a test of a symmetric curve can have.

    >>> round(sum_of_errors(tradeoff.Gaussian(0.57)), 1)
    77.6
    """
    return 100 * (1 - float(curve.delta(0.0)))


def _rows(profile: str) -> list[Row]:
    rows = [_table_row(row) for row in mnist.EXPERIMENT.rows("paper")]
    whole = rows[1].settings
    # Fewer steps at a rate p enlarged so that p sqrt(T) is that of row 2.
    rate = whole["sampling_rate"] * math.sqrt(whole["num_steps"] / _NUMERIC_STEPS)
    short = {**whole, "sampling_rate": rate, "num_steps": _NUMERIC_STEPS}
    return [*rows, Row(_ONE_EPOCH, short, {"CLT μ": _PRINTED_MU})]


def _table_row(row: Row) -> Row:
    mechanism = _mechanism(row)
    settings = {
        "noise_multiplier": row.settings["noise_multiplier"],
        "sampling_rate": Settings.expected_batch_size / PUBLISHED_SIZE,
        "num_steps": mechanism.num_steps,
    }
    source = {name: row.source[name] for name in ("CLT μ", "CLT ε", "MA ε")}
    return Row(row.name, settings, source | (_PRINTED_ERRORS if row.name == "2" else {}))


def _mechanism(row: Row) -> dpjax.SubsampledGaussian:
    """The mechanism of the row of Table 1 that has this name."""
    return mnist.published_mechanisms()[int(row.name) - 1]


def _run_row(row: Row, context: RowContext) -> Result:
    return _run_one_epoch(row) if row.name == _ONE_EPOCH else _run_table_row(row)


def _run_table_row(row: Row) -> Result:
    clt, (pair, envelope) = clt_curve(**row.settings), moments_curves(**row.settings)
    largest = 1.5 * pair.epsilon(_DELTA)
    bounds = true_curve(_mechanism(row), largest)
    curves = {"CLT": clt, "MA": envelope, "lower": bounds.lower, "upper": bounds.upper}
    epsilons = np.linspace(0.0, largest, _NUM_SHOWN)
    return Result(
        measured={
            "CLT μ": clt.mu,
            "CLT ε": clt.epsilon(_DELTA),
            "MA ε": pair.epsilon(_DELTA),
            "errors, CLT %": sum_of_errors(clt),
            "errors, MA pair %": sum_of_errors(pair),
            "errors, MA envelope %": sum_of_errors(envelope),
        },
        certified={
            "ε": bounds.lower.epsilon(_DELTA),
            "ε, lower": bounds.upper.epsilon(_DELTA),
            "errors, lower %": sum_of_errors(bounds.lower),
            "errors, upper %": sum_of_errors(bounds.upper),
        },
        series={
            "epsilons": epsilons,
            "deltas": {name: curve.delta(epsilons) for name, curve in curves.items()},
            "detected": _detected({**curves, "MA pair": pair}),
        },
    )


def _run_one_epoch(row: Row) -> Result:
    bounds, printed = one_epoch(**row.settings), tradeoff.Gaussian(_PRINTED_MU)
    distances = [tradeoff.distance(bound, printed) for bound in bounds]
    least = max(distances) - tradeoff.distance(*bounds)
    curves = {"CLT": printed, "lower": bounds.lower, "upper": bounds.upper}
    return Result(
        measured={"CLT μ": clt_curve(**row.settings).mu},
        certified={"sup |f − G|": max(distances), "sup |f − G|, lower": max(least, 0.0)},
        series={"detected": _detected(curves)},
    )


def _detected(curves: Mapping[str, TradeOff]) -> dict[str, Any]:
    """One less the curves at the figures' levels: near level 0 accurate, as they are not."""
    return {name: curve.true_positive_rate(LEVELS) for name, curve in curves.items()}


def _remarks(records: Sequence[Record]) -> list[str]:
    table = [record for record in records if record.row != _ONE_EPOCH]
    second = [_second_row_remark(record) for record in table if record.row == "2"]
    epoch = [_one_epoch_remark(record) for record in records if record.row == _ONE_EPOCH]
    return [*second, *_errors_remarks(table), *_epsilon_remarks(table), *epoch]


def _second_row_remark(record: Record) -> str:
    measured = record.measured
    return (
        f"Row 2: the source's {record.source['errors, CLT %']} % belongs to μ rounded to 0.57;"
        f" unrounded it is {measured['errors, CLT %']:.1f} %. The"
        f" {record.source['errors, MA pair %']} % beside it reads one pair (ε, 1e-5): all pairs of"
        f" the moments accountant guarantee {measured['errors, MA envelope %']:.1f} %, and"
        f" {_floor(record.certified['errors, lower %'])} % is certified."
    )


def _errors_remarks(table: Sequence[Record]) -> list[str]:
    return _verdicts(
        "The central limit's sum of errors",
        [r.row for r in table if r.measured["errors, CLT %"] > r.certified["errors, upper %"]],
        [r.row for r in table if r.measured["errors, CLT %"] <= r.certified["errors, lower %"]],
    )


def _epsilon_remarks(table: Sequence[Record]) -> list[str]:
    return _verdicts(
        "The central limit's ε at δ = 1e-5",
        [r.row for r in table if r.measured["CLT ε"] < r.certified["ε, lower"]],
        [r.row for r in table if r.measured["CLT ε"] >= r.certified["ε"]],
    )


def _verdicts(what: str, too_much: Sequence[str], safe: Sequence[str]) -> list[str]:
    """One sentence on the rows where it promises too much, one on those where it does not."""
    verdicts = {"promises more than is true": too_much, "is on the safe side": safe}
    return [
        f"{what} {verdict} in {'rows' if len(rows) > 1 else 'row'} {', '.join(rows)}."
        for verdict, rows in verdicts.items()
        if rows
    ]


def _one_epoch_remark(record: Record) -> str:
    detected = {name: np.array(rates) for name, rates in record.series["detected"].items()}
    excess = float(np.max(detected["upper"] - detected["CLT"]))
    distance = format_value(record.certified["sup |f − G|"], rounding=ROUND_CEILING)
    return (
        f"A.1: after one epoch the curve and its limit are nowhere more than {distance} apart; at"
        f" small levels tests detect up to {excess:.4f} more often than the limit says."
    )


def _floor(value: float) -> str:
    return format_value(value, "%", rounding=ROUND_FLOOR)


EXPERIMENT = Experiment(
    name="gdp_curves",
    title="Trade-off curves: the central limit, the moments accountant, and bounds",
    source="Bu, Dong, Long and Su (2020), Figures 2, 3 and A.1",
    description=(
        "Rows 1 to 6 are the mechanisms of Table 1 (MNIST, δ = 1e-5, neighbours differ by the"
        " presence of one image). By each account: ε, and the least sum of the errors of type I"
        " and II with which any test can tell neighbours apart. CLT is the central limit of"
        " Gaussian differential privacy, an approximation. MA is the moments accountant, read as"
        " the source does at the one pair (ε, 1e-5), and by the envelope of all its pairs."
        " Certified are a guarantee and, beside it, how much any guarantee could be better: the"
        " mechanism's own curve lies between.\n\n"
        "Row A.1 is one epoch, 234 steps, at a rate enlarged so that the limit is that of row 2:"
        " f = (p G_{1/σ} + (1 − p) Id)^⊗234 in one order of neighbours, by numerical composition"
        " with bounds on both sides.\n\n"
        "The settings of Figure 2 are not printed: it is drawn for row 2."
    ),
    rows=_rows,
    run_row=_run_row,
    figures=figures,
    remarks=_remarks,
)
