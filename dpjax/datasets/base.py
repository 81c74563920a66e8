"""What a loader returns: two splits of arrays, and where they came from."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """One part of a data set: record ``i`` is ``(x[i], y[i])``.

    Attributes:
      x: features; images are float32 in [0, 1] of shape (n, height, width, channels), tables
        float32 of shape (n, features), texts int32 tokens of shape (n, length).
      y: labels, int32 of shape (n,); float32 where the target is a number.
    """

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set as published: its own train and test parts, and where the bytes came from.

    Privacy: nothing here is released. The number of training records is commonly taken as public
    (sampling rates are stated against it); everything else in ``train`` is private.

    Attributes:
      name: the name of what is really held, which for a stand-in is the stand-in's own.
      train: the part that models are fitted to.
      test: the part that is held out.
      source: where the bytes came from, for example ``"raw files in DPJAX_DATA_DIR"``.
      is_stand_in: whether other data stand in for those asked for; such numbers say nothing
        about the data set asked for.
      num_classes: how many values a label takes: 0 to ``num_classes - 1``.
      note: what a report should say of the data, with the sources tried in vain.
    """

    name: str
    train: Split
    test: Split
    source: str
    is_stand_in: bool
    num_classes: int
    note: str
