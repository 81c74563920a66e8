"""Training data read record by record: random-access sources, and memory maps as one."""

import mmap
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import batch_length, check, check_unmasked
from dpjax._typing import ArrayTree
from dpjax.datasets.base import fingerprint

# Records that the fingerprint of a source is computed from, and how many are in memory at once.
_HASHED, _HASHED_AT_ONCE = 1024, 32


class DataSource(Protocol):
    """Random access to records, as grain's ``RandomAccessDataSource``.

    A record is a tree of numbers and arrays of numbers, the same shapes and dtypes in all records.
    ``__getitem__(i)`` returns record i, the same one whenever it is called. A source that also has
    ``__getitems__(indices)`` is read by it, with different indices in increasing order: it returns
    a list of records, or, faster, a tree of arrays with their fields stacked on a leading axis.
    """

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """Returns the record at ``index``."""
        ...


class ArraySource:
    """A `DataSource` of arrays with a leading axis of records, such as NumPy memory maps.

    `train` puts a tree of arrays on the device as a whole; of an `ArraySource` it reads the drawn
    records. Pages of memory maps (not copy-on-write ones) are released after each read.

    Args:
      arrays: an array, or a tuple or mapping of arrays; record i is ``leaf[i]`` of every leaf.

    Raises:
      ValueError: arrays of different lengths, masked arrays, or a list.

    >>> source = ArraySource({"x": np.eye(3), "y": np.arange(3)})
    >>> len(source), source[2]["x"].tolist(), source.__getitems__([0, 2])["y"].tolist()
    (3, [0.0, 0.0, 1.0], [0, 2])
    """

    def __init__(self, arrays: ArrayTree) -> None:
        # What `__getitems__` returns as a list is a list of records.
        check(not isinstance(arrays, list), "arrays", "a list", "an array, a tuple or a mapping")
        for leaf in jax.tree.leaves(arrays):
            check_unmasked("arrays", leaf)
        self._length, self._arrays = batch_length(arrays, "arrays"), arrays

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Returns record ``index``.

        Args:
          index: from 0 to ``len - 1``.
        """
        return jax.tree.map(lambda record: record[0], self.__getitems__([index]))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Returns the records at ``indices``, stacked: every leaf has a leading axis of them.

        Args:
          indices: from 0 to ``len - 1``.
        """
        chosen = np.asarray(indices, np.int64)
        rows = jax.tree.map(lambda leaf: np.asarray(leaf[chosen]), self._arrays)
        jax.tree.map(_release_pages, self._arrays)
        return rows


def _release_pages(array: Any) -> None:
    """Releases the pages of a memory map, which count as memory of the process."""
    pages = getattr(array, "_mmap", None)
    # A copy-on-write map ("c") would lose its changes.
    is_shared = getattr(array, "mode", None) in ("r", "r+", "w+")
    if isinstance(pages, mmap.mmap) and is_shared and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def is_source(data: object) -> TypeGuard[DataSource]:
    """Whether ``data`` is a source to be read by record, and no array or tree of arrays."""
    methods = all(hasattr(data, name) for name in ("__len__", "__getitem__"))
    is_leaf = jax.tree_util.all_leaves([data]) and not isinstance(data, str | bytes)
    return methods and is_leaf and not hasattr(data, "__array__")


class RecordReader:
    """Reads records of a source into arrays, all of the structure of the first record.

    Args:
      source: the records.
      num_examples: how many there must be.

    Raises:
      ValueError: the source has another length, or its first record is no tree of numbers.
    """

    def __init__(self, source: DataSource, num_examples: int) -> None:
        self._source, self._num_examples = source, num_examples
        if len(source) != num_examples:  # before any record: some sources wrap past their end
            raise ValueError(
                f"data must have the {num_examples} records that the sampler draws from,"
                f" got a source of {len(source)}"
            )
        found = self._get([0])
        first = found[0] if isinstance(found, list) else jax.tree.map(lambda x: x[0], found)
        named = jax.tree_util.tree_leaves_with_path(first)
        check(bool(named), "data[0]", first, "a tree of numbers and arrays of numbers")
        self._treedef: Any = jax.tree.structure(first)
        self._kinds = [(np.shape(leaf), np.asarray(leaf).dtype) for _, leaf in named]
        for (path, _), (_, dtype) in zip(named, self._kinds, strict=True):
            is_number = any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_))
            name = f"dtype of data[0]{jax.tree_util.keystr(path)}"
            check(is_number, name, dtype, "that of numbers: a source decodes its records")
        # Found here, as whether they are of 64 bits may differ in the thread that reads.
        self._jax_dtypes = [jax.dtypes.canonicalize_dtype(dtype) for _, dtype in self._kinds]

    def empty(self, num_rows: int) -> Any:
        """Returns zeros for ``num_rows`` records, of the dtypes that they have in JAX."""
        zeros = [
            np.zeros((num_rows, *shape), dtype)
            for (shape, _), dtype in zip(self._kinds, self._jax_dtypes, strict=True)
        ]
        return jax.tree.unflatten(self._treedef, zeros)

    def shapes(self) -> Any:
        """Returns shapes and dtypes of all records stacked, a tree of `jax.ShapeDtypeStruct`."""
        shapes = [
            jax.ShapeDtypeStruct((self._num_examples, *shape), dtype)
            for (shape, _), dtype in zip(self._kinds, self._jax_dtypes, strict=True)
        ]
        return jax.tree.unflatten(self._treedef, shapes)

    def read(self, indices: Sequence[int], rows: Any) -> Any:
        """Reads the records at ``indices`` into the first rows of ``rows``, and returns it.

        Args:
          indices: different ones in increasing order.
          rows: from `empty`.

        Raises:
          ValueError: a record that differs from the first in structure, shape or dtype, by index.
        """
        if not indices:
            return rows
        found, leaves, count = self._get(indices), jax.tree.leaves(rows), len(indices)
        if not isinstance(found, list):
            name = f"data.__getitems__ of {count} records"
            for leaf, values in zip(leaves, self._leaves(found, name, (count,)), strict=True):
                leaf[:count] = values
            return rows
        if len(found) != count:
            raise ValueError(
                f"data.__getitems__ must return as many records as indices, got {len(found)} for"
                f" {count}"
            )
        for row, (index, record) in enumerate(zip(indices, found, strict=True)):
            for leaf, value in zip(leaves, self._leaves(record, f"data[{index}]"), strict=True):
                leaf[row] = value
        return rows

    def fingerprint(self) -> str:
        """Returns a sha256 of the number of records, their structure, and some 1,024 of them.

        Their positions are the same for all sources of one length: all up to 1,024, else the first,
        the last and random ones of a fixed seed. A change that affects one record in a hundred, at
        random, is missed with a probability below 1e-4; a change of few records is likely missed.

        Privacy: as `dpjax.datasets.fingerprint`: not to be published.
        """
        last = self._num_examples - 1
        chosen = np.random.default_rng(_HASHED).integers(0, last + 1, _HASHED - 2)
        positions = np.unique([0, *chosen, last]) if last >= _HASHED else np.arange(last + 1)
        blocks = np.array_split(positions, -(-len(positions) // _HASHED_AT_ONCE))
        hashes = [fingerprint(self.read(at.tolist(), self.empty(len(at)))) for at in blocks]
        return fingerprint((np.int64(self._num_examples), np.array(hashes)))

    def _get(self, indices: Sequence[int]) -> Any:
        """Returns a list of records, or their fields stacked."""
        if hasattr(self._source, "__getitems__"):
            return self._source.__getitems__(indices)
        return [self._source[index] for index in indices]

    def _leaves(self, tree: Any, name: str, leading: tuple[int, ...] = ()) -> list[np.ndarray]:
        """Returns the leaves of a record, or of records with a leading axis, if they are alike."""
        leaves, treedef = jax.tree.flatten(tree)
        for leaf in leaves:
            check_unmasked(name, leaf)
        arrays = [np.asarray(leaf) for leaf in leaves]
        found = [(array.shape, array.dtype) for array in arrays]
        wanted = [((*leading, *shape), dtype) for shape, dtype in self._kinds]
        if treedef != self._treedef or found != wanted:
            raise ValueError(
                f"{name} must have the structure, shapes and dtypes of data[0],"
                f" {self._treedef} of {_text(wanted)}, got {treedef} of {_text(found)}"
            )
        return arrays


def _text(kinds: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in kinds)
