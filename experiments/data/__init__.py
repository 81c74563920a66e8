"""Public data sets as arrays with their provenance.

``load_data(name)`` returns a `Dataset`. Nothing is downloaded on import. Where the data are not
available, other data stand in for them, with ``is_stand_in`` set.
"""

from collections.abc import Callable
from typing import Any, Literal, overload

from dpjax._checks import check_choice
from dpjax.datasets import Split
from experiments.data import adult, cifar10, faces, fashion_mnist, gdsc, imdb, movielens, svhn, uci
from experiments.data import mnist as mnist_module
from experiments.data.adult import load_adult as load_adult
from experiments.data.adult import load_adult_attributes as load_adult_attributes
from experiments.data.base import Dataset, Range, RatingsDataset, RegressionDataset, split_ratings
from experiments.data.cifar10 import load_cifar10 as load_cifar10
from experiments.data.faces import load_olivetti_faces as load_olivetti_faces
from experiments.data.fashion_mnist import load_fashion_mnist as load_fashion_mnist
from experiments.data.formats import read_idx as read_idx
from experiments.data.formats import read_libsvm as read_libsvm
from experiments.data.gdsc import DrugResponses
from experiments.data.gdsc import load_gdsc as load_gdsc
from experiments.data.imdb import NUM_TOKENS
from experiments.data.imdb import load_imdb as load_imdb
from experiments.data.mnist import load_digits as load_digits
from experiments.data.mnist import load_mnist as load_mnist
from experiments.data.movielens import load_movielens as load_movielens
from experiments.data.movielens import load_restaurants as load_restaurants
from experiments.data.preprocessing import Scaling
from experiments.data.sources import DATA_DIR, CorruptedFileError, RawFile, read_raw
from experiments.data.svhn import load_svhn as load_svhn
from experiments.data.uci import load_abalone as load_abalone
from experiments.data.uci import load_wine as load_wine

__all__ = [
    "DATA_DIR",
    "NUM_TOKENS",
    "CorruptedFileError",
    "Dataset",
    "DrugResponses",
    "Range",
    "RatingsDataset",
    "RawFile",
    "RegressionDataset",
    "Scaling",
    "Split",
    "load_data",
    "load_stand_in",
    "read_raw",
    "split_ratings",
]

_LOADERS: dict[str, Callable[..., Any]] = {
    "abalone": uci.load_abalone,
    "adult": adult.load_adult,
    "adult_attributes": adult.load_adult_attributes,
    "cifar10": cifar10.load_cifar10,
    "digits": mnist_module.load_digits,
    "fashion_mnist": fashion_mnist.load_fashion_mnist,
    "gdsc": gdsc.load_gdsc,
    "imdb": imdb.load_imdb,
    "mnist": mnist_module.load_mnist,
    "movielens": movielens.load_movielens,
    "olivetti_faces": faces.load_olivetti_faces,
    "svhn": svhn.load_svhn,
    "wine": uci.load_wine,
}


@overload
def load_data(name: Literal["gdsc"]) -> DrugResponses: ...
@overload
def load_data(name: Literal["movielens"]) -> RatingsDataset: ...
@overload
def load_data(name: Literal["wine"]) -> RegressionDataset: ...
@overload
def load_data(name: str, *, scaling: Scaling = ...) -> Dataset: ...
def load_data(name: str, **options: Any) -> Any:
    """Returns the data set called ``name``.

    Raises:
      ValueError: if no data set has that name; the error lists those that do.

    >>> load_data("digits").num_classes
    10
    """
    check_choice("name", name, tuple(_LOADERS))
    return _LOADERS[name](**options)


def load_stand_in(name: str) -> Any:
    """Returns the data that stand in for data set ``name``."""
    return {
        "adult": adult._stand_in,
        "gdsc": gdsc._stand_in,
        "cifar10": lambda: mnist_module.digits_in_colour("CIFAR-10"),
    }[name]()
