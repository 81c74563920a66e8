"""Types of data sets (classification, regression, ratings) and splits."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax.datasets import Split

_SEED = 0
_TRAIN_SHARE, _TEST_SHARE = 0.8, 0.2


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set: its train and test parts, and their provenance.

    Privacy: nothing here is released. The number of training records is commonly taken as public
    (sampling rates are stated against it); everything else in ``train`` is private.

    Attributes:
      name: the name of the data held; for a stand-in, the name of the stand-in.
      train: the part that models are fitted to.
      test: the part that is held out.
      source: where the bytes came from, for example ``"raw files in DPJAX_DATA_DIR"``.
      is_stand_in: whether other data replace those requested; results on them are not results on
        the data set requested.
      num_classes: how many values a label takes: 0 to ``num_classes - 1``.
      note: one paragraph for reports: provenance, and sources that were not available.
    """

    name: str
    train: Split
    test: Split
    source: str
    is_stand_in: bool
    num_classes: int
    note: str


class Range(NamedTuple):
    """Interval in which a quantity commonly lies, from public knowledge without the data.

    Not a bound: single records may be outside.

    Attributes:
      low: lower end.
      high: upper end.
    """

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class RegressionDataset(Dataset):
    """A `Dataset` whose targets ``y`` are float32 numbers; ``num_classes`` is zero.

    Privacy: the ranges are public knowledge and not computed from the records, so centring and
    scaling features by them has no privacy cost.

    Attributes:
      feature_names: one for each column of ``x``, with its unit.
      feature_ranges: one for each column of ``x``.
      target_range: of ``y``.
    """

    feature_names: tuple[str, ...]
    feature_ranges: tuple[Range, ...]
    target_range: Range


@dataclass(frozen=True, eq=False)
class RatingsDataset(Dataset):
    """A `Dataset` whose records are ratings.

    Record ``i`` of a part is user ``x[i, 0]``'s rating of item ``x[i, 1]``, int32 positions from
    zero, with class ``y[i]``: the lowest rating is 0, the highest ``num_classes - 1``.

    Privacy: ``num_users`` and ``num_items`` are those of the published lists, rated or not, and do
    not depend on the ratings. A user has many records: example-level privacy of ratings is weaker
    than user-level privacy.

    Attributes:
      num_users: length of the list of users.
      num_items: length of the list of items.
    """

    num_users: int
    num_items: int


@dataclass(frozen=True, eq=False)
class DrugResponses(Dataset):
    """A `Dataset` whose records are cell lines and whose targets are their responses to drugs.

    Record ``i`` has the 0/1 features ``x[i]``, float32, and the responses ``y[i]``, float32 of
    shape ``(num_drugs,)``: the natural logarithm of the concentration (in micromoles) that halves
    growth, NaN where it was not measured. ``num_classes`` is zero: a response is a number.

    Attributes:
      feature_names: one for each column of ``x``: mutated genes end in ``_mut``, gained and lost
        regions begin with ``gain_`` and ``loss_``, and tissues with ``tissue_``.
      drug_names: one for each column of ``y``.
    """

    feature_names: tuple[str, ...]
    drug_names: tuple[str, ...]


def split_of_images(images: npt.ArrayLike, labels: npt.ArrayLike) -> Split:
    """Returns images of bytes ``(n, height, width, channels)`` as float32 in [0, 1], with labels.

    >>> part = split_of_images(np.full((1, 2, 2, 1), 255, np.uint8), [3])
    >>> part.x.max().item(), part.x.dtype.name, part.y.dtype.name
    (1.0, 'float32', 'int32')
    """
    pixels = np.asarray(images).astype(np.float32) / np.float32(255)
    return Split(pixels, np.asarray(labels).astype(np.int32))


def split_in_order(x: np.ndarray, labels: np.ndarray) -> tuple[Split, Split]:
    """Returns the first four fifths of the records for training, and the rest for testing.

    >>> train, test = split_in_order(np.zeros((6, 2)), np.arange(6) > 4)
    >>> train.x.shape, test.y.tolist()
    ((4, 2), [0, 1])
    """
    num_train = int(_TRAIN_SHARE * len(labels))
    x, y = x.astype(np.float32), labels.astype(np.int32)
    return Split(x[:num_train], y[:num_train]), Split(x[num_train:], y[num_train:])


def split_table(x: np.ndarray, y: np.ndarray) -> tuple[Split, Split]:
    """Returns a random 80 % of the records for training and the rest for testing, as float32.

    The seed is fixed.

    >>> train, test = split_table(np.arange(10.0).reshape(5, 2), np.arange(5))
    >>> train.x.shape, test.y.dtype.name
    ((4, 2), 'float32')
    """
    order = np.random.default_rng(_SEED).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order].astype(np.float32)
    num_train = len(y) - round(_TEST_SHARE * len(y))
    return Split(x[:num_train], y[:num_train]), Split(x[num_train:], y[num_train:])


def split_ratings(pairs: np.ndarray, classes: np.ndarray) -> tuple[Split, Split]:
    """Returns a random 80 % of the ratings for training and the rest for testing.

    The ratings are sorted by user and item first, and the seed is fixed: the split does not depend
    on the order in which a source lists them.

    Args:
      pairs: user and item of each rating, integers of shape (n, 2), no pair twice.
      classes: the ratings' classes, of shape (n,).

    >>> train, test = split_ratings(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]), np.ones(5))
    >>> train.x.shape, test.y.tolist()
    ((4, 2), [1])
    """
    ratings = np.column_stack([pairs, classes]).astype(np.int32)
    ratings = ratings[np.lexsort((ratings[:, 1], ratings[:, 0]))]
    shuffled = ratings[np.random.default_rng(_SEED).permutation(len(ratings))]
    num_train = len(ratings) - round(_TEST_SHARE * len(ratings))
    train, test = (
        Split(np.ascontiguousarray(part[:, :2]), part[:, 2].copy())
        for part in (shuffled[:num_train], shuffled[num_train:])
    )
    return train, test
