"""Model inversion attack on private and non-private models (the slides' motivation).

``python -m experiments run sgmcmc_inversion``: twenty seconds on two CPU cores.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression

import dpjax
from dpjax.bayes.sgmcmc import SGLD, calibrate_step_size, sample
from dpjax.datasets import Dataset
from experiments.lib.figures import new_figure
from experiments.lib.registry import Experiment, Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import direction_finding, format_upper_bound, group_by

NUM_CLASSES = 10
OWN, OTHERS = "correlation, own mean", "correlation, others' mean"
NEAREST_OWN, NEAREST_OTHER = "nearest own", "nearest other"
SMOOTHED, RECOGNISED = "smoothed, others' mean", "recognised %"
_PICTURES, _MEANS = "pictures", "class means"
_FEW, _PRIVATE = 10, 1.0
_MANY = {"quick": 1_000, "paper": 2_500}
_SHOWN = (0, 2, 3, 5, 8)
_STEP, _MOST_STEPS = 0.05, 2_000


@dataclass(frozen=True)
class Settings:
    """A softmax regression on a few images of each class, or on many."""

    per_class: int  # training images of each class
    epsilon: float | None  # None for no privacy
    num_steps: int
    sampling_rate: float
    delta: float = 1e-5
    l2_clip: float = 4.0
    prior_std: float = 0.1  # standard deviation of the Gaussian prior on every weight
    seed: int = 0

    def chain(self, num_examples: int) -> SGLD:
        """Returns SGLD at temperature 1 with the largest certified step size."""
        sampling = dpjax.PoissonSampling(num_examples, self.sampling_rate)
        chain = SGLD(
            sampling,
            l2_clip=self.l2_clip,
            step_size=0.02,
            num_steps=self.num_steps,
            adjacency="zero_out",
            unit="one image",
        )
        if self.epsilon is None:
            return chain
        return calibrate_step_size(chain, epsilon=self.epsilon, delta=self.delta)


class Images(NamedTuple):
    """Flat images ``(n, num_pixels)`` and their labels ``(n,)``."""

    x: np.ndarray
    y: np.ndarray


@functools.cache
def load_images() -> Dataset:
    """Returns MNIST, or its stand-in if it is not available."""
    return dpjax.datasets.load("mnist")


def split_images(data: Dataset, per_class: int) -> tuple[Images, Images]:
    """Returns up to ``per_class`` training images of each class, and as many held-out ones."""
    of_class = [np.flatnonzero(data.train.y == label) for label in range(NUM_CLASSES)]
    size = min(per_class, min(map(len, of_class)) // 2)

    def images(rows: slice) -> Images:
        chosen = np.concatenate([each[rows] for each in of_class])
        return Images(data.train.x[chosen].reshape(len(chosen), -1), data.train.y[chosen])

    return images(slice(size)), images(slice(size, 2 * size))


def fit(settings: Settings, group: Images) -> np.ndarray:
    """Returns weights ``(num_pixels, num_classes)``: posterior mode or private chain's mean."""
    if settings.epsilon is None:
        model = LogisticRegression(
            C=settings.prior_std**2, fit_intercept=False, max_iter=1_000, tol=1e-3
        )
        return model.fit(*group).coef_.T

    def log_likelihood(weights: jax.Array, example: Any) -> jax.Array:
        image, label = example
        return -optax.softmax_cross_entropy_with_integer_labels(image @ weights, label)

    result = sample(
        jax.random.key(settings.seed),
        log_likelihood,
        lambda weights: -0.5 * jnp.sum(weights**2) / settings.prior_std**2,
        jnp.zeros((group.x.shape[1], NUM_CLASSES)),
        tuple(group),
        settings.chain(len(group.y)),
        burn_in=settings.num_steps // 2,
    )
    return result.samples[0].mean(axis=0)


@jax.jit
def invert(weights: jax.Array, confidence: jax.Array | float = 0.99) -> jax.Array:
    """Model inversion attack on a softmax regression: one image of each class, flattened.

    Gradient ascent on ``log p(class | image)`` from a blank image, with pixels in [0, 1], until the
    probability reaches ``confidence``.

    Source: Fredrikson, Jha, Ristenpart (2015), Algorithm 1, without denoising.

    >>> invert(jnp.array([[9.0, 0.0], [0.0, 9.0]])).round(1).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    def log_probability(image: jax.Array, label: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(image @ weights)[label]

    def climb(image: jax.Array, label: jax.Array) -> jax.Array:
        value, slope = jax.value_and_grad(log_probability)(image, label)
        step = _STEP * slope / (jnp.linalg.norm(slope) + 1e-12)
        return jnp.where(value < jnp.log(confidence), jnp.clip(image + step, 0, 1), image)

    def attack(label: jax.Array) -> jax.Array:
        blank = jnp.zeros(weights.shape[0])
        return jax.lax.fori_loop(0, _MOST_STEPS, lambda _, image: climb(image, label), blank)

    return jax.vmap(attack)(jnp.arange(weights.shape[1]))


def class_means(images: Any, labels: Any, num_classes: int = NUM_CLASSES) -> np.ndarray:
    """Returns the mean image of each class, ``(num_classes, num_pixels)``.

    >>> class_means([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]], [0, 0, 1], 2).tolist()
    [[0.5, 1.0], [0.5, 0.0]]
    """
    images, labels = np.asarray(images), np.asarray(labels)
    return np.stack([images[labels == label].mean(axis=0) for label in range(num_classes)])


def correlations(pictures: Any, images: Any) -> np.ndarray:
    """Returns the correlation over pixels of each picture with each image; zero for a constant.

    >>> correlations([[0.0, 1.0, 0.0]], [[0.0, 2.0, 0.0], [1.0, 0.0, 1.0]]).round(2).tolist()
    [[1.0, -1.0]]
    """

    def standardised(images: Any) -> np.ndarray:
        centred = np.asarray(images) - np.mean(images, axis=1, keepdims=True)
        return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)

    return standardised(pictures) @ standardised(images).T


def success(pictures: np.ndarray, own: Images, others: Images) -> dict[str, float]:
    """Returns similarities of the attack's pictures with training and with held-out images."""

    def nearest(group: Images) -> float:
        best = [
            correlations(pictures[[label]], group.x[group.y == label]).max()
            for label in range(NUM_CLASSES)
        ]
        return float(np.mean(best))

    means = class_means(*others)
    of_others = correlations(pictures, means)
    side = round(pictures.shape[1] ** 0.5)
    smooth = gaussian_filter(pictures.reshape(-1, side, side), 1.0, axes=(1, 2))
    of_smooth = correlations(smooth.reshape(pictures.shape), means)
    recognised = of_others.argmax(axis=1) == np.arange(NUM_CLASSES)
    return {
        OWN: float(np.diagonal(correlations(pictures, class_means(*own))).mean()),
        OTHERS: float(np.diagonal(of_others).mean()),
        NEAREST_OWN: nearest(own),
        NEAREST_OTHER: nearest(others),
        SMOOTHED: float(np.diagonal(of_smooth).mean()),
        RECOGNISED: 100 * float(recognised.mean()),
    }


def _rows(profile: str) -> list[Row]:
    groups = ((_FEW, 200, 1.0), (_MANY[profile], 1_000, 0.05))
    return [
        Row(
            f"{per_class:,} images a class, {privacy}",
            dataclasses.asdict(Settings(per_class, epsilon, num_steps, rate)),
            {},
        )
        for per_class, num_steps, rate in groups
        for epsilon, privacy in ((None, "non-private"), (_PRIVATE, f"ε = {_PRIVATE:g}"))
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    settings, data = Settings(**row.settings), load_images()
    own, others = split_images(data, settings.per_class)
    weights = fit(settings, own)
    pictures = np.asarray(invert(jnp.asarray(weights, jnp.float32)))
    logits = data.test.x.reshape(len(data.test.y), -1) @ weights
    accuracy = 100 * float((logits.argmax(axis=1) == data.test.y).mean())
    measured = {"test accuracy %": accuracy, **success(pictures, own, others)}
    series = {
        _PICTURES: pictures[list(_SHOWN)].round(3).tolist(),
        _MEANS: class_means(*own)[list(_SHOWN)].round(3).tolist(),
    }
    if settings.epsilon is None:
        return Result(measured, {}, data.note, series)
    certificate = settings.chain(len(own.y)).certificate(settings.delta)
    note = f"{data.note} Seeded key: the noise is reproducible, so this run is not private."
    return Result(measured, {"ε": certificate.epsilon}, note, series, str(certificate))


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    lines: dict[tuple[int, str], list[list[float]]] = {}
    for record in records:
        size = record.settings["per_class"]
        lines.setdefault((size, f"mean of\n{size:,} images"), record.series[_MEANS])
        lines[size, record.row.split(", ")[1]] = record.series[_PICTURES]
    figure, axes = new_figure(len(lines), len(_SHOWN), 6.4, 1.15 * len(lines))
    cells = iter(axes)
    for (_, name), pictures in lines.items():
        for number, picture in enumerate(pictures):
            cell, side = next(cells), round(len(picture) ** 0.5)
            cell.imshow(np.reshape(picture, (side, side)), cmap="gray_r")
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(True)
            if number == 0:
                cell.set_ylabel(name, rotation=0, ha="right", va="center")
    caption = (
        "Reconstructions of five classes from a non-private and a private model, below the mean"
        " of their training images: few images of each class, then many."
    )
    return {"pictures": (figure, caption)}


def _remarks(records: Sequence[Record]) -> list[str]:
    groups = sorted(group_by(records, "per_class").items())
    return [
        *(_compare(*sorted(pair, key=_is_private)) for _, pair in groups if len(pair) == 2),
        "The attack reconstructs class averages, which differential privacy does not protect; it"
        " bounds the influence of one training image, so that for a private model the"
        " correlations 'own' and 'others' must be close. They can also be close without privacy"
        " if there are many images. Private pictures are noisier because of the noise in the"
        " weights, which smoothing partly removes. The unit of privacy is one image: the"
        " guarantee for a person with ten images is much weaker.",
    ]


def _is_private(record: Record) -> bool:
    return record.settings["epsilon"] is not None


def _compare(plain: Record, private: Record) -> str:
    found = [
        f"{record.measured[OWN]:.2f} with the mean of the images trained on and"
        f" {record.measured[OTHERS]:.2f} with that of others"
        for record in (plain, private)
    ]
    return (
        f"{plain.settings['per_class']:,} images a class: without privacy the mean correlation is"
        f" {found[0]}; at a certified ε = {format_upper_bound(private.certified['ε'])}, {found[1]}"
        f" ({private.measured[SMOOTHED]:.2f} after smoothing), with test accuracy"
        f" {private.measured['test accuracy %']:.0f} % instead of"
        f" {plain.measured['test accuracy %']:.0f} %."
    )


def _finding(records: Sequence[Record]) -> Finding:
    pairs = [
        sorted(pair, key=_is_private)
        for _, pair in sorted(group_by(records, "per_class").items())
        if len(pair) == 2
    ]
    found = "; ".join(
        f"{plain.measured[OWN]:.2f} without and {private.measured[OWN]:.2f} with privacy for"
        f" {plain.settings['per_class']:,} images a class"
        for plain, private in pairs
    )
    return direction_finding(
        [plain.measured[OWN] > private.measured[OWN] for plain, private in pairs],
        "The correlation of reconstructions with the mean training image is"
        f" {found or 'not compared'}.",
    )


EXPERIMENT = Experiment(
    name="sgmcmc_inversion",
    title="Model inversion against private and non-private models",
    source="Li, Chen and Liu (2017), slides, motivation figure",
    description=(
        "Fredrikson, Jha and Ristenpart (2015) reconstruct faces by maximising a classifier's"
        " confidence. Here the classes are MNIST's ten digits, each with few training images (10)"
        " or many (1,000; 2,500 in the paper profile). The model is a softmax regression: without"
        " privacy its posterior mode, privately the mean of an SGLD chain at temperature 1 under"
        " the same prior, with the largest step size that is certified at ε = 1, δ = 1e-5"
        " (neighbours differ by one image).\n\n"
        "The attack starts from a blank image, uses only the model, and stops at 99 % confidence."
        " Correlations, over pixels and averaged over the classes, are with the mean of the"
        " class's images that the model was trained on ('own'), with the mean of as many images"
        " that were held out ('others'), and with the most similar one of either kind"
        " ('nearest'). Recognised: pictures more like their class's mean (of others) than like"
        " another's. Smoothed: after a Gaussian blur of one pixel."
    ),
    rows=_rows,
    run_row=_run_row,
    finding=_finding,
    data=lambda: load_images().name,
    figures=_figures,
    remarks=_remarks,
)
