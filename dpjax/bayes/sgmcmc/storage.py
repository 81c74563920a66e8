"""Storage of the states that a run of SG-MCMC chains keeps, in memory or in files."""

import math
import os
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from dpjax._checks import check, check_count
from dpjax._typing import ArrayTree
from dpjax.training.processes import check_all, to_host
from dpjax.training.step import TrainState


class SampleStore:
    """Where a run puts the states that it keeps, ``(num_chains, num_kept, ...)``.

    Of several processes the first one has the files, and the others have arrays in memory.

    Args:
      num_steps: of the run.
      burn_in: steps before the first state that may be kept.
      thinning: steps from one kept state to the next.
      folder: of the files, or ``None`` for host memory.

    Attributes:
      num_kept: number of states of each chain.
      samples: a tree of numpy arrays; with a folder, memory-mapped ``.npy`` files.

    Raises:
      ValueError: burn-in and thinning do not divide the number of steps.
    """

    samples: Any

    def __init__(self, num_steps: int, burn_in: int, thinning: int, folder: Path | None) -> None:
        check_count("burn_in", burn_in, minimum=0)
        check_count("thinning", thinning)
        after = num_steps - burn_in
        wanted = f"such that num_steps - burn_in = {after} is a positive multiple of it"
        check(after > 0 and after % thinning == 0, "thinning", thinning, wanted)
        self.burn_in, self.thinning, self.folder = burn_in, thinning, folder
        self.num_kept = after // thinning

    def open(self, state: TrainState, *, resumed: bool) -> None:
        """Allocates arrays for all states, or opens those of a run that is resumed.

        Args:
          state: of the chains, every leaf of its parameters with a leading axis of chains.
          resumed: whether the folder's files hold states already; else they are created.

        Raises:
          ValueError: a file of the resumed run is missing or has another shape or dtype.
          OSError: the disk has no room for all states. All of it is allocated here, because a full
            disk under a memory-mapped file ends the process.
        """
        leaves, treedef = jax.tree.flatten(state.params)

        def allocate() -> list[np.ndarray]:
            return [
                _allocate(
                    leaf,
                    self.num_kept,
                    self.folder and self.folder / f"samples_{number}.npy",
                    resumed,
                )
                for number, leaf in enumerate(leaves)
            ]

        self.samples = jax.tree.unflatten(treedef, check_all(allocate, "checkpoint_dir"))

    def write(self, first: int, states: ArrayTree) -> None:
        """Writes states from number ``first`` on, leaves ``(count, num_chains, ...)``, to disk.

        Args:
          first: number of the first state.
          states: of all chains; every process must call it.
        """
        for array, leaf in zip(*map(jax.tree.leaves, (self.samples, states)), strict=True):
            array[:, first : first + len(leaf)] = np.moveaxis(to_host(leaf), 0, 1)
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
