"""Figure 4 of Bu et al. (2020): noise needed for a target epsilon by each accountant.

``python -m experiments run gdp_noise_saved``: on two CPU cores about a minute (``quick``: the
top half for one epoch, the bottom half by accounting only) or most of an hour (``paper``: 20
and 70 epochs with each noise; expect test accuracies of about 95 and 97 %).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq

import dpjax
from dpjax.accounting import gdp, log_moments
from experiments.gdp.mnist import (
    ACCURACY,
    CURVE,
    PUBLISHED_SIZE,
    Settings,
    data_set,
    fit,
    note,
)
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.plots import draw_curve, set_epoch_axis
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.training import Curve
from experiments.lib.verdicts import compare_published, format_upper_bound

# Accountants by name: label and colour. Only PLD is certified.
ACCOUNTS = {
    "MA": ("moments accountant", SOURCE),
    "CLT": ("central limit", MEASURED),
    "PLD": ("certified (PLD)", CERTIFIED),
}
_NOISE_RANGE = 0.4, 10.0
_QUICK_EPOCHS = {"top": 1, "bottom": 0}
_LEVELS = (95, 96, 97)
_BUDGET = 4.0
_TO_LEVEL = {level: f"epochs to {level} % right" for level in _LEVELS}
_WITHIN_OWN, _WITHIN_CERTIFIED = (
    f"accuracy, {whose} ε ≤ 4, %" for whose in ("its account's", "certified")
)


@dataclass(frozen=True)
class Half:
    """One half of the figure: target epsilon, and the noise needed by each accountant."""

    epsilon: float  # the target, at delta = 1e-5
    epochs: int  # number of epochs for the target
    # the noise multipliers, one for each of ACCOUNTS. Those by MA and by CLT are printed; that by
    # the tight account is calibrated, rounded up
    noises: Sequence[float]
    # what the source prints of the runs by MA and by CLT
    milestones: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _milestones(epochs: Sequence[int], accuracy: float) -> dict[str, float]:
    """Returns the published epochs to each accuracy and the accuracy within the budget."""
    return {**dict(zip(_TO_LEVEL.values(), epochs, strict=True)), _WITHIN_OWN: accuracy}


HALVES = {
    "top": Half(1.34, 20, (1.3, 1.06, 1.092)),
    "bottom": Half(
        8.68,
        70,
        (0.7, 0.638, 0.656),
        {"MA": _milestones((23, 33, 64), 92.0), "CLT": _milestones((18, 26, 45), 96.0)},
    ),
}


def compute_epsilon(account: str, settings: Settings, epochs: int) -> float:
    """Returns epsilon of ``epochs`` epochs on 60,000 images, by one of ``ACCOUNTS``.

    >>> settings = Settings(0.15, 1.5, 0.638, published_epochs=70, epochs=70)
    >>> [round(compute_epsilon(account, settings, 70), 1) for account in ACCOUNTS]
    [11.5, 8.7, 9.5]
    """
    mechanism = settings.mechanism(PUBLISHED_SIZE, epochs)
    rate = settings.expected_batch_size / PUBLISHED_SIZE
    release = settings.noise_multiplier, rate, mechanism.num_steps
    if account == "MA":
        return float(log_moments.compute_epsilon(*release, settings.delta))
    if account == "CLT":
        return gdp.epsilon(gdp.poisson_clt_mu(*release), settings.delta)
    return dpjax.accounting.epsilon(
        mechanism.event, settings.delta, adjacency=mechanism.adjacency, method="pld"
    )


def min_noise_multiplier(account: str, settings: Settings, target: float) -> float:
    """Returns the noise multiplier at which the published epochs have epsilon ``target``.

    For the central limit it solves ``epsilon_CLT(mu) = target`` and
    ``p sqrt(T (exp(1 / sigma^2) - 1)) = mu``; for PLD the target is certified.
    """
    if account == "PLD":
        calibrated = dpjax.calibrate(settings.published, epsilon=target, delta=settings.delta)
        return float(np.max(calibrated.noise_multiplier))
    return float(brentq(lambda x: _with_noise(account, settings, x) - target, *_NOISE_RANGE))


def _with_noise(account: str, settings: Settings, noise: float) -> float:
    changed = dataclasses.replace(settings, noise_multiplier=float(noise))
    return compute_epsilon(account, changed, settings.published_epochs)


def rows(profile: str) -> list[Row]:
    rows = []
    for name, half in HALVES.items():
        epochs = _QUICK_EPOCHS[name] if profile == "quick" else half.epochs
        for account, noise in zip(ACCOUNTS, half.noises, strict=True):
            training = Settings(0.15, 1.5, noise, published_epochs=half.epochs, epochs=epochs)
            settings = {"account": account, "promised_epsilon": half.epsilon}
            printed = {"σ": noise, f"{account} ε": half.epsilon, **half.milestones.get(account, {})}
            source = {"σ": None} if account == "PLD" else printed
            rows.append(
                Row(f"{name}: {account}", {**settings, **dataclasses.asdict(training)}, source)
            )
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    arguments = dict(row.settings)
    account, target = arguments.pop("account"), arguments.pop("promised_epsilon")
    settings, half = Settings(**arguments), HALVES[row.name.split(": ")[0]]
    epochs = range(1, settings.published_epochs + 1)
    epsilons: dict[str, Curve] = {
        name: [(float(n), compute_epsilon(name, settings, n)) for n in epochs] for name in ACCOUNTS
    }
    # Epsilon over noise is drawn once for each half.
    noises: Sequence[float] = ()
    if account == "MA":
        noises = np.linspace(0.95 * min(half.noises), 1.03 * max(half.noises), 12).tolist()
    by_noise = {
        name: [(noise, _with_noise(name, settings, noise)) for noise in noises] for name in ACCOUNTS
    }
    result = Result(
        measured={
            "σ": min_noise_multiplier(account, settings, target),
            "MA ε": epsilons["MA"][-1][1],
            "CLT ε": epsilons["CLT"][-1][1],
        },
        certified={"ε": epsilons["PLD"][-1][1]},
        note="The bottom half is not trained in this profile.",
        series={"ε by epoch": epsilons, "ε by σ": by_noise},
    )
    if not settings.epochs:
        return result
    data = data_set()
    training = fit(settings, data, context.folder)
    as_run = training.certificate(settings.delta)
    reached = _reached(training.curve, epsilons, account) if half.milestones else {}
    return dataclasses.replace(
        result,
        measured={**result.measured, ACCURACY: training.curve[-1][1], **reached},
        certified={**result.certified, "ε, as run": as_run.epsilon},
        note=note(settings, data),
        series={**result.series, CURVE: training.curve},
        certificate=str(as_run),
    )


def _reached(curve: Curve, epsilons: Mapping[str, Curve], account: str) -> Values:
    """Returns the milestones of a run, ``None`` if not reached."""
    found: dict[str, Any] = {
        name: next((round(epoch) for epoch, accuracy in curve if accuracy >= level), None)
        for level, name in _TO_LEVEL.items()
    }
    for name, accountant in ((_WITHIN_OWN, account), (_WITHIN_CERTIFIED, "PLD")):
        epochs = sum(epsilon <= _BUDGET for _, epsilon in epsilons[accountant])
        found[name] = curve[epochs - 1][1] if 1 <= epochs <= len(curve) else None
    return found


def _halves(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Groups the records by half and then by account."""
    halves: dict[str, dict[str, Record]] = {}
    for record in records:
        half = halves.setdefault(record.row.split(": ")[0], {})
        half[record.settings["account"]] = record
    return halves


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    halves = _halves(records)
    return {
        "training": _training_figure(halves),
        "noise": _noise_figure(halves),
    }


def _training_figure(halves: Mapping[str, Mapping[str, Record]]) -> Figure:
    figure, axes = new_figure(len(halves), 2, width=9.6, height=3.7 * len(halves))
    for place, (name, half) in enumerate(halves.items()):
        left, right = axes[2 * place : 2 * place + 2]
        _draw_accuracies(left, half)
        left.set(title=f"{name}: accuracy", ylabel="test accuracy (%)")
        for account, record in half.items():
            style, epsilons = _style(record), record.series["ε by epoch"]
            right.plot(*zip(*epsilons["PLD"], strict=True), **style)
            if account != "PLD":
                points = zip(*epsilons[account], strict=True)
                right.plot(*points, color=style["color"], linestyle="--")
        right.axhline(_target(half), color="black", linestyle=":", linewidth=1)
        right.legend(loc="lower right")
        right.set(title=f"{name}: ε at δ = 1e-5", ylabel="ε", ylim=(0, None))
        set_epoch_axis(left)
        set_epoch_axis(right)
    return figure


def _draw_accuracies(axes: Axes, half: Mapping[str, Record]) -> None:
    trained = [record for record in half.values() if CURVE in record.series]
    for record in trained:
        draw_curve(axes, *zip(*record.series[CURVE], strict=True), **_style(record))
    if trained:
        axes.legend(loc="lower right")
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "not trained in this profile", ha="center", transform=axes.transAxes)


def _noise_figure(halves: Mapping[str, Mapping[str, Record]]) -> Figure:
    figure, axes = new_figure(columns=len(halves), width=4.8 * len(halves), height=3.8)
    for axis, (name, half) in zip(axes, halves.items(), strict=True):
        target = _target(half)
        for account, curve in next(iter(half.values())).series["ε by σ"].items():
            label, colour = ACCOUNTS[account]
            axis.plot(*zip(*curve, strict=True), color=colour, label=label)
        axis.axhline(target, color="black", linestyle=":", linewidth=1)
        for account, record in half.items():
            noise, colour = record.settings["noise_multiplier"], ACCOUNTS[account][1]
            axis.plot(noise, target, "o", color=colour)
            # On the side of the point where no curve passes.
            side = -1 if account == "CLT" else 1
            axis.annotate(
                f"{noise:g}",
                (noise, target),
                (6 * side, 9 * side - 4),
                textcoords="offset points",
                color=colour,
                ha="left" if side > 0 else "right",
            )
        axis.set(title=name, xlabel="noise multiplier σ", ylabel="ε at δ = 1e-5")
    axes[0].legend(loc="upper right")
    return figure


def _style(record: Record) -> Values:
    account, noise = record.settings["account"], record.settings["noise_multiplier"]
    return {"color": ACCOUNTS[account][1], "label": f"{account}: σ = {noise:g}"}


def _target(half: Mapping[str, Record]) -> float:
    return next(iter(half.values())).settings["promised_epsilon"]


def remarks(records: Sequence[Record]) -> list[str]:
    remarks = []
    for name, half in _halves(records).items():
        if len(half) < len(ACCOUNTS):
            continue
        noise = {account: half[account].settings["noise_multiplier"] for account in ACCOUNTS}
        cost = {
            account: format_upper_bound(record.certified["ε"]) for account, record in half.items()
        }
        share = (noise["MA"] - noise["PLD"]) / (noise["MA"] - noise["CLT"])
        remarks.append(
            f"{name.capitalize()}: for ({_target(half)}, 1e-5) the source reduces σ from"
            f" {noise['MA']} to {noise['CLT']}. A tight accountant certifies {noise['PLD']},"
            f" {share:.0%} of that reduction. The certified ε is {cost['CLT']} at σ ="
            f" {noise['CLT']}, above the target, and {cost['MA']} at σ = {noise['MA']}."
        )
        if all(CURVE in record.series for record in half.values()):
            accuracies = [f"{half[account].measured[ACCURACY]:.1f}" for account in ACCOUNTS]
            remarks.append(
                f"{name.capitalize()}: after epoch {half['MA'].settings['epochs']} the runs by"
                f" {', '.join(ACCOUNTS)} reach {', '.join(accuracies)} %, one seed each."
            )
    return remarks


def finding(records: Sequence[Record]) -> Finding:
    limits = [record for record in records if record.settings["account"] == "CLT"]
    exceeded = [r for r in limits if r.certified["ε"] > r.settings["promised_epsilon"]]
    found = " and ".join(
        f"{format_upper_bound(record.certified['ε'])} for the target"
        f" {record.settings['promised_epsilon']:g}"
        for record in limits
    )
    clause = f"with the noise of the central limit the certified ε is {found}" if limits else ""
    comparison = compare_published(records, "σ", 0.01, "published noise multipliers")
    return comparison.finding(clause, bool(exceeded))
