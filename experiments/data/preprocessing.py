"""Preprocessing: column scaling of tables, and tokenisation of texts in Keras' coding."""

import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Literal, get_args

import numpy as np

from dpjax._checks import check_choice
from experiments.data.base import Range

Scaling = Literal["published", "public"]

SCALING_NOTES = {
    "published": "Columns are standardised with the means and standard deviations of all these"
    " records, test records included, as in the published code: a leak that ε does not include.",
    "public": "Columns are scaled by public ranges, which do not depend on the records.",
}

PADDING, START, UNKNOWN = 0, 1, 2
FIRST_WORD = 4  # the coding does not use 3

# All ASCII punctuation but the apostrophe, so that "don't" is one word.
_BLANKED = string.punctuation.replace("'", "") + "\t\n"
_TO_BLANKS = str.maketrans(_BLANKED, " " * len(_BLANKED))


def check_scaling(scaling: str) -> None:
    """Raises ValueError unless ``scaling`` is one of the names in ``Scaling``."""
    check_choice("scaling", scaling, get_args(Scaling))


def scale_columns(table: np.ndarray, ranges: Sequence[Range], scaling: Scaling) -> np.ndarray:
    """Standardises the columns of ``table`` (n, columns), from the data or from public ranges.

    Args:
      table: a number in every cell.
      ranges: the public range of each column.
      scaling: ``"published"``: minus the column's mean, over its standard deviation (ddof 0), so a
        record's features depend on all records; ``"public"``: the same with the mean and standard
        deviation of a uniform distribution over the range, so they depend on that record alone.

    Privacy: ``"published"`` makes every record's features depend on all the others, a leak that no
    accountant of the training includes.

    >>> table = np.array([[1.0], [3.0]])
    >>> scale_columns(table, [Range(-6.0, 6.0)], "published").tolist()
    [[-1.0], [1.0]]
    >>> scale_columns(table, [Range(-6.0, 6.0)], "public").round(3).tolist()
    [[0.289], [0.866]]
    """
    check_scaling(scaling)
    low, high = np.array(ranges, float).T
    if scaling == "published":
        return np.asarray((table - table.mean(axis=0)) / table.std(axis=0))
    return np.asarray((table - (low + high) / 2) / ((high - low) / np.sqrt(12)))


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
    return np.stack([_encode(words, ids, length) for words in texts])


def _encode(words: Sequence[str], ids: Mapping[str, int], length: int) -> np.ndarray:
    tokens = [START, *map(ids.get, words, repeat(UNKNOWN))][-length:]
    row = np.full(length, PADDING, np.int32)
    row[length - len(tokens) :] = tokens
    return row
