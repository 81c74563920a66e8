"""UCI tables, Abalone and Wine Quality, and scikit-learn's diabetes data, their stand-in."""

from functools import partial
from pathlib import Path

import numpy as np

from dpjax._extras import requires_extra
from experiments.data.base import Dataset, Range, RegressionDataset, split_in_order, split_table
from experiments.data.preprocessing import SCALING_NOTES, Scaling, check_scaling, scale_columns
from experiments.data.sources import CorruptedFileError, RawFile, first_raw, read_raw

_ABALONE_HOST = "https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/"
_ABALONE_FILES = (
    RawFile(
        "abalone.data",
        191_873,
        "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
    ),
)
_SEXES = {"I": 0.0, "F": 1.0, "M": 2.0}
_MEDIAN_RINGS = 9
# Lengths in units of 200 mm and weights in units of 200 g, as in the file. Round numbers of our
# own for shells of 60 to 140 mm, four fifths as broad and a quarter as high, and animals of up to
# 320 g, a half of it meat; not computed from these data.
_ABALONE_RANGES = {
    "sex (infant, female, male)": Range(0.0, 2.0),
    "length": Range(0.3, 0.7),
    "diameter": Range(0.24, 0.56),
    "height": Range(0.075, 0.175),
    "whole weight": Range(0.0, 1.6),
    "shucked weight": Range(0.0, 0.8),
    "viscera weight": Range(0.0, 0.4),
    "shell weight": Range(0.0, 0.4),
}
_MEDIAN_PROGRESSION = 140.5
_WINE_HOST = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/"
_WINE_FILES = (
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
_WINE_RANGES = {
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
# The diabetes data: of adults, by general knowledge.
_DIABETES_RANGES = {
    "age (years)": Range(20.0, 80.0),
    "sex": Range(1.0, 2.0),
    "body mass index (kg/m^2)": Range(18.0, 35.0),
    "mean blood pressure (mmHg)": Range(70.0, 120.0),
    "cholesterol (mg/dl)": Range(120.0, 260.0),
    "low-density lipoproteins (mg/dl)": Range(50.0, 190.0),
    "high-density lipoproteins (mg/dl)": Range(30.0, 80.0),
    "cholesterol over high-density lipoproteins": Range(2.0, 7.0),
    "log of triglycerides (mg/dl)": Range(3.8, 5.8),
    "glucose (mg/dl)": Range(65.0, 120.0),
}


def load_abalone(scaling: Scaling = "published") -> Dataset:
    """Returns Abalone: 3,341 training and 836 test records of 8 attributes, two classes.

    Label 1 is more than nine rings, that is, an age above the median (50 % of the records). The
    attributes are the sex (infant 0, female 1, male 2) and seven measurements. The first four
    fifths of the file train, as in the published code. The sources, in this order:

    1. raw files: ``$DPJAX_DATA_DIR/abalone/``, or ``$DPJAX_DATA_DIR`` itself;
    2. the original host's file, downloaded into the cache folder;
    3. the stand-in: scikit-learn's diabetes data (did the disease progress more than in half of
       the patients?), with ``is_stand_in`` set.

    The raw file is checked by its sha256. The host publishes none: this was recorded from
    identical copies of its file.

    Args:
      scaling: ``"published"`` standardises the columns with the statistics of all records;
        ``"public"`` scales them by public ranges.

    Privacy: the published standardisation is a leak that the epsilon of a model trained on
    these features does not include; the public ranges have none.

    Source: W. Nash et al., "Abalone", 1994; UCI Machine Learning Repository, doi:10.24432/C55C7W.
    The task and its coding: Jälkö, Dikmen, Honkela, "Differentially private variational inference
    for non-conjugate models", 2017.

    Raises:
      ValueError: for an unknown scaling.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    check_scaling(scaling)
    read, stand_in = partial(_abalone, scaling), partial(_abalone_stand_in, scaling)
    return first_raw("abalone", _ABALONE_FILES, _ABALONE_HOST, read, stand_in)


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
    return first_raw("wine_quality", _WINE_FILES, _WINE_HOST, _wine, _wine_stand_in)


def read_diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Returns 442 patients by 10 measurements as they were taken, and their disease's progression.

    >>> x, progression = read_diabetes()
    >>> x.shape, progression.max().item()
    ((442, 10), 346.0)
    """
    with requires_extra("data"):
        from sklearn.datasets import load_diabetes

    x, progression = load_diabetes(return_X_y=True, scaled=False)
    return x, progression


def _abalone(scaling: Scaling, folder: Path, source: str) -> Dataset:
    (file,) = _ABALONE_FILES
    lines, where = read_raw(folder, file).decode().splitlines(), folder / file.name
    try:
        rows = [line.split(",") for line in lines if line]
        table = np.array([[_SEXES[sex], *map(float, numbers)] for sex, *numbers in rows])
    except (KeyError, ValueError) as error:
        raise CorruptedFileError(f"{where} cannot be read: {error}") from error
    if table.ndim != 2 or table.shape[1] != len(_ABALONE_RANGES) + 1:
        raise CorruptedFileError(f"{where} is no table of {len(_ABALONE_RANGES) + 1} columns")
    attributes, labels = table[:, :-1], table[:, -1] > _MEDIAN_RINGS
    train, test = split_in_order(
        scale_columns(attributes, list(_ABALONE_RANGES.values()), scaling), labels
    )
    return Dataset(
        name="abalone",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=2,
        note=f"Abalone: {len(table):,} animals, from {source}. {SCALING_NOTES[scaling]}",
    )


def _abalone_stand_in(scaling: Scaling) -> Dataset:
    x, progression = read_diabetes()
    columns = scale_columns(x, list(_DIABETES_RANGES.values()), scaling)
    train, test = split_in_order(columns, progression > _MEDIAN_PROGRESSION)
    return Dataset(
        name="diabetes_above_median",
        train=train,
        test=test,
        source="scikit-learn diabetes (stand-in)",
        is_stand_in=True,
        num_classes=2,
        note="This is not Abalone, which was not available: scikit-learn's diabetes data (442"
        " patients; did their disease progress more than in half of them?) stand in for it, so no"
        f" number here is one of Abalone. The first four fifths train. {SCALING_NOTES[scaling]}",
    )


def _wine(folder: Path, source: str) -> RegressionDataset:
    (file,) = _WINE_FILES
    lines, where = read_raw(folder, file).decode().splitlines(), folder / file.name
    try:
        table = np.loadtxt(lines, delimiter=";", skiprows=1, ndmin=2)
    except ValueError as error:
        raise CorruptedFileError(f"{where} cannot be read: {error}") from error
    if table.shape[1] != len(_WINE_RANGES) + 1:
        columns = f"{table.shape[1]} columns, {len(_WINE_RANGES) + 1} expected"
        raise CorruptedFileError(f"{where} has {columns}")
    train, test = split_table(table[:, :-1], table[:, -1])
    return RegressionDataset(
        name="wine_quality_white",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=0,
        note=f"Wine Quality, white: {len(table):,} wines, from {source}.",
        feature_names=tuple(_WINE_RANGES),
        feature_ranges=tuple(_WINE_RANGES.values()),
        target_range=_GRADES,
    )


def _wine_stand_in() -> RegressionDataset:
    x, y = read_diabetes()
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
        feature_names=tuple(_DIABETES_RANGES),
        feature_ranges=tuple(_DIABETES_RANGES.values()),
        target_range=_PROGRESSION,
    )
