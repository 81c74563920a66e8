"""Figure 4 of Bu et al. (2020): less noise for the same promise, and how much less is honest.

``python -m experiments run gdp_noise_saved``: on two CPU cores about two minutes (``quick``: the
top half for four epochs, the bottom half by its accounts alone) or most of an hour (``paper``: 20
and 70 epochs with each noise; expect test accuracies of about 95 and 97 %).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from typing import Any

import numpy as np

from experiments.gdp.mnist_training import Curve, Settings, load_mnist, note, train
from experiments.gdp.noise_accounts import (
    ACCOUNTS,
    by_epoch,
    by_noise,
    least_noise,
)
from experiments.gdp.noise_figures import figures
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_QUICK_EPOCHS = {"top": 4, "bottom": 0}
_LEVELS = (95, 96, 97)
_BUDGET = 4.0
_ACCURACY, _CURVE = "test accuracy %", "accuracy % by epoch"
_WITHIN_OWN, _WITHIN_CERTIFIED = (
    f"accuracy, {whose} ε ≤ 4, %" for whose in ("its account's", "certified")
)


@dataclass(frozen=True)
class Half:
    """One half of the figure: a promise, kept with the noise that each account asks for.

    Attributes:
      epsilon: of the promise, at delta = 1e-5.
      epochs: after which it is to hold.
      noises: the noise multipliers, one for each of ``ACCOUNTS``. Those by MA and by CLT are
        printed; that by the tight account is a calibration's, rounded up.
      milestones: what the source prints of the runs by MA and by CLT.
    """

    epsilon: float
    epochs: int
    noises: Sequence[float]
    milestones: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _milestones(epochs: Sequence[int], accuracy: float) -> dict[str, float]:
    """Names the epochs to each level of accuracy, and the accuracy within the budget."""
    return {**dict(zip(map(_to_level, _LEVELS), epochs, strict=True)), _WITHIN_OWN: accuracy}


def _to_level(level: int) -> str:
    return f"epochs to {level} % right"


HALVES = {
    "top": Half(1.34, 20, (1.3, 1.06, 1.092)),
    "bottom": Half(
        8.68,
        70,
        (0.7, 0.638, 0.656),
        {"MA": _milestones((23, 33, 64), 92.0), "CLT": _milestones((18, 26, 45), 96.0)},
    ),
}


def _rows(profile: str) -> list[Row]:
    return [
        _row(name, account, noise, _QUICK_EPOCHS[name] if profile == "quick" else half.epochs)
        for name, half in HALVES.items()
        for account, noise in zip(ACCOUNTS, half.noises, strict=True)
    ]


def _row(name: str, account: str, noise: float, epochs: int) -> Row:
    half = HALVES[name]
    training = Settings(0.15, 1.5, noise, published_epochs=half.epochs, epochs=epochs)
    settings = {"account": account, "promised_epsilon": half.epsilon}
    printed = {"σ": noise, f"{account} ε": half.epsilon, **half.milestones.get(account, {})}
    source = {"σ": None} if account == "PLD" else printed
    return Row(f"{name}: {account}", {**settings, **dataclasses.asdict(training)}, source)


def _run_row(row: Row, context: RowContext) -> Result:
    training = dict(row.settings)
    account, target = training.pop("account"), training.pop("promised_epsilon")
    settings = Settings(**training)
    spent = by_epoch(settings)
    final = {name: curve[-1][1] for name, curve in spent.items()}
    result = Result(
        measured={
            "σ": least_noise(account, settings, target),
            "MA ε": final["MA"],
            "CLT ε": final["CLT"],
        },
        certified={"ε": final["PLD"]},
        note="The bottom half is not trained in this profile: its accounts alone.",
        series={"ε by epoch": spent, "ε by σ": by_noise(settings, _noises(row))},
    )
    return _with_training(result, settings, row, context) if settings.epochs else result


def _half(row: Row) -> Half:
    return HALVES[row.name.split(": ")[0]]


def _noises(row: Row) -> Sequence[float]:
    """Noises around those of the row's half: in the first row of the half, which stands for it."""
    if row.settings["account"] != ACCOUNTS[0]:
        return ()
    noises = _half(row).noises
    return np.linspace(0.95 * min(noises), 1.03 * max(noises), 12).tolist()


def _with_training(result: Result, settings: Settings, row: Row, context: RowContext) -> Result:
    """Trains, and adds what was seen."""
    data = load_mnist()
    run, curve = train(settings, data, context.folder)
    as_run = run.certificate(settings.delta)
    reached = _reached(curve, result.series["ε by epoch"], row.settings["account"])
    return dataclasses.replace(
        result,
        measured={
            **result.measured,
            _ACCURACY: curve[-1][1],
            **(reached if _half(row).milestones else {}),
        },
        certified={**result.certified, "ε, as run": as_run.epsilon},
        note=note(settings, data),
        series={**result.series, _CURVE: curve},
        certificate=str(as_run),
    )


def _reached(curve: Curve, spent: Mapping[str, Curve], account: str) -> dict[str, Any]:
    """The milestones of a run, as the source prints them; ``None`` for what it did not reach."""
    within = {_WITHIN_OWN: account, _WITHIN_CERTIFIED: "PLD"}
    return {
        **{_to_level(level): _epochs_to(curve, level) for level in _LEVELS},
        **{name: _accuracy_within(curve, spent[account]) for name, account in within.items()},
    }


def _epochs_to(curve: Curve, level: float) -> int | None:
    return next((round(epoch) for epoch, accuracy in curve if accuracy >= level), None)


def _accuracy_within(curve: Curve, spent: Curve) -> float | None:
    """The accuracy after the last epoch that the budget pays for."""
    paid = sum(epsilon <= _BUDGET for _, epsilon in spent)
    return curve[paid - 1][1] if 1 <= paid <= len(curve) else None


def _remarks(records: Sequence[Record]) -> list[str]:
    halves = [(name, _by_account(records, name)) for name in HALVES]
    return [
        remark
        for name, half in halves
        if len(half) == len(ACCOUNTS)
        for remark in (_honest_gain(name, half), *_seen(name, half))
    ]


def _by_account(records: Sequence[Record], half: str) -> dict[str, Record]:
    return {
        record.settings["account"]: record
        for record in records
        if record.row.startswith(f"{half}:")
    }


def _honest_gain(name: str, half: Mapping[str, Record]) -> str:
    """How much of the noise that the source saves a tight account allows to be saved."""
    noise = {account: half[account].settings["noise_multiplier"] for account in ACCOUNTS}
    share = (noise["MA"] - noise["PLD"]) / (noise["MA"] - noise["CLT"])
    epsilon = half["MA"].settings["promised_epsilon"]
    return (
        f"{name.capitalize()}: for ({epsilon}, 1e-5) the source lowers σ from {noise['MA']} to"
        f" {noise['CLT']}. A tight account allows {noise['PLD']}: {share:.0%} of that is honest"
        f" gain. With the rest the promise is broken: σ = {noise['CLT']} costs"
        f" {_upwards(half['CLT'])}, while σ = {noise['MA']} costs only {_upwards(half['MA'])}."
    )


def _seen(name: str, half: Mapping[str, Record]) -> list[str]:
    """The accuracies of the three runs beside each other, where all were trained alike."""
    if not all(_CURVE in record.series for record in half.values()):
        return []
    accuracies = [f"{half[account].measured[_ACCURACY]:.1f}" for account in ACCOUNTS]
    epochs = half["MA"].settings["epochs"]
    return [
        f"{name.capitalize()}: after {epochs} epochs the runs by {', '.join(ACCOUNTS)} reach"
        f" {', '.join(accuracies)} %, one seed each."
    ]


def _upwards(record: Record) -> str:
    return format_value(record.certified["ε"], rounding=ROUND_CEILING)


EXPERIMENT = Experiment(
    name="gdp_noise_saved",
    title="Less noise for the same promise, on MNIST",
    source="Bu, Dong, Long and Su (2020), Figure 4",
    description=(
        "The CNN of Table 1, η = 0.15, R = 1.5. A promise is made, (1.34, 1e-5) after 20 epochs"
        " (top) or (8.68, 1e-5) after 70 (bottom), and σ is what each account asks for it: MA, the"
        " moments accountant; CLT, the central limit, with which the source replaces it; and PLD,"
        " the tight account, which the source has not and which alone is certified.\n\n"
        "Measured σ is solved for the promise; each run uses the source's rounded one, or for PLD"
        " the calibrated one rounded up. Every ε is for the published number of epochs on 60,000"
        " images but for the one as run."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: load_mnist().name,
    figures=figures,
    remarks=_remarks,
)
