"""Figure of a certificate: its trade-off function and the ROC curve of any attack."""

import math
from typing import TYPE_CHECKING

import numpy as np

from dpjax._extras import requires_extra
from dpjax.accounting.loss_distribution import Array
from dpjax.accounting.risk import FALSE_POSITIVE_RATES, minimum_error_sum
from dpjax.accounting.tradeoff import ApproximateDP, TradeOff
from dpjax.certificates.render import round_down, round_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpjax.certificates.certificate import Certificate

_CURVE, _EPSILON_DELTA, _ATTACK, _GUESS = "#009e73", "#0072b2", "#d55e00", "#6b6f76"
_LEAST_LEVEL = 1e-6
# Dense near both ends, where the curves are steep or flat.
_TAIL = np.geomspace(1e-9, 0.01, 100)
_LEVELS = np.concatenate([[0.0], _TAIL, np.linspace(0.01, 0.99, 300)[1:-1], 1 - _TAIL[::-1], [1.0]])


def plot_certificate(certificate: "Certificate") -> "Figure":
    """Returns a figure of the certified trade-off function, left, and of the ROC curve, right.

    The area between the certified curve and its upper bound is shaded; it is often thinner than
    the line.
    """
    with requires_extra("plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    errors, rates = figure.subplots(1, 2)
    _plot_tradeoff(errors, certificate)
    _plot_roc(rates, certificate)
    name, _ = _epsilon_delta(certificate)
    figure.suptitle(f"{name}: any attack that decides {certificate.attack_goal}", fontsize=10)
    return figure


def _plot_tradeoff(axes: "Axes", certificate: "Certificate") -> None:
    """Type II error against type I error, with the point of the minimum sum."""
    # The certified curve, up to its upper bound.
    alphas = _LEVELS
    axes.plot(alphas, 1 - alphas, ":", color=_GUESS, label="guessing")
    axes.plot(alphas, certificate.curve(alphas), color=_CURVE, label="certified trade-off function")
    if certificate.curve_upper is not None:
        _shade(axes, alphas, certificate.curve(alphas), certificate.curve_upper(alphas))

    # What epsilon at the one delta says, and the best attack by the sum of its errors.
    name, pair_curve = _epsilon_delta(certificate)
    if pair_curve is not None:
        label = f"{name} only"
        axes.plot(alphas, pair_curve(alphas), "--", color=_EPSILON_DELTA, label=label)
    total = minimum_error_sum(certificate.curve)
    label = f"minimum sum of errors: {round_down(total)}"
    axes.plot(total / 2, total / 2, "o", color=_ATTACK, clip_on=False, label=label)

    axes.set(xlabel="type I error (false positives)", ylabel="type II error (false negatives)")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _plot_roc(axes: "Axes", certificate: "Certificate") -> None:
    """True against false positive rate, both logarithmic, with the certificate's risks marked."""
    # The certified rate, down to its lower bound.
    levels = np.geomspace(_LEAST_LEVEL, 1.0, 400)
    axes.loglog(levels, levels, ":", color=_GUESS, label="guessing")
    detected = certificate.curve.true_positive_rate(levels)
    axes.loglog(levels, detected, color=_CURVE, label="certified upper bound")
    if certificate.curve_upper is not None:
        _shade(axes, levels, certificate.curve_upper.true_positive_rate(levels), detected)

    # What epsilon at the one delta says.
    name, pair_curve = _epsilon_delta(certificate)
    if pair_curve is not None:
        label = f"{name} only"
        rates = pair_curve.true_positive_rate(levels)
        axes.loglog(levels, rates, "--", color=_EPSILON_DELTA, label=label)

    # The risks of the certificate.
    marks = np.array(FALSE_POSITIVE_RATES)
    marked = certificate.curve.true_positive_rate(marks)
    label = "upper bound on TPR at given FPR"
    axes.loglog(marks, marked, "o", color=_ATTACK, clip_on=False, zorder=5, label=label)
    for level, rate in zip(marks.tolist(), marked.tolist(), strict=True):
        place = (6, -11)
        note = axes.annotate(round_up(rate), (level, rate), place, textcoords="offset points")
        note.set(fontsize=8, bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5})

    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set(xlim=(_LEAST_LEVEL, 1), ylim=(_LEAST_LEVEL, 1.5))
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _shade(axes: "Axes", levels: Array, low: Array, high: Array) -> None:
    axes.fill_between(
        levels,
        low,
        high,
        color=_CURVE,
        alpha=0.3,
        linewidth=0,
        label="between lower and upper bound",
    )


def _epsilon_delta(certificate: "Certificate") -> tuple[str, TradeOff | None]:
    """Returns the name of the guarantee, and its trade-off function if epsilon is finite."""
    label = f"({round_up(certificate.epsilon)}, {certificate.delta:g})-DP"
    if math.isinf(certificate.epsilon):
        return label, None
    return label, ApproximateDP(certificate.epsilon, slack=certificate.delta)
