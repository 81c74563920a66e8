"""Votes of teachers in files: counts ``(num_queries, num_classes)``, as released by the source.

``$DPJAX_DATA_DIR/pate_votes/NAME_250_teachers.npy`` holds the votes of 250 teachers; those of MNIST
and SVHN were released with Papernot et al. (2018).
"""

import functools
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.data import DATA_DIR, check_file

_FOLDER = "pate_votes"


def votes_path(name: str, num_teachers: int) -> Path | None:
    """Returns the path of the votes on data set ``name``, or None if there is no such file."""
    root = os.environ.get(DATA_DIR)
    if not root:
        return None
    path = Path(root).expanduser() / _FOLDER / f"{name}_{num_teachers}_teachers.npy"
    return path if path.exists() else None


@functools.cache
def load_votes(path: Path) -> npt.NDArray[np.float64]:
    """Returns the votes in a file; the two released files are checked by their sha256.

    Raises:
      CorruptedFileError: the file has the name of a released one and other bytes.
    """
    check_file(path, _FOLDER)
    return np.asarray(np.load(path, allow_pickle=False), np.float64)
