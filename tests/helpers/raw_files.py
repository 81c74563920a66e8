"""Tiny data sets in the files and formats that are published, with what has to be read of them."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy.io import savemat

from experiments.data import Dataset

IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
IDX_NAMES = tuple(
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


class Tiny(NamedTuple):
    """Files of one form of a data set.

    Attributes:
      contents: the files.
      arrays: the training records' features and labels, and the test records', as they have to be
        read; None where a test of the data set's own compares them.
      downloaded: whether the host has files of this form.
    """

    contents: dict[str, bytes]
    arrays: tuple[np.ndarray, ...] | None = None
    downloaded: bool = True


def idx_bytes(array: np.ndarray) -> bytes:
    code = IDX_CODES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def mat(**arrays: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=True)
    return file.getvalue()


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def scaled(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images / np.float32(255), labels.astype(np.int32)


# MNIST, and Fashion-MNIST in its names: seven training and three test images.
_rng = np.random.default_rng(0)
GREY, GREY_TEST = (_rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (7, 3))
GREY_LABELS, GREY_TEST_LABELS = (_rng.integers(0, 10, n, dtype=np.uint8) for n in (7, 3))
_idx = [
    gzip.compress(idx_bytes(array), mtime=0)
    for array in (GREY, GREY_LABELS, GREY_TEST, GREY_TEST_LABELS)
]
_grey = (*scaled(GREY[..., None], GREY_LABELS), *scaled(GREY_TEST[..., None], GREY_TEST_LABELS))
MNIST = Tiny(dict(zip(IDX_NAMES, _idx, strict=True)), _grey)
SORTED_FASHION = Tiny(
    {
        "fashion_mnist.npz": npz(
            X_train=GREY, y_train=GREY_LABELS, X_test=GREY_TEST, y_test=GREY_TEST_LABELS
        )
    },
    downloaded=False,
)

# CIFAR-10: one colour an image, half of it in the upper right quarter, black below: JPEG, whose
# blocks these are, keeps it to a few of 255, and no other order of rows and columns gives the same
# image. Two images for each of ten labels.
COLOUR = _rng.integers(0, 256, (20, 1, 1, 3), dtype=np.uint8).repeat(32, axis=1).repeat(32, axis=2)
COLOUR[:, :16, 16:] //= 2
COLOUR[:, 16:] = 0
COLOUR_LABELS = np.arange(20) // 2
_colour = (*scaled(COLOUR, COLOUR_LABELS), *scaled(COLOUR[::-2], COLOUR_LABELS[::-2]))


def _binary(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The original binary: label, then the channels one after the other."""
    channels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels.astype(np.uint8), channels]).tobytes()


def _jpegs() -> bytes:
    arrays: dict[str, Any] = {}
    for part, rows in (("train", slice(None)), ("test", slice(None, None, -2))):
        files = []
        for image in COLOUR[rows]:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "JPEG", quality=95)
            files.append(file.getvalue())
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{part}_labels"] = COLOUR_LABELS[rows].astype(np.uint8)
    return npz(**arrays)


_batches = {
    f"cifar-10-batches-bin/data_batch_{i + 1}.bin": _binary(
        COLOUR[4 * i :][:4], COLOUR_LABELS[4 * i :][:4]
    )
    for i in range(5)
}
_batches["cifar-10-batches-bin/test_batch.bin"] = _binary(COLOUR[::-2], COLOUR_LABELS[::-2])
CIFAR10 = Tiny({"cifar-10-binary.tar.gz": tar(_batches)}, _colour)
JPEGS = Tiny({"cifar10_jpeg.npz": _jpegs()}, downloaded=False)

# SVHN: the images along the last axis, the digit 0 labelled 10.
HOUSES, HOUSES_TEST = (_rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (12, 5))
HOUSE_LABELS, HOUSE_TEST_LABELS = np.arange(12) % 10, np.array([0, 9, 0, 1, 2])


def _houses(images: np.ndarray, labels: np.ndarray) -> bytes:
    tens = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    return mat(X=np.moveaxis(images, 0, -1), y=tens)


SVHN = Tiny(
    {
        "train_32x32.mat": _houses(HOUSES, HOUSE_LABELS),
        "test_32x32.mat": _houses(HOUSES_TEST, HOUSE_TEST_LABELS),
    },
    (*scaled(HOUSES, HOUSE_LABELS), *scaled(HOUSES_TEST, HOUSE_TEST_LABELS)),
)
SVHN_SUBSET = Tiny(
    {"svhn_test_first10000_rgb.npz": npz(X=HOUSES, y=HOUSE_LABELS.astype(np.uint8))},
    downloaded=False,
)

# Olivetti faces: every column is one picture, itself column after column.
PICTURES = _rng.integers(0, 243, (40, 10, 64, 64), dtype=np.uint8)
_faces = mat(faces=PICTURES.swapaxes(2, 3).reshape(400, -1).T)
_people = [np.repeat(np.arange(40), n) for n in (7, 3)]
_pictures = (
    *scaled(PICTURES[:, :7].reshape(-1, 64, 64, 1), _people[0]),
    *scaled(PICTURES[:, 7:].reshape(-1, 64, 64, 1), _people[1]),
)
FACES = Tiny({"olivettifaces.mat": _faces}, _pictures, downloaded=False)
FACES_AT_FIGSHARE = Tiny({"5976027": _faces}, _pictures)

# Adult as binary features.
_a9a = np.zeros((3, 123), np.float32)
_a9a[[0, 0, 1, 2, 2], [2, 122, 0, 1, 3]] = 1
_a9a_test = np.zeros((2, 123), np.float32)
_a9a_test[[0, 1], [121, 0]] = 1
ADULT = Tiny(
    {"a9a": b"-1 3:1 123:1 \n+1 1:1 \n-1 2:1 4:1 \n", "a9a.t": b"+1 122:1 \n-1 1:1 \n"},
    (_a9a, np.array([0, 1, 0], np.int32), _a9a_test, np.array([1, 0], np.int32)),
)

# Adult's attributes, Abalone, Wine Quality, GDSC: compared by tests of their own.
_people_lines = [
    "39, Private, 77516, Masters, 14, Divorced, Sales, Wife, White, Female, 74, 0, 40, Cuba, <=50K",
    "50, ?, 83311, Masters, 14, Divorced, ?, Husband, Black, Male, 0, 0, 13, ?, >50K",
    "38, Private, 21564, HS-grad, 9, Widowed, Sales, Wife, White, Female, 0, 9, 45, Peru, <=50K",
    "53, Local-gov, 2347, 11th, 7, Divorced, Craft, Husband, Black, Male, 0, 0, 41, Peru, >50K",
    "28, Private, 3384, Masters, 14, Widowed, Craft, Wife, White, Female, 0, 0, 42, Cuba, <=50K",
]
ADULT_ATTRIBUTES = Tiny({"adult.data": "\n".join([*_people_lines, ""]).encode()})
ABALONES = [
    ("M", 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15, 15),
    ("I", 0.33, 0.255, 0.08, 0.205, 0.0895, 0.0395, 0.055, 7),
    ("F", 0.53, 0.42, 0.135, 0.677, 0.2565, 0.1415, 0.21, 10),
    ("M", 0.44, 0.365, 0.125, 0.516, 0.2155, 0.114, 0.155, 9),
    ("I", 0.425, 0.3, 0.095, 0.3515, 0.141, 0.0775, 0.12, 8),
]
ABALONE = Tiny(
    {"abalone.data": "".join(",".join(map(str, row)) + "\n" for row in ABALONES).encode()}
)
WINES = [[*(number + column / 10 for column in range(11)), 3 + number] for number in range(5)]
_header = ";".join(f'"{column}"' for column in range(12))
WINE = Tiny(
    {
        "winequality-white.csv": "\n".join(
            [_header, *(";".join(map(str, row)) for row in WINES)]
        ).encode()
    }
)
_FEATURES = """COSMIC_ID,TISSUE_FACTOR,MSI_FACTOR,TP53_mut,gain_A
7,lung,0,1,0
100,skin,1,1,0
23,lung,0,0,1
5,bone,0,0,0
61,skin,0,0,1
"""
# In another order of the lines; the drugs' values are 1 to 5 and 10 to 50 by ascending id.
RESPONSES = """COSMIC_ID,Drug_1_IC50,Drug_9_IC50
100,5,50
5,1,10
23,3,
7,2,20
61,,40
"""


def gdsc(responses: str = RESPONSES) -> dict[str, bytes]:
    texts = {"genomic_features_v17.csv.gz": _FEATURES, "IC50_v17.csv.gz": responses}
    return {name: gzip.compress(text.encode(), mtime=0) for name, text in texts.items()}


GDSC = Tiny(gdsc())

# IMDb: label, number, rating, text; by label and number, as the files hold them.
REVIEWS: dict[str, list[list[Any]]] = {
    "train": [
        ["neg", 0, 1, "Bad, bad film.\x85<br />Don't!"],
        ["neg", 10, 2, "A bad film"],
        ["pos", 2, 9, "Good " * 300 + "film"],
    ],
    "test": [["neg", 1, 4, "unheard bad"], ["pos", 0, 10, "Très good"]],
}


def _json_lines(reviews: list[list[Any]]) -> bytes:
    lines = "".join(json.dumps(review, ensure_ascii=False) + "\n" for review in reviews)
    return lzma.compress(lines.encode("utf-8"))


# In an order of its own, and with other files.
_members = {"aclImdb/README": b"read me", "aclImdb/train/unsup/0_0.txt": b"not labelled"} | {
    f"aclImdb/{split}/{label}/{number}_{rating}.txt": text.encode("utf-8")
    for split, reviews in REVIEWS.items()
    for label, number, rating, text in reviews[::-1]
}
# By frequency: good (300 times), bad and film (3), then the words that are there once.
_good, _bad, _film, _a, _br, _dont, _next_line = range(4, 11)
_words = [
    [1, _bad, _bad, _film, _next_line, _br, _dont],
    [1, _a, _bad, _film],
    [_good] * 255 + [_film],
]
_tokens, _test_tokens = (
    np.array([[0] * (256 - len(row)) + row for row in rows], np.int32)
    for rows in (_words, [[1, 2, _bad], [1, 2, _good]])
)
_imdb = (_tokens, np.array([0, 0, 1], np.int32), _test_tokens, np.array([0, 1], np.int32))
IMDB = Tiny(
    {f"imdb_{split}.jsonl.xz": _json_lines(reviews) for split, reviews in REVIEWS.items()},
    _imdb,
    downloaded=False,
)
IMDB_ARCHIVE = Tiny({"aclImdb_v1.tar.gz": tar(_members)}, _imdb)


# MovieLens: twenty ratings; user 4 and movie 9 are rated, movie 8 is not.
_pairs = [(u, m) for u in range(1, 5) for m in (1, 2, 3, 5, 9)]
RATINGS = [f"{u}::{m}::{_rng.integers(1, 6)}::97830{u}{m}" for u, m in _rng.permutation(_pairs)]


def ratings_file(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _zip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ml-1m/README", "no ratings here")
        archive.writestr("ml-1m/ratings.dat", data)
    return file.getvalue()


MOVIELENS = Tiny({"ml-1m.zip": _zip(ratings_file(RATINGS))})

# Every form with a published checksum; the first of a data set comes before the second.
FORMS: dict[str, list[Tiny]] = {
    "abalone": [ABALONE],
    "abalone_rings": [ABALONE],
    "adult": [ADULT],
    "adult_attributes": [ADULT_ATTRIBUTES],
    "cifar10": [CIFAR10, JPEGS],
    "fashion_mnist": [MNIST, SORTED_FASHION],
    "gdsc": [GDSC],
    "imdb": [IMDB, IMDB_ARCHIVE],
    "mnist": [MNIST],
    "movielens": [MOVIELENS],
    "olivetti_faces": [FACES, FACES_AT_FIGSHARE],
    "svhn": [SVHN, SVHN_SUBSET],
    "wine": [WINE],
}


def assert_read(found: Dataset, tiny: Tiny) -> None:
    """That the data set holds the tiny one's records, in their order."""
    if tiny.arrays is not None:
        for array, expected in zip((*found.train, *found.test), tiny.arrays, strict=True):
            np.testing.assert_array_equal(array, expected, strict=True)


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder
