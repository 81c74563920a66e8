"""Fashion-MNIST: 70,000 pictures of clothes in the format of MNIST."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.data import tfds
from experiments.data.base import Dataset, Split, split_of_images
from experiments.data.formats import read_idx
from experiments.data.mnist import load_digits
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_NUM_TRAIN, _NUM_TEST = 60_000, 10_000
_FILES = (
    RawFile(
        "train-images-idx3-ubyte.gz",
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    RawFile(
        "train-labels-idx1-ubyte.gz",
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    RawFile(
        "t10k-images-idx3-ubyte.gz",
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    RawFile(
        "t10k-labels-idx1-ubyte.gz",
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
_SORTED = RawFile(
    "fashion_mnist.npz",
    30_492_897,
    "c8fd4748719aa77b08a13b73587cdc9d7cc6bad3a86e7213e1fd905e5c0e3495",
)
_SEED = 0


def load_fashion_mnist() -> Dataset:
    """Returns Fashion-MNIST: 60,000 training and 10,000 test images of 28x28 pixels, ten classes.

    The sources, in this order:

    1. raw files in ``$DPJAX_DATA_DIR/fashion_mnist/``: the four original files, which have the
       names of MNIST's and are therefore not looked for in ``$DPJAX_DATA_DIR`` itself; else
       ``fashion_mnist.npz``, there or in ``$DPJAX_DATA_DIR``, with the same images by class;
    2. TFDS: the copy prepared in ``$TFDS_DATA_DIR``, if there is one;
    3. the original host's files, downloaded into the cache folder;
    4. the stand-in: scikit-learn's digits (``load_digits``), with ``is_stand_in`` set.

    Every raw file is checked by its sha256; those of the original files are registered with TFDS.
    The images of ``fashion_mnist.npz`` are sorted by class and are shuffled here, by one fixed
    permutation for each part; the other sources keep their own order.

    Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking
    machine learning algorithms", 2017.

    Raises:
      FileNotFoundError: if the folder holds some of the four files and not the others.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available((_from_data_dir, _from_tfds, _from_host, _stand_in))


def _from_data_dir() -> Dataset:
    source = "raw files in DPJAX_DATA_DIR"
    try:
        return _from_idx(find_raw("fashion_mnist", _FILES, own_folder=True), source)
    except UnavailableError:
        return _from_npz(read_raw(find_raw("fashion_mnist", (_SORTED,)), _SORTED), source)


def _from_host() -> Dataset:
    return _from_idx(fetch_raw("fashion_mnist", _FILES, _HOST), "original host")


def _from_idx(folder: Path, source: str) -> Dataset:
    train_x, train_y, test_x, test_y = (read_idx(read_raw(folder, file)) for file in _FILES)
    train, test = _grey(train_x, train_y), _grey(test_x, test_y)
    return _fashion_mnist(train, test, source)


def _from_npz(data: bytes, source: str) -> Dataset:
    with np.load(io.BytesIO(data)) as arrays:
        train, test = (
            _shuffled(arrays[f"X_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
        )
    return _fashion_mnist(train, test, source)


def _shuffled(images: np.ndarray, labels: np.ndarray) -> Split:
    order = np.random.default_rng(_SEED).permutation(len(labels))
    return _grey(images[order], labels[order])


def _grey(images: np.ndarray, labels: np.ndarray) -> Split:
    return split_of_images(images.reshape(-1, 28, 28, 1), labels)


def _from_tfds() -> Dataset:
    version, parts = tfds.read_train_and_test("fashion_mnist", (_NUM_TRAIN, _NUM_TEST))
    train, test = map(tfds.split_of_records, parts)
    return _fashion_mnist(train, test, f"TFDS {version}")


def _fashion_mnist(train: Split, test: Split, source: str) -> Dataset:
    return Dataset(
        name="fashion_mnist",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=10,
        note=f"Fashion-MNIST: {len(train.y):,} training and {len(test.y):,} test images, from"
        f" {source}.",
    )


def _stand_in() -> Dataset:
    digits = load_digits()
    return replace(
        digits,
        source="scikit-learn digits (stand-in)",
        is_stand_in=True,
        note="This is not Fashion-MNIST, which was not available: scikit-learn's digits stand in"
        f" for it, so no number here is one of Fashion-MNIST. {digits.note}",
    )
