"""MNIST: 70,000 handwritten digits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpjax.datasets import tfds
from dpjax.datasets.base import Dataset, Split
from dpjax.datasets.digits import load_digits
from dpjax.datasets.formats import read_idx
from dpjax.datasets.sources import (
    CorruptedFileError,
    RawFile,
    UnavailableError,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

_HOST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_NUM_TRAIN, _NUM_TEST = 60_000, 10_000
_FILES = (
    RawFile(
        "train-images-idx3-ubyte.gz",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    RawFile(
        "train-labels-idx1-ubyte.gz",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    RawFile(
        "t10k-images-idx3-ubyte.gz",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    RawFile(
        "t10k-labels-idx1-ubyte.gz",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)


def load_mnist() -> Dataset:
    """Returns MNIST: 60,000 training and 10,000 test images of 28x28 pixels, ten classes.

    The sources, in this order:

    1. raw files: ``$DPJAX_DATA_DIR/mnist/``, or ``$DPJAX_DATA_DIR`` itself;
    2. TFDS: the copy prepared in ``$TFDS_DATA_DIR``; if there is none and TensorFlow is
       installed, one is prepared from the original host's files;
    3. the original host's files, downloaded into the cache folder;
    4. the stand-in: scikit-learn's digits (``load_digits``), with ``is_stand_in`` set.

    Every raw file is checked against its published sha256. TFDS keeps the records in an order of
    its own, so its copy has another fingerprint than the raw files, and no other difference.

    Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".

    Raises:
      FileNotFoundError: if ``DPJAX_DATA_DIR`` holds some of the four files and not the others.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available((_from_data_dir, _from_tfds, _from_host, _stand_in))


def _from_data_dir() -> Dataset:
    return _from_raw(find_raw("mnist", _FILES), "raw files in DPJAX_DATA_DIR")


def _from_host() -> Dataset:
    return _from_raw(fetch_raw("mnist", _FILES, _HOST), "original host")


def _from_raw(folder: Path, source: str) -> Dataset:
    train_x, train_y, test_x, test_y = (read_idx(read_raw(folder, file)) for file in _FILES)
    return _mnist(_split(train_x, train_y), _split(test_x, test_y), source)


def _from_tfds() -> Dataset:
    if not tfds.is_prepared("mnist"):
        _prepare()
    version, (train, test) = tfds.read_prepared("mnist", ("train", "test"))
    if (len(train), len(test)) != (_NUM_TRAIN, _NUM_TEST):
        raise CorruptedFileError(
            f"the prepared copy of mnist in {tfds.data_dir()} holds {len(train)} + {len(test)}"
            f" images, {_NUM_TRAIN} + {_NUM_TEST} expected; delete it and prepare it again"
        )
    return _mnist(_split_of_records(train), _split_of_records(test), f"TFDS {version}")


def _prepare() -> None:
    if not tfds.can_prepare():
        raise UnavailableError(
            f"{tfds.data_dir()} holds no copy of mnist prepared by TFDS, and TensorFlow, which"
            " would prepare one, is not installed"
        )
    tfds.prepare("mnist", fetch_raw("mnist", _FILES, _HOST))


def _split_of_records(records: Sequence[dict[str, np.ndarray]]) -> Split:
    images = np.stack([record["image"] for record in records])
    return _split(images, np.array([record["label"] for record in records]))


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    pixels = images.reshape(-1, 28, 28, 1).astype(np.float32) / np.float32(255)
    return Split(pixels, labels.astype(np.int32))


def _mnist(train: Split, test: Split, source: str) -> Dataset:
    return Dataset(
        name="mnist",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=10,
        note=f"MNIST: {len(train.y):,} training and {len(test.y):,} test images, from {source}.",
    )


def _stand_in() -> Dataset:
    digits = load_digits()
    return replace(
        digits,
        source="scikit-learn digits (stand-in)",
        is_stand_in=True,
        note=f"This is not MNIST, which was not available: scikit-learn's digits stand in for it,"
        f" so no number here is one of MNIST. {digits.note}",
    )
