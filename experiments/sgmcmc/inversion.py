"""Model inversion, the slides' motivation: pictures from a model, private or not.

``python -m experiments run sgmcmc_inversion``: twenty seconds on two CPU cores.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from dpjax.datasets import Dataset
from experiments.lib.figures import new_figure
from experiments.lib.formatting import format_value
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext
from experiments.sgmcmc.inversion_attack import class_means, correlations, invert
from experiments.sgmcmc.inversion_models import (
    NUM_CLASSES,
    Images,
    Settings,
    fit,
    load_images,
    two_groups,
)

OWN, OTHERS = "correlation, own mean", "correlation, others' mean"
NEAREST_OWN, NEAREST_OTHER = "nearest own", "nearest other"
SMOOTHED, RECOGNISED = "smoothed, others' mean", "recognised %"
_PICTURES, _MEANS = "pictures", "class means"
_FEW, _PRIVATE = 10, 1.0
_MANY = {"quick": 1_000, "paper": 2_500}
_SHOWN = (0, 2, 3, 5, 8)

_CAPTION = (
    "What the attack draws for five classes from a model without privacy and from a private one,"
    " below the mean of the images that both were trained on: few of each class, then many."
)


def _rows(profile: str) -> list[Row]:
    groups = ((_FEW, 200, 1.0), (_MANY[profile], 1_000, 0.05))
    rows = [
        Settings(per_class, epsilon, num_steps, rate)
        for per_class, num_steps, rate in groups
        for epsilon in (None, _PRIVATE)
    ]
    return [Row(_name(settings), dataclasses.asdict(settings), {}) for settings in rows]


def _name(settings: Settings) -> str:
    privacy = "non-private" if settings.epsilon is None else f"ε = {settings.epsilon:g}"
    return f"{settings.per_class:,} images a class, {privacy}"


def _run_row(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), load_images()
    own, others = two_groups(data, settings.per_class)
    weights = fit(settings, own)
    pictures = np.asarray(invert(jnp.asarray(weights, jnp.float32)))
    measured = {"test accuracy %": _accuracy(weights, data), **success(pictures, own, others)}
    series = {
        _PICTURES: pictures[list(_SHOWN)].round(3).tolist(),
        _MEANS: class_means(*own)[list(_SHOWN)].round(3).tolist(),
    }
    if settings.epsilon is None:
        return Result(measured, {}, data.note, series)
    certificate = settings.chain(len(own.y)).certificate(settings.delta)
    note = f"{data.note} Seeded key: the noise is reproducible, so this run is not private."
    return Result(measured, {"ε": certificate.epsilon}, note, series, str(certificate))


def _accuracy(weights: np.ndarray, data: Dataset) -> float:
    logits = data.test.x.reshape(len(data.test.y), -1) @ weights
    return 100 * float((logits.argmax(axis=1) == data.test.y).mean())


def success(pictures: np.ndarray, own: Images, others: Images) -> dict[str, float]:
    """Returns how well the attack's pictures, one for each class, match the images.

    Args:
      pictures: ``(10, num_pixels)``.
      own: what the model was trained on.
      others: as many images of the same classes that it never saw. What matches them as well as
        its own is known of the class, and not of any image that was trained on.
    """
    of_others = correlations(pictures, class_means(*others))
    side = round(pictures.shape[1] ** 0.5)
    smooth = gaussian_filter(pictures.reshape(-1, side, side), 1.0, axes=(1, 2))
    return {
        OWN: _diagonal(correlations(pictures, class_means(*own))),
        OTHERS: _diagonal(of_others),
        NEAREST_OWN: _nearest(pictures, own),
        NEAREST_OTHER: _nearest(pictures, others),
        SMOOTHED: _diagonal(correlations(smooth.reshape(pictures.shape), class_means(*others))),
        RECOGNISED: 100 * float((of_others.argmax(axis=1) == np.arange(NUM_CLASSES)).mean()),
    }


def _diagonal(matrix: np.ndarray) -> float:
    return float(np.diagonal(matrix).mean())


def _nearest(pictures: np.ndarray, group: Images) -> float:
    each = [
        correlations(pictures[[label]], group.x[group.y == label]).max()
        for label in range(NUM_CLASSES)
    ]
    return float(np.mean(each))


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    lines: list[tuple[str, list[list[float]]]] = []
    for record in records:
        if _means_name(record) not in dict(lines):
            lines.append((_means_name(record), record.series[_MEANS]))
        lines.append((record.row.split(", ")[1], record.series[_PICTURES]))
    return {"pictures": (_picture_figure(lines), _CAPTION)}


def _means_name(record: Record) -> str:
    return f"mean of\n{record.settings['per_class']:,} images"


def _picture_figure(lines: Sequence[tuple[str, list[list[float]]]]) -> Figure:
    num_shown = len(_SHOWN)
    figure, axes = new_figure(len(lines), num_shown, 6.4, 1.15 * len(lines))
    cells = np.array(axes).reshape(len(lines), num_shown)
    for (name, pictures), line in zip(lines, cells, strict=True):
        for picture, cell in zip(pictures, line, strict=True):
            side = round(len(picture) ** 0.5)
            cell.imshow(np.reshape(picture, (side, side)), cmap="gray_r")
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(True)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _remarks(records: Sequence[Record]) -> list[str]:
    by_size: dict[int, dict[bool, Record]] = {}
    for record in records:
        sizes = by_size.setdefault(record.settings["per_class"], {})
        sizes[record.settings["epsilon"] is not None] = record
    pairs = [pair for _, pair in sorted(by_size.items()) if len(pair) == 2]
    return [*map(_pair, pairs), _HONEST]


_HONEST = (
    "What this shows: the attack draws class averages. Those are facts about the classes, which"
    " differential privacy does not promise to hide; it bounds what one image that was trained on"
    " can add, so for a private model 'own' and 'others'' must lie close. They may lie close"
    " without privacy too, where images are many: that is no sign of it. Where private pictures"
    " look worse it is the noise in the weights, and smoothing, which anyone can do, takes part of"
    " it away. And the unit is one image: a person with ten is protected far less than ε says."
)


def _pair(pair: Mapping[bool, Record]) -> str:
    plain, private = pair[False], pair[True]
    return (
        f"{plain.settings['per_class']:,} images a class: without privacy the pictures correlate"
        f" {_both(plain)}; at a certified ε ="
        f" {format_value(private.certified['ε'], rounding=ROUND_CEILING)}, {_both(private)}"
        f" ({private.measured[SMOOTHED]:.2f} with the others' once smoothed), by a model that is"
        f" {private.measured['test accuracy %']:.0f} % accurate instead of"
        f" {plain.measured['test accuracy %']:.0f} %."
    )


def _both(record: Record) -> str:
    found = record.measured
    return (
        f"{found[OWN]:.2f} with the mean of the images trained on and {found[OTHERS]:.2f} with that"
        " of others"
    )


EXPERIMENT = Experiment(
    name="sgmcmc_inversion",
    title="Model inversion against private and non-private models",
    source="Li, Chen and Liu (2017), slides, motivation figure",
    description=(
        "Fredrikson, Jha and Ristenpart (2015) draw a face from a classifier by climbing its"
        " confidence in a person; the slides open with their picture. Faces are not at hand: here"
        " the classes are MNIST's ten digits, and each class is one 'person' with a few images (10)"
        " or with many (1,000; 2,500 in the paper profile). The model is a softmax regression;"
        " without privacy its posterior mode, privately the mean of an SGLD chain at temperature 1"
        " under the same prior, with the largest step size that is certified at ε = 1, δ = 1e-5"
        " (neighbours differ by one image).\n\n"
        "The attack starts from a blank image, sees only the model, and stops where the model is"
        " 99 % sure. Correlations, over pixels and averaged over the ten classes, are with the mean"
        " of the class's images that the model was trained on ('own'), with the mean of as many"
        " images that it never saw ('others'), and with the most similar one of either kind"
        " ('nearest'). Recognised: pictures that are more like their class's mean (of others) than"
        " like another's. Smoothed: after a Gaussian blur of one pixel."
    ),
    rows=_rows,
    run_row=_run_row,
    data=lambda: load_images().name,
    figures=_figures,
    remarks=_remarks,
)
