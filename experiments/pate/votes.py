"""Votes of teachers in files: counts ``(num_queries, num_classes)``, as released by the source.

``$DPJAX_DATA_DIR/pate_votes/NAME_250_teachers.npy`` holds the votes of 250 teachers; those of MNIST
and SVHN were released with Papernot et al. (2018).
"""

import functools
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.data import DATA_DIR, RawFile, read_raw

_FOLDER = "pate_votes"
_RELEASED = {
    "mnist_250_teachers.npy": RawFile(
        "mnist_250_teachers.npy",
        720_080,
        "da4832fc6613b515a54918d4fa32fdeffca4e8330f576d77a273fa1ecdd0a423",
    ),
    "svhn_250_teachers.npy": RawFile(
        "svhn_250_teachers.npy",
        2_082_640,
        "96b6497af4304283e666b7e963c8f4b86ef3355b34b2d6f9b250666d8d9dde3f",
    ),
}


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
    if path.name in _RELEASED:
        content = read_raw(path.parent, _RELEASED[path.name])
    else:
        content = path.read_bytes()
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), np.float64)
