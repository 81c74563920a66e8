"""The bundled images of digits, for examples and tests; larger data sets are in ``experiments``."""

from importlib.resources import files
from typing import NamedTuple

import numpy as np

__all__ = ["Digits", "Split", "load_digits"]


class Split(NamedTuple):
    """One part of a data set: record ``i`` is ``(x[i], y[i])``.

    Attributes:
      x: features; images are float32 in [0, 1] of shape (n, height, width, channels).
      y: labels, int32 of shape (n,).
    """

    x: np.ndarray
    y: np.ndarray


class Digits(NamedTuple):
    """Images of handwritten digits, of ten classes.

    Attributes:
      train: the part that models are fitted to.
      test: the part that is held out.
    """

    train: Split
    test: Split


def load_digits() -> Digits:
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
    splits = []
    with files("dpjax").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        for part in ("train", "test"):
            images = (arrays[f"{part}_x"] / 16).repeat(3, axis=1).repeat(3, axis=2)
            framed = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None].astype(np.float32)
            splits.append(Split(framed, arrays[f"{part}_y"].astype(np.int32)))

    return Digits(*splits)
