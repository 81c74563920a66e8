"""How far to clip: error of a private regression against the bounds, on simulated data and wine.

``python -m experiments run bayes_clipping``: some seconds, the same in both profiles.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.regression import RegressionBounds
from dpjax.datasets import load_wine
from experiments.bayes.wine_fits import FITS
from experiments.bayes.wine_runs import (
    ADJACENCY,
    Fit,
    Records,
    draw_splits,
    posteriors,
    scaled,
    score,
    sums,
)
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_EPSILON, _DELTA = 1.0, 1e-4
_NUM_RECORDS, _NUM_FEATURES, _NUM_TRAIN = 4_878, 10, 1_000
_NUM_REPEATS, _SEED = 40, 0
_SIMULATED, _WINE = "simulated", "wine"
# Of the error without privacy: how much more the picture shows.
_SHOWN = 1.3
_FACTORS = tuple(float(factor) for factor in np.round(np.geomspace(0.1, 4.0, 13), 3))


def bounded(records: Records, which: str, factor: float) -> Records:
    """Returns the records with one or both of their bounds times ``factor``.

    Args:
      records: with bounds that are the typical sizes.
      which: ``"B_x"``, ``"B_y"`` or ``"both"``.
      factor: above zero.
    """
    of_x = factor if which in ("B_x", "both") else 1.0
    of_y = factor if which in ("B_y", "both") else 1.0
    bounds = RegressionBounds(
        x_norm=of_x * records.bounds.x_norm, y_size=of_y * records.bounds.y_size
    )
    return records._replace(bounds=bounds)


def simulate(num_examples: int, num_features: int, seed: int) -> Records:
    """Returns normal features and targets, of variance one; half of the targets' is noise.

    The bounds are the root mean squares of a record's norm and of a target.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features))
    direction = rng.standard_normal(num_features)
    signal = x @ direction / np.linalg.norm(direction)
    y = (signal + rng.standard_normal(num_examples)) / np.sqrt(2)
    bounds = RegressionBounds(x_norm=float(np.sqrt(num_features)), y_size=1.0)
    return Records(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), 1.0, bounds)


@functools.cache
def _records(data: str) -> Records:
    if data == _SIMULATED:
        return simulate(_NUM_RECORDS, _NUM_FEATURES, _SEED)
    return scaled(load_wine())


def _rows(profile: str) -> list[Row]:
    common = {"epsilon": _EPSILON, "delta": _DELTA, "factors": list(_FACTORS)}
    common |= {"repeats": _NUM_REPEATS, "seed": _SEED}
    return [
        Row(
            f"{data}, {which}",
            {**common, "data": data, "which": which, "num_train": num_train},
            {},
        )
        for data, num_train in ((_SIMULATED, _NUM_TRAIN), (_WINE, 2 * _NUM_TRAIN))
        for which in ("B_x", "B_y", "both")
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    records = _records(row.settings["data"])
    splits = draw_splits(records, row.settings["num_train"], _NUM_REPEATS, _SEED)

    def error(fit: Fit) -> float:
        return float(score(fit.posteriors, records, splits).error.mean())

    key = jax.random.key(_SEED)
    plain = error(FITS["not private"](records, splits, key, _EPSILON, _DELTA))
    noisy, clipped, fit = [], [], None
    for factor in row.settings["factors"]:
        own = bounded(records, row.settings["which"], factor)
        fit = FITS["trusted, Gaussian"](own, splits, key, _EPSILON, _DELTA)
        noisy.append(error(fit))
        clipped.append(error(Fit(posteriors(sums(own, splits, own.bounds), splits), None)))
    assert fit is not None
    assert fit.mechanism is not None
    best = int(np.argmin(noisy))
    return Result(
        measured={
            "best factor": row.settings["factors"][best],
            "MAE, best": noisy[best],
            "of it clipping alone": clipped[best],
            "MAE, largest bound": noisy[-1],
            "MAE, not private": plain,
        },
        certified={
            "ε": certified_epsilon(fit.mechanism.event, _DELTA, adjacency=ADJACENCY),
        },
        note=_note(row),
        series={"noisy": noisy, "clipped": clipped, "not private": plain},
        certificate=str(fit.mechanism.certificate(_DELTA)),
    )


def _note(row: Row) -> str:
    data = load_wine().note if row.settings["data"] == _WINE else "Simulated normal data."
    return (
        f"{data} Seeded keys: the noise is reproducible, so these runs are not private. The ε is"
        " that of one run with one bound: to choose the best of several by their errors costs more."
    )


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    data = list(dict.fromkeys(record.settings["data"] for record in records))
    figure, axes = new_figure(len(data), 3, width=9.6, height=3.0 * len(data) + 0.4)
    panels = iter(axes)
    for name in data:
        own = [record for record in records if record.settings["data"] == name]
        highest = _SHOWN * own[0].series["not private"]
        for record in own:
            _draw(next(panels), record, highest)
    for panel in panels:
        panel.set_axis_off()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return {"bounds": (figure, _CAPTION)}


_CAPTION = (
    "Mean absolute error against the bounds, in units of the typical sizes (ε = 1, δ = 1e-4)."
    " Small bounds distort, as clipping without noise shows, and large ones call for more noise:"
    " the dot is the best. Small bounds on x alone leave the picture. Small ones on both distort"
    " little, since they shorten features and targets alike."
)


def _draw(axes: Axes, record: Record, highest: float) -> None:
    factors, series = record.settings["factors"], record.series
    axes.axhline(series["not private"], color=SOURCE, linewidth=1, label="not private")
    axes.plot(factors, series["clipped"], "--", color=CERTIFIED, label="clipped, no noise")
    axes.plot(factors, series["noisy"], color=MEASURED, label="clipped and noisy")
    best = int(np.argmin(series["noisy"]))
    axes.plot(factors[best], series["noisy"][best], "o", color=MEASURED)
    margin = 0.05 * (highest - series["not private"])
    axes.set_ylim(series["not private"] - margin, highest + margin)
    axes.set(xscale="log", title=record.row, xlabel="bound over typical size")
    axes.set_xticks([0.1, 0.3, 1, 3], labels=["0.1", "0.3", "1", "3"])
    axes.minorticks_off()
    if record.settings["which"] == "B_x":
        axes.set_ylabel("mean absolute error")


def _remarks(records: Sequence[Record]) -> list[str]:
    return [
        f"{record.row}: best at {format_value(record.measured['best factor'])} times the typical"
        f" size; four times the typical size costs"
        f" {100 * (record.measured['MAE, largest bound'] / record.measured['MAE, best'] - 1):.1f} %"
        " more error."
        for record in records
        if record.settings["which"] == "both"
    ]


EXPERIMENT = Experiment(
    name="bayes_clipping",
    title="The effect of smaller bounds on a private regression",
    source="Honkela (2017), slides: decreasing B_x and B_y",
    description=(
        "Linear regression from perturbed statistics at ε = 1, δ = 1e-4 (Gaussian noise, neighbours"
        " differ by the presence of one record), with the bound B_x on a record's norm, B_y on its"
        " target, or both, from a tenth to four times the typical size, the other being at it."
        " Simulated: 10 normal features, half of the target's variance noise, 1,000 training"
        " records, for which typical is the root mean square. Wine: as in bayes_wine. Means over 40"
        " repeats. The numbers behind the source's figure are not printed."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: load_wine().name,
    figures=_figures,
    remarks=_remarks,
)
