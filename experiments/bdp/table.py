"""What the rows of Table 1's networks show alike: results, figures, remarks."""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING
from typing import Any

import jax
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpjax import bdp
from experiments.bdp.classifiers import EXAMPLES, MEAN, PLAIN, Run, Settings, Task, train
from experiments.bdp.distances import CAPTION, compare, distances_figure, p_values
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.models import cross_entropy
from experiments.lib.registry import Record, Result, Row, RowContext

ACCURACY = "test accuracy %"
DP, BDP, DP_ATTACK, BDP_ATTACK = "DP ε", "BDP ε", "DP attack", "BDP attack"
_PAIRS_EPSILON = "BDP ε by the source's pairs"
_CURVE, _NORMS = "accuracy % by epoch", "norms by epoch: quantiles 0.5, 0.9, 0.99, largest"

DESCRIPTION = (
    "DP ε is certified (PLD) for every record at δ = 1e-5; BDP ε is that of the same steps for"
    " 99.999 % of the records drawn like the data, by the Bayesian accountant at δ_μ = 1e-10, from"
    " the norms that clipping has computed (add/remove). An attacker with a flat prior is right"
    " about one record at most e^ε / (1 + e^ε) of the time. The Bayesian column says nothing of"
    " outliers and rests on the assumptions that its certificate lists.\n\n"
    "“The source's protocol” is that of its published code: the mean of a batch is clipped, not"
    " its examples. One example can then carry the mean from one end of the ball to the other, so"
    " its noise is 0.5 σ in units of what is certified. Clipping to a ball never lengthens a"
    " difference, so the Bayesian account of that run is from the unclipped norms over the batch"
    " size. Beside it stands the source's own formula, from pairs of examples: not an upper bound."
    "\n\nStep sizes and clips that the source does not give were settled in a few tries with test"
    " accuracies in view, which no ε counts."
)


def published_row(
    accuracy: float, dp: tuple[float, float] | None = None, bdp: tuple[float, float] | None = None
) -> dict[str, float]:
    """The source's figures of a row: accuracy, then epsilon and attack bound by both accounts."""
    found = {ACCURACY: accuracy}
    for names, figures in (((DP, DP_ATTACK), dp), ((BDP, BDP_ATTACK), bdp)):
        found.update(zip(names, figures or (), strict=False))
    return found


def run_row(row: Row, context: RowContext, task: Task, landmark: float) -> Result:
    """Trains a row, and reads both accounts of the same steps.

    Args:
      row: of either table.
      context: unused: rows are short and keep no files.
      task: network and data.
      landmark: the accuracy (%) to which epochs are counted.
    """
    del context
    settings = Settings(**{**row.settings, "target": _pair(row.settings["target"])})
    run = train(settings, task)
    key = jax.random.key(settings.seed + 1)
    series = {
        _CURVE: run.curve,
        _NORMS: run.norms,
        "distances": compare(cross_entropy(task.model), run.params, task.data, key),
    }
    measured = {
        ACCURACY: run.curve[-1][1],
        f"epochs to {landmark:g} percent": _epochs_to(landmark, run.curve),
        "largest norm": max(q[-1] for q in run.norms),
    }
    note = _note(settings, task)
    if settings.way == PLAIN:
        return Result(measured, {}, note, series)
    return _private_result(settings, run, measured, note, series)


def _epochs_to(landmark: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """The first epoch after which this accuracy is reached, if it is."""
    return next((epoch for epoch, accuracy in curve if accuracy >= landmark), None)


def _pair(target: Any) -> Any:
    return None if target is None else tuple(target)


def _private_result(
    settings: Settings, run: Run, measured: dict[str, Any], note: str, series: dict[str, Any]
) -> Result:
    certificate = bdp.certificate(run.account, settings.delta)
    multiplier: Any = run.mechanism.noise_multiplier
    epsilon, attack = certificate.epsilon, certificate.attack_success
    if settings.way == MEAN:
        pairs = bdp.epsilon(run.published, 1e-10).bdp
        measured = {**measured, _PAIRS_EPSILON: pairs}
    else:
        measured = {**measured, "norms above the clip %": 100 * run.share_clipped}
    return Result(
        # A Bayesian epsilon rests on assumptions: it is measured, never certified.
        measured={
            **measured,
            "noise multiplier": multiplier,
            BDP: epsilon.bdp,
            BDP_ATTACK: attack.bdp,
        },
        certified={
            DP: epsilon.dp,
            DP_ATTACK: attack.dp,
            "DP ε at δ = 1e-10": bdp.epsilon(run.account, 1e-10).dp,
        },
        note=note,
        series=series,
        certificate=str(certificate),
    )


def _note(settings: Settings, task: Task) -> str:
    words = [task.data.note, "Seeded key: the noise is reproducible, so this run is not private."]
    if settings.epochs < settings.published_epochs:
        words.append(
            f"Shortened: fewer than {settings.published_epochs} epochs, so not the source's"
            " accuracy, and every ε is that of the epochs that were run."
        )
    return " ".join(words)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Accuracy by epoch, both epsilons of each run, norms, and gradient distances (Figure 2)."""
    accuracy = (
        "Left: test accuracy as training goes on, by noise. Right: both ε of the same runs, which"
        " are never to be quoted one without the other. Where many norms reach the clip bound, both"
        " accounts see the same, and the Bayesian one is the larger for its smaller δ."
    )
    norms = (
        "Norms of the drawn examples' gradients, by epoch (of the updated weights only, where few"
        " are): median, 0.99 quantile and the largest. Dotted: the clip bound. The Bayesian account"
        " is decided by the largest."
    )
    return {
        "accounts": (_accounts_figure(records), accuracy),
        "norms": (_norms_figure(records), norms),
        "distances": (distances_figure(records), CAPTION),
    }


def _accounts_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6)
    for record, colour in zip(records, PALETTE, strict=False):
        epochs, accuracies = zip(*record.series[_CURVE], strict=True)
        left.plot(epochs, accuracies, color=colour, marker="o", markersize=3, label=record.row)
    left.set(xlabel="epoch", ylabel="test accuracy (%)")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="best", fontsize=8)
    private = [record for record in records if record.certified]
    places = range(len(private))
    for name, colour, marker in ((DP, CERTIFIED, "s"), (BDP, MEASURED, "o")):
        values = [_epsilon(record, name) for record in private]
        right.plot(values, places, marker, color=colour, label=name, markersize=7)
    right.set(xlabel="ε", xscale="log", ylim=(len(private) - 0.5, -0.5))
    right.set_yticks(places, [record.row for record in private])
    right.legend()
    return figure


def _norms_figure(records: Sequence[Record]) -> Figure:
    figure, axes = new_figure(columns=len(records), width=2.6 * len(records), height=3.2)
    for axis, record in zip(axes, records, strict=True):
        quantiles = list(zip(*record.series[_NORMS], strict=True))
        epochs = range(1, len(quantiles[0]) + 1)
        for index, label in ((0, "median"), (2, "0.99 quantile"), (3, "largest")):
            axis.plot(epochs, quantiles[index], color=PALETTE[index], marker="o", label=label)
        if record.settings["way"] == EXAMPLES:
            axis.axhline(record.settings["l2_clip"], color="black", linestyle=":", linewidth=1)
        axis.set(xlabel="epoch", yscale="log")
        axis.set_title(record.row, fontsize=9)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("norm of one gradient")
    axes[0].legend(fontsize=8)
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    """What each run's accounts are worth beside each other, and the tests of Figure 2."""
    private = [record for record in records if record.certified]
    return [*map(_compared, private), *map(_tests, records)]


def _compared(record: Record) -> str:
    dp, bdp = (_upward(_epsilon(record, name)) for name in (DP, BDP))
    beside = f"{record.row}: DP ε = {dp} for every record, BDP ε = {bdp} for 99.999 % of those like"
    if record.settings["way"] == MEAN:
        claim = _upward(record.measured[_PAIRS_EPSILON])
        return (
            f"{beside} the data. One example can move the clipped mean by 2 C, so the noise"
            " promises next to nothing to an outlier. The source's formula, on pairs, gives"
            f" {claim} at δ_μ = 1e-10, and is no upper bound."
        )
    share = format_value(record.measured["norms above the clip %"])
    gains = _epsilon(record, BDP) < _epsilon(record, DP)
    verdict = (
        "here the Bayesian account does say more, of such records alone."
        if gains
        else "the Bayesian account adds nothing."
    )
    return (
        f"{beside} the data, with {share} % of the norms above the clip bound: {verdict} The cost"
        " is a mean of exponentials, which the largest norms decide."
    )


def _epsilon(record: Record, name: str) -> float:
    return (record.certified if name == DP else record.measured)[name]


def _tests(record: Record) -> str:
    ways = record.series["distances"]
    words = "; ".join(f"{way} {p_values(ways[way])}" for way in ("disjoint pairs", "all pairs"))
    return (
        f"Gradient distances of train and test, {record.row}: {words}. A p-value above 0.05 is no"
        " proof of no leak; one of all pairs takes dependent numbers for independent ones."
    )


def _upward(value: float) -> str:
    return "∞" if math.isinf(value) else format_value(value, rounding=ROUND_CEILING)
