"""The 1,797 handwritten digits that scikit-learn carries, at MNIST's size."""

import numpy as np

from dpjax.datasets.base import Dataset, Split

_SIDE = 28
_ENLARGEMENT = 3
_SEED = 0


def load_digits() -> Dataset:
    """Returns scikit-learn's digits: 1,437 training and 360 test images of 28x28 pixels.

    These are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
    Digits" (UCI), 8x8 counts from 0 to 16. Each pixel becomes 3x3 equal ones and a border of two
    zeros is added, which is exact, so the bytes are the same on every machine. The split is
    ours (80/20, equal class shares, one fixed seed): the source has none.

    >>> digits = load_digits()
    >>> digits.train.x.shape, digits.test.x.shape
    ((1437, 28, 28, 1), (360, 28, 28, 1))
    """
    from sklearn import datasets, model_selection

    counts, labels = datasets.load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        _enlarged(counts.reshape(-1, 8, 8) / 16),
        labels.astype(np.int32),
        test_size=0.2,
        stratify=labels,
        random_state=_SEED,
    )
    return Dataset(
        name="digits",
        train=Split(train_x, train_y),
        test=Split(test_x, test_y),
        source="scikit-learn digits",
        is_stand_in=False,
        num_classes=10,
        note="The 8x8 handwritten digits of scikit-learn, enlarged to 28x28: 1,437 for training"
        " and 360 for testing, in a split of our own.",
    )


def _enlarged(images: np.ndarray) -> np.ndarray:
    """Turns (n, 8, 8) into float32 (n, 28, 28, 1)."""
    large = images.repeat(_ENLARGEMENT, axis=1).repeat(_ENLARGEMENT, axis=2)
    border = (_SIDE - large.shape[1]) // 2
    return np.pad(large, ((0, 0), (border, border), (border, border)))[..., None].astype(np.float32)
