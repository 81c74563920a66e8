"""Adult: income above 50,000 dollars from 123 binary features (LIBSVM's a9a)."""

from pathlib import Path

import numpy as np

from dpjax._extras import requires_extra
from dpjax.datasets.base import Dataset, Split
from dpjax.datasets.formats import read_libsvm
from dpjax.datasets.sources import RawFile, fetch_raw, find_raw, first_available, read_raw

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
    return first_available((_from_data_dir, _from_host, _stand_in))


def _from_data_dir() -> Dataset:
    return _adult(find_raw("a9a", _FILES), "raw files in DPJAX_DATA_DIR")


def _from_host() -> Dataset:
    return _adult(fetch_raw("a9a", _FILES, _HOST), "original host")


def _adult(folder: Path, source: str) -> Dataset:
    train, test = (_split(folder, file) for file in _FILES)
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


def _split(folder: Path, file: RawFile) -> Split:
    features, labels = read_libsvm(
        read_raw(folder, file), _NUM_FEATURES, where=str(folder / file.name)
    )
    return Split(features, (labels > 0).astype(np.int32))


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
