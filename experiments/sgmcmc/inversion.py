"""Model inversion on faces, against private and non-private models (the slides' motivation).

``python -m experiments run sgmcmc_inversion``: half a minute on two CPU cores; in the other profile
minutes, with more epsilons, a network with a hidden layer, and five runs of the private rows.
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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

import dpjax
from dpjax._typing import PyTree
from dpjax.accounting.risk import true_positive_rate
from dpjax.bayes.sgmcmc import SGLD, calibrate_step_size, sample
from dpjax.certificates import Certificate
from dpjax.mechanisms import Mechanism
from experiments.data import Dataset, Split, load_data
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import legend_below, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column
from experiments.lib.training import ShuffledEpochs, Task, train
from experiments.lib.verdicts import direction_finding, format_upper_bound, group_by

Params = dict[str, jax.Array]

# Their alpha, beta, gamma and lambda.
MAX_STEPS, PATIENCE, CONFIDENCE, RATE = 5_000, 100, 0.99, 0.1


class _State(NamedTuple):
    """State of the attack on all classes, one in each row."""

    images: jax.Array
    best: jax.Array  # images of the lowest cost
    lowest: jax.Array  # that cost
    recent: jax.Array  # costs of the last steps, (num_classes, PATIENCE)
    active: jax.Array  # whether a class's descent continues
    step: jax.Array


@functools.partial(jax.jit, static_argnums=1)
def invert(params: Params, num_classes: int) -> jax.Array:
    """Returns a flat image of each class, reconstructed from a classifier alone.

    Projected gradient descent on ``1 - p(class | image)``, pixels in [0, 1], from a grey image. It
    stops when the cost is not below the largest of the last 100, or when the probability reaches
    0.99, and returns the image of the lowest cost.

    Source: Fredrikson, Jha, Ristenpart (2015), Algorithm 1, without the auxiliary term, and without
    processing other than to the range of pixels. Their threshold, printed as 0.99 of the cost, is
    taken as that of the probability.

    >>> invert({"output": jnp.array([[40.0, 0.0], [0.0, 40.0]])}, 2).round(1).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def cost(image: jax.Array, label: jax.Array) -> jax.Array:
        return 1 - jax.nn.softmax(logits(params, image))[label]

    labels = jnp.arange(num_classes)
    costs_and_slopes = jax.vmap(jax.value_and_grad(cost))

    def descend(state: _State) -> _State:
        costs, slopes = costs_and_slopes(state.images, labels)
        is_lower = state.active & (costs < state.lowest)
        falls = costs < state.recent.max(axis=1)
        active = state.active & falls & (costs > 1 - CONFIDENCE)
        moved = jnp.clip(state.images - RATE * slopes, 0, 1)
        return _State(
            images=jnp.where(active[:, None], moved, state.images),
            best=jnp.where(is_lower[:, None], state.images, state.best),
            lowest=jnp.where(is_lower, costs, state.lowest),
            recent=state.recent.at[:, state.step % PATIENCE].set(costs),
            active=active,
            step=state.step + 1,
        )

    weights = params["hidden"] if "hidden" in params else params["output"]
    grey = jnp.full((num_classes, weights.shape[0]), 0.5)
    start = _State(
        images=grey,
        best=grey,
        lowest=jnp.full(num_classes, jnp.inf),
        recent=jnp.full((num_classes, PATIENCE), jnp.inf),
        active=jnp.ones(num_classes, bool),
        step=jnp.zeros((), int),
    )
    return jax.lax.while_loop(
        lambda state: state.active.any() & (state.step <= MAX_STEPS), descend, start
    ).best


class Match(NamedTuple):
    """Success of the attack by comparison with a reference image of each class."""

    identified_percent: float  # of classes, whose image is most like their own reference
    correlation: float  # mean, of images with their own reference


def match_classes(images: PyTree, references: Any) -> Match:
    """Compares one image of each class with the references of all, by correlation over pixels.

    The mean over classes is subtracted from the images, and from the references.

    >>> match_classes([[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 1.0]])
    Match(identified_percent=100.0, correlation=1.0)
    """
    found = _standardize(images) @ _standardize(references).T
    right = found.argmax(axis=1) == np.arange(len(found))
    return Match(100 * float(right.mean()), float(np.diagonal(found).mean().round(12)))


def smooth(images: PyTree) -> np.ndarray:
    """Applies a Gaussian blur of 1/32 of the side to flat square images, against their noise."""
    images = np.asarray(images, np.float64)
    side = round(images.shape[1] ** 0.5)
    squares = images.reshape(-1, side, side)
    return gaussian_filter(squares, side / 32, axes=(1, 2)).reshape(images.shape)


def _standardize(images: PyTree) -> np.ndarray:
    """Subtracts the mean over images and each image's own mean, and scales to norm one."""
    images = np.asarray(images, np.float64)
    centred = images - images.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)


def class_means(part: Split, num_classes: int) -> np.ndarray:
    """Returns the mean image of each class, ``(num_classes, num_pixels)``."""
    images, labels = flatten(part)
    return np.stack([images[labels == label].mean(axis=0) for label in range(num_classes)])


PLAIN, NOISY_SGD, LANGEVIN = "SGD", "DP-SGD", "DP-SGLD"
PICTURE, PERSON = "one picture", "one person"
_NUM_HIDDEN = 300


@dataclass(frozen=True)
class Settings:
    """Settings of one row; a method ignores those that it does not use."""

    data: str
    method: str  # one of the names above
    unit: str = PICTURE  # what the guarantee is for
    epsilon: float | None = None  # None for no privacy
    delta: float = 1e-5
    network: str = "softmax"  # or "MLP"
    sampling_rate: float = 1.0
    num_steps: int = 20
    l2_clip: float = 1.0
    learning_rate: float = 1.0  # of the point estimates
    prior_std: float = 1.0  # of the chain
    seed: int = 0  # of the first run
    runs: int = 1  # with seeds of their own

    def mechanism(self, data: Dataset) -> Mechanism | None:
        """Returns the mechanism of one run, calibrated to ε; None without privacy."""
        if self.epsilon is None:
            return None
        by_person = self.unit == PERSON
        num_records = data.num_classes if by_person else len(data.train.y)
        num_pictures = len(data.train.y) // data.num_classes
        common: dict[str, Any] = {
            "sampling": dpjax.PoissonSampling(num_records, self.sampling_rate),
            "l2_clip": self.l2_clip,
            "num_steps": self.num_steps,
            "adjacency": "zero_out",
            "unit": f"{PERSON} with {num_pictures} pictures" if by_person else PICTURE,
        }
        target: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        if self.method == LANGEVIN:
            return calibrate_step_size(SGLD(step_size=1.0, **common), **target)
        mechanism = dpjax.SubsampledGaussian(noise_multiplier=1.0, **common)
        return dpjax.calibrate(mechanism, **target)


def initial_params(network: str, num_pixels: int, num_classes: int, seed: int) -> Params:
    """Returns zero weights of a softmax regression, or random ones of a hidden layer."""
    if network == "softmax":
        return {"output": jnp.zeros((num_pixels, num_classes))}
    keys = jax.random.split(jax.random.key(seed))
    init = jax.nn.initializers.lecun_normal()
    return {
        "hidden": init(keys[0], (num_pixels, _NUM_HIDDEN)),
        "output": init(keys[1], (_NUM_HIDDEN, num_classes)),
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Returns the logits of flat images ``(..., num_pixels)`` with pixels in [0, 1].

    >>> logits({"output": jnp.eye(2)}, jnp.array([1.0, 0.5])).tolist()
    [0.5, 0.0]
    """
    x = images - 0.5
    if "hidden" in params:
        x = jax.nn.sigmoid(x @ params["hidden"])
    return x @ params["output"]


def mean_loss(params: Params, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the mean cross entropy of one record: one image, or all images of a person."""
    images, labels = record
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
    return losses.mean()


def records(data: Dataset, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training data with one leading index for each record of the unit."""
    images, labels = flatten(data.train)
    if unit == PICTURE:
        return images, labels
    order = np.argsort(labels, kind="stable").reshape(data.num_classes, -1)
    return images[order], labels[order]


def flatten(part: Split) -> tuple[np.ndarray, np.ndarray]:
    """Returns images as ``(n, num_pixels)``, and their labels."""
    return part.x.reshape(len(part.y), -1), part.y


def fit(settings: Settings, data: Dataset, mechanism: Mechanism | None) -> Params:
    """Returns trained parameters, or the mean of a chain's second half."""
    examples = records(data, settings.unit)
    start = initial_params(settings.network, examples[0].shape[-1], data.num_classes, settings.seed)
    key = jax.random.key(settings.seed)
    if isinstance(mechanism, SGLD):
        return _chain_mean(key, settings, mechanism, examples, start)
    task = Task(mean_loss, examples, optax.sgd(settings.learning_rate))
    if isinstance(mechanism, dpjax.SubsampledGaussian):
        return train(key, task, start, mechanism, steps_per_report=settings.num_steps).params
    return train(key, task, start, ShuffledEpochs(settings.num_steps, len(examples[1]))).params


def _chain_mean(
    key: jax.Array, settings: Settings, chain: SGLD, examples: tuple[PyTree, PyTree], start: Params
) -> Params:
    def log_prior(params: Params) -> jax.Array:
        return -0.5 * optax.tree.norm(params, squared=True) / settings.prior_std**2

    result = sample(
        key,
        lambda params, record: -mean_loss(params, record),
        log_prior,
        start,
        examples,
        mechanism=chain,
        burn_in=settings.num_steps // 2,
        progress=False,
    )
    return jax.tree.map(lambda states: jnp.asarray(states[0].mean(axis=0)), result.samples)


def accuracy_percent(params: Params, part: Split) -> float:
    """Returns the share of images whose most probable class is theirs, in percent."""
    images, labels = flatten(part)
    found = np.asarray(logits(params, jnp.asarray(images))).argmax(axis=-1)
    return 100 * float((found == labels).mean())


ACCURACY = "test accuracy %"
IDENTIFIED, IDENTIFIED_HELD_OUT = "identified %", "identified, held-out %"
SMOOTHED = "identified, smoothed %"
OWN, OTHERS = "correlation, training pictures", "correlation, held-out"
BOUND = "identified, at most %"
FACES, DIGITS = "olivetti_faces", "mnist"
_PICTURES, _MEANS = "pictures", "class means"
_PLAIN_FACES = "softmax, no privacy"
_NUM_SHOWN = 4
_MANY = 1_000
_EPSILONS = {"quick": (1.0, 10.0), "paper": (1.0, 3.0, 10.0, 30.0, 100.0)}
_RUNS = {"quick": 1, "paper": 5}
# Learning rates of the mean gradient. Whole persons are seven times fewer records.
_LEARNING_RATES = {PICTURE: 14.0, PERSON: 2.0}


@functools.cache
def load_images(name: str) -> Dataset:
    """Returns the faces, all of them, or 1,000 training images of each of MNIST's digits."""
    data = load_data(name, stand_in=True)
    if name == FACES:
        return data
    of_class = [np.flatnonzero(data.train.y == label) for label in range(data.num_classes)]
    rows = np.concatenate([each[:_MANY] for each in of_class])
    return dataclasses.replace(data, train=Split(data.train.x[rows], data.train.y[rows]))


def rows(profile: str) -> list[Row]:
    runs = _RUNS[profile]
    faces = {_PLAIN_FACES: Settings(FACES, PLAIN, learning_rate=0.1, num_steps=300)}
    for unit, rate in _LEARNING_RATES.items():
        for epsilon in _EPSILONS[profile]:
            faces[f"softmax, {unit}, ε = {epsilon:g}"] = Settings(
                FACES, NOISY_SGD, unit, epsilon, learning_rate=rate, runs=runs
            )
    if profile == "paper":
        faces[f"softmax, {PICTURE}, ε = 10, DP-SGLD"] = Settings(
            FACES, LANGEVIN, PICTURE, 10.0, l2_clip=4.0, runs=runs
        )
        faces["MLP, no privacy"] = dataclasses.replace(faces[_PLAIN_FACES], network="MLP")
        private = f"{PICTURE}, ε = 10"
        faces[f"MLP, {private}"] = dataclasses.replace(
            faces[f"softmax, {private}"], network="MLP", learning_rate=1.0, runs=1
        )
    digits = Settings(DIGITS, PLAIN, learning_rate=0.1, num_steps=300)
    private_digits = Settings(
        DIGITS, NOISY_SGD, PICTURE, 1.0, sampling_rate=0.05, num_steps=200, learning_rate=1.0
    )
    table = {
        **faces,
        "digits, no privacy": digits,
        f"digits, {PICTURE}, ε = 1": private_digits,
    }
    return [Row(name, dataclasses.asdict(settings), {}) for name, settings in table.items()]


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    data = load_images(settings.data)
    num_classes, mechanism, runs = data.num_classes, settings.mechanism(data), []
    for seed in range(settings.seed, settings.seed + settings.runs):
        params = fit(dataclasses.replace(settings, seed=seed), data, mechanism)
        pictures = np.asarray(invert(params, num_classes))
        runs.append({ACCURACY: accuracy_percent(params, data.test), **_success(pictures, data)})
    measured = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    shown = np.linspace(0, num_classes - 1, _NUM_SHOWN).astype(int)
    series = {_PICTURES: _to_bytes(pictures[shown])}
    if mechanism is None:
        series[_MEANS] = _to_bytes(class_means(data.train, num_classes)[shown])
        return Result(measured, {}, data.note, series)
    certificate = mechanism.certificate(settings.delta)
    certified = {"ε": certificate.epsilon}
    if settings.unit == PERSON:
        certified[BOUND] = identification_bound(certificate, num_classes)
    return Result(measured, certified, _note(settings, data), series, str(certificate))


def _note(settings: Settings, data: Dataset) -> str:
    averaged = f" Means over {settings.runs} runs; ε is that of one." if settings.runs > 1 else ""
    return (
        f"{data.note}{averaged} Seeded key: the noise is reproducible, so this run is not private."
    )


def _success(pictures: np.ndarray, data: Dataset) -> dict[str, float]:
    """Returns the attack's success against the means of training and of held-out pictures."""
    means = class_means(data.train, data.num_classes)
    own = match_classes(pictures, means)
    others = match_classes(pictures, class_means(data.test, data.num_classes))
    return {
        IDENTIFIED: own.identified_percent,
        SMOOTHED: match_classes(smooth(pictures), means).identified_percent,
        IDENTIFIED_HELD_OUT: others.identified_percent,
        OWN: own.correlation,
        OTHERS: others.correlation,
    }


def identification_bound(certificate: Certificate, num_classes: int) -> float:
    """Returns a bound in % on the share of people identified, from a person-level guarantee.

    A match with a person is a test for whether the model was trained on that person. Its false
    positive rate is one in ``num_classes`` if a model without a person's pictures matches everyone
    equally often; the true positive rate is then bounded by the trade-off function.
    """
    return 100 * float(true_positive_rate(certificate.curve, 1 / num_classes))


def _to_bytes(pictures: np.ndarray) -> list[list[int]]:
    """Returns each picture scaled to 0 for its darkest and 255 for its lightest pixel."""
    low, high = (bound(pictures, axis=1, keepdims=True) for bound in (np.min, np.max))
    scaled = 255 * (pictures - low) / np.maximum(high - low, 1e-12)
    return np.rint(scaled).astype(int).tolist()


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    by_data = group_by(records, "data")
    found = {}
    for stem, name in (("faces", FACES), ("digits", DIGITS)):
        shown = [record for record in by_data.get(name, []) if record.row.startswith(_SHOWN)]
        if shown:
            found[stem] = _grid(shown)
    private = [record for record in by_data.get(FACES, []) if _is_on_curve(record)]
    if private:
        found["identified"] = _curves(by_data[FACES], private)
    return found


# Beginnings of the names of the rows whose pictures are shown.
_SHOWN = ("softmax", "MLP, no privacy", "digits")


def _grid(records: Sequence[Record]) -> Figure:
    lines: list[tuple[str, list[list[int]]]] = []
    for record in records:
        if _MEANS in record.series and not lines:
            lines.append(("training\nmean", record.series[_MEANS]))
        rate = f"\n({record.measured[IDENTIFIED]:.0f} % identified)"
        lines.append((record.row.replace(", ", "\n", 1) + rate, record.series[_PICTURES]))
    figure, axes = new_figure(len(lines), 2 * _NUM_SHOWN, 9.6, 1.05 * len(lines))
    cells = iter(axes)
    for name, pictures in lines:
        for number, picture in enumerate([*pictures, *smooth(pictures)]):
            cell, side = next(cells), round(len(picture) ** 0.5)
            cell.imshow(np.reshape(picture, (side, side)), cmap="gray")
            cell.set(xticks=[], yticks=[])
            cell.grid(visible=False)
            if number == 0:
                cell.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _is_on_curve(record: Record) -> bool:
    return record.settings["method"] == NOISY_SGD and record.settings["network"] == "softmax"


def _curves(faces: Sequence[Record], private: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=7.2, height=4.2)
    for (unit, group), colour in zip(
        group_by(private, "unit").items(), (MEASURED, PALETTE[1]), strict=False
    ):
        at = column(group, "ε")
        axes.plot(at, column(group, IDENTIFIED), "o-", color=colour, label=f"{unit}: identified")
        axes.plot(at, column(group, ACCURACY), "s--", color=colour, label=f"{unit}: accuracy")
        if unit == PERSON:
            bounds = [record.certified[BOUND] for record in group]
            axes.plot(at, bounds, "v", color=CERTIFIED, label=f"{unit}: identified, at most")
    _draw_references(axes, faces)
    set_log_ticks(axes, sorted(group_by(private, "epsilon")))
    axes.set(ylabel="% of 40 people, of test pictures", ylim=(-3, 105))
    legend_below(figure, [axes], ncols=3)
    return figure


def _draw_references(axes: Axes, faces: Sequence[Record]) -> None:
    """Draws the rates of guessing and of the model without privacy."""
    axes.axhline(100 / load_images(FACES).num_classes, color=SOURCE, linewidth=1)
    for record in faces:
        if record.row == _PLAIN_FACES:
            axes.axhline(record.measured[IDENTIFIED], color=SOURCE, linewidth=1)
            axes.axhline(record.measured[ACCURACY], color=SOURCE, linestyle="--", linewidth=1)


def remarks(records: Sequence[Record]) -> list[str]:
    faces = [record for record in records if record.settings["data"] == FACES]
    return [_compare_units(pair) for pair in _pairs(faces)]


def _pairs(faces: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Returns the rows for a picture and for a person at each ε that has both."""
    found = {(r.settings["unit"], r.settings["epsilon"]): r for r in faces if _is_on_curve(r)}
    return [
        (record, found[PERSON, epsilon])
        for (unit, epsilon), record in found.items()
        if unit == PICTURE and (PERSON, epsilon) in found
    ]


def _compare_units(pair: tuple[Record, Record]) -> str:
    picture, person = pair
    rates = [
        f"{record.measured[IDENTIFIED]:.0f} % of the people are identified, and test accuracy is"
        f" {record.measured[ACCURACY]:.0f} %"
        for record in pair
    ]
    return (
        f"At a certified ε = {format_upper_bound(picture.certified['ε'])} for one picture,"
        f" {rates[0]}; at the same ε for one person, {rates[1]} (at most"
        f" {person.certified[BOUND]:.0f} % identified, by the guarantee)."
    )


def finding(records: Sequence[Record]) -> Finding:
    rates = {record.row: record.measured[IDENTIFIED] for record in records}
    people = [record for record in records if BOUND in record.certified]
    found = "; ".join(
        f"{record.measured[IDENTIFIED]:.0f} % at ε = {format_upper_bound(record.certified['ε'])}"
        for record in people
    )
    plain = f"{rates[_PLAIN_FACES]:.0f} %" if _PLAIN_FACES in rates else "(not run)"
    return direction_finding(
        [
            record.measured[IDENTIFIED] < rates[_PLAIN_FACES]
            for record in people
            if _PLAIN_FACES in rates
        ],
        f"Reconstructed faces identify {plain} of the people without privacy; with a guarantee for"
        f" one person {found or '(not run)'}.",
    )


def data() -> str:
    return f"{load_images(FACES).name}, {load_images(DIGITS).name}"
