"""Where kept states go: host memory, or arrays on disk that the host maps into memory."""

from pathlib import Path
from typing import Any

import jax
import numpy as np


class SampleStore:
    """A tree of arrays of shape ``(num_chains, num_kept, ...)``, filled a few states at a time.

    Attributes:
      samples: the tree of numpy arrays; with a folder, of ``.npy`` files mapped into memory.
      num_kept: how many states of each chain there is room for.
    """

    def __init__(
        self, params: Any, num_kept: int, folder: Path | None, *, begun: bool = False
    ) -> None:
        """Makes room for all states, or finds it.

        Args:
          params: the chains' states, every leaf with a leading axis of chains.
          num_kept: how many states of each chain.
          folder: of the files, or ``None`` for host memory.
          begun: whether the folder's files hold states already; else they are made anew.

        Raises:
          ValueError: a file of a run that has begun is not there, or not as it was left.
        """
        leaves, treedef = jax.tree.flatten(params)
        self.num_kept = num_kept
        self._arrays = [
            _array(leaf, num_kept, folder and folder / f"samples_{number}.npy", begun)
            for number, leaf in enumerate(leaves)
        ]
        self.samples = jax.tree.unflatten(treedef, self._arrays)

    def write(self, first: int, states: Any) -> None:
        """Writes states number ``first``, ...: leaves ``(count, num_chains, ...)``, to the end."""
        for array, leaf in zip(self._arrays, jax.tree.leaves(states), strict=True):
            array[:, first : first + len(leaf)] = np.moveaxis(np.asarray(leaf), 0, 1)
            if isinstance(array, np.memmap):
                array.flush()


def _array(leaf: Any, num_kept: int, path: Path | None, begun: bool) -> Any:
    shape = (leaf.shape[0], num_kept, *leaf.shape[1:])
    # numpy has no files of bfloat16.
    dtype = leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.dtype(np.float32)
    if path is None:
        return np.empty(shape, dtype)
    if not begun:
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    _check_file(path, shape, dtype)
    return np.lib.format.open_memmap(path, mode="r+")


def _check_file(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    try:
        # To read alone: a file that is too short would be filled up where it may be written to.
        found = np.lib.format.open_memmap(path, mode="r")
        wrong = None if (found.shape, found.dtype) == (shape, dtype) else f"has {found.shape}"
    except (OSError, ValueError) as error:
        wrong = f"cannot be read ({type(error).__name__})"
    if wrong:
        raise ValueError(
            f"folder {str(path.parent)!r} holds the checkpoint of a run whose kept states are in"
            f" {path.name!r}, which {wrong}: put the file back as it was, {dtype} {shape}. The"
            " states cannot be drawn again, and a run in a new folder is a release of its own"
        )
