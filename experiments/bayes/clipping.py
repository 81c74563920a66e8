"""Error of a private regression against its clipping bounds, on simulated data and on wine.

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
from experiments.bayes.wine_fits import (
    ADJACENCY,
    Records,
    Task,
    draw_splits,
    exact_statistics,
    non_private,
    perturbed_statistics,
    posteriors,
    scale_records,
    score,
)
from experiments.data import load_data
from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE
from experiments.lib.formatting import format_value
from experiments.lib.plots import legend_below, panel_grid, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import grid, make_rows
from experiments.lib.verdicts import direction_finding, group_by

_EPSILON, _DELTA = 1.0, 1e-4
_NUM_RECORDS, _NUM_FEATURES = 4_878, 10
_NUM_REPEATS, _SEED = 40, 0
_SIMULATED, _WINE = "simulated", "wine"
_NUM_TRAIN = {_SIMULATED: 1_000, _WINE: 2_000}
_FACTORS = tuple(float(factor) for factor in np.round(np.geomspace(0.1, 4.0, 13), 3))


def scale_bounds(records: Records, which: str, factor: float) -> Records:
    """Returns the records with bound ``which`` ("B_x", "B_y" or "both") times ``factor``."""
    of_x = factor if which in ("B_x", "both") else 1.0
    of_y = factor if which in ("B_y", "both") else 1.0
    bounds = RegressionBounds(
        x_norm_bound=of_x * records.bounds.x_norm_bound, y_bound=of_y * records.bounds.y_bound
    )
    return records._replace(bounds=bounds)


def simulate(num_examples: int, num_features: int, seed: int) -> Records:
    """Simulates normal features and targets of variance one, half of it noise.

    The bounds are the root mean squares of the norm of x and of y.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features))
    direction = rng.standard_normal(num_features)
    signal = x @ direction / np.linalg.norm(direction)
    y = (signal + rng.standard_normal(num_examples)) / np.sqrt(2)
    bounds = RegressionBounds(x_norm_bound=float(np.sqrt(num_features)), y_bound=1.0)
    return Records(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), 1.0, bounds)


@functools.cache
def _records(data: str) -> Records:
    if data == _SIMULATED:
        return simulate(_NUM_RECORDS, _NUM_FEATURES, _SEED)
    return scale_records(load_data("wine", stand_in=True))


def rows(profile: str) -> list[Row]:
    common = {"epsilon": _EPSILON, "delta": _DELTA, "factors": list(_FACTORS)}
    common |= {"repeats": _NUM_REPEATS, "seed": _SEED}
    points = grid(data=_NUM_TRAIN, which=("B_x", "B_y", "both"))
    sized = [{**point, "num_train": _NUM_TRAIN[point["data"]]} for point in points]
    return make_rows("{data}, {which}", sized, common)


def run_row(row: Row, context: RowContext) -> Result:
    data, which, factors = (row.settings[name] for name in ("data", "which", "factors"))
    records = _records(data)
    splits = draw_splits(records, row.settings["num_train"], _NUM_REPEATS, _SEED)
    whole = Task(records, splits, jax.random.key(_SEED), _EPSILON, _DELTA)
    tasks = [whole._replace(records=scale_bounds(records, which, each)) for each in factors]
    fits = [perturbed_statistics(task) for task in tasks]
    sums = [exact_statistics(task, task.records.bounds) for task in tasks]
    plain, *errors = (
        float(score(posterior, records, splits).error.mean())
        for posterior in (
            non_private(whole).posteriors,
            *(fit.posteriors for fit in fits),
            *(posteriors(each, splits) for each in sums),
        )
    )
    noisy, clipped = errors[: len(factors)], errors[len(factors) :]
    best, mechanism = int(np.argmin(noisy)), fits[-1].mechanism
    assert mechanism is not None
    source = data_set().note if data == _WINE else "Simulated normal data."
    return Result(
        measured={
            "best factor": factors[best],
            "MAE, best": noisy[best],
            "of it clipping alone": clipped[best],
            "MAE, largest bound": noisy[-1],
            "MAE, not private": plain,
        },
        certified={"ε": certified_epsilon(mechanism.event, _DELTA, adjacency=ADJACENCY)},
        note=f"{source} Seeded keys: the noise is reproducible, so these runs are not private. The"
        " ε is that of one run with one bound; choosing the best bound by its error is not"
        " accounted for.",
        series={"noisy": noisy, "clipped": clipped, "not private": plain},
        certificate=str(mechanism.certificate(_DELTA)),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    by_data = group_by(records, "data")
    figure, axes = panel_grid(len(records), 3, 9.6, 3.0 * len(by_data) + 0.4)
    panels = iter(axes)
    for own in by_data.values():
        for record in own:
            _draw(next(panels), record, 1.3 * own[0].series["not private"])
    legend_below(figure, axes)
    return {"bounds": figure}


def _draw(axes: Axes, record: Record, highest: float) -> None:
    factors, series = record.settings["factors"], record.series
    axes.axhline(series["not private"], color=SOURCE, linewidth=1, label="not private")
    axes.plot(factors, series["clipped"], "--", color=CERTIFIED, label="clipped, no noise")
    axes.plot(factors, series["noisy"], color=MEASURED, label="clipped and noisy")
    best = int(np.argmin(series["noisy"]))
    axes.plot(factors[best], series["noisy"][best], "o", color=MEASURED)
    margin = 0.05 * (highest - series["not private"])
    axes.set_ylim(series["not private"] - margin, highest + margin)
    set_log_ticks(axes, (0.1, 0.3, 1, 3), "bound over typical size")
    axes.set_title(record.row)
    if record.settings["which"] == "B_x":
        axes.set_ylabel("mean absolute error")


def finding(records: Sequence[Record]) -> Finding:
    both = [record for record in records if record.settings["which"] == "both"]
    gains = [
        (1 - r.measured["MAE, best"] / r.measured["MAE, largest bound"], r.measured["best factor"])
        for r in both
    ]
    found = " and ".join(
        f"{100 * gain:.1f} % (at {format_value(factor)} times the typical size)"
        for gain, factor in gains
    )
    return direction_finding(
        [gain > 0 and factor < 1 for gain, factor in gains],
        f"Bounds below the typical size reduce the error of the largest bounds by {found}.",
    )


data_set = functools.partial(load_data, "wine", stand_in=True)
