"""CIFAR-10: 60,000 small colour photographs."""

import io
import tarfile
from functools import partial
from typing import Any

import numpy as np

from dpjax._extras import requires_extra
from experiments.data import tfds
from experiments.data.base import Dataset, Split, split_of_images
from experiments.data.mnist import digits_in_colour
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

_HOST = "https://www.cs.toronto.edu/~kriz/"
_NUM_TRAIN, _NUM_TEST = 50_000, 10_000
_BINARY = RawFile(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_JPEG = RawFile(
    "cifar10_jpeg.npz",
    18_385_360,
    "8215321b05bfc8d3228efeaa34aebce11d18d5e23312f50a2768e92610feeceb",
)
_FOLDER = "cifar-10-batches-bin"
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_SEED = 0


def load_cifar10() -> Dataset:
    """Returns CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels, ten classes.

    Images are float32 in [0, 1] of shape (n, 32, 32, 3), red, green, blue. The sources, in this
    order:

    1. raw files in ``$DPJAX_DATA_DIR/cifar10/`` or ``$DPJAX_DATA_DIR`` itself: the original
       ``cifar-10-binary.tar.gz``, else ``cifar10_jpeg.npz``, which holds every image as a JPEG
       file: lossy, so the name and the note say "JPEG re-encoding";
    2. TFDS: the copy prepared in ``$TFDS_DATA_DIR``, if there is one;
    3. the original host's file, downloaded into the cache folder;
    4. the stand-in: scikit-learn's digits (``load_digits``), grey in three equal channels and
       framed to 32x32, with ``is_stand_in`` set.

    Every raw file is checked by its sha256; the original's is the one registered with TFDS. The
    JPEG files are sorted by class and are shuffled here, by one fixed permutation for each part;
    the other sources keep their own order.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

    Raises:
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    stand_in = partial(digits_in_colour, "CIFAR-10")
    return first_available((_from_data_dir, _from_tfds, _from_host, stand_in))


def _from_data_dir() -> Dataset:
    source = "raw files in DPJAX_DATA_DIR"
    try:
        folder = find_raw("cifar10", (_BINARY,))
    except UnavailableError:
        return _from_jpeg(read_raw(find_raw("cifar10", (_JPEG,)), _JPEG), source)
    return _from_binary(read_raw(folder, _BINARY), source)


def _from_host() -> Dataset:
    folder = fetch_raw("cifar10", (_BINARY,), _HOST)
    return _from_binary(read_raw(folder, _BINARY), "original host")


def _from_binary(data: bytes, source: str) -> Dataset:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        splits = []
        for names in (_TRAIN_FILES, ("test_batch.bin",)):
            files: list[Any] = [archive.extractfile(f"{_FOLDER}/{name}") for name in names]
            data = b"".join(file.read() for file in files)
            # Each image is its label, then 32x32 reds, greens and blues.
            table = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            images = table[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            splits.append(split_of_images(images, table[:, 0]))
    train, test = splits
    return _cifar10(train, test, source)


def _from_jpeg(data: bytes, source: str) -> Dataset:
    with np.load(io.BytesIO(data)) as arrays:
        train, test = (_split_of_jpegs(arrays, part) for part in ("train", "test"))
    return _cifar10(train, test, source, encoding=" (JPEG re-encoding)")


def _split_of_jpegs(arrays: Any, part: str) -> Split:
    with requires_extra("data"):
        from PIL import Image

    files, offsets = arrays[f"{part}_jpeg"].tobytes(), arrays[f"{part}_offsets"]
    order = np.random.default_rng(_SEED).permutation(len(offsets) - 1)
    encoded = [io.BytesIO(files[offsets[i] : offsets[i + 1]]) for i in order]
    images = np.stack([np.asarray(Image.open(file)) for file in encoded])
    return split_of_images(images, arrays[f"{part}_labels"][order])


def _from_tfds() -> Dataset:
    version, parts = tfds.read_train_and_test("cifar10", (_NUM_TRAIN, _NUM_TEST))
    train, test = map(tfds.split_of_records, parts)
    return _cifar10(train, test, f"TFDS {version}")


def _cifar10(train: Split, test: Split, source: str, encoding: str = "") -> Dataset:
    return Dataset(
        name=f"cifar10{encoding}",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=10,
        note=f"CIFAR-10{encoding}: {len(train.y):,} training and {len(test.y):,} test images, from"
        f" {source}.",
    )
