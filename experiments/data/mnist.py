"""MNIST: 70,000 handwritten digits; and scikit-learn's 1,797 digits, at MNIST's size."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dpjax import datasets
from experiments.data import tfds
from experiments.data.base import Dataset, Split, split_of_images
from experiments.data.formats import read_idx
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    fetch_raw,
    first_raw,
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
    return first_raw("mnist", _FILES, _HOST, _from_raw, _stand_in, prepared=_from_tfds)


def load_digits() -> Dataset:
    """Returns scikit-learn's digits: 1,437 training and 360 test images of 28x28 pixels.

    These are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
    Digits" (UCI, CC BY 4.0), 8x8 counts from 0 to 16, distributed with dpjax. Each pixel becomes
    3x3 equal ones and a border of two zeros is added, which is exact, so the bytes are the same on
    every machine. The split (80/20, equal class shares, scikit-learn's ``train_test_split`` with
    ``random_state=0``) is dpjax's: the source has none.

    >>> digits = load_digits()
    >>> digits.train.x.shape, digits.test.x.shape
    ((1437, 28, 28, 1), (360, 28, 28, 1))
    """
    splits = datasets.load_digits()
    return Dataset(
        name="digits",
        train=splits[0],
        test=splits[1],
        source="scikit-learn digits",
        is_stand_in=False,
        num_classes=10,
        note="The 8x8 handwritten digits of scikit-learn, enlarged to 28x28: 1,437 for training"
        " and 360 for testing, in a split of our own.",
    )


def _from_raw(folder: Path, source: str) -> Dataset:
    train_x, train_y, test_x, test_y = (read_idx(read_raw(folder, file)) for file in _FILES)
    train, test = (
        split_of_images(x[..., None], y) for x, y in ((train_x, train_y), (test_x, test_y))
    )
    return _mnist(train, test, source)


def _from_tfds() -> Dataset:
    if not tfds.is_prepared("mnist"):
        if not tfds.can_prepare():
            raise UnavailableError(
                f"{tfds.data_dir()} holds no copy of mnist prepared by TFDS, and TensorFlow, which"
                " would prepare one, is not installed"
            )
        tfds.prepare("mnist", fetch_raw("mnist", _FILES, _HOST))
    version, parts = tfds.read_train_and_test("mnist", (_NUM_TRAIN, _NUM_TEST))
    train, test = map(tfds.split_of_records, parts)
    return _mnist(train, test, f"TFDS {version}")


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


def digits_in_colour(data_set: str) -> Dataset:
    """Returns `load_digits` in three equal channels at 32x32: the stand-in for ``data_set``."""
    digits = load_digits()
    train, test = (  # from (n, 28, 28, 1) to (n, 32, 32, 3)
        Split(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=-1), y)
        for x, y in (digits.train, digits.test)
    )
    return replace(
        digits,
        train=train,
        test=test,
        source="scikit-learn digits (stand-in)",
        is_stand_in=True,
        note=f"This is not {data_set}, which was not available: scikit-learn's digits, grey and"
        f" framed to 32x32, stand in for it, so no number here is one of {data_set}. {digits.note}",
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
