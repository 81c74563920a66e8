"""Data sets as published: a name in, arrays and the story of their bytes out.

``load(name)`` returns a `Dataset`; each data set has a module of its own. Nothing is downloaded
on import, and nothing needs a network: without one a stand-in is returned, and says so.
"""

from dpjax.datasets.abalone import load_abalone
from dpjax.datasets.adult import load_adult
from dpjax.datasets.adult_attributes import load_adult_attributes
from dpjax.datasets.base import Dataset, Split
from dpjax.datasets.cifar10 import load_cifar10
from dpjax.datasets.digits import load_digits
from dpjax.datasets.fingerprint import fingerprint
from dpjax.datasets.gdsc import DrugResponses, load_gdsc
from dpjax.datasets.idx import read_idx
from dpjax.datasets.imdb import load_imdb
from dpjax.datasets.libsvm import read_libsvm
from dpjax.datasets.mnist import load_mnist
from dpjax.datasets.movielens import load_movielens
from dpjax.datasets.ratings import RatingsDataset
from dpjax.datasets.raw import CorruptedFileError
from dpjax.datasets.registry import load
from dpjax.datasets.regression import Range, RegressionDataset
from dpjax.datasets.restaurants import load_restaurants
from dpjax.datasets.wine import load_wine

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
    "load_gdsc",
    "load_imdb",
    "load_mnist",
    "load_movielens",
    "load_restaurants",
    "load_wine",
    "read_idx",
    "read_libsvm",
]
