"""Adult: income above 50,000 dollars, from 123 binary features or from 14 attributes."""

from functools import partial
from pathlib import Path

import numpy as np

from dpjax._extras import requires_extra
from experiments.data.base import Dataset, Range, Split, split_in_order
from experiments.data.formats import read_libsvm
from experiments.data.preprocessing import SCALING_NOTES, Scaling, check_scaling, scale_columns
from experiments.data.sources import CorruptedFileError, RawFile, first_raw, read_raw

_HOST = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_NUM_FEATURES = 123
_FILES = (
    RawFile(
        "a9a",
        2_329_875,
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    RawFile(
        "a9a.t",
        1_164_628,
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    ),
)
_LOWEST_OCTAVE, _NUM_OCTAVES = -8, 21
_SEED = 0
_ATTRIBUTES_HOST = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_ATTRIBUTES_FILE = RawFile(
    "adult.data",
    3_974_305,
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
)
_ABOVE = ">50K"
# How many values a category takes, "?" among them: published in the data's documentation. The
# numbers' ranges are round ones of our own, not computed from these data.
_CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native country": 42,
}
_NUMBERS = {
    "age (years)": Range(18.0, 65.0),
    "final weight (persons represented)": Range(0.0, 400_000.0),
    "education (years)": Range(6.0, 14.0),
    "capital gain (dollars)": Range(0.0, 10_000.0),
    "capital loss (dollars)": Range(0.0, 1_000.0),
    "hours per week": Range(20.0, 60.0),
}
_ATTRIBUTES = (
    "age (years)",
    "workclass",
    "final weight (persons represented)",
    "education",
    "education (years)",
    "marital status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital gain (dollars)",
    "capital loss (dollars)",
    "hours per week",
    "native country",
)
_LEAST = 2.0**-8


def load_adult() -> Dataset:
    """Returns Adult: 32,561 training and 16,281 test records of 123 binary features, two classes.

    Label 1 is an income above 50,000 dollars (24 % of the records). The sources, in this order:

    1. raw files: ``$DPJAX_DATA_DIR/a9a/``, or ``$DPJAX_DATA_DIR`` itself;
    2. the original host's files, downloaded into the cache folder;
    3. the stand-in: scikit-learn's breast cancer data, coded as binary features too, with
       ``is_stand_in`` set.

    Every raw file is checked by its sha256. The host publishes none: these were recorded from
    copies of its files that agree with each other.

    Privacy: the features are quantile bins of the ages, hours and so on in the data themselves,
    and the bins' edges were published with them: the coding is taken as public.

    Source: R. Kohavi and B. Becker, "Adult" (UCI), in the coding of J. Platt, "Fast training of
    support vector machines using sequential minimal optimization", 1998.

    Raises:
      FileNotFoundError: if ``DPJAX_DATA_DIR`` holds one of the two files and not the other.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_raw("a9a", _FILES, _HOST, _adult, _stand_in)


def load_adult_attributes(scaling: Scaling = "published") -> Dataset:
    """Returns Adult: 26,048 training and 6,513 test records of 14 attributes, two classes.

    Label 1 is an income above 50,000 dollars (24 % of the records). Categories are numbered in
    alphabetical order, a missing one (``?``) being a category of its own, and the numbers are used
    as they are: a coding that suits linear models badly (accuracy 81 %, against 85 % with
    `load_adult`), but that of the published experiments. These are the 32,561 records of
    ``adult.data``, in its order, of which the first four fifths train; the published accuracies are
    whole numbers of 6,513 test records, so the 16,281 records of ``adult.test`` were not used.
    The sources, in this order:

    1. the raw file: ``$DPJAX_DATA_DIR/adult/``, or ``$DPJAX_DATA_DIR`` itself;
    2. the original host's file, downloaded into the cache folder;
    3. the stand-in: scikit-learn's breast cancer data, with ``is_stand_in`` set.

    The raw file is checked by its sha256. The host publishes none: it was recorded from copies of
    the file that agree with each other.

    Args:
      scaling: ``"published"`` standardises the columns with the statistics of all records;
        ``"public"`` scales them by public ranges.

    Privacy: the published standardisation is a leak that the epsilon of a model trained on
    these features does not include; the public ranges have none. The values that a category can
    take are public in either case.

    Source: R. Kohavi and B. Becker, "Adult" (UCI), doi:10.24432/C5XW20; the number of attributes,
    and accuracies: Jälkö, Dikmen, Honkela, "Differentially private variational inference for
    non-conjugate models", 2017, whose own coded file is not published.

    Raises:
      ValueError: for an unknown scaling.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    check_scaling(scaling)
    read, stand_in = partial(_adult_attributes, scaling), partial(_attributes_stand_in, scaling)
    return first_raw("adult", (_ATTRIBUTES_FILE,), _ATTRIBUTES_HOST, read, stand_in)


def _adult(folder: Path, source: str) -> Dataset:
    splits = []
    for file in _FILES:
        data, where = read_raw(folder, file), str(folder / file.name)
        features, labels = read_libsvm(data, _NUM_FEATURES, where=where)
        splits.append(Split(features, (labels > 0).astype(np.int32)))
    train, test = splits
    return Dataset(
        name="adult",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=2,
        note=f"Adult as 123 binary features (a9a): {len(train.y):,} training and"
        f" {len(test.y):,} test records, from {source}.",
    )


def _stand_in() -> Dataset:
    with requires_extra("data"):
        from sklearn import datasets, model_selection

    measurements, labels = datasets.load_breast_cancer(return_X_y=True)
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        _encode_exponents(measurements),
        labels.astype(np.int32),
        test_size=0.2,
        stratify=labels,
        random_state=_SEED,
    )
    return Dataset(
        name="breast_cancer",
        train=Split(train_x, train_y),
        test=Split(test_x, test_y),
        source="scikit-learn breast cancer (stand-in)",
        is_stand_in=True,
        num_classes=2,
        note="This is not Adult, which was not available: scikit-learn's breast cancer data (569"
        " tumours, malignant or benign) stand in for it, so no number here is one of Adult. Each"
        f" of their 30 measurements is coded as {_NUM_OCTAVES} binary features, one for each power"
        " of two, independently of other records; the split (80/20) is ours.",
    )


def _encode_exponents(measurements: np.ndarray) -> np.ndarray:
    """Turns (n, m) into binary (n, m * 21): which power of two is the largest below each value."""
    exponents = np.frexp(np.maximum(measurements, 2.0**_LOWEST_OCTAVE))[1] - 1
    octaves = np.minimum(exponents - _LOWEST_OCTAVE, _NUM_OCTAVES - 1)
    binary = np.eye(_NUM_OCTAVES, dtype=np.float32)[octaves]
    return binary.reshape(len(measurements), -1)


def _adult_attributes(scaling: Scaling, folder: Path, source: str) -> Dataset:
    cells = _read_cells(folder)
    columns, ranges = [], []
    for name, column in zip(_ATTRIBUTES, cells.T, strict=False):
        if name in _CATEGORIES:
            columns.append(np.unique(column, return_inverse=True)[1].astype(float))
            ranges.append(Range(0.0, _CATEGORIES[name] - 1.0))
        else:
            columns.append(column.astype(float))
            ranges.append(_NUMBERS[name])
    table = np.column_stack(columns)
    train, test = split_in_order(scale_columns(table, ranges, scaling), cells[:, -1] == _ABOVE)
    return Dataset(
        name="adult_attributes",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=2,
        note=f"Adult as 14 attributes, categories numbered: {len(table):,} persons, from {source}."
        f" {SCALING_NOTES[scaling]}",
    )


def _read_cells(folder: Path) -> np.ndarray:
    """Returns the cells of the table as strings, ``(n, 15)``."""
    lines = read_raw(folder, _ATTRIBUTES_FILE).decode().splitlines()
    rows = [line.split(", ") for line in lines if line]
    if {len(row) for row in rows} != {len(_ATTRIBUTES) + 1}:
        raise CorruptedFileError(
            f"{folder / _ATTRIBUTES_FILE.name} is no table of {len(_ATTRIBUTES) + 1} columns"
        )
    return np.array(rows)


def _attributes_stand_in(scaling: Scaling) -> Dataset:
    with requires_extra("data"):
        from sklearn.datasets import load_breast_cancer

    measurements, labels = load_breast_cancer(return_X_y=True)
    logarithms = np.log2(np.maximum(measurements, _LEAST))
    ranges = [Range(np.log2(_LEAST), -np.log2(_LEAST))] * logarithms.shape[1]
    train, test = split_in_order(scale_columns(logarithms, ranges, scaling), labels == 1)
    return Dataset(
        name="breast_cancer_logarithms",
        train=train,
        test=test,
        source="scikit-learn breast cancer (stand-in)",
        is_stand_in=True,
        num_classes=2,
        note="This is not Adult, which was not available: scikit-learn's breast cancer data (569"
        " tumours, malignant or benign), the logarithms of 30 measurements, stand in for it, so no"
        f" number here is one of Adult. The first four fifths train. {SCALING_NOTES[scaling]}",
    )
