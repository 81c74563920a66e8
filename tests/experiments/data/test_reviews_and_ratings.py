"""What is peculiar to texts and ratings: words, vocabulary, damaged ratings, the stand-ins."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.raw_files import MOVIELENS, RATINGS, ratings_file, write

import dpjax.datasets
from experiments.data import (
    CorruptedFileError,
    RatingsDataset,
    load_data,
    load_restaurants,
    ratings,
    split_ratings,
)
from experiments.data.reviews import build_vocabulary, encode_texts, split_words


def test_split_words_parts_at_punctuation_but_not_at_apostrophes() -> None:
    assert split_words("Don't (really)\tsee-it\n5/10...") == "don't really see it 5 10".split()
    assert split_words(" ... ") == []
    # As for Keras, other white space belongs to a word.
    assert split_words("a\x85b c\u00a0d") == ["a\x85b", "c\u00a0d"]


def test_build_vocabulary_goes_by_frequency_then_by_the_alphabet() -> None:
    texts = [["b", "c", "a"], ["c", "z"], ["c"]]
    assert build_vocabulary(texts, 7) == {"c": 4, "a": 5, "b": 6}
    assert build_vocabulary(texts[::-1], 7) == build_vocabulary(texts, 7)


def test_encode_texts_pads_in_front_and_keeps_the_end() -> None:
    ids = {"a": 4, "b": 5}
    texts = [[], ["a", "?"], ["a", "b", "a"], ["b", "b", "a", "b", "a"]]
    tokens = encode_texts(iter(texts), ids, length=4)
    expected = [[0, 0, 0, 1], [0, 1, 4, 2], [1, 4, 5, 4], [5, 4, 5, 4]]
    np.testing.assert_array_equal(tokens, np.array(expected, np.int32), strict=True)


def test_imdb_says_that_its_vocabulary_is_private_and_has_a_stand_in(
    places: Any, put: Any, offline: None
) -> None:
    imdb_folder = put(places.data, "imdb")
    imdb = load_data("imdb")
    assert (imdb.name, imdb.num_classes) == ("imdb", 2)
    assert "computed from the private training reviews" in imdb.note
    shutil.rmtree(imdb_folder)
    found, digits = load_data("imdb", stand_in=True), dpjax.datasets.load_digits()
    assert found.name == "digits as tokens"
    assert "not even text" in found.note
    assert found.train.x.shape == (1437, 256)
    assert not found.train.x[:, :192].any()
    positions, counts = np.divmod(found.train.x[:, 192:] - 4, 17)
    np.testing.assert_array_equal(positions, np.broadcast_to(np.arange(64), positions.shape))
    pixels = counts.reshape(-1, 8, 8).repeat(3, 1).repeat(3, 2) / 16
    np.testing.assert_array_equal(pixels, digits.train.x[:, 2:26, 2:26, 0])
    np.testing.assert_array_equal(found.train.y, digits.train.y >= 5)


@pytest.mark.slow
def test_real_imdb(real: Any) -> None:
    found = real("imdb", "imdb_train.jsonl.xz")
    for part in (found.train, found.test):
        assert part.x.shape == (25_000, 256)
        assert np.bincount(part.y).tolist() == [12_500, 12_500]
        assert (part.x.min(), part.x.max()) == (0, 9_999)
        assert not (part.x == 3).any()
    # "the and a of to", the most frequent words in this order.
    counts = np.bincount(found.train.x.ravel())[4:9]
    assert (np.diff(counts[[0, 1, 3, 4]]) < 0).all()


def rows_of(dataset: RatingsDataset) -> list[tuple[int, ...]]:
    parts = (dataset.train, dataset.test)
    x, y = np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])
    return sorted(tuple(map(int, row)) for row in np.column_stack([x, y]))


@pytest.mark.parametrize("folder", ["movielens", "ml-1m", "."])
@pytest.mark.parametrize("archive", [True, False])
def test_read_movielens_from_file_or_archive(
    places: Any, offline: None, folder: str, archive: bool
) -> None:
    contents = MOVIELENS.contents if archive else {"ratings.dat": ratings_file(RATINGS)}
    write(places.data / folder, contents)
    found = load_data("movielens")
    published = sorted(tuple(int(n) - 1 for n in line.split("::")[:3]) for line in RATINGS)
    assert rows_of(found) == published
    assert (len(found.train.y), len(found.test.y)) == (16, 4)
    assert {a.dtype.name for a in (*found.train, *found.test)} == {"int32"}
    assert (found.num_users, found.num_items, found.num_classes) == (4, 9, 5)
    assert (found.name, found.source) == ("movielens", "raw files in DPJAX_DATA_DIR")


def test_split_of_ratings_depends_on_the_ratings_alone(places: Any) -> None:
    write(places.data, {"ratings.dat": ratings_file(RATINGS)})
    first = load_data("movielens")
    write(places.data, {"ratings.dat": ratings_file(RATINGS[::-1])})
    again = load_data("movielens")
    for one, other in zip((*first.train, *first.test), (*again.train, *again.test), strict=True):
        np.testing.assert_array_equal(one, other)


def test_split_ratings_is_random_and_of_the_published_sizes() -> None:
    num = 1_000_209
    pairs = np.column_stack([np.arange(num) // 1000, np.arange(num) % 1000])
    train, test = split_ratings(pairs, np.zeros(num))
    assert (len(train.y), len(test.y)) == (800_167, 200_042)
    # A fair split's share of low users in the test part is off by 0.005 once in 10^5 times.
    assert abs(np.mean(test.x[:, 0] < 500) - np.mean(pairs[:, 0] < 500)) < 0.005


BROKEN = {
    "19 ratings of 4 numbers found, 20 of 4 expected": RATINGS[:-1],
    "21 ratings": [*RATINGS, "1::4::5::9"],
    "users from 1 to 5 found, 1 to 4 expected": [*RATINGS[:-1], "5::4::5::9"],
    "users from 0 to 4": [*RATINGS[:-1], "0::4::5::9"],
    "movies from 1 to 10": [*RATINGS[:-1], "1::10::5::9"],
    "ratings from 0 to 5": [*RATINGS[:-1], "1::4::0::9"],
    "ratings from 1 to 6": [*RATINGS[:-1], "1::4::6::9"],
    "rated twice": [*RATINGS[:-1], RATINGS[0]],
    "number of columns changed": [*RATINGS[:-1], "1::4::5"],
    "could not convert": [*RATINGS[:-1], "1::4::five::9"],
    "20 ratings of 3 numbers": [line.rsplit("::", 1)[0] for line in RATINGS],
}


@pytest.mark.parametrize(("reason", "lines"), BROKEN.items())
def test_parse_ratings_refuses_broken_ratings(places: Any, reason: str, lines: list[str]) -> None:
    write(places.data / "ml-1m", {"ratings.dat": ratings_file(lines)})
    with pytest.raises(CorruptedFileError, match=rf"ml-1m/ratings.dat cannot be read: .*{reason}"):
        load_data("movielens")


def test_load_restaurants_is_the_published_stand_in(places: Any, offline: None) -> None:
    found = load_restaurants()
    assert rows_of(load_data("movielens", stand_in=True)) == rows_of(found)
    rows = np.array(rows_of(found))
    assert (found.num_users, found.num_items, found.num_classes) == (138, 130, 3)
    assert len(np.unique(rows[:, :2], axis=0)) == len(rows) == 1161
    assert len(np.unique(rows[:, 0])) == 138
    assert len(np.unique(rows[:, 1])) == 130
    assert np.bincount(rows[:, 2]).tolist() == [254, 421, 486]
    most = np.sort(np.bincount(rows[:, 1]))[::-1][:5]
    assert most.tolist() == [36, 32, 28, 25, 25]
    grades = rows[rows[:, 1] == np.bincount(rows[:, 1]).argmax(), 2]
    assert grades.mean() == pytest.approx(4 / 3)
    text = Path(ratings.__file__).with_name("restaurants.csv").read_text(encoding="utf-8")
    assert "10.24432/C5DP41" in text
    assert "CC BY 4.0" in text
