"""IMDb: film reviews as sequences of word numbers, in Keras' coding."""

import json
import lzma
import re
import string
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax.datasets import Split
from experiments.data.base import Dataset
from experiments.data.images import load_digits

NUM_TOKENS = 10_000
"""How many values a token takes: the words kept, and four special ones."""

PADDING, START, UNKNOWN = 0, 1, 2
FIRST_WORD = 4  # the coding does not use 3

_LENGTH = 256
_LABELS = {"neg": 0, "pos": 1}
_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt")
_INTENSITIES = 17
# All ASCII punctuation but the apostrophe, so that "don't" is one word.
_BLANKED = string.punctuation.replace("'", "") + "\t\n"
_TO_BLANKS = str.maketrans(_BLANKED, " " * len(_BLANKED))


class _Review(NamedTuple):
    label: int
    text: str


def read_json(paths: Sequence[Path], source: str) -> Dataset:
    """Reads training and test texts: a JSON array ``[label, id, rating, text]`` a line."""
    parts = []
    for path in paths:
        lines = lzma.decompress(path.read_bytes()).decode("utf-8").rstrip("\n").split("\n")
        parts.append(
            [_Review(_LABELS[label], text) for label, _, _, text in map(json.loads, lines)]
        )
    return _imdb(source, *parts)


def read_archive(paths: Sequence[Path], source: str) -> Dataset:
    """Reads the original archive; each split by label, and then by number."""
    found: dict[str, dict[tuple[int, int], _Review]] = {"train": {}, "test": {}}
    with tarfile.open(paths[0], mode="r|gz") as archive:
        for member in archive:
            name = _MEMBER.fullmatch(member.name)
            if name and (file := archive.extractfile(member)):
                label = _LABELS[name[2]]
                review = _Review(label, file.read().decode("utf-8"))
                found[name[1]][label, int(name[3])] = review
    train, test = ([part[key] for key in sorted(part)] for part in found.values())
    return _imdb(source, train, test)


def read_records(train: list[dict[str, Any]], test: list[dict[str, Any]], source: str) -> Dataset:
    """Reads records prepared by TFDS."""
    parts = (
        [_Review(int(record["label"]), record["text"].decode("utf-8")) for record in part]
        for part in (train, test)
    )
    return _imdb(source, *parts)


def _imdb(source: str, train: list[_Review], test: list[_Review]) -> Dataset:
    train_words = [split_words(review.text) for review in train]
    ids = build_vocabulary(train_words, NUM_TOKENS)
    test_words = (split_words(review.text) for review in test)
    splits = [
        Split(
            encode_texts(words, ids, _LENGTH),
            np.array([review.label for review in reviews], np.int32),
        )
        for words, reviews in ((train_words, train), (test_words, test))
    ]
    note = (
        f"IMDb: {len(train):,} training and {len(test):,} test reviews, from {source}; the last"
        f" {_LENGTH} tokens of each. The vocabulary (the {len(ids):,} most frequent words) is"
        " computed from the private training reviews and taken as public, as by the source."
    )
    return Dataset("imdb", splits[0], splits[1], source, False, 2, note)


def split_words(text: str) -> list[str]:
    """Returns the words of a text in lower case, split at blanks and punctuation.

    Markup is not removed: a line break written ``<br />`` is the word ``br``.

    >>> split_words("It's great!<br />See it...")
    ["it's", 'great', 'br', 'see', 'it']
    """
    return [word for word in text.lower().translate(_TO_BLANKS).split(" ") if word]


def build_vocabulary(texts: Iterable[Sequence[str]], num_ids: int) -> dict[str, int]:
    """Returns the ids of the most frequent words, the most frequent first.

    Words of equal frequency are in alphabetical order: the order of the texts does not matter.

    Privacy: a function of the texts without noise.

    Args:
      texts: each a sequence of words.
      num_ids: number of ids, including the four special ones.

    >>> build_vocabulary([["a", "b", "a"], ["c", "b", "a"]], num_ids=6)
    {'a': 4, 'b': 5}
    """
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: FIRST_WORD + i for i, word in enumerate(by_frequency[: num_ids - FIRST_WORD])}


def encode_texts(texts: Iterable[Sequence[str]], ids: Mapping[str, int], length: int) -> np.ndarray:
    """Returns the texts as int32 ``(n, length)``, truncated or zero-padded at the start.

    A text is a start token and its words; words without an id are ``UNKNOWN``.

    >>> encode_texts([["b", "z"], ["a", "b", "a", "b"]], {"a": 4, "b": 5}, length=4)
    array([[0, 1, 5, 2], [4, 5, 4, 5]], dtype=int32)
    """
    rows = []
    for words in texts:
        tokens = [START, *map(ids.get, words, repeat(UNKNOWN))][-length:]
        rows.append(np.array([PADDING] * (length - len(tokens)) + tokens, np.int32))
    return np.stack(rows)


def digits_as_tokens() -> Dataset:
    """Returns the digits, each of the 64 pixels a token for its position and intensity."""
    digits = load_digits()
    splits = []
    for images, labels in (digits.train, digits.test):
        # The middle of each 3x3 block is the original pixel.
        counts = np.rint(16 * images[:, 3:26:3, 3:26:3, 0]).astype(np.int32).reshape(-1, 64)
        tokens = FIRST_WORD + _INTENSITIES * np.arange(64, dtype=np.int32) + counts
        padded = np.pad(tokens, ((0, 0), (_LENGTH - 64, 0)), constant_values=PADDING)
        splits.append(Split(padded, (labels >= 5).astype(np.int32)))
    return replace(
        digits,
        name="digits as tokens",
        train=splits[0],
        test=splits[1],
        source="scikit-learn digits as tokens",
        num_classes=2,
        note="They are not even text: scikit-learn's digits, each of the 64 pixels a token for its"
        " position and intensity, the label whether the digit is 5 or more.",
    )
