"""Loaders of public data sets, as arrays with their provenance.

``load(name)`` returns a `Dataset`; each data set has its own module. Nothing is downloaded on
import. Where the data are not available, a loader returns a stand-in with ``is_stand_in`` set.
"""

from collections.abc import Callable

from dpjax._checks import check_choice
from dpjax.datasets.adult import load_adult, load_adult_attributes
from dpjax.datasets.base import (
    Dataset,
    Range,
    RatingsDataset,
    RegressionDataset,
    Split,
    fingerprint,
)
from dpjax.datasets.cifar10 import load_cifar10
from dpjax.datasets.faces import load_olivetti_faces
from dpjax.datasets.fashion_mnist import load_fashion_mnist
from dpjax.datasets.formats import read_idx, read_libsvm
from dpjax.datasets.gdsc import DrugResponses, load_gdsc
from dpjax.datasets.imdb import load_imdb
from dpjax.datasets.mnist import load_digits, load_mnist
from dpjax.datasets.movielens import load_movielens, load_restaurants
from dpjax.datasets.sources import CorruptedFileError
from dpjax.datasets.svhn import load_svhn
from dpjax.datasets.uci import load_abalone, load_wine

__all__ = [
    "CorruptedFileError",
    "Dataset",
    "DrugResponses",
    "Range",
    "RatingsDataset",
    "RegressionDataset",
    "Split",
    "fingerprint",
    "load",
    "load_abalone",
    "load_adult",
    "load_adult_attributes",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_gdsc",
    "load_imdb",
    "load_mnist",
    "load_movielens",
    "load_olivetti_faces",
    "load_restaurants",
    "load_svhn",
    "load_wine",
    "read_idx",
    "read_libsvm",
]

_LOADERS: dict[str, Callable[[], Dataset]] = {
    "abalone": load_abalone,
    "adult": load_adult,
    "adult_attributes": load_adult_attributes,
    "cifar10": load_cifar10,
    "digits": load_digits,
    "fashion_mnist": load_fashion_mnist,
    "gdsc": load_gdsc,
    "imdb": load_imdb,
    "mnist": load_mnist,
    "movielens": load_movielens,
    "olivetti_faces": load_olivetti_faces,
    "svhn": load_svhn,
    "wine": load_wine,
}


def load(name: str) -> Dataset:
    """Returns the data set called ``name``.

    Raises:
      ValueError: if no data set has that name; the error lists those that do.

    >>> load("digits").num_classes
    10
    """
    check_choice("name", name, tuple(_LOADERS))
    return _LOADERS[name]()
