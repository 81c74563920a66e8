"""Ratings: a million of films (MovieLens 1M), and 1,161 of restaurants, shipped with dpjax."""

import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.data.base import RatingsDataset, split_ratings
from experiments.data.sources import (
    DATA_DIR,
    CorruptedFileError,
    RawFile,
    UnavailableError,
    fetch_raw,
    first_available,
    read_raw,
)

_HOST = "https://files.grouplens.org/datasets/movielens/"
_ZIP = RawFile(
    "ml-1m.zip",
    5_917_549,
    "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
)
_RATINGS = "ratings.dat"
_MEMBER = f"ml-1m/{_RATINGS}"
_FOLDERS = ("movielens", "ml-1m", "")
_NUM_RATINGS, _NUM_USERS, _NUM_MOVIES, _NUM_GRADES = 1_000_209, 6_040, 3_952, 5


def load_movielens() -> RatingsDataset:
    """Returns MovieLens 1M: 1,000,209 ratings of films from one star (class 0) to five (class 4).

    800,167 ratings for training and 200,042 for testing: the source splits 80/20 at random, and we
    do so with a fixed seed. Users and films are numbered as published, less one: 6,040 users and
    3,952 films, of which 3,706 have a rating. The sources, in this order:

    1. ``ratings.dat`` or ``ml-1m.zip`` in ``$DPJAX_DATA_DIR/movielens/``, ``.../ml-1m/`` or
       ``$DPJAX_DATA_DIR`` itself;
    2. the original host's ``ml-1m.zip``, downloaded into the cache folder;
    3. the stand-in: ratings of restaurants (``load_restaurants``), with ``is_stand_in`` set.

    The archive is checked against its published sha256; a ``ratings.dat`` by itself, for which
    none is published, by the number and the ranges of its ratings. The licence of MovieLens does
    not allow to pass the data on, so no copy comes with this package.

    Source: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", 2015.

    Raises:
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available(
        (
            _from_data_dir,
            lambda: _from_zip(fetch_raw("movielens", (_ZIP,), _HOST), "original host"),
            _stand_in,
        )
    )


def load_restaurants() -> RatingsDataset:
    """Returns the overall ratings, 0 to 2, of 130 restaurants by 138 consumers in Mexico.

    929 ratings for training and 232 for testing, in a split of our own; users and items are
    numbered in the order of the source's identifiers. Nothing is read but a file of this package.

    Source: R. Medellín and J. Serna, "Restaurant & consumer data", UCI Machine Learning Repository
    (2011), doi:10.24432/C5DP41, licensed under CC BY 4.0; of it we carry the overall ratings alone.

    >>> restaurants = load_restaurants()
    >>> restaurants.train.x.shape, restaurants.num_users, restaurants.num_items
    ((929, 2), 138, 130)
    """
    text = Path(__file__).with_name("restaurants.csv").read_text(encoding="utf-8")
    ratings = np.loadtxt(text.splitlines(), np.int64, delimiter=",", skiprows=4)
    (users, user), (items, item) = (
        np.unique(column, return_inverse=True) for column in ratings.T[:2]
    )
    train, test = split_ratings(np.column_stack([user, item]), ratings[:, 2])
    return RatingsDataset(
        name="restaurant ratings",
        train=train,
        test=test,
        source="UCI Restaurant & consumer data",
        is_stand_in=False,
        num_classes=3,
        note=f"UCI Restaurant & consumer data: {len(train.y):,} training and {len(test.y):,} test"
        " ratings from 0 to 2.",
        num_users=len(users),
        num_items=len(items),
    )


def _from_data_dir() -> RatingsDataset:
    root = os.environ.get(DATA_DIR)
    if not root:
        raise UnavailableError(f"{DATA_DIR} is not set")
    source = f"raw files in {DATA_DIR}"
    for folder in (Path(root).expanduser() / name for name in _FOLDERS):
        if (folder / _RATINGS).exists():
            return _movielens((folder / _RATINGS).read_bytes(), str(folder / _RATINGS), source)
        if (folder / _ZIP.name).exists():
            return _from_zip(folder, source)
    raise UnavailableError(f"{DATA_DIR}={root} holds no raw file of movielens")


def _from_zip(folder: Path, source: str) -> RatingsDataset:
    with zipfile.ZipFile(io.BytesIO(read_raw(folder, _ZIP))) as archive:
        return _movielens(archive.read(_MEMBER), f"{folder / _ZIP.name}/{_MEMBER}", source)


def _movielens(data: bytes, where: str, source: str) -> RatingsDataset:
    ratings = _parse(data, where)
    train, test = split_ratings(ratings[:, :2] - 1, ratings[:, 2] - 1)
    return RatingsDataset(
        name="movielens",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=_NUM_GRADES,
        note=f"MovieLens 1M: {len(train.y):,} training and {len(test.y):,} test ratings, from"
        f" {source}.",
        num_users=_NUM_USERS,
        num_items=_NUM_MOVIES,
    )


def _parse(data: bytes, where: str) -> np.ndarray:
    """Reads ``user::movie::rating::time`` lines: int64 (n, 4), of the published size and ranges."""
    try:
        lines = io.BytesIO(data.replace(b"::", b","))
        ratings = np.loadtxt(lines, np.int64, comments=None, delimiter=",", ndmin=2)
    except ValueError as error:
        raise _corrupted(where, str(error)) from error
    if ratings.shape != (_NUM_RATINGS, 4):
        found = f"{len(ratings):,} ratings of {ratings.shape[1]} numbers found"
        raise _corrupted(where, f"{found}, {_NUM_RATINGS:,} of 4 expected")
    limits = {"users": _NUM_USERS, "movies": _NUM_MOVIES, "ratings": _NUM_GRADES}
    for (name, most), column in zip(limits.items(), ratings.T[:3], strict=True):
        if column.min() < 1 or column.max() > most:
            found = f"{name} from {column.min()} to {column.max()} found"
            raise _corrupted(where, f"{found}, 1 to {most} expected")
    if len(np.unique(ratings[:, 0] * (_NUM_MOVIES + 1) + ratings[:, 1])) != len(ratings):
        raise _corrupted(where, "a movie is rated twice by one user")
    return ratings


def _corrupted(where: str, reason: str) -> CorruptedFileError:
    return CorruptedFileError(
        f"{where} is not the {_RATINGS} of MovieLens 1M: {reason}; delete it and download"
        f" {_ZIP.name} again, or point {DATA_DIR} at a folder with a good copy"
    )


def _stand_in() -> RatingsDataset:
    restaurants = load_restaurants()
    return replace(
        restaurants,
        source=f"{restaurants.source} (stand-in)",
        is_stand_in=True,
        note="This is not MovieLens, which was not available: ratings of restaurants stand in for"
        f" it, so no number here is one of MovieLens. {restaurants.note}",
    )
