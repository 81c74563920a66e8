"""The 1,797 handwritten digits of UCI (scikit-learn's copy), at MNIST's size."""

from importlib.resources import files

import numpy as np

from dpjax.datasets.base import Dataset, Split

_SIDE = 28
_ENLARGEMENT = 3


def load_digits() -> Dataset:
    """Returns scikit-learn's digits: 1,437 training and 360 test images of 28x28 pixels.

    These are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
    Digits" (UCI, CC BY 4.0), 8x8 counts from 0 to 16, distributed with dpjax. Each pixel becomes
    3x3 equal ones and a border of two zeros is added, which is exact, so the bytes are the same on
    every machine. The split (80/20, equal class shares, scikit-learn's ``train_test_split`` with
    ``random_state=0``) is dpjax's: the source has none.

    >>> digits = load_digits()
    >>> digits.train.x.shape, digits.test.x.shape
    ((1437, 28, 28, 1), (360, 28, 28, 1))
    """
    with files("dpjax.datasets").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        train, test = (
            Split(_enlarge(arrays[f"{part}_x"] / 16), arrays[f"{part}_y"].astype(np.int32))
            for part in ("train", "test")
        )
    return Dataset(
        name="digits",
        train=train,
        test=test,
        source="scikit-learn digits",
        is_stand_in=False,
        num_classes=10,
        note="The 8x8 handwritten digits of scikit-learn, enlarged to 28x28: 1,437 for training"
        " and 360 for testing, in a split of our own.",
    )


def _enlarge(images: np.ndarray) -> np.ndarray:
    """Turns (n, 8, 8) into float32 (n, 28, 28, 1)."""
    large = images.repeat(_ENLARGEMENT, axis=1).repeat(_ENLARGEMENT, axis=2)
    border = (_SIDE - large.shape[1]) // 2
    return np.pad(large, ((0, 0), (border, border), (border, border)))[..., None].astype(np.float32)
