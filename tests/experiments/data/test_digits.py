"""scikit-learn's digits, enlarged: nothing is lost, and the split is fair and fixed."""

import numpy as np
import pytest
from sklearn import datasets

from dpjax._hashing import hash_arrays
from experiments.data import Dataset, load_digits


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def test_shapes_types_and_range(digits: Dataset) -> None:
    assert digits.train.x.shape == (1437, 28, 28, 1)
    assert digits.test.x.shape == (360, 28, 28, 1)
    for part in (digits.train, digits.test):
        assert (part.x.dtype, part.y.dtype) == (np.float32, np.int32)
        assert (part.x.min(), part.x.max()) == (0, 1)
        assert len(part.x) == len(part.y)
    assert (digits.name, digits.is_stand_in, digits.num_classes) == ("digits", False, 10)


def test_every_image_is_there_once_with_its_label(digits: Dataset) -> None:
    """Reducing the images gives back the source's, so enlarging and splitting lost nothing."""
    x = np.concatenate([digits.train.x, digits.test.x])
    y = np.concatenate([digits.train.y, digits.test.y])
    counts, labels = datasets.load_digits(return_X_y=True)
    reduced = 16 * x[:, 3:-2:3, 3:-2:3, 0].reshape(-1, 64)
    assert sorted(np.c_[reduced, y].tolist()) == sorted(np.c_[counts, labels].tolist())
    again = np.kron(x[:, 3:-2:3, 3:-2:3, 0], np.ones((1, 3, 3)))
    np.testing.assert_array_equal(np.pad(again, ((0, 0), (2, 2), (2, 2))), x[..., 0])


def test_each_class_has_the_same_share(digits: Dataset) -> None:
    train, test = np.bincount(digits.train.y), np.bincount(digits.test.y)
    assert len(train) == len(test) == 10
    np.testing.assert_allclose(test, 0.2 * (train + test), atol=1)


def test_every_call_gives_the_same_split(digits: Dataset) -> None:
    again = load_digits()
    assert hash_arrays((again.train, again.test)) == hash_arrays((digits.train, digits.test))
