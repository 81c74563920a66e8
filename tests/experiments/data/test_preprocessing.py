"""Texts as word numbers, in Keras' coding."""

import numpy as np

from experiments.data import preprocessing


def test_words_are_parted_by_punctuation_but_not_by_apostrophes() -> None:
    assert (
        preprocessing.split_words("Don't (really)\tsee-it\n5/10...")
        == "don't really see it 5 10".split()
    )
    assert preprocessing.split_words(" ... ") == []


def test_only_blanks_part_words_as_in_keras() -> None:
    """Other white space belongs to a word: so the vocabulary has as many words as Keras'."""
    assert preprocessing.split_words("a\x85b c\u00a0d") == ["a\x85b", "c\u00a0d"]


def test_ids_go_by_frequency_then_by_the_alphabet() -> None:
    texts = [["b", "c", "a"], ["c", "z"], ["c"]]
    assert preprocessing.build_vocabulary(texts, 7) == {"c": 4, "a": 5, "b": 6}
    assert preprocessing.build_vocabulary(texts[::-1], 7) == preprocessing.build_vocabulary(
        texts, 7
    )


def test_short_texts_are_padded_in_front_and_of_long_ones_the_end_is_kept() -> None:
    ids = {"a": 4, "b": 5}
    texts = [[], ["a", "?"], ["a", "b", "a"], ["b", "b", "a", "b", "a"]]
    tokens = preprocessing.encode_texts(iter(texts), ids, length=4)
    expected = [[0, 0, 0, 1], [0, 1, 4, 2], [1, 4, 5, 4], [5, 4, 5, 4]]
    np.testing.assert_array_equal(tokens, np.array(expected, np.int32), strict=True)
