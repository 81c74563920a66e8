"""Claims of Papernot et al. (2017, 2018) on divergences, beside exact values."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from dpjax import pate
from experiments.lib.registry import Record, Result, Values
from experiments.lib.verdicts import format_upper_bound
from experiments.pate.accounts import EPSILON

COST, BY_FORMULA = "Rényi cost", "Rényi cost by the source's formula"
FORWARD, REVERSE = "bound over divergence", "bound over reverse divergence"


@dataclass(frozen=True)
class Claim:
    """A claim of a source, its check, and a clause on the result."""

    settings: Values
    source: Values
    check: Callable[..., Result]  # from the settings
    finding: Callable[[Record], str]


def check_claim(name: str, settings: Values) -> Result:
    """Returns the result of the claim's check."""
    return CLAIMS[name].check(**settings)


def _check_label(scale: float) -> Result:
    mechanism = pate.LNMax(
        scale=scale, num_teachers=250, num_classes=10, num_queries=1, adjacency="replace_one"
    )
    return Result({}, {EPSILON: mechanism.pure_epsilon_per_query})


def _check_gnss(order: float, beta: float, noise_scale: float) -> Result:
    claimed = published_gnss_rdp(order, beta, noise_scale)
    exact = pate.gnss_rdp(order, beta=beta, shift=1 / noise_scale)
    return Result({}, {COST: exact}, series={BY_FORMULA: claimed})


def published_gnss_rdp(order: float, beta: float, noise_scale: float) -> float:
    """Returns the Rényi cost of the smooth-sensitivity release by Theorem 23 of the source.

    >>> round(published_gnss_rdp(14.0, 0.0329, 6.23), 2)
    0.52
    """
    shift = order * math.exp(2 * beta) / noise_scale**2
    return shift + (beta * order - math.log(1 - 2 * order * beta) / 2) / (order - 1)


def _check_direction(scale: float, num_teachers: int, orders: list[float]) -> Result:
    forward, reverse = direction_ratios(scale, num_teachers, np.asarray(orders))
    return Result({REVERSE: reverse}, {}, series={FORWARD: forward})


def direction_ratios(
    scale: float, num_teachers: int, orders: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Returns the least ratios of Theorem 6's bound to the exact divergence, forward and reverse.

    Over all votes of two classes with a plurality, and both neighbours of each.
    """
    counts = np.arange(num_teachers // 2 + 1, num_teachers)
    votes = np.stack([counts, num_teachers - counts], axis=1)
    log_errors = pate.data_dependent.log_error_probability_gaussian(votes, scale)
    bounds = pate.data_dependent.gaussian_rdp(log_errors, orders, scale)

    def outcomes(shift: int) -> npt.NDArray[np.float64]:
        gaps = (2 * (counts + shift) - num_teachers) / (math.sqrt(2) * scale)
        return np.stack([log_ndtr(gaps), log_ndtr(-gaps)])[..., None]

    here = outcomes(0)
    forward: list[float] = []
    reverse: list[float] = []
    for shift in (-1, 1):
        there = outcomes(shift)
        for found, p, q in ((forward, here, there), (reverse, there, here)):
            # terms of at least zero, so that small divergences keep their digits
            terms = np.expm1(orders * (p - q)) - orders * np.expm1(p - q)
            exact = np.log1p(np.sum(np.exp(q) * terms, axis=0)) / (orders - 1)
            found.append(float(np.min(bounds / exact)))
    return min(forward), min(reverse)


CLAIMS = {
    "claim: ε of one label, 1/γ = 20": Claim(
        {"scale": 20.0},
        {EPSILON: 0.05},
        _check_label,
        lambda record: (
            f"one label is {format_upper_bound(record.certified[EPSILON])}-DP, where"
            f" {record.source[EPSILON]:g} is printed"
        ),
    ),
    "claim: Theorem 6 bounds the divergence": Claim(
        {"scale": 20.0, "num_teachers": 250, "orders": [float(order) for order in range(2, 65)]},
        {},
        _check_direction,
        lambda record: (
            f"at σ = {record.settings['scale']:g} Theorem 6 is as little as"
            f" {record.measured[REVERSE]:.2f} times the reverse divergence"
        ),
    ),
    "claim: Rényi cost of the smoothed release": Claim(
        {"order": 14.0, "beta": 0.0329, "noise_scale": 6.23},
        {COST: 0.52},
        _check_gnss,
        lambda record: (
            f"the smoothed release costs {format_upper_bound(record.certified[COST])}, where"
            f" {record.source[COST]:g} is claimed"
        ),
    ),
}
