"""The pictures of figure 4 of Bu et al. (2020), drawn from its records."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.registry import Record

_COLOURS = {"MA": SOURCE, "CLT": MEASURED, "PLD": CERTIFIED}
_LABELS = {"MA": "moments accountant", "CLT": "central limit", "PLD": "certified (PLD)"}
_TRAINING = (
    "Figure 4, with a third run by a tight account. Left: test accuracy by epoch. Right: ε by"
    " epoch; dashed what the account that chose the noise says, solid what is certified; dotted the"
    " promise. By the central limit the solid line passes the promise; by the moments accountant it"
    " stays far below."
)
_NOISE = (
    "Which noise a promise (dotted) asks for: ε at the published number of epochs by each account,"
    " over σ. Between the grey and the green crossing lies the honest gain; between the green and"
    " the blue one, what the central limit promises too much."
)


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """Returns the figure itself, and what noise costs by each account."""
    halves: dict[str, list[Record]] = {}
    for record in records:
        halves.setdefault(record.row.split(": ")[0], []).append(record)
    return {
        "training": (_training_figure(halves), _TRAINING),
        "noise": (_noise_figure(halves), _NOISE),
    }


def _training_figure(halves: Mapping[str, Sequence[Record]]) -> Figure:
    figure, axes = new_figure(len(halves), 2, width=9.6, height=3.7 * len(halves))
    for place, (name, records) in enumerate(halves.items()):
        left, right = axes[2 * place : 2 * place + 2]
        _draw_accuracies(left, records)
        left.set(title=f"{name}: accuracy", xlabel="epoch", ylabel="test accuracy (%)")
        _draw_spending(right, records)
        right.set(title=f"{name}: ε at δ = 1e-5", xlabel="epoch", ylabel="ε", ylim=(0, None))
        for axis in (left, right):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _draw_accuracies(axes: Axes, records: Sequence[Record]) -> None:
    trained = [record for record in records if "accuracy % by epoch" in record.series]
    for record in trained:
        epochs, accuracies = zip(*record.series["accuracy % by epoch"], strict=True)
        axes.plot(epochs, accuracies, color=_colour(record), label=_label(record))
    if trained:
        axes.legend(loc="lower right")
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "not trained in this profile", ha="center", transform=axes.transAxes)


def _draw_spending(axes: Axes, records: Sequence[Record]) -> None:
    for record in records:
        account, spent = record.settings["account"], record.series["ε by epoch"]
        axes.plot(*zip(*spent["PLD"], strict=True), color=_colour(record), label=_label(record))
        if account != "PLD":
            axes.plot(*zip(*spent[account], strict=True), color=_colour(record), linestyle="--")
    axes.axhline(records[0].settings["promised_epsilon"], color="black", linestyle=":", linewidth=1)
    axes.legend(loc="lower right")


def _noise_figure(halves: Mapping[str, Sequence[Record]]) -> Figure:
    figure, axes = new_figure(columns=len(halves), width=4.8 * len(halves), height=3.8)
    for axis, (name, records) in zip(axes, halves.items(), strict=True):
        _draw_costs(axis, records)
        axis.set(title=name, xlabel="noise multiplier σ", ylabel="ε at δ = 1e-5")
    axes[0].legend(loc="upper right")
    return figure


def _draw_costs(axes: Axes, records: Sequence[Record]) -> None:
    target = records[0].settings["promised_epsilon"]
    for account, curve in records[0].series["ε by σ"].items():
        axes.plot(*zip(*curve, strict=True), color=_COLOURS[account], label=_LABELS[account])
    axes.axhline(target, color="black", linestyle=":", linewidth=1)
    for record in records:
        noise = record.settings["noise_multiplier"]
        axes.plot(noise, target, "o", color=_colour(record))
        # On the side of the point where no curve passes.
        side = -1 if record.settings["account"] == "CLT" else 1
        axes.annotate(
            f"{noise:g}",
            (noise, target),
            (6 * side, 9 * side - 4),
            textcoords="offset points",
            color=_colour(record),
            ha="left" if side > 0 else "right",
        )


def _colour(record: Record) -> str:
    return _COLOURS[record.settings["account"]]


def _label(record: Record) -> str:
    account, noise = record.settings["account"], record.settings["noise_multiplier"]
    return f"{account}: σ = {noise:g}"
