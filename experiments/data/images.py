"""Images: digits, MNIST, Fashion-MNIST, CIFAR-10, SVHN and the Olivetti faces."""

import gzip
import io
import math
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from dpjax import datasets
from dpjax.datasets import Split
from experiments.data.base import Dataset, split_of_images

_SEED = 0
_CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_NUM_PEOPLE, _NUM_PICTURES, _NUM_FACES_TRAIN = 40, 10, 7
_SVHN_SUBSET_TRAIN = 8_000
_IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

Reader = Callable[[Sequence[Path]], tuple[Split, Split]]


def of_files(name: str, title: str, read: Reader, num_classes: int = 10) -> Callable[..., Dataset]:
    """Returns ``read(paths, source)`` of an image data set, from the reader of its two parts."""
    return lambda paths, source: _images(name, title, source, *read(paths), num_classes)


def of_tfds(name: str, title: str) -> Callable[..., Dataset]:
    """Returns ``read(train, test, source)`` of records prepared by TFDS."""

    def read(train: list[dict[str, Any]], test: list[dict[str, Any]], source: str) -> Dataset:
        found_train, found_test = (
            split_of_images(np.stack([r["image"] for r in part]), [r["label"] for r in part])
            for part in (train, test)
        )
        return _images(name, title, source, found_train, found_test)

    return read


def _images(
    name: str, title: str, source: str, train: Split, test: Split, num_classes: int = 10
) -> Dataset:
    return Dataset(
        name=name,
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=num_classes,
        note=f"{title}: {len(train.y):,} training and {len(test.y):,} test images, from {source}.",
    )


def load_digits() -> Dataset:
    """Returns the bundled digits of `dpjax.datasets.load_digits`."""
    train, test = datasets.load_digits()
    return Dataset(
        name="digits",
        train=train,
        test=test,
        source="scikit-learn digits",
        is_stand_in=False,
        num_classes=10,
        note="The 8x8 handwritten digits of scikit-learn, enlarged to 28x28: 1,437 for training"
        " and 360 for testing, in a split of our own.",
    )


def digits_in_colour() -> Dataset:
    """Returns the digits in three equal channels, framed to 32x32."""
    digits = load_digits()
    train, test = (  # from (n, 28, 28, 1) to (n, 32, 32, 3)
        Split(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=-1), y)
        for x, y in (digits.train, digits.test)
    )
    note = f"{digits.note} They are grey and framed to 32x32."
    return replace(digits, train=train, test=test, note=note)


def few_digits() -> Dataset:
    """Returns ten images of each digit: the sizes of the faces of one person."""

    def first_of_each_class(part: Split, size: int) -> Split:
        rows = np.concatenate([np.flatnonzero(part.y == label)[:size] for label in range(10)])
        return Split(part.x[rows], part.y[rows])

    digits = load_digits()
    train = first_of_each_class(digits.train, _NUM_FACES_TRAIN)
    test = first_of_each_class(digits.test, _NUM_PICTURES - _NUM_FACES_TRAIN)
    note = f"{digits.note} Of each digit, the first ten."
    return replace(digits, train=train, test=test, note=note)


def read_mnist(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads the four IDX files: training images and labels, test images and labels."""
    train_x, train_y, test_x, test_y = (parse_idx(gzip.decompress(p.read_bytes())) for p in paths)
    return (
        split_of_images(train_x[..., None], train_y),
        split_of_images(test_x[..., None], test_y),
    )


def parse_idx(data: bytes) -> np.ndarray:
    """Returns the array in the bytes of an IDX file.

    The header is two zero bytes, a type code, the number of axes and each axis' length as a
    big-endian uint32; the numbers follow in big-endian, row-major order. Source: Y. LeCun,
    C. Cortes, C. Burges, "The MNIST database of handwritten digits", "the IDX file format".

    Raises:
      ValueError: if the bytes are not a whole IDX file and nothing else.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
    array([5, 0, 4], dtype=uint8)
    """
    # The header.
    if len(data) < 4 or data[:2] != b"\0\0":
        raise ValueError(f"magic number {data[:4].hex() or 'missing'} found, 0000.... expected")
    if data[2] not in _IDX_DTYPES:
        codes = ", ".join(f"0x{code:02x}" for code in _IDX_DTYPES)
        raise ValueError(f"type code 0x{data[2]:02x} found, one of {codes} expected")
    dtype, start = np.dtype(_IDX_DTYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"header of {len(data)} bytes found, {start} expected")
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist())

    # The numbers.
    size, expected = len(data) - start, math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"{size} bytes of numbers found, {expected} expected for shape {shape}")
    return np.frombuffer(data[start:], dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_sorted_fashion(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads images sorted by class, and shuffles each part by one fixed permutation."""

    def shuffled(images: np.ndarray, labels: np.ndarray) -> Split:
        order = np.random.default_rng(_SEED).permutation(len(labels))
        return split_of_images(images[order].reshape(-1, 28, 28, 1), labels[order])

    with np.load(paths[0]) as arrays:
        return (
            shuffled(arrays["X_train"], arrays["y_train"]),
            shuffled(arrays["X_test"], arrays["y_test"]),
        )


def read_cifar10(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads the original binary archive."""
    splits = []
    with tarfile.open(paths[0], mode="r:gz") as archive:
        for names in (_CIFAR10_TRAIN, ("test_batch.bin",)):
            members: list[Any] = [archive.extractfile(f"cifar-10-batches-bin/{n}") for n in names]
            data = b"".join(member.read() for member in members)
            # Each image is its label, then 32x32 reds, greens and blues.
            table = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            images = table[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            splits.append(split_of_images(images, table[:, 0]))
    return splits[0], splits[1]


def read_jpegs(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads JPEG files sorted by class, and shuffles each part by one fixed permutation."""
    with np.load(paths[0]) as arrays:
        return split_of_jpegs(arrays, "train"), split_of_jpegs(arrays, "test")


def split_of_jpegs(arrays: Any, part: str) -> Split:
    """Returns one part of the JPEG files."""
    from PIL import Image

    files, offsets = arrays[f"{part}_jpeg"].tobytes(), arrays[f"{part}_offsets"]
    order = np.random.default_rng(_SEED).permutation(len(offsets) - 1)
    encoded = [io.BytesIO(files[offsets[i] : offsets[i + 1]]) for i in order]
    images = np.stack([np.asarray(Image.open(file)) for file in encoded])
    return split_of_images(images, arrays[f"{part}_labels"][order])


def read_svhn(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads the two original MATLAB files."""
    splits = []
    for path in paths:
        arrays = loadmat(path)
        # Pixels are (height, width, channels, n), and the digit 0 has label 10.
        images = np.moveaxis(arrays["X"], -1, 0)
        splits.append(split_of_images(images, arrays["y"].ravel() % 10))
    return splits[0], splits[1]


def read_svhn_subset(paths: Sequence[Path], source: str) -> Dataset:
    """Reads the first test images, split in order: neighbours are often of one house number."""
    with np.load(paths[0]) as arrays:
        images, labels = arrays["X"], arrays["y"]
    train, test = (
        split_of_images(images[rows], labels[rows])
        for rows in (slice(_SVHN_SUBSET_TRAIN), slice(_SVHN_SUBSET_TRAIN, None))
    )
    name = f"svhn ({len(labels):,} test images)"
    found = _images(name, "SVHN", source, train, test)
    note = (
        f"SVHN, the first {len(labels):,} of its 26,032 test images, split here in their order:"
        f" {len(train.y):,} for training and {len(test.y):,} for testing, from {source}. Its"
        " 73,257 training images were not available."
    )
    return replace(found, note=note)


def read_faces(paths: Sequence[Path]) -> tuple[Split, Split]:
    """Reads ten pictures of each person, of which the first seven train."""
    # Every column is one picture, itself column after column.
    columns = loadmat(paths[0])["faces"]
    pictures = columns.T.reshape(_NUM_PEOPLE, _NUM_PICTURES, 64, 64).swapaxes(2, 3)
    train, test = (
        split_of_images(
            part.reshape(-1, 64, 64, 1), np.repeat(np.arange(_NUM_PEOPLE), part.shape[1])
        )
        for part in (pictures[:, :_NUM_FACES_TRAIN], pictures[:, _NUM_FACES_TRAIN:])
    )
    return train, test
