"""Data sets by name."""

from collections.abc import Callable

from dpjax._validation import check_choice
from dpjax.datasets.base import Dataset
from dpjax.datasets.digits import load_digits
from dpjax.datasets.mnist import load_mnist

_LOADERS: dict[str, Callable[[], Dataset]] = {"digits": load_digits, "mnist": load_mnist}


def load(name: str) -> Dataset:
    """Returns the data set called ``name``.

    Raises:
      ValueError: if no data set has that name; the error lists those that do.

    >>> load("digits").num_classes
    10
    """
    check_choice("name", name, tuple(_LOADERS))
    return _LOADERS[name]()
