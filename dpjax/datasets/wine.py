"""Wine Quality (white wines): regression of the quality grade on 11 chemical measurements."""

from pathlib import Path
from typing import cast

import numpy as np

from dpjax.datasets import diabetes
from dpjax.datasets.base import Range, RegressionDataset, split_table
from dpjax.datasets.sources import (
    CorruptedFileError,
    RawFile,
    fetch_raw,
    find_raw,
    first_available,
    read_raw,
)

_HOST = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/"
_FILES = (
    RawFile(
        "winequality-white.csv",
        264_426,
        "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    ),
)
# What a common dry to medium dry white wine holds, in round numbers, by general knowledge of its
# chemistry and of the European rules; not computed from these data. The law allows no more than
# 1.08 g/l of volatile acidity, and 200 mg/l of sulphur dioxide in dry wine, 250 in sweeter; at
# least 8.5 % of alcohol, and 4 and 12 g/l of sugar end "dry" and "medium dry".
_WINE = {
    "fixed acidity (g/l of tartaric acid)": Range(5.0, 9.0),
    "volatile acidity (g/l of acetic acid)": Range(0.1, 0.5),
    "citric acid (g/l)": Range(0.1, 0.6),
    "residual sugar (g/l)": Range(0.0, 20.0),
    "chlorides (g/l of sodium chloride)": Range(0.02, 0.08),
    "free sulphur dioxide (mg/l)": Range(10.0, 60.0),
    "total sulphur dioxide (mg/l)": Range(60.0, 220.0),
    "density (kg/l)": Range(0.988, 1.0),
    "pH": Range(2.9, 3.5),
    "sulphates (g/l of potassium sulphate)": Range(0.3, 0.7),
    "alcohol (% by volume)": Range(8.5, 13.5),
}
# Most of the ten grades given are the middle ones.
_GRADES = Range(4.0, 8.0)
_PROGRESSION = Range(0.0, 300.0)


def load_wine() -> RegressionDataset:
    """Returns Wine Quality, white: 4,898 wines by 11 measurements, with a grade from 0 to 10 each.

    3,918 for training and 980 for testing, in a split of our own; the source has none. Some wines
    are listed several times, also across the split. The sources, in this order:

    1. raw files: ``$DPJAX_DATA_DIR/wine_quality/``, or ``$DPJAX_DATA_DIR`` itself;
    2. the original host's file, downloaded into the cache folder;
    3. the stand-in: scikit-learn's diabetes data, with ``is_stand_in`` set.

    The raw file is checked by its sha256. The host publishes none: this was recorded from a copy of
    its file. TFDS is not asked: it has no checksum either, and needs TensorFlow for this data set
    even to read a prepared copy.

    Privacy: the ranges are round numbers, typed by general knowledge of wine and European rules and
    not computed from these data, which are themselves published and well known.

    Source: P. Cortez et al., "Modeling wine preferences by data mining from physicochemical
    properties", 2009; UCI Machine Learning Repository, doi:10.24432/C56S3T.

    Raises:
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return cast(RegressionDataset, first_available((_from_data_dir, _from_host, _stand_in)))


def _from_data_dir() -> RegressionDataset:
    return _wine(find_raw("wine_quality", _FILES), "raw files in DPJAX_DATA_DIR")


def _from_host() -> RegressionDataset:
    return _wine(fetch_raw("wine_quality", _FILES, _HOST), "original host")


def _wine(folder: Path, source: str) -> RegressionDataset:
    table = _read(read_raw(folder, _FILES[0]), where=str(folder / _FILES[0].name))
    train, test = split_table(table[:, :-1], table[:, -1])
    return RegressionDataset(
        name="wine_quality_white",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=0,
        note=f"Wine Quality, white: {len(table):,} wines, from {source}.",
        feature_names=tuple(_WINE),
        feature_ranges=tuple(_WINE.values()),
        target_range=_GRADES,
    )


def _read(data: bytes, where: str) -> np.ndarray:
    """Returns the table, the target last."""
    try:
        table = np.loadtxt(data.decode().splitlines(), delimiter=";", skiprows=1, ndmin=2)
    except ValueError as error:
        raise CorruptedFileError(f"{where} cannot be read: {error}") from error
    if table.shape[1] != len(_WINE) + 1:
        raise CorruptedFileError(f"{where} has {table.shape[1]} columns, {len(_WINE) + 1} expected")
    return table


def _stand_in() -> RegressionDataset:
    x, y = diabetes.read_diabetes()
    train, test = split_table(x, y)
    return RegressionDataset(
        name="diabetes",
        train=train,
        test=test,
        source="scikit-learn diabetes (stand-in)",
        is_stand_in=True,
        num_classes=0,
        note="This is not Wine Quality, which was not available: scikit-learn's diabetes data (442"
        " patients, the progression of their disease) stand in for it, so no number here is one of"
        " Wine Quality. The split (80/20) is ours.",
        feature_names=tuple(diabetes.RANGES),
        feature_ranges=tuple(diabetes.RANGES.values()),
        target_range=_PROGRESSION,
    )
