"""Scattering features and a linear model (Tramèr and Boneh 2021) at certified ε = 1, 2, 3.

``python -m experiments run scattering_linear``: on two CPU cores about a minute (``quick``: a few
thousand images of each data set at ε = 3) or an hour (``paper``: all images).
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

import dpjax
from dpjax.certificates import certify
from experiments.data import Dataset, load_data
from experiments.gdp.classifiers import ACCURACY, summarize
from experiments.lib.figures import PALETTE, SOURCE
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_error_bars, legend_below, panel_grid
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column
from experiments.lib.training import stack_curves
from experiments.lib.verdicts import (
    compare_published,
    format_upper_bound,
    group_by,
    remarks_on_rows,
)
from experiments.scattering.features import (
    load_features,
    moments_mechanism,
)
from experiments.scattering.jpeg import cost_of_encoding, plain_rows, run_plain
from experiments.scattering.training import (
    CHANNELS,
    CURVES,
    GROUPS,
    MOMENTS_NOISE,
    UNIT,
    Settings,
    fit,
)

EPSILON, PUBLISHED_EPSILON = "ε", "ε of the source's noise"
RANGE = "lowest, highest %"
_EPSILONS = (1.0, 2.0, 3.0)
_CLAIMED = 3.0


class Published(NamedTuple):
    """The source's linear model of one data set, at its ε of 3."""

    loader: str
    normalization: str
    learning_rate: float
    batch_size: int
    noise_multiplier: float
    epochs: int
    accuracy: float
    num_train: int


_SOURCE = {
    "MNIST": Published("mnist", CHANNELS, 8.0, 4096, 3.04, 40, 98.7, 60_000),
    "Fashion-MNIST": Published("fashion_mnist", GROUPS, 16.0, 8192, 4.05, 40, 89.7, 60_000),
    "CIFAR-10": Published("cifar10", CHANNELS, 4.0, 8192, 5.67, 60, 67.0, 50_000),
}
_NUM_TEST = 10_000
_QUICK_SIZES = {"MNIST": (6000, 1000), "Fashion-MNIST": (6000, 1000), "CIFAR-10": (2500, 500)}


def published_epsilon(settings: Settings) -> float:
    """Returns the ε (PLD) of the published noise on all images, if batches are Poisson samples.

    The private normalisation of the source is two Gaussian releases of noise multiplier 8.
    """
    parts: tuple[Any, ...] = (settings.training(_SOURCE[settings.data].num_train),)
    if settings.normalization == CHANNELS:
        moments = moments_mechanism(1, MOMENTS_NOISE, UNIT)
        parts = (moments, moments, *parts)
    return dpjax.Composition(parts).certificate(settings.delta).epsilon


def load_images(name: str) -> Dataset:
    """Returns a data set of images, or its stand-in if it is not available."""
    return load_data(_SOURCE[name].loader)


@functools.cache
def data() -> str:
    return ", ".join(load_images(name).name for name in _SOURCE)


def rows(profile: str) -> list[Row]:
    rows = []
    for data, source in _SOURCE.items():
        sizes = (source.num_train, _NUM_TEST) if profile == "paper" else _QUICK_SIZES[data]
        for normalization, epsilon in itertools.product((GROUPS, CHANNELS), _EPSILONS):
            is_published = normalization == source.normalization and epsilon == _CLAIMED
            if profile == "quick" and not is_published:
                continue
            # Fewer images have more noise in the mean gradient, in proportion.
            share = sizes[0] / source.num_train
            settings = Settings(
                data,
                normalization,
                epsilon,
                source.learning_rate * share * epsilon / _CLAIMED,
                source.batch_size / source.num_train,
                source.noise_multiplier,
                source.epochs,
                *sizes,
                seeds=(0, 1, 2) if profile == "paper" and data != "CIFAR-10" else (0,),
            )
            published = {ACCURACY: source.accuracy, EPSILON: _CLAIMED} if is_published else {}
            name = f"{data}, {normalization}, ε = {epsilon:g}"
            rows.append(Row(name, dataclasses.asdict(settings), published))
    if profile == "paper":
        sizes = (_SOURCE["CIFAR-10"].num_train, _NUM_TEST)
        rows += [Row(name, found, {}) for name, found in plain_rows(*sizes).items()]
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    if "epsilon" not in row.settings:
        return run_plain(row, load_images(row.settings["data"]), context.folder.parent)
    settings = Settings(**{**row.settings, "seeds": tuple(row.settings["seeds"])})
    # The rows share the features, beside their own folders. The images are not kept: 1 GB.
    cache, sizes = context.folder.parent, (settings.num_train, settings.num_test)
    data = load_features(load_images(settings.data), *sizes, cache)
    mechanism = settings.mechanism(*data.train.x.shape[:2])
    runs = fit(settings, data, mechanism, context.folder)
    measured = summarize([run.curve[-1][1] for run in runs])
    training: Any = mechanism.parts[-1]
    measured["noise multiplier"] = training.noise_multiplier
    certificate = certify(mechanism.guarantee.of_run(seeded=True), settings.delta)
    certified = {EPSILON: certificate.epsilon}
    if row.source:
        certified[PUBLISHED_EPSILON] = published_epsilon(settings)
    note = (
        f"{data.note} Every ε is that of one run; accuracies are means over seeds. Seeded keys: the"
        " noise is reproducible, so these runs are not private."
    )
    if len(data.train.y) < _SOURCE[settings.data].num_train:
        note += " Fewer images than the source's, so accuracies are lower."
    return Result(
        measured=measured,
        certified=certified,
        note=note,
        series={CURVES: stack_curves(runs).tolist()},
        certificate=str(certificate),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if record.certified]
    groups = group_by(private, "data")
    colours = dict(zip(group_by(private, "normalization"), PALETTE, strict=False))
    figure, panels = panel_grid(len(groups), len(groups), 3.2 * len(groups), 3.6)
    for axes, (data, of_data) in zip(panels, groups.items(), strict=True):
        for label, drawn in group_by(of_data, "normalization").items():
            lowest, highest = np.transpose(column(drawn, RANGE))
            means = np.array(column(drawn, ACCURACY))
            bars = np.abs([lowest - means, highest - means])
            draw_error_bars(
                axes,
                column(drawn, EPSILON),
                means,
                bars,
                color=colours[label],
                label=label,
                capsize=2,
            )
        for record in (record for record in of_data if record.source):
            accuracy = record.source[ACCURACY]
            axes.plot(_CLAIMED, accuracy, "s", color=SOURCE, label="source, claimed")
            tight = record.certified[PUBLISHED_EPSILON]
            label = "source, PLD of its noise"
            axes.plot(tight, accuracy, "s", color=SOURCE, fillstyle="none", label=label)
        axes.set(title=data, xlabel="ε", ylabel="test accuracy (%)")
    legend_below(figure, panels, ncols=2)
    return {"accuracy": figure}


def remarks(records: Sequence[Record]) -> list[str]:
    found = []
    private = [record for record in records if record.certified]
    for data, of_data in group_by(private, "data").items():
        best = [
            max(at_epsilon, key=lambda record: record.measured[ACCURACY])
            for at_epsilon in group_by(of_data, "epsilon").values()
        ]
        figures = ", ".join(
            f"{format_value(record.measured[ACCURACY], ACCURACY)} % at"
            f" {format_upper_bound(record.certified[EPSILON])} ({record.settings['normalization']})"
            for record in best
        )
        found.append(f"{data}, best accuracy at each certified ε: {figures}.")
    for record in (record for record in records if record.source):
        tight = format_upper_bound(record.certified[PUBLISHED_EPSILON])
        found.append(
            f"{record.row}: {format_value(record.measured[ACCURACY], ACCURACY)} % against the"
            f" source's {record.source[ACCURACY]} % at a claimed ε of {_CLAIMED:g}, by classical"
            f" Rényi accounting; the PLD ε of its noise is {tight} if its batches are Poisson"
            " samples, so that less noise suffices here."
        )
        if "JPEG re-encoding" in record.note:
            found.append(
                f"{record.settings['data']} is a JPEG re-encoding here, and the source had the"
                " original pixels: accuracies are not comparable to the point."
            )
    found += remarks_on_rows(records, cost_of_encoding, *plain_rows(0, 0))
    return [
        *found,
        "Not in the source's ε: its batches are shuffled, for which no Poisson account holds, and"
        " its private normalisation clips at the exact median of the private norms. Here batches"
        " are Poisson samples, and the clip bound of the normalisation is public.",
        "Batch sizes, numbers of epochs, clip bound and the ratio of the two noises are the"
        " source's for its ε of 3, which it tuned on the same data. The learning rate is the"
        " source's times ε / 3, constant for half of the steps and then decaying linearly to zero,"
        " which was chosen on a held-out part of the training images of MNIST and Fashion-MNIST. No"
        " ε here includes this tuning.",
    ]


def finding(records: Sequence[Record]) -> Finding:
    comparison = compare_published(
        records,
        ACCURACY,
        0.5,
        "published accuracies",
        "points",
        lambda record: record.profile == "paper" and "JPEG re-encoding" not in record.note,
    )
    claims = [record for record in records if record.source]
    found = "; ".join(
        f"{record.row} {format_value(record.measured[ACCURACY], ACCURACY)} % at a certified"
        f" {format_upper_bound(record.certified[EPSILON])}"
        for record in claims
    )
    return comparison.finding(found)
