"""Olivetti faces: ten grey photographs of each of 40 people."""

import warnings
from dataclasses import replace

import numpy as np

from dpjax._extras import requires_extra
from experiments.data.base import Dataset, Split, split_of_images
from experiments.data.formats import read_mat
from experiments.data.mnist import load_digits
from experiments.data.sources import (
    RawFile,
    UnavailableError,
    call_within,
    find_raw,
    first_available,
    read_raw,
)

_FILE = RawFile(
    "olivettifaces.mat",
    1_432_511,
    "b1988d02c72fe5b8ee82b5ef3bb7982eafc74f1e1ff0ae0ade35061ad0af534d",
)
_NUM_PEOPLE, _NUM_PICTURES, _NUM_TRAIN = 40, 10, 7
_SECONDS_TO_DOWNLOAD = 30.0
# scikit-learn divides the pixels by their maximum, 242.
_LARGEST_PIXEL = 242


def load_olivetti_faces() -> Dataset:
    """Returns the Olivetti faces: 280 training and 120 test pictures of 40 people, the classes.

    Pictures are float32 in [0, 1] of shape (n, 64, 64, 1), person after person. The first seven of
    each person's ten train and the other three test, the proportion of M. Fredrikson, S. Jha,
    T. Ristenpart, "Model inversion attacks that exploit confidence information and basic
    countermeasures", 2015; which seven they took is not published. The sources, in this order:

    1. the raw file ``olivettifaces.mat`` in ``$DPJAX_DATA_DIR/faces/`` or ``$DPJAX_DATA_DIR``
       itself, checked by its sha256;
    2. scikit-learn's ``fetch_olivetti_faces``, which keeps the file in a cache of its own,
       downloads it from its host where it is not there, and checks it;
    3. the stand-in: ten pictures of each of scikit-learn's ten digits (``load_digits``), 28x28,
       with ``is_stand_in`` set.

    Source: Olivetti Research Laboratory, Cambridge; F. Samaria, A. Harter, "Parameterisation of a
    stochastic model for human face identification", 1994; at 64x64 by S. Roweis.

    Raises:
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available((_from_data_dir, _from_scikit_learn, _stand_in))


def _from_data_dir() -> Dataset:
    folder = find_raw("faces", (_FILE,))
    columns = read_mat(read_raw(folder, _FILE))["faces"]
    # Every column is one picture, itself column after column.
    pictures = columns.T.reshape(-1, 64, 64).transpose(0, 2, 1)
    return _faces(pictures, "raw files in DPJAX_DATA_DIR")


def _from_scikit_learn() -> Dataset:
    with requires_extra("data"):
        from sklearn.datasets import fetch_olivetti_faces
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Retry downloading")
            found = call_within(_SECONDS_TO_DOWNLOAD, lambda: fetch_olivetti_faces(n_retries=1))
    except OSError as error:
        reason = f"scikit-learn could not fetch the Olivetti faces: {error}"
        raise UnavailableError(reason) from error
    pixels = np.rint(_LARGEST_PIXEL * found.images).astype(np.uint8)
    return _faces(pixels, "scikit-learn")


def _faces(pictures: np.ndarray, source: str) -> Dataset:
    """Returns the data set of pictures ``(400, 64, 64)``, ten of each person in order."""
    by_person = pictures.reshape(_NUM_PEOPLE, _NUM_PICTURES, 64, 64, 1)
    train, test = (
        split_of_images(
            part.reshape(-1, 64, 64, 1), np.repeat(np.arange(_NUM_PEOPLE), part.shape[1])
        )
        for part in (by_person[:, :_NUM_TRAIN], by_person[:, _NUM_TRAIN:])
    )
    return Dataset(
        name="olivetti_faces",
        train=train,
        test=test,
        source=source,
        is_stand_in=False,
        num_classes=_NUM_PEOPLE,
        note=f"Olivetti faces (Olivetti Research Laboratory, Cambridge): {_NUM_PEOPLE} people, the"
        f" first {_NUM_TRAIN} pictures of each for training and the other"
        f" {_NUM_PICTURES - _NUM_TRAIN} for testing, in a split of our own, from {source}.",
    )


def _stand_in() -> Dataset:
    digits = load_digits()
    train, test = (
        _first_of_each_class(part, size)
        for part, size in (
            (digits.train, _NUM_TRAIN),
            (digits.test, _NUM_PICTURES - _NUM_TRAIN),
        )
    )
    return replace(
        digits,
        train=train,
        test=test,
        source="scikit-learn digits (stand-in)",
        is_stand_in=True,
        note="This is not Olivetti faces, which were not available: ten pictures of each of"
        " scikit-learn's ten digits stand in for them, so no number here is one of faces."
        f" {digits.note}",
    )


def _first_of_each_class(part: Split, size: int) -> Split:
    rows = np.concatenate([np.flatnonzero(part.y == label)[:size] for label in range(10)])
    return Split(part.x[rows], part.y[rows])
