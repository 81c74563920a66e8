"""IMDb: 50,000 film reviews for sentiment classification, as sequences of word ids."""

import io
import json
import lzma
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.data import preprocessing, tfds
from experiments.data.base import Dataset, Split
from experiments.data.mnist import load_digits
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

NUM_TOKENS = 10_000
"""How many values a token takes: the words kept, and four special ones."""

_LENGTH = 256
_NAME = "imdb_reviews"
_NUM_REVIEWS = (25_000, 25_000)
_LABELS = {"neg": 0, "pos": 1}
_SPLITS = ("train", "test")
_HOST = "https://ai.stanford.edu/~amaas/data/sentiment/"
_ARCHIVE = RawFile(
    "aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt")
_JSON_FILES = (
    RawFile(
        "imdb_train.jsonl.xz",
        9_078_116,
        "183aa3a9a949abd73420810f4d10f56a3f12f15434c65676f816580e1626832e",
    ),
    RawFile(
        "imdb_test.jsonl.xz",
        8_842_096,
        "92929a7fff5f9ac5e4b235d117625fd63a904a1480413e74b52a1dda0a4655e1",
    ),
)
_INTENSITIES = 17


class _Review(NamedTuple):
    label: int
    text: str


def load_imdb() -> Dataset:
    """Returns IMDb: 25,000 training and 25,000 test reviews of 256 tokens, two classes.

    A token is one of `NUM_TOKENS` numbers, in Keras' coding: 0 pads, 1 starts a review, 2 stands
    for every rare word, 4 to 9,999 are the 9,996 most frequent words of the training reviews, by
    frequency. Of a long review the last 256 tokens are kept; a short one has zeros in front. Label
    1 is a review that praises. The sources, in this order:

    1. raw files in ``$DPJAX_DATA_DIR/imdb_reviews/``, or ``$DPJAX_DATA_DIR`` itself: the texts as
       ``imdb_train.jsonl.xz`` and ``imdb_test.jsonl.xz`` (a JSON array ``[label, id, rating,
       text]`` a line), or the original ``aclImdb_v1.tar.gz``;
    2. TFDS: the copy prepared in ``$TFDS_DATA_DIR``;
    3. the original host's archive (84 MB), downloaded into the cache folder;
    4. the stand-in, which is no text: scikit-learn's digits (``load_digits``), each pixel a token,
       the label whether the digit is 5 or more; with ``is_stand_in`` set.

    Every raw file is checked by its sha256. The sources hold the same reviews; TFDS keeps them in
    an order of its own.

    Privacy: the vocabulary is computed from the training reviews, which are private, and without
    noise. Bu, Dong, Long, Su (2020) take it as public, and so does this loader; certificates are
    conditional on that.

    Source: A. Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011.

    Raises:
      FileNotFoundError: if ``DPJAX_DATA_DIR`` holds one of the two texts and not the other.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available(
        (
            _from_data_dir,
            _from_tfds,
            lambda: _from_archive(fetch_raw(_NAME, (_ARCHIVE,), _HOST), "original host"),
            _stand_in,
        )
    )


def _from_data_dir() -> Dataset:
    try:
        folder = find_raw(_NAME, _JSON_FILES)
    except UnavailableError:
        return _from_archive(find_raw(_NAME, (_ARCHIVE,)), "original archive in DPJAX_DATA_DIR")
    train, test = (_read_json(folder, file) for file in _JSON_FILES)
    return _imdb(train, test, "raw files in DPJAX_DATA_DIR")


def _from_tfds() -> Dataset:
    version, splits = tfds.read_train_and_test(_NAME, _NUM_REVIEWS, "reviews")
    train, test = (
        [_Review(int(r["label"]), r["text"].decode("utf-8")) for r in split] for split in splits
    )
    return _imdb(train, test, f"TFDS {version}")


def _read_json(folder: Path, file: RawFile) -> list[_Review]:
    lines = lzma.decompress(read_raw(folder, file)).decode("utf-8").rstrip("\n").split("\n")
    records = map(json.loads, lines)
    return [_Review(_LABELS[label], review) for label, _, _, review in records]


def _from_archive(folder: Path, source: str) -> Dataset:
    """Reads the original archive; each split by label, and then by number."""
    found: dict[str, dict[tuple[int, int], _Review]] = {split: {} for split in _SPLITS}
    data = io.BytesIO(read_raw(folder, _ARCHIVE))
    with tarfile.open(fileobj=data, mode="r|gz") as archive:
        for member in archive:
            name = _MEMBER.fullmatch(member.name)
            if name and (file := archive.extractfile(member)):
                label = _LABELS[name[2]]
                review = _Review(label, file.read().decode("utf-8"))
                found[name[1]][label, int(name[3])] = review
    train, test = ([found[split][key] for key in sorted(found[split])] for split in _SPLITS)
    return _imdb(train, test, source)


def _imdb(train: list[_Review], test: list[_Review], source: str) -> Dataset:
    train_words = [preprocessing.split_words(review.text) for review in train]
    ids = preprocessing.build_vocabulary(train_words, NUM_TOKENS)
    test_words = (preprocessing.split_words(review.text) for review in test)
    splits = [
        Split(
            preprocessing.encode_texts(words, ids, _LENGTH),
            np.array([review.label for review in reviews], np.int32),
        )
        for words, reviews in ((train_words, train), (test_words, test))
    ]
    return Dataset(
        name="imdb",
        train=splits[0],
        test=splits[1],
        source=source,
        is_stand_in=False,
        num_classes=2,
        note=f"IMDb: {len(train):,} training and {len(test):,} test reviews, from {source}; the"
        f" last {_LENGTH} tokens of each. The vocabulary (the {len(ids):,} most frequent words) is"
        " computed from the private training reviews and taken as public, as by the source.",
    )


def _stand_in() -> Dataset:
    digits = load_digits()
    return replace(
        digits,
        name="digits as tokens",
        train=_as_tokens(digits.train),
        test=_as_tokens(digits.test),
        source="scikit-learn digits as tokens (stand-in)",
        is_stand_in=True,
        num_classes=2,
        note="This is not IMDb, which was not available, and not even text: scikit-learn's digits"
        " stand in for it, each of the 64 pixels a token for its position and intensity, the"
        " label whether the digit is 5 or more; so no number here is one of IMDb.",
    )


def _as_tokens(images: Split) -> Split:
    """From enlarged digits to tokens: the middle of each 3x3 block is the original pixel."""
    counts = np.rint(16 * images.x[:, 3:26:3, 3:26:3, 0]).astype(np.int32).reshape(-1, 64)
    tokens = preprocessing.FIRST_WORD + _INTENSITIES * np.arange(64, dtype=np.int32) + counts
    padded = np.pad(tokens, ((0, 0), (_LENGTH - 64, 0)), constant_values=preprocessing.PADDING)
    return Split(padded, (images.y >= 5).astype(np.int32))
