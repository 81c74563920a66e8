"""MovieLens from each of its sources, all tiny, and the ratings that stand in for it."""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.data import (
    CorruptedFileError,
    RatingsDataset,
    load_data,
    load_movielens,
    load_restaurants,
    movielens,
)
from experiments.data.base import split_ratings
from experiments.data.sources import RawFile

NUM_USERS, NUM_MOVIES = 4, 9


def make_lines() -> list[str]:
    """Twenty ratings; user 4 and movie 9 are rated, movie 8 is not."""
    rng = np.random.default_rng(0)
    pairs = [(u, m) for u in range(1, 5) for m in (1, 2, 3, 5, 9)]
    return [f"{u}::{m}::{rng.integers(1, 6)}::97830{u}{m}" for u, m in rng.permutation(pairs)]


LINES = make_lines()


def as_bytes(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def as_zip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ml-1m/README", "no ratings here")
        archive.writestr("ml-1m/ratings.dat", data)
    return file.getvalue()


ZIP = as_zip(as_bytes(LINES))


@pytest.fixture
def tiny(places: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Publishes the twenty ratings in place of the million."""
    sizes = {"_NUM_RATINGS": 20, "_NUM_USERS": NUM_USERS, "_NUM_MOVIES": NUM_MOVIES}
    for name, size in sizes.items():
        monkeypatch.setattr(movielens, name, size)
    published = RawFile("ml-1m.zip", len(ZIP), hashlib.sha256(ZIP).hexdigest())
    monkeypatch.setattr(movielens, "_ZIP", published)
    return places


def write(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def rows_of(dataset: RatingsDataset) -> list[tuple[int, ...]]:
    parts = (dataset.train, dataset.test)
    x, y = np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])
    return sorted(tuple(map(int, row)) for row in np.column_stack([x, y]))


def assert_whole(dataset: RatingsDataset) -> None:
    published = sorted(tuple(int(n) - 1 for n in line.split("::")[:3]) for line in LINES)
    assert rows_of(dataset) == published
    assert (len(dataset.train.y), len(dataset.test.y)) == (16, 4)
    assert {a.dtype.name for a in (*dataset.train, *dataset.test)} == {"int32"}
    assert (dataset.num_users, dataset.num_items, dataset.num_classes) == (4, 9, 5)
    assert (dataset.name, dataset.is_stand_in) == ("movielens", False)


@pytest.mark.parametrize("folder", ["movielens", "ml-1m", "."])
@pytest.mark.parametrize(("name", "data"), [("ratings.dat", as_bytes(LINES)), ("ml-1m.zip", ZIP)])
def test_raw_files_come_first(tiny: Any, folder: str, name: str, data: bytes) -> None:
    write(tiny.data / folder, name, data)
    found = load_movielens()
    assert_whole(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"


def test_the_split_depends_on_the_ratings_alone(tiny: Any) -> None:
    write(tiny.data, "ratings.dat", as_bytes(LINES))
    first = load_movielens()
    write(tiny.data, "ratings.dat", as_bytes(LINES[::-1]))
    again = load_data("movielens")
    for one, other in zip((*first.train, *first.test), (*again.train, *again.test), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_split_is_random_and_of_the_published_sizes() -> None:
    num = 1_000_209
    pairs = np.column_stack([np.arange(num) // 1000, np.arange(num) % 1000])
    train, test = split_ratings(pairs, np.zeros(num))
    assert (len(train.y), len(test.y)) == (800_167, 200_042)
    # A fair split's share of low users in the test part is off by 0.005 once in 10^5 times.
    assert abs(np.mean(test.x[:, 0] < 500) - np.mean(pairs[:, 0] < 500)) < 0.005


BROKEN = {
    "19 ratings of 4 numbers found, 20 of 4 expected": LINES[:-1],
    "21 ratings": [*LINES, "1::4::5::9"],
    "users from 1 to 5 found, 1 to 4 expected": [*LINES[:-1], "5::4::5::9"],
    "users from 0 to 4": [*LINES[:-1], "0::4::5::9"],
    "movies from 1 to 10": [*LINES[:-1], "1::10::5::9"],
    "ratings from 0 to 5": [*LINES[:-1], "1::4::0::9"],
    "ratings from 1 to 6": [*LINES[:-1], "1::4::6::9"],
    "rated twice": [*LINES[:-1], LINES[0]],
    "number of columns changed": [*LINES[:-1], "1::4::5"],
    "could not convert": [*LINES[:-1], "1::4::five::9"],
    "20 ratings of 3 numbers": [line.rsplit("::", 1)[0] for line in LINES],
}


@pytest.mark.parametrize(("reason", "lines"), BROKEN.items())
def test_broken_ratings_are_an_error(tiny: Any, reason: str, lines: list[str]) -> None:
    write(tiny.data / "ml-1m", "ratings.dat", as_bytes(lines))
    with pytest.raises(CorruptedFileError, match=rf"ml-1m/ratings.dat is not .*{reason}"):
        load_movielens()


@pytest.mark.parametrize(("fault", "data"), [("corrupted", ZIP[::-1]), ("truncated", ZIP[:-1])])
def test_a_broken_archive_is_an_error(tiny: Any, fault: str, data: bytes) -> None:
    write(tiny.data, "ml-1m.zip", data)
    with pytest.raises(CorruptedFileError, match=rf"ml-1m.zip is {fault}"):
        load_movielens()


def test_the_host_comes_second_and_once(
    tiny: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movielens, "_HOST", host.address)
    served = write(host.folder, "ml-1m.zip", ZIP)
    found = load_movielens()
    assert_whole(found)
    assert found.source == "original host"
    assert "holds no raw file of movielens" in found.note
    served.unlink()
    assert_whole(load_movielens())  # from the cache


@pytest.mark.usefixtures("places")
def test_offline_the_stand_in_is_named_as_one(caplog: Any) -> None:
    found, own = load_movielens(), load_restaurants()
    assert found.is_stand_in
    assert not own.is_stand_in
    assert found.name == own.name == "restaurant ratings"
    assert rows_of(found) == rows_of(own)
    assert found.note.startswith("This is not MovieLens")
    assert caplog.messages == [found.note]


def test_the_restaurants_are_those_published() -> None:
    data = load_restaurants()
    rows = np.array(rows_of(data))
    assert (data.num_users, data.num_items, data.num_classes) == (138, 130, 3)
    assert len(np.unique(rows[:, :2], axis=0)) == len(rows) == 1161
    assert len(np.unique(rows[:, 0])) == 138
    assert len(np.unique(rows[:, 1])) == 130
    assert np.bincount(rows[:, 2]).tolist() == [254, 421, 486]
    most = np.sort(np.bincount(rows[:, 1]))[::-1][:5]
    assert most.tolist() == [36, 32, 28, 25, 25]
    grades = rows[rows[:, 1] == np.bincount(rows[:, 1]).argmax(), 2]
    assert grades.mean() == pytest.approx(4 / 3)


def test_the_restaurants_file_names_its_authors_and_licence() -> None:
    text = Path(movielens.__file__).with_name("restaurants.csv").read_text(encoding="utf-8")
    assert "10.24432/C5DP41" in text
    assert "CC BY 4.0" in text


def test_the_checksum_is_the_one_registered_with_tfds() -> None:
    import tensorflow_datasets as tfds

    listing = Path(tfds.__file__).parent / "url_checksums" / "movielens.txt"
    registered = {tuple(line.split()[:3]) for line in listing.read_text().splitlines()}
    file = movielens._ZIP
    assert (movielens._HOST + file.name, str(file.size), file.sha256) in registered
