"""Teachers and students of the image experiments: networks on disjoint shards of the images."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import numpy.typing as npt
import optax

from dpjax import pate
from dpjax._hashing import hash_arrays
from dpjax._typing import PRNGKey, PyTree
from experiments.data import Dataset, Split, load_data
from experiments.lib.models import MnistCNN, MnistMLP, accuracy_percent, cross_entropy
from experiments.lib.registry import Result, Row, RowContext, Values
from experiments.lib.training import ShuffledEpochs, Task, initialize, train
from experiments.pate.accounts import EPSILON
from experiments.pate.answers import ANSWERS, NOTE, STUDENT, abstention_note, answer_queries
from experiments.pate.student import random_affine, train_student

_NETWORKS: dict[str, type[nn.Module]] = {"CNN": MnistCNN, "MLP": MnistMLP}
PLAIN_ROW = "network, no privacy"
_PLAIN, _TEACHERS, _RELEASE, _STUDENT = "plain", "teachers", "release", "student"
# Settings of a release, and the published accuracy, ε and number of answers.
Release = tuple[Values, tuple[float, ...]]


@dataclass(frozen=True)
class Teachers:
    """Settings of an ensemble of networks, one on each shard."""

    data: str
    num_teachers: int
    network: str
    epochs: int
    batch_size: int
    augment: bool  # random affine transformations of the images
    num_labels: int  # of the first public images
    learning_rate: float = 1e-3  # of Adam
    seed: int = 0


@dataclass(frozen=True)
class Student:
    """Settings of the student: FixMatch on the public images."""

    network: str
    num_steps: int
    batch_size: int
    unlabeled_batch_size: int
    learning_rate: float = 1e-3  # of Adam, decayed to zero along a cosine
    seed: int = 1


@functools.cache
def load_images(name: str) -> Dataset:
    """Returns the data set; images with colors are standardized."""
    data = load_data(name, stand_in=True)
    if data.train.x.shape[-1] == 1:
        return data
    train, test = (Split(standardize_images(x), y) for x, y in (data.train, data.test))
    return dataclasses.replace(data, train=train, test=test)


def standardize_images(images: np.ndarray) -> npt.NDArray[np.float32]:
    """Returns gray images ``(num_images, height, width, 1)``, each of mean zero and variance one.

    House numbers are dark on bright or bright on dark, and differ more in brightness than within an
    image: without this the networks hardly learn from some hundred images.
    """
    gray = images.mean(axis=-1, keepdims=True)
    axes = (1, 2, 3)
    gray = gray - gray.mean(axes, keepdims=True)
    return np.asarray(gray / (gray.std(axes, keepdims=True) + 1e-3), np.float32)


def split_pool(data: Dataset, num_test: int = 1_000) -> tuple[Split, Split]:
    """Returns the public images for queries and for the student, and the last ones for testing."""
    x, y = data.test
    size = len(y) - min(num_test, len(y) // 2)
    return Split(x[:size], y[:size]), Split(x[size:], y[size:])


def make_rows(
    data: str,
    plain: Values,
    plain_accuracy: float,
    teachers: Values,
    releases: Mapping[str, Release],
    student: Values,
) -> list[Row]:
    """Returns the row of a network without privacy, and one for each release.

    Args:
      data: name of the data set.
      plain: network and `ShuffledEpochs` of the network without privacy.
      plain_accuracy: its published one.
      teachers: fields of `Teachers` without ``data``; all releases have the same teachers.
      releases: settings and published values by row.
      student: fields of `Student`.
    """
    names = (STUDENT, EPSILON, ANSWERS)
    return [
        Row(PLAIN_ROW, {"data": data, _PLAIN: dict(plain)}, {STUDENT: plain_accuracy}),
        *(
            Row(
                name,
                {
                    "data": data,
                    _TEACHERS: dict(teachers),
                    _RELEASE: {**release, "seed": 0},
                    _STUDENT: dict(student),
                },
                dict(zip(names, printed, strict=False)),
            )
            for name, (release, printed) in releases.items()
        ),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    """Runs a row of `make_rows`: a network without privacy, or an ensemble and its student."""
    settings = row.settings
    data = load_images(settings["data"])
    pool, test = split_pool(data)
    if _PLAIN in settings:
        return Result({STUDENT: _train_plainly(data, test, **settings[_PLAIN])}, {}, data.note)
    teachers = Teachers(settings["data"], **settings[_TEACHERS])
    labels = teacher_labels(teachers, context.folder.parent)
    found = answer_queries(
        settings[_RELEASE], labels, pool.y[: labels.shape[1]], num_classes=data.num_classes
    )
    released = np.full(len(pool.y), pate.NO_ANSWER)
    released[found.indices] = found.labels
    student = Student(**settings[_STUDENT])
    note = (
        f"{data.note} {teachers.num_teachers} teachers, each on"
        f" {len(data.train.y) // teachers.num_teachers:,} images, vote on public images: the first"
        f" {len(pool.y):,} test images; the last {len(test.y):,} test."
        f"{abstention_note(labels)} {NOTE}"
    )
    measured = {STUDENT: student_accuracy(student, pool.x, released, test), **found.measured}
    return Result(measured, found.certified, note, certificate=found.certificate)


def _logits(model: nn.Module) -> Callable[[PyTree, PyTree], jax.Array]:
    """Returns the logits of parameters and images."""

    def apply(params: PyTree, images: PyTree) -> jax.Array:
        logits: Any = model.apply({"params": params}, images)
        return logits

    return apply


@functools.cache
def teacher_labels(settings: Teachers, folder: Path) -> npt.NDArray[np.int32]:
    """Returns the teachers' labels ``(num_teachers, num_labels)`` on the first public images.

    They are kept in ``folder``, which the rows of an experiment share: those of these settings and
    data are read if they are there, and an interrupted training resumes.
    """
    data = load_images(settings.data)
    some = hash_arrays(data.train.x[:100])
    identity = json.dumps([dataclasses.asdict(settings), data.name, some]).encode()
    own = folder / f"teachers_{hashlib.sha256(identity).hexdigest()[:8]}"
    own.mkdir(parents=True, exist_ok=True)
    path = own / "labels.npy"
    if not path.exists():
        labels = _train_and_predict(settings, data, own / "checkpoints")
        temporary = path.with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            np.save(file, labels)
        temporary.replace(path)
    return np.load(path)


def _train_and_predict(
    settings: Teachers, data: Dataset, checkpoints: Path
) -> npt.NDArray[np.int32]:
    model, num_examples = _NETWORKS[settings.network](), len(data.train.y)
    assign_key, train_key = jax.random.split(jax.random.key(settings.seed))
    size = num_examples // settings.num_teachers
    partition = pate.Partition.draw(
        assign_key, num_examples, num_teachers=settings.num_teachers, shard_size=size
    )
    batch_size, apply = min(settings.batch_size, size), _logits(model)

    def loss(params: PyTree, batch: PyTree, key: PRNGKey) -> jax.Array:
        images, labels = batch
        images = random_affine(key, images) if settings.augment else images
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, images), labels)

    teachers = pate.train_teachers(
        train_key,
        loss,
        lambda key: model.init(key, data.train.x[:1])["params"],
        partition.shards(tuple(data.train)),
        optax.adam(settings.learning_rate),
        num_steps=settings.epochs * (size // batch_size),
        batch_size=batch_size,
        loss_takes_key=True,
        checkpoint_dir=checkpoints,
    )
    return pate.predict_labels(apply, teachers, split_pool(data)[0].x[: settings.num_labels])


def student_accuracy(
    settings: Student, images: np.ndarray, labels: npt.NDArray[np.int64], test: Split
) -> float:
    """Returns the test accuracy in % of a student of the released labels."""
    model = _NETWORKS[settings.network]()
    key, params = initialize(model, images[:1], settings.seed)
    student = train_student(
        key,
        _logits(model),
        params,
        images,
        labels,
        optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.num_steps)),
        num_steps=settings.num_steps,
        batch_size=settings.batch_size,
        augment_fn=random_affine,
        unlabeled_batch_size=settings.unlabeled_batch_size,
    )
    return accuracy_percent(model)(student, test)


def _train_plainly(data: Dataset, test: Split, network: str, **epochs: int) -> float:
    """Returns the test accuracy in % of a network trained on all images without privacy."""
    model = _NETWORKS[network]()
    key, params = initialize(model, data.train.x[:1], seed=0)
    task = Task(cross_entropy(model), tuple(data.train), optax.adam(1e-3))
    trained = train(key, task, params, ShuffledEpochs(**epochs))
    return accuracy_percent(model)(trained.params, test)
