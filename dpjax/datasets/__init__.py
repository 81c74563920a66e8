"""Data sets as published: a name in, arrays and the story of their bytes out.

``load(name)`` returns a `Dataset`; each data set has a module of its own. Nothing is downloaded
on import, and nothing needs a network: without one a stand-in is returned, and says so.
"""

from dpjax.datasets.base import Dataset, Split
from dpjax.datasets.digits import load_digits
from dpjax.datasets.fingerprint import fingerprint
from dpjax.datasets.idx import read_idx
from dpjax.datasets.mnist import load_mnist
from dpjax.datasets.raw import CorruptedFileError
from dpjax.datasets.registry import load

__all__ = [
    "CorruptedFileError",
    "Dataset",
    "Split",
    "fingerprint",
    "load",
    "load_digits",
    "load_mnist",
    "read_idx",
]
