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

    def __init__(self, params: Any, num_kept: int, folder: Path | None) -> None:
        """``params``: the chains' states, every leaf with a leading axis of chains."""
        leaves, treedef = jax.tree.flatten(params)
        self.num_kept = num_kept
        self._arrays = [
            _array(leaf, num_kept, folder and folder / f"samples_{number}.npy")
            for number, leaf in enumerate(leaves)
        ]
        self.samples = jax.tree.unflatten(treedef, self._arrays)

    def write(self, first: int, states: Any) -> None:
        """Writes states number ``first``, ...: leaves ``(count, num_chains, ...)``, to the end."""
        for array, leaf in zip(self._arrays, jax.tree.leaves(states), strict=True):
            array[:, first : first + len(leaf)] = np.moveaxis(np.asarray(leaf), 0, 1)
            if isinstance(array, np.memmap):
                array.flush()


def _array(leaf: Any, num_kept: int, path: Path | None) -> Any:
    shape = (leaf.shape[0], num_kept, *leaf.shape[1:])
    # numpy has no files of bfloat16.
    dtype = leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.dtype(np.float32)
    if path is None:
        return np.empty(shape, dtype)
    if path.exists():
        found = np.lib.format.open_memmap(path, mode="r+")
        if found.shape == shape and found.dtype == dtype:
            return found  # else left by a run that died before its first checkpoint
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
