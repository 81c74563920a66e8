"""What the report shows and says of the MovieLens table."""

from collections.abc import Sequence
from decimal import ROUND_CEILING

from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record

_GROUPS = ("the fewest that are a group", "the median user", "the most active user")


def figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """The networks' error as they train, and every model's error."""
    training = "Test error of the networks as they train; a pass is over the ratings or the users."
    models = (
        "Test error of every model at the end: measured, green where the run was private. Grey"
        " squares: the source's, shown where the data are MovieLens."
    )
    drawn = {"models": (_models_figure(records), models)}
    curves = [record for record in records if "RMSE by epoch" in record.series]
    return {"training": (_training_figure(curves), training), **drawn} if curves else drawn


def _training_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure()
    for record, colour in zip(records, PALETTE, strict=False):
        passes, errors = zip(*record.series["RMSE by epoch"], strict=True)
        axes.plot(passes, errors, color=colour, marker="o", markersize=3, label=record.row)
    axes.set(xlabel="passes over the training data", ylabel="test RMSE", xscale="log")
    axes.legend(loc="best")
    return figure


def _models_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(height=3.6)
    ordered = sorted(records, key=lambda record: -record.measured["RMSE"])
    for place, record in enumerate(ordered):
        printed = record.source["RMSE"]
        if record.data == "movielens" and isinstance(printed, float):
            axes.plot(printed, place, "s", color=SOURCE, markersize=7)
        colour = CERTIFIED if record.certified else MEASURED
        axes.plot(record.measured["RMSE"], place, "o", color=colour)
    axes.set_yticks(range(len(ordered)), [record.row for record in ordered])
    axes.set(xlabel="test RMSE", ylim=(-0.5, len(ordered) - 0.5))
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    """What a reader must know of the numbers: the unit of privacy before all."""
    rows = {record.row: record for record in records}
    said = [
        "The films are numbered as in the published catalogue, 1 to 3,952; the source has 3,706,"
        " those with a rating. Which films have a rating is itself private.",
        "Step size, clip bound and batch size of the row by user were chosen on MovieLens 100K; a"
        " choice on the same data would cost privacy that the certificate does not count.",
    ]
    private, by_user = rows.get("private networks"), rows.get("private networks, by user")
    plain = rows.get("non-private networks")
    if private and plain and private.measured["RMSE"] < plain.measured["RMSE"]:
        said.append(
            "On these data the private network errs less than the non-private one, which fits its"
            " training ratings too closely in as many passes: noise costs no accuracy here."
        )
    if by_user:
        said = [_by_user(by_user, private), *said]
    if private:
        groups = zip(_GROUPS, private.series["groups"], strict=True)
        said = [_claim(private), *(_group(private, *group) for group in groups), *said]
    return said


def _claim(private: Record) -> str:
    certified = _upward(private.certified["ε, one rating"])
    return (
        f"The source's CLT ε = {private.source['CLT ε']} is below the certified {certified}: it"
        f" promises too much. Its MA ε = {private.source['MA ε']} is a bound, and a loose one. All"
        " three are for one rating."
    )


def _group(private: Record, whose: str, group: Sequence[float]) -> str:
    size, epsilon, delta, limit = group
    worth = "which says nothing" if delta >= 1 else "which says little"
    return (
        f"For a user of {size:,} ratings ({whose}), group privacy makes of the one-rating guarantee"
        f" ε = {_upward(epsilon)} at δ = {_upward(delta)}, {worth}; the central limit's G_kμ, an"
        f" approximation and no guarantee, has ε = {format_value(limit)} at δ ="
        f" {private.settings['delta']:g}."
    )


def _by_user(by_user: Record, private: Record | None) -> str:
    beside = f" beside {format_value(private.measured['RMSE'])}" if private else ""
    return (
        "With each user's gradient clipped as one, the certified ε ="
        f" {_upward(by_user.certified['ε, one user'])} holds for all ratings of a user at once; the"
        f" price is an RMSE of {format_value(by_user.measured['RMSE'])}{beside}. At most"
        f" {by_user.settings['num_kept']} of a user's ratings count."
    )


def _upward(value: float) -> str:
    return format_value(value, rounding=ROUND_CEILING)
