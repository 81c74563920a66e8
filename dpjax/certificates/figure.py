"""Figures: certified trade-off function and ROC curve; epsilon by epochs; claimed epsilon."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpjax._extras import requires_extra
from dpjax.accounting.loss_distribution import Array
from dpjax.accounting.risk import (
    FALSE_POSITIVE_RATES,
    bayes_accuracy,
    minimum_error_sum,
    success_probability,
)
from dpjax.accounting.tradeoff import ApproximateDP, TradeOff
from dpjax.certificates.render import round_down, round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVE, _EPSILON_DELTA, _ATTACK, _GUESS = "#009e73", "#0072b2", "#d55e00", "#6b6f76"
_LEAST_RATE = 1e-6
# Probability with which the attribute of `plot_people` is guessed without the release.
PEOPLE_BASELINE = 0.1
# Dense near both ends, where the curves are steep or flat.
_TAIL = np.geomspace(1e-9, 0.01, 100)
_ALPHAS = np.concatenate([[0.0], _TAIL, np.linspace(0.01, 0.99, 300)[1:-1], 1 - _TAIL[::-1], [1.0]])


def new_figure(width: float, height: float) -> "Figure":
    """Returns an empty figure, in inches; one of pyplot's where that is in use.

    There ``plt.show`` and ``plt.savefig`` act on it, and ``plt.close`` frees it. pyplot is in use
    where it was imported, and in IPython. Elsewhere nothing but the caller holds the figure.
    """
    with requires_extra("plot"):
        from matplotlib.figure import Figure

    ipython = sys.modules.get("IPython")
    in_ipython = ipython is not None and ipython.get_ipython() is not None
    if not in_ipython and "matplotlib.pyplot" not in sys.modules:
        return Figure(figsize=(width, height), layout="constrained")

    from matplotlib import pyplot

    from dpjax.certificates._notebook_figure import NotebookFigure

    size = (width, height)
    return pyplot.figure(figsize=size, layout="constrained", FigureClass=NotebookFigure)


def plot_people(certified: TradeOff, *, unit: str, attack_goal: str) -> "Figure":
    """Returns a figure of how many of 100 guesses are right, without and with the release.

    Left, membership: which of two equally likely data sets was used. Right, an attribute or record
    that is guessed with the probability `PEOPLE_BASELINE` without the release. Numbers of right
    guesses with the release are upper bounds, rounded up.
    """
    figure = new_figure(8.0, 5.8)
    share = f"{100 * PEOPLE_BASELINE:.0f} of 100"
    panels = [
        (f"Guessing\n{attack_goal}", 0.5, bayes_accuracy(certified, 0.5)),
        (
            f"Guessing a fact about {unit}\nthat {share} guess anyway",
            PEOPLE_BASELINE,
            success_probability(certified, PEOPLE_BASELINE),
        ),
    ]
    numbers = np.arange(100)
    columns, rows = numbers % 10, numbers // 10
    for axes, (question, guessing, bound) in zip(figure.subplots(1, 2), panels, strict=True):
        # Right by guessing, right at most with the release, and wrong in any case.
        before, after = round(100 * guessing), min(math.ceil(100 * bound - 1e-9), 100)
        for first, last, face, edge, label in (
            (0, before, _GUESS, _GUESS, "right without the release"),
            (before, after, _ATTACK, _ATTACK, "also right with it, at most"),
            (after, 100, "none", _GUESS, "wrong even with it, at least"),
        ):
            axes.scatter(
                columns[first:last],
                rows[first:last],
                s=110,
                facecolor=face,
                edgecolor=edge,
                label=f"{label}: {last - first}",
            )
        axes.set_title(question, fontsize=10)
        axes.set(xlabel=f"right guesses of 100: {before} without, at most {after} with the release")
        axes.set(xticks=[], yticks=[], xlim=(-0.7, 9.7), ylim=(9.7, -0.7), aspect="equal")
        axes.spines[:].set_visible(False)
        axes.xaxis.label.set_fontsize(9)
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return figure


def plot_tradeoff(
    certified: TradeOff,
    upper_bound: TradeOff | None,
    *,
    epsilon: float,
    delta: float,
    attack_goal: str,
) -> "Figure":
    """Returns a figure of the certified trade-off function, left, and of the ROC curve, right.

    The area between the certified curve and its upper bound is shaded; it is often thinner than
    the line. Dashed is what the one pair of epsilon and delta guarantees.
    """
    figure = new_figure(9.0, 4.2)
    guarantee = f"({round_up(epsilon)}, {delta:g})-DP"
    pair_curve = None if math.isinf(epsilon) else ApproximateDP(epsilon, slack=delta)
    figure.suptitle(f"{guarantee}: any attack that decides {attack_goal}", fontsize=10)
    errors, roc = figure.subplots(1, 2)

    # Left, the type II error against the type I error.
    alphas = _ALPHAS
    errors.plot(alphas, 1 - alphas, ":", color=_GUESS, label="guessing")
    errors.plot(alphas, certified(alphas), color=_CURVE, label="certified trade-off function")
    if upper_bound is not None:
        _shade(errors, alphas, certified(alphas), upper_bound(alphas))
    if pair_curve is not None:
        label = f"{guarantee} only"
        errors.plot(alphas, pair_curve(alphas), "--", color=_EPSILON_DELTA, label=label)

    # The best attack by the sum of its errors.
    total = minimum_error_sum(certified)
    label = f"minimum sum of errors: {round_down(total)}"
    errors.plot(total / 2, total / 2, "o", color=_ATTACK, clip_on=False, label=label)
    errors.set(xlabel="type I error (false positives)", ylabel="type II error (false negatives)")
    errors.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    errors.legend(frameon=False, fontsize=8, loc="upper right")

    # Right, the true against the false positive rate, both logarithmic.
    rates = np.geomspace(_LEAST_RATE, 1.0, 400)
    roc.loglog(rates, rates, ":", color=_GUESS, label="guessing")
    detected = certified.true_positive_rate(rates)
    roc.loglog(rates, detected, color=_CURVE, label="certified upper bound")
    if upper_bound is not None:
        _shade(roc, rates, upper_bound.true_positive_rate(rates), detected)
    if pair_curve is not None:
        detected = pair_curve.true_positive_rate(rates)
        roc.loglog(rates, detected, "--", color=_EPSILON_DELTA, label=f"{guarantee} only")

    # The risks of a certificate.
    levels = np.array(FALSE_POSITIVE_RATES)
    detected = certified.true_positive_rate(levels)
    label = "upper bound on TPR at given FPR"
    roc.loglog(levels, detected, "o", color=_ATTACK, clip_on=False, zorder=5, label=label)
    for level, rate in zip(levels.tolist(), detected.tolist(), strict=True):
        text = roc.annotate(round_up(rate), (level, rate), (6, -11), textcoords="offset points")
        text.set(fontsize=8, bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5})
    roc.set(xlabel="false positive rate", ylabel="true positive rate")
    roc.set(xlim=(_LEAST_RATE, 1), ylim=(_LEAST_RATE, 1.5))
    roc.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def plot_epsilon(
    epochs: Sequence[float],
    epsilons: Sequence[float],
    *,
    delta: float,
    target: float | None = None,
) -> "Figure":
    """Returns a figure of the certified epsilon at ``delta`` against the epochs, and a target."""
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    axes.plot(epochs, epsilons, "o-", ms=3, color=_CURVE, label="certified upper bound")
    if target is not None:
        axes.axhline(target, linestyle=":", color=_ATTACK, label=f"target: {target:g}")
    axes.set(xlabel="epochs", ylabel=f"epsilon at delta = {delta:g}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    return figure


def plot_claim(
    names: Sequence[str],
    bounds: Sequence[tuple[float, float]],
    *,
    claim: float,
    delta: float,
) -> "Figure":
    """Returns a figure of a claimed epsilon at ``delta`` against bounds on it, a line for each."""
    figure = new_figure(6.5, 1.2 + 0.35 * len(names))
    axes = figure.subplots()

    # From the lower to the upper bound, which may be so close that only the marks show.
    places = range(len(names))
    lower, upper = np.array(bounds).reshape(-1, 2).T
    axes.hlines(places, lower, upper, color=_CURVE)
    axes.plot(lower, places, "|", color=_CURVE, ms=10, label="lower bound")
    axes.plot(upper, places, "o", color=_CURVE, label="certified upper bound")

    axes.axvline(claim, linestyle=":", color=_ATTACK, label=f"claim: {claim:g}")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel=f"epsilon at delta = {delta:g}")
    axes.set_xscale("symlog", linthresh=min(1.0, claim))
    axes.set_xlim(0, 2 * max(claim, *upper.tolist()))
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _shade(axes: "Axes", x: Array, low: Array, high: Array) -> None:
    label = "between lower and upper bound"
    axes.fill_between(x, low, high, color=_CURVE, alpha=0.3, linewidth=0, label=label)
