"""Correlated noise: errors of prefix sums, and accuracy at the ε of Poisson sampling.

``python -m experiments run training_correlated``: on two CPU cores one minute (``quick``: 12,000
images, three seeds) or two hours (``paper``: all 60,000, five seeds, more values of ε).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import dpjax
from dpjax.transforms import factorization
from dpjax.transforms.correlation import Correlation
from experiments.data import Dataset, Split, load_data
from experiments.lib.figures import PALETTE
from experiments.lib.models import accuracy_percent, cross_entropy
from experiments.lib.plots import (
    draw_by_row,
    draw_nonempty,
    legend_below,
    panel_grid,
    set_log_ticks,
)
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import mean_and_error
from experiments.lib.verdicts import Comparison, group_by

DELTA, UNIT = 1e-5, "one image"
MEMORY, RATIO = "copies of the parameters", "largest error over 1 + ln n / π"
SCALES, DECAYS = "output scales", "decays"
ACCURACIES = "accuracy % by learning rate, each seed"
POISSON, ALLOCATION, BANDED, BLT = "Poisson", "allocation", "banded", "BLT"
METHODS = (POISSON, ALLOCATION, BANDED, BLT)
ACCURACY, ERROR, NOISE = "accuracy %, {}", "standard error, {}", "noise of sums, {}"
_NUM_PASSES = 8
# Columns of the errors: number of steps, and passes.
_COLUMNS = ((512, 1), (2_048, 1), (512, 8), (1_024, 8), (2_048, 8))
_DECAYS = {512: 0.933, 1_024: 0.955, 2_048: 0.969}
# Strategy, number of bands or buffers (0 is the number of steps of a pass, or of all), and the root
# mean square errors in the order of the columns.
_ERRORS: tuple[tuple[str, int, tuple[float | None, ...]], ...] = (
    ("independent noise", 0, (16.0156, 32.0078, 45.299, 64.031, 90.532)),
    ("square root", 4, (None, None, 25.440, 35.835, 50.578)),
    ("square root", 16, (None, None, 14.776, 20.417, 28.528)),
    ("square root", 64, (None, None, 9.639, 12.379, 16.547)),
    ("square root", 0, (2.8892, 3.3305, 9.639, 10.294, 10.948)),
    ("optimised bands", 8, (6.15, None, 17.4, None, None)),
    ("optimised bands", 64, (3.30, None, 9.35, None, None)),
    ("inverse square root", 4, (None, 12.810, 18.422, 25.765, 36.233)),
    ("inverse square root", 16, (None, 6.968, 11.008, 14.423, 19.708)),
    ("inverse square root", 64, (None, 4.302, 10.335, 10.613, 12.343)),
    ("inverse square root", 0, (None, None, 10.335, 10.968, 11.597)),
    ("λCGD", 1, (None, 5.7006, 11.636, 13.639, 16.128)),
    ("BLT", 3, (None, None, None, None, None)),
    ("dense optimum", 0, (2.739385, None, None, None, None)),
    ("lower bound", 0, (2.6901, 3.1296, None, None, None)),
)
# Steps and buffers of jax-privacy's tests: the largest error over 1 + ln n / π, at most.
_RATIOS = ((100, 2, 1.03), (1_000, 3, 1.03), (10_000, 3, 1.03), (10_000, 1, 1.45))
_GOLDEN = (100_000, 2, (0.0122853238, 0.1878393665), (0.9999528892, 0.9857068667))

# Passes and ε, images and seeds of each profile.
_SETTINGS: dict[str, Any] = {
    "quick": {
        "MNIST": ((8, 1.0),),
        "Fashion-MNIST": ((1, 8.0),),
        "num_train": 12_000,
        "seeds": 3,
    },
    "paper": {
        "MNIST": tuple(itertools.product((1, 8), (0.5, 1.0, 2.0, 4.0, 8.0))),
        "Fashion-MNIST": tuple(itertools.product((1, 8), (0.5, 1.0, 2.0, 4.0, 8.0))),
        "num_train": 60_000,
        "seeds": 5,
    },
}
_BATCH_SIZE, _CLIP, _NUM_BUFFERS = 500, 1.0, 3
_RATES = (1.0, 2.0, 4.0, 8.0)
# Numbers of groups, and of bands, among which the smallest error of sums is taken.
_NUM_BANDS = (2, 4, 8)
MODEL = nn.Dense(10, kernel_init=nn.initializers.zeros)


def rows(profile: str) -> list[Row]:
    rows: list[Row] = []
    settings: dict[str, Any]
    for kind, count, figures in _ERRORS:
        settings = {"part": "errors", "strategy": kind, "count": count}
        bands = f", {count}" if count and kind != "λCGD" else ""
        source: dict[str, Any] = {
            error_column(*column): value
            for column, value in zip(_COLUMNS, figures, strict=True)
            if value is not None
        }
        rows.append(Row(f"{kind}{bands}", settings, source))
    for steps, buffers, most in _RATIOS:
        settings = {"part": "ratio", "steps": steps, "buffers": buffers}
        rows.append(Row(f"BLT, {buffers}, n = {steps:,}", settings, {f"{RATIO}, at most": most}))
    steps, buffers, scales, decays = _GOLDEN
    settings = {"part": "golden", "steps": steps, "buffers": buffers}
    source = {SCALES: list(scales), DECAYS: list(decays)}
    rows.append(Row(f"BLT, {buffers}, n = {steps:,}", settings, source))

    chosen = _SETTINGS[profile]
    for data in ("MNIST", "Fashion-MNIST"):
        for passes, epsilon in chosen[data]:
            settings = {
                "part": "accuracy", "data": data, "passes": passes, "epsilon": epsilon,
                "num_train": chosen["num_train"], "batch_size": _BATCH_SIZE, "l2_clip": _CLIP,
                "learning_rates": _RATES, "bands": _NUM_BANDS, "seeds": chosen["seeds"],
            }  # fmt: skip
            many = f"{passes} passes" if passes > 1 else "one pass"
            rows.append(Row(f"{data}, {many}, ε = {epsilon:g}", settings, {}))
    return rows


def error_column(num_steps: int, passes: int) -> str:
    """Returns the name of a column of errors."""
    return f"n = {num_steps:,}, {'one pass' if passes == 1 else f'{passes} passes'}"


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    if settings["part"] == "errors":
        return _run_errors(settings["strategy"], settings["count"])
    if settings["part"] == "ratio":
        report = dpjax.BLT(settings["buffers"], error="max").report(settings["steps"])
        return Result({RATIO: report.max_error / (1 + math.log(settings["steps"]) / math.pi)}, {})
    if settings["part"] == "golden":
        steps = settings["steps"]
        scales, decays = factorization.optimize_blt(steps, settings["buffers"], steps, "max")
        return Result({SCALES: list(scales), DECAYS: list(decays)}, {})
    return _run_accuracy(settings)


def strategy(kind: str, count: int, num_steps: int, separation: int) -> Correlation | None:
    """Returns a strategy of the table for a number of steps; ``None`` where it has no other."""
    bands = count or separation
    if kind == "square root":
        return dpjax.BandedToeplitz(bands, coefficients="square_root")
    if kind == "optimised bands":
        return dpjax.BandedToeplitz(bands)
    if kind == "inverse square root":
        return dpjax.InverseSquareRoot(bands)
    if kind == "λCGD":
        return dpjax.LambdaCGD(_DECAYS[num_steps])
    if kind == "BLT":
        return dpjax.BLT(count)
    return dpjax.Dense() if num_steps <= 512 else None


def _run_errors(kind: str, count: int) -> Result:
    """Returns the root mean square errors of prefix sums, over the noise multiplier."""
    measured: dict[str, float] = {}
    for num_steps, passes in _COLUMNS:
        separation = num_steps // passes
        name = error_column(num_steps, passes)
        if kind == "independent noise":
            measured[name] = math.sqrt(passes * (num_steps + 1) / 2)
        elif kind == "lower bound":
            measured[name] = factorization.spectral_bound(num_steps, separation)
        elif made := strategy(kind, count, num_steps, separation):
            report = made.report(num_steps, separation=separation)
            measured[name] = report.rmse
            if num_steps == 512:
                measured[MEMORY] = max(report.memory, measured.get(MEMORY, 0))
    return Result(measured, {})


def mechanisms(settings: Values) -> dict[str, dpjax.SubsampledGaussian]:
    """Returns the mechanisms of a row at its ε, by method."""
    return _mechanisms(
        settings["num_train"],
        settings["batch_size"],
        settings["passes"],
        settings["epsilon"],
        settings["l2_clip"],
        tuple(settings["bands"]),
    )


@functools.cache
def _mechanisms(
    num_train: int,
    batch_size: int,
    passes: int,
    epsilon: float,
    l2_clip: float,
    num_bands: tuple[int, ...],
) -> dict[str, dpjax.SubsampledGaussian]:
    steps = num_train // batch_size

    def calibrate(sampling: Any, correlation: Correlation | None) -> dpjax.SubsampledGaussian:
        basic = dpjax.SubsampledGaussian(
            sampling,
            l2_clip=l2_clip,
            noise_multiplier=1.0,
            num_steps=passes * steps,
            adjacency="zero_out",
            unit=UNIT,
            correlation=correlation,
        )
        return dpjax.calibrate(basic, epsilon=epsilon, delta=DELTA)

    # Groups that are sampled, with as many bands: that with the smallest error.
    def groups(count: int) -> dpjax.CyclicPoissonSampling:
        return dpjax.CyclicPoissonSampling(num_train, 1 / steps, num_groups=count)

    banded = [
        calibrate(groups(bands), dpjax.BandedToeplitz(bands))
        for bands in num_bands
        if bands <= steps
    ]
    return {
        POISSON: calibrate(dpjax.PoissonSampling(num_train, 1 / steps), None),
        ALLOCATION: calibrate(dpjax.AllocatedSampling(num_train, steps_per_epoch=steps), None),
        BANDED: min(banded, key=noise_of_sums),
        BLT: calibrate(groups(steps), dpjax.BLT(_NUM_BUFFERS)),
    }


def noise_of_sums(mechanism: dpjax.SubsampledGaussian) -> float:
    """Returns the root mean square noise of the prefix sums of clipped gradients, over the clip."""
    noise = float(np.max(mechanism.noise_multiplier))
    if mechanism.correlation is None:
        return noise * math.sqrt((mechanism.num_steps + 1) / 2)
    inverse = mechanism.correlation.noise_matrix(mechanism.num_steps)
    return noise * math.sqrt(factorization.squared_errors(inverse).mean())


def load_images(name: str) -> Dataset:
    """Returns the images of a row, or stand-in data."""
    return load_data(name.lower().replace("-", "_"), stand_in=True)


def train_all(
    mechanism: dpjax.SubsampledGaussian, data: Dataset, rates: Sequence[float], num_seeds: int
) -> np.ndarray:
    """Returns test accuracies (%) of a linear model, ``(seeds, learning rates)``.

    All runs are one program.
    """
    train, test = (
        (jnp.asarray(part.x.reshape(len(part.y), -1)), jnp.asarray(part.y))
        for part in (data.train, data.test)
    )
    params = MODEL.init(jax.random.key(0), train[0][:1])["params"]

    def run(key: jax.Array, rate: jax.Array, records: Any) -> Any:
        step = dpjax.private_step(
            cross_entropy(MODEL), optax.sgd(rate), mechanism=mechanism, key=key
        )

        def one(state: Any, _: None) -> tuple[Any, None]:
            return step.update(state, records)[0], None

        return jax.lax.scan(one, step.init(params), length=mechanism.num_steps)[0].params

    keys = jax.random.split(jax.random.key(0), (num_seeds, len(rates)))
    runs = jax.vmap(jax.vmap(run, (0, 0, None)), (0, None, None))
    trained = jax.jit(runs)(keys, jnp.asarray(rates), train)
    accuracy = accuracy_percent(MODEL)
    return np.array(
        [
            [
                accuracy(jax.tree.map(lambda leaf, at=(seed, i): leaf[at], trained), test)
                for i in range(len(rates))
            ]
            for seed in range(num_seeds)
        ]
    )


def _run_accuracy(settings: Values) -> Result:
    images, size = load_images(settings["data"]), settings["num_train"]
    first = Split(*(leaf[:size] for leaf in images.train))
    data = dataclasses.replace(images, train=first)
    planned = mechanisms({**settings, "num_train": len(first.y)})

    # Of each method the learning rate whose mean test accuracy is best.
    measured: dict[str, float] = {}
    series: dict[str, np.ndarray] = {}
    for method, mechanism in planned.items():
        found = train_all(mechanism, data, settings["learning_rates"], settings["seeds"])
        mean, error = mean_and_error(found[:, found.mean(axis=0).argmax()])
        measured |= {ACCURACY.format(method): mean, ERROR.format(method): error}
        series[method] = found
    measured |= {NOISE.format(name): noise_of_sums(each) for name, each in planned.items()}
    certificates = {name: each.certificate(DELTA) for name, each in planned.items()}
    certified = {f"ε, {name}": each.epsilon for name, each in certificates.items()}
    bands = getattr(planned[BANDED].correlation, "bands", 0)
    return Result(
        measured=measured,
        certified=certified,
        note=f"{images.note} The first {len(first.y):,} train; {bands} bands. Seeded keys: the"
        " noise is reproducible, so these runs are not private.",
        series={ACCURACIES: series},
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    parts = group_by(records, "part")
    return draw_nonempty(
        errors=(_draw_errors, parts.get("errors", [])),
        accuracy=(_draw_accuracies, parts.get("accuracy", [])),
    )


def _draw_errors(records: Sequence[Record]) -> Figure:
    figure, panels = panel_grid(2, 2, 9.6, 4.6)
    colours = dict(zip(_DECAYS, PALETTE, strict=False))
    for axes, shown in zip(panels, (_COLUMNS[:2], _COLUMNS[2:]), strict=True):
        columns = {
            f"n = {steps:,}": ("measured", error_column(steps, passes), colours[steps], "o")
            for steps, passes in shown
        }
        draw_by_row(axes, records, columns)
        axes.set_title(error_column(*shown[0]).split(", ", 1)[1])
        set_log_ticks(axes, (2, 5, 10, 20, 50, 100), "error of prefix sums (RMSE)")
        axes.legend(loc="lower right")
    panels[1].set_yticklabels([])
    return figure


def _draw_accuracies(records: Sequence[Record]) -> Figure:
    figure, (axes,) = panel_grid(1, 1, 7.2, 1.6 + 0.3 * len(records))
    columns = {
        method: ("measured", ACCURACY.format(method), colour, marker)
        for method, colour, marker in zip(METHODS, PALETTE, "os^D", strict=False)
    }
    draw_by_row(axes, records, columns)
    axes.set_xlabel("test accuracy (%)")
    legend_below(figure, [axes], len(METHODS))
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    remarks = []
    for record in group_by(records, "part").get("accuracy", []):
        noise = {method: record.measured[NOISE.format(method)] for method in METHODS}
        gains = {method: gain_over_poisson(record, method) for method in METHODS[1:]}
        listed = ", ".join(f"{m} {gain:+.2f} ± {error:.2f}" for m, (gain, error) in gains.items())
        remarks.append(
            f"{record.row}: points over Poisson, with one standard error: {listed}. The noise of"
            f" sums is least for {min(noise, key=lambda method: noise[method])}."
        )
    return [remark.replace(" -", " −") for remark in remarks]


def gain_over_poisson(record: Record, method: str) -> tuple[float, float]:
    """Returns the accuracy of a method less that of Poisson sampling, and its standard error."""
    (accuracy, error), (other, other_error) = (
        (record.measured[ACCURACY.format(m)], record.measured[ERROR.format(m)])
        for m in (method, POISSON)
    )
    return accuracy - other, math.hypot(error, other_error)


def finding(records: Sequence[Record]) -> Finding:
    parts = group_by(records, "part")

    # Values of the source, and those here.
    pairs: list[tuple[float, float]] = []
    for record in (*parts.get("errors", []), *parts.get("golden", [])):
        for name, value in record.source.items():
            pairs += zip(np.ravel(record.measured[name]), np.ravel(value), strict=True)

    # Accuracies against Poisson sampling, and limits of jax-privacy.
    clauses = []
    if accuracy := parts.get("accuracy"):
        for method in METHODS[1:]:
            gains = [gain_over_poisson(record, method) for record in accuracy]
            above = sum(gain > 2 * error for gain, error in gains)
            below = sum(gain < -2 * error for gain, error in gains)
            clauses.append(f"{method} {above} times above and {below} below")
        clauses = [
            f"of {len(accuracy)} accuracies at the ε of Poisson sampling, by more than two standard"
            f" errors: {', '.join(clauses)}"
        ]
    if ratios := parts.get("ratio"):
        met = sum(r.measured[RATIO] <= r.source[f"{RATIO}, at most"] for r in ratios)
        clauses.append(f"{met} of {len(ratios)} limits of jax-privacy's tests hold")
    subject = "values of an independent program and of jax-privacy"
    return Comparison(subject, tuple(pairs), 0.5, "%").finding("; ".join(clauses))
