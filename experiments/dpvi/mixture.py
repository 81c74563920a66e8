"""A private mixture of Gaussians by variational inference: predictive density against epsilon.

``python -m experiments run dpvi_mixture``: half a minute.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

from dpjax.bayes.variational import DPSVI
from experiments.dpvi.accounts import ADD, REPLACE, mechanism, spent
from experiments.dpvi.mixture_model import (
    draw_records,
    model,
    new_guide,
    predictive_log_density,
    true_log_density,
)
from experiments.dpvi.sweep import Maker, Point, fit, inference
from experiments.lib.figures import CERTIFIED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_SIGMAS = {"quick": (0.8, 2.0, 6.0, 20.0), "paper": (0.8, 1.3, 2.0, 3.2, 6.0, 12.0, 20.0)}
_REPEATS = {"quick": 3, "paper": 10}
_SETTINGS = {
    "num_records": 2_000,
    "sampling_rate": 0.05,
    "num_steps": 1_000,
    "learning_rate": 0.05,
    "l2_clip": 1.0,
    "delta": 1e-3,
    "seed": 0,
}
_NUM_TEST, _NUM_DRAWS = 1_000, 50
_PLAIN = "not private"
DENSITY, ERROR = "log density per record", "standard error"


def _rows(profile: str) -> list[Row]:
    common = {**_SETTINGS, "repeats": _REPEATS[profile], "sigmas": list(_SIGMAS[profile])}
    plain = Row(_PLAIN, {**common, "sigma": 0.0}, {})
    return [
        plain,
        *(Row(f"σ = {sigma:g}", {**common, "sigma": sigma}, {}) for sigma in _SIGMAS[profile]),
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    densities = _densities(_hashable(settings))[settings["sigma"]]
    spread = densities.std(ddof=1) / np.sqrt(len(densities))
    measured = {DENSITY: densities.mean(), ERROR: spread}
    note = (
        f"{settings['num_records']:,} records made up, {_NUM_TEST:,} others to predict, whose log"
        f" density is {_true_density():.3f} under what drew them. Seeded keys: the noise is"
        " reproducible, so these runs are not private. Every ε is that of one run."
    )
    if row.name == _PLAIN:
        return Result(measured, {}, note)
    as_run = mechanism(
        settings["sigma"],
        settings["l2_clip"],
        settings["sampling_rate"],
        settings["num_steps"],
        settings["num_records"],
    )
    costs = spent(as_run, settings["delta"])
    return Result({**measured, **costs.claimed}, costs.certified, note)


def _hashable(settings: Any) -> tuple[tuple[str, Any], ...]:
    """The settings that all rows share."""
    return tuple(
        (name, tuple(value) if isinstance(value, Sequence) else value)
        for name, value in sorted(settings.items())
        if name != "sigma"
    )


@functools.cache
def _densities(shared: tuple[tuple[str, Any], ...]) -> dict[float, np.ndarray]:
    """Each sigma's predictive log densities over the repeats; all are run together."""
    settings = dict(shared)
    sigmas = [0.0, *settings["sigmas"]]
    params = fit(
        _maker(settings["num_records"], settings["sampling_rate"], settings["learning_rate"]),
        [Point(sigma, settings["l2_clip"]) for sigma in sigmas],
        (draw_records(jax.random.key(settings["seed"]), settings["num_records"]),),
        num_steps=settings["num_steps"],
        repeats=settings["repeats"],
        seed=settings["seed"],
    )
    return dict(zip(sigmas, np.asarray(_score(params, _test_records()), float), strict=True))


@functools.cache
def _maker(num_records: int, sampling_rate: float, learning_rate: float) -> Maker:
    optimizer = optax.adam(learning_rate)

    def make(point: Point, num_steps: int) -> DPSVI:
        numbers = num_records, sampling_rate, point, num_steps
        return inference(model, new_guide(), optimizer, *numbers)

    return make


def _test_records() -> jax.Array:
    return draw_records(jax.random.key(1), _NUM_TEST)


def _true_density() -> float:
    return float(true_log_density(_test_records()))


@jax.jit
def _score(params: Any, records: jax.Array) -> jax.Array:
    def score(one: Any) -> jax.Array:
        return predictive_log_density(new_guide(), one, records, jax.random.key(0), _NUM_DRAWS)

    return jax.vmap(jax.vmap(score))(params)


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    private = [record for record in records if record.certified]
    if not private:
        return {}
    figure, (axes,) = new_figure()
    heights = [record.measured[DENSITY] for record in private]
    bars = [2 * record.measured[ERROR] for record in private]
    for adjacency, colour in ((ADD, CERTIFIED), (REPLACE, PALETTE[1])):
        at = [record.certified[f"ε, {adjacency}"] for record in private]
        axes.errorbar(at, heights, bars, color=colour, marker="o", markersize=3, label=adjacency)
    axes.axhline(_true_density(), color=SOURCE, linestyle=":", linewidth=1, label="true density")
    for record in records:
        if record.row == _PLAIN:
            axes.axhline(record.measured[DENSITY], color=SOURCE, linewidth=1, label=_PLAIN)
    axes.set(xscale="log", xlabel="certified ε (δ = 1e-3)", ylabel="mean predictive log density")
    axes.legend(loc="lower right")
    caption = (
        "Mean log predictive density of records not seen, against the certified ε of the same runs"
        " under two adjacencies. Bars are two standard errors over repeats."
    )
    return {"density": (figure, caption)}


EXPERIMENT = Experiment(
    name="dpvi_mixture",
    title="Private variational inference: a mixture of five Gaussians",
    source="Honkela (2017), slides; Jälkö, Dikmen and Honkela (2017)",
    description=(
        "2,000 records of five round Gaussians in the plane (the published code's means and"
        " variances), and the same mixture fitted privately: weights, means and variances, each"
        " record's component summed out, AutoNormal as the guide, δ = 1e-3.\n\n"
        "Batches are larger than the source's (100 records on average, against 6), the optimiser is"
        " Adam with one step for all parameters, and starts are random; the clip bound of 1 on the"
        " gradient of one log-likelihood is the source's. Its curves are not printed as numbers."
        " Noise is 2cσ, as in dpvi_abalone."
    ),
    rows=_rows,
    run_row=_run_row,
    figures=_figures,
)
