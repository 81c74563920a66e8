"""SVHN: cropped colour photographs of the digits of house numbers."""

import io
from functools import partial
from pathlib import Path

import numpy as np

from experiments.data import tfds
from experiments.data.base import Dataset, Split, split_of_images
from experiments.data.formats import read_mat
from experiments.data.mnist import digits_in_colour
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

_HOST = "http://ufldl.stanford.edu/housenumbers/"
_NUM_TRAIN, _NUM_TEST = 73_257, 26_032
_FILES = (
    RawFile(
        "train_32x32.mat",
        182_040_794,
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    RawFile(
        "test_32x32.mat",
        64_275_384,
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)
_SUBSET = RawFile(
    "svhn_test_first10000_rgb.npz",
    25_663_826,
    "ff37b16545786b8ddfef4498f439644cb295ddfdd673680e5743b9ce62221c8c",
)
_NUM_SUBSET_TRAIN = 8_000


def load_svhn() -> Dataset:
    """Returns SVHN: 73,257 training and 26,032 test images of 32x32 pixels, ten classes.

    Images are float32 in [0, 1] of shape (n, 32, 32, 3), red, green, blue; the label is the digit
    in the centre. The sources, in this order:

    1. raw files in ``$DPJAX_DATA_DIR/svhn/`` or ``$DPJAX_DATA_DIR`` itself: the original
       ``train_32x32.mat`` and ``test_32x32.mat``, else ``svhn_test_first10000_rgb.npz``, which
       holds the first 10,000 test images: 8,000 of them train, and the name and the note say so;
    2. TFDS: the copy of ``svhn_cropped`` prepared in ``$TFDS_DATA_DIR``, if there is one;
    3. the original host's files (246 MB), downloaded into the cache folder;
    4. the stand-in: scikit-learn's digits (``load_digits``), grey in three equal channels and
       framed to 32x32, with ``is_stand_in`` set.

    Every raw file is checked by its sha256; those of the original files are registered with TFDS.
    The 10,000 images are split in their order: neighbours are often digits of one house number,
    which a random split would separate.

    Source: Y. Netzer et al., "Reading digits in natural images with unsupervised feature
    learning", 2011.

    Raises:
      FileNotFoundError: if ``DPJAX_DATA_DIR`` holds one of the two original files and not the
        other.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    stand_in = partial(digits_in_colour, "SVHN")
    return first_available((_from_data_dir, _from_tfds, _from_host, stand_in))


def _from_data_dir() -> Dataset:
    source = "raw files in DPJAX_DATA_DIR"
    try:
        return _from_mat(find_raw("svhn", _FILES), source)
    except UnavailableError:
        return _from_subset(read_raw(find_raw("svhn", (_SUBSET,)), _SUBSET), source)


def _from_host() -> Dataset:
    return _from_mat(fetch_raw("svhn", _FILES, _HOST), "original host")


def _from_mat(folder: Path, source: str) -> Dataset:
    splits = []
    for file in _FILES:
        arrays = read_mat(read_raw(folder, file))
        # Pixels are (height, width, channels, n), and the digit 0 has label 10.
        images = np.moveaxis(arrays["X"], -1, 0)
        splits.append(split_of_images(images, arrays["y"].ravel() % 10))
    train, test = splits
    return _svhn(train, test, source)


def _from_subset(data: bytes, source: str) -> Dataset:
    with np.load(io.BytesIO(data)) as arrays:
        images, labels = arrays["X"], arrays["y"]
    train, test = (
        split_of_images(images[rows], labels[rows])
        for rows in (slice(_NUM_SUBSET_TRAIN), slice(_NUM_SUBSET_TRAIN, None))
    )
    return Dataset(
        name=f"svhn ({len(labels):,} test images)",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=10,
        note=f"SVHN, the first {len(labels):,} of its {_NUM_TEST:,} test images, split here in"
        f" their order: {len(train.y):,} for training and {len(test.y):,} for testing, from"
        f" {source}. Its {_NUM_TRAIN:,} training images were not available.",
    )


def _from_tfds() -> Dataset:
    version, parts = tfds.read_train_and_test("svhn_cropped", (_NUM_TRAIN, _NUM_TEST))
    train, test = map(tfds.split_of_records, parts)
    return _svhn(train, test, f"TFDS {version}")


def _svhn(train: Split, test: Split, source: str) -> Dataset:
    return Dataset(
        name="svhn",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=10,
        note=f"SVHN, cropped digits: {len(train.y):,} training and {len(test.y):,} test images,"
        f" from {source}.",
    )
