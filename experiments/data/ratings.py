"""Ratings: a million of films (MovieLens 1M), and 1,161 of restaurants, which come with this."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.data.base import RatingsDataset, split_ratings

_NUM_RATINGS, _NUM_USERS, _NUM_MOVIES, _NUM_GRADES = 1_000_209, 6_040, 3_952, 5


def read_movielens(paths: Sequence[Path], source: str) -> RatingsDataset:
    """Reads ``ratings.dat``, by itself or in the archive."""
    if paths[0].suffix == ".zip":
        with zipfile.ZipFile(paths[0]) as archive:
            ratings = parse_ratings(archive.read("ml-1m/ratings.dat"))
    else:
        ratings = parse_ratings(paths[0].read_bytes())

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


def parse_ratings(data: bytes) -> np.ndarray:
    """Reads ``user::movie::rating::time`` lines: int64 (n, 4), of the published size and ranges.

    Raises:
      ValueError: naming what is not as published.
    """
    lines = data.replace(b"::", b",").decode("ascii", errors="replace").splitlines()
    ratings = np.loadtxt(lines, np.int64, comments=None, delimiter=",", ndmin=2)

    # The file by itself has no published checksum.
    if ratings.shape != (_NUM_RATINGS, 4):
        found = f"{len(ratings):,} ratings of {ratings.shape[1]} numbers found"
        raise ValueError(f"{found}, {_NUM_RATINGS:,} of 4 expected")
    limits = {"users": _NUM_USERS, "movies": _NUM_MOVIES, "ratings": _NUM_GRADES}
    for (name, most), column in zip(limits.items(), ratings.T[:3], strict=True):
        if column.min() < 1 or column.max() > most:
            found = f"{name} from {column.min()} to {column.max()} found"
            raise ValueError(f"{found}, 1 to {most} expected")
    if len(np.unique(ratings[:, 0] * (_NUM_MOVIES + 1) + ratings[:, 1])) != len(ratings):
        raise ValueError("a movie is rated twice by one user")
    return ratings


def load_restaurants() -> RatingsDataset:
    """Returns the overall ratings, 0 to 2, of 130 restaurants by 138 consumers in Mexico.

    929 ratings for training and 232 for testing, in a split of our own; users and items are
    numbered in the order of the source's identifiers.

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
