"""1,161 ratings of restaurants by consumers, distributed with dpjax."""

from importlib import resources

import numpy as np

from dpjax.datasets.base import RatingsDataset, split_ratings

_FILE = "restaurants.csv"


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
    text = resources.files("dpjax.datasets").joinpath(_FILE).read_text(encoding="utf-8")
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
