"""Storage of the states that a run of SG-MCMC chains keeps, in memory or in files."""

import math
import os
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from dpjax._typing import ArrayTree
from dpjax.training.processes import check_all


class SampleStore:
    """Arrays of posterior samples, ``(num_chains, num_kept, ...)``, in memory or ``.npy`` files.

    Of several processes the first one has the files, and the others have arrays in memory.

    Attributes:
      samples: a tree of numpy arrays; with a folder, memory-mapped ``.npy`` files.
      num_kept: number of states of each chain.
    """

    def __init__(
        self, params: ArrayTree, num_kept: int, folder: Path | None, *, resumed: bool = False
    ) -> None:
        """Allocates arrays for all states, or opens those of a run that is resumed.

        Args:
          params: the chains' states, every leaf with a leading axis of chains.
          num_kept: number of states of each chain.
          folder: of the files, or ``None`` for host memory.
          resumed: whether the folder's files hold states already; else they are created.

        Raises:
          ValueError: a file of the resumed run is missing or has another shape or dtype.
          OSError: the disk has no room for all states. All of it is allocated here, because a full
            disk under a memory-mapped file ends the process.
        """
        leaves, treedef = jax.tree.flatten(params)
        self.num_kept = num_kept

        def allocate() -> list[np.ndarray]:
            return [
                _allocate(leaf, num_kept, folder and folder / f"samples_{number}.npy", resumed)
                for number, leaf in enumerate(leaves)
            ]

        self._arrays = check_all(allocate, "checkpoint_dir")
        self.samples = jax.tree.unflatten(treedef, self._arrays)

    def write(self, first: int, states: ArrayTree) -> None:
        """Writes states from number ``first`` on, leaves ``(count, num_chains, ...)``, to disk."""
        for array, leaf in zip(self._arrays, jax.tree.leaves(states), strict=True):
            array[:, first : first + len(leaf)] = np.moveaxis(np.asarray(leaf), 0, 1)
            if isinstance(array, np.memmap):
                array.flush()


def _allocate(leaf: jax.Array, num_kept: int, path: Path | None, resumed: bool) -> np.ndarray:
    """Memory for the kept states of one leaf, or its file, new or as a resumed run left it."""
    shape = (leaf.shape[0], num_kept, *leaf.shape[1:])
    # numpy cannot store bfloat16 in files.
    dtype = leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.dtype(np.float32)
    is_writer = jax.process_index() == 0
    if path is None or not (is_writer or resumed):
        return np.empty(shape, dtype)
    if resumed:
        return _open_file(path, shape, dtype, "r+" if is_writer else "c")
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS or Windows
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise OSError(
            f"checkpoint_dir {str(path.parent)!r} has no room for the {size:,} bytes of kept states"
            f" in {path.name!r} ({error}): make room on the disk and call again, or raise thinning"
        ) from error
    return array


def _open_file(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], mode: Literal["r+", "c"]
) -> np.ndarray:
    """Opens a file of kept states, whose changes are written or (``"c"``) stay in memory."""
    try:
        # Read-only: a writable map would extend a file that is too short.
        found = np.lib.format.open_memmap(path, mode="r")
        wrong = None if (found.shape, found.dtype) == (shape, dtype) else f"has {found.shape}"
    except (OSError, ValueError) as error:
        wrong = f"cannot be read ({type(error).__name__})"
    if wrong:
        raise ValueError(
            f"checkpoint_dir {str(path.parent)!r} holds the checkpoint of a run whose kept states"
            f" are in {path.name!r}, which {wrong}: put the file back as it was, {dtype} {shape}."
            " A run in another checkpoint_dir is a new release"
        )
    return np.lib.format.open_memmap(path, mode=mode)
