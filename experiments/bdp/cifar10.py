"""CIFAR-10, Table 1 of Triastcyn and Faltings (2020): the last layer on fixed features.

``python -m experiments run bdp_cifar10``: on two CPU cores about a minute (``quick``: 10,000
training and 2,500 test images) or a quarter of an hour (``paper``: all of them).

Features are scattering coefficients (Bruna and Mallat 2013) of fixed wavelets, as used for private
classifiers by Tramèr and Boneh (2021).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.bdp import table
from experiments.bdp.table import EXAMPLES, MEAN, PLAIN, Settings, Task, published_row
from experiments.data import Dataset, Split, load_data
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.scattering import apply_in_batches, wavelet_moduli

_EPOCHS = 50
_SIZES = {"quick": (10_000, 2_500), "paper": (50_000, 10_000)}
NUM_FEATURES = 3888
_CELLS = 4
_OPPONENT = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])
# For features of norm 1 a gradient has norm at most the square root of two.
_MODEL = nn.Dense(10, use_bias=False, kernel_init=nn.initializers.zeros)


@functools.cache
def data_set() -> Dataset:
    """Returns CIFAR-10, or its stand-in if it is not available."""
    return load_data("cifar10", stand_in=True)


@functools.cache
def load_features(num_train: int, num_test: int) -> Dataset:
    """Returns the scattering features of the first training and test images."""
    images = data_set()
    parts = ((images.train, num_train), (images.test, num_test))
    train, test = (Split(features(part.x[:n]), part.y[:n].astype(np.int32)) for part, n in parts)
    note = f"{images.note} Of these, the first {len(train.y):,} and {len(test.y):,}."
    return dataclasses.replace(images, train=train, test=test, note=note)


def features(images: np.ndarray) -> np.ndarray:
    """Returns 3,888 features of norm 1 of each image, float32 (n, 3888).

    Scattering coefficients of orders 0, 1 and 2 (two scales, eight angles) of brightness and two
    colour differences, averaged over 4x4 cells. The coefficients of each order are centred and
    scaled to norm 1 within the image.

    Privacy:
      An image's features depend on that image only.
    """
    return apply_in_batches(_features_of_batch, images)


@jax.jit
def _features_of_batch(images: jax.Array) -> jax.Array:
    colours = jnp.einsum("nijc,kc->nkij", images, jnp.asarray(_OPPONENT, jnp.float32))
    fine, coarse, second = map(_average_cells, wavelet_moduli(colours))
    first = jnp.concatenate([fine, coarse], axis=1)
    groups = [_normalise(group) for group in (_average_cells(colours), first, second)]
    return jnp.concatenate(groups, axis=1) / jnp.sqrt(3.0)


def _average_cells(maps: jax.Array) -> jax.Array:
    """Returns averages over 4x4 cells: from (n, ..., side, side) to (n, features)."""
    width = maps.shape[-1] // _CELLS
    split = maps.reshape(*maps.shape[:-2], _CELLS, width, _CELLS, width)
    return split.mean((-3, -1)).reshape(len(maps), -1)


def _normalise(group: jax.Array) -> jax.Array:
    centred = group - group.mean(axis=1, keepdims=True)
    return centred / (jnp.linalg.norm(centred, axis=1, keepdims=True) + 1e-3)


def rows(profile: str) -> list[Row]:
    epochs = 10 if profile == "quick" else _EPOCHS
    common: Any = {"epochs": epochs, "published_epochs": _EPOCHS, "batch_size": 512}
    published = ((8.0, 0.999), (0.76, 0.681))
    sizes = dict(zip(("num_train", "num_test"), _SIZES[profile], strict=True))

    def row(name: str, source: dict[str, float], method: str, **changes: Any) -> Row:
        settings = Settings(method, "adam", 0.01, **common, **changes)
        return Row(name, {**dataclasses.asdict(settings), **sizes}, source)

    return [
        row("not private", published_row(86.0), PLAIN),
        row("source's protocol", published_row(73.0, *published), MEAN, noise_std=0.8),
        row("DP ε 8", published_row(73.0, published[0]), EXAMPLES, target=(8.0, 1e-5)),
        row("ε 0.76 at 1e-10", {}, EXAMPLES, target=(0.76, 1e-10)),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings = dict(row.settings)
    data = load_features(settings.pop("num_train"), settings.pop("num_test"))
    task = Task(_MODEL, data, "one image")
    return table.run_row(dataclasses.replace(row, settings=settings), context, task, 35.0)


def finding(records: Sequence[Record]) -> Finding:
    # The quick profile is shortened.
    return table.finding(records, "source's protocol", lambda record: record.profile == "paper")


figures, remarks = table.figures, table.remarks
