"""Public data sets as arrays with their provenance.

`load_data` returns a `Dataset` by its name in the table of `catalogue`. Nothing is downloaded on
import. Data that are not available are an error; with ``stand_in=True`` other data of the same kind
are returned in their place, with ``is_stand_in`` set.
"""

from dpjax.datasets import Split
from experiments.data.base import (
    Dataset,
    DrugResponses,
    Range,
    RatingsDataset,
    RegressionDataset,
    split_ratings,
)
from experiments.data.catalogue import DATA_SETS, load_data, load_stand_in
from experiments.data.ratings import load_restaurants
from experiments.data.reviews import NUM_TOKENS
from experiments.data.sources import DATA_DIR, CorruptedFileError, check_file
from experiments.data.tables import Scaling

__all__ = [
    "DATA_DIR",
    "DATA_SETS",
    "NUM_TOKENS",
    "CorruptedFileError",
    "Dataset",
    "DrugResponses",
    "Range",
    "RatingsDataset",
    "RegressionDataset",
    "Scaling",
    "Split",
    "check_file",
    "load_data",
    "load_restaurants",
    "load_stand_in",
    "split_ratings",
]
