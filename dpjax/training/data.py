"""Training data: arrays, records split over devices, and sources that are read in time."""

import math
import mmap
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dpjax._checks import batch_length, check, check_type, check_unmasked, from_pandas
from dpjax._hashing import add_hashes, hash_arrays, hash_records
from dpjax._typing import ArrayTree, PyTree, SamplerState
from dpjax.sampling.base import Batch, Sampling, check_data
from dpjax.training.processes import all_gather, check_all, check_different
from dpjax.training.run import (
    Chunk,
    InfoT,
    RunStateT,
    TrainingData,
    Update,
    compile_chunk,
    last_and_kept,
)
from dpjax.training.sharding import REPLICATED, MeshSharding

# Records that the fingerprint of a source is computed from, and how many are in memory at once.
_HASHED, _HASHED_AT_ONCE = 1024, 32

T = TypeVar("T")


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

    def __getitem__(self, index: Any, /) -> PyTree:
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

    def __getitem__(self, index: int) -> PyTree:
        """Returns record ``index``, from 0 to ``len - 1``."""
        return jax.tree.map(lambda record: record[0], self.__getitems__([index]))

    def __getitems__(self, indices: Sequence[int]) -> PyTree:
        """Returns the records at ``indices``, stacked: every leaf has a leading axis of them."""
        chosen = np.asarray(indices, np.int64)
        rows = jax.tree.map(lambda leaf: np.asarray(leaf[chosen]), self._arrays)
        jax.tree.map(_release_pages, self._arrays)
        return rows


def _release_pages(array: object) -> None:
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

    Raises ValueError for a source of another length, or whose first record is no tree of numbers.
    """

    def __init__(self, source: DataSource, num_examples: int) -> None:
        self._source, self._num_examples = source, num_examples
        if len(source) != num_examples:  # before any record: some sources wrap past their end
            raise ValueError(
                f"data must have the {num_examples} records that the sampler draws from,"
                f" got a source of {len(source)}"
            )
        records = self._get([0])
        first = records[0] if isinstance(records, list) else jax.tree.map(lambda x: x[0], records)
        named = jax.tree_util.tree_leaves_with_path(first)
        check(bool(named), "data[0]", first, "a tree of numbers and arrays of numbers")
        self._treedef: Any = jax.tree.structure(first)
        self._kinds = [(np.shape(leaf), np.asarray(leaf).dtype) for _, leaf in named]
        for (path, _), (_, dtype) in zip(named, self._kinds, strict=True):
            is_number = any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_))
            name = f"dtype of data[0]{jax.tree_util.keystr(path)}"
            check(is_number, name, dtype, "that of numbers: a source decodes its records")

        # Dtypes in JAX: whether they are of 64 bits may differ in the thread that reads.
        self._record = jax.tree.unflatten(
            self._treedef,
            [jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(d)) for s, d in self._kinds],
        )

    def empty(self, num_rows: int) -> PyTree:
        """Returns zeros for ``num_rows`` records, of the dtypes that they have in JAX."""
        return jax.tree.map(lambda x: np.zeros((num_rows, *x.shape), x.dtype), self._record)

    def shapes(self) -> PyTree:
        """Returns shapes and dtypes of all records stacked, a tree of `jax.ShapeDtypeStruct`."""
        num_rows = self._num_examples
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape), x.dtype), self._record
        )

    def read(self, indices: Sequence[int], rows: T) -> T:
        """Reads records into the first rows of ``rows`` (of `empty`), and returns it.

        Indices are different ones in increasing order. Raises ValueError for a record that differs
        from the first in structure, shape or dtype, by its index.
        """
        if not indices:
            return rows
        records, leaves, count = self._get(indices), jax.tree.leaves(rows), len(indices)

        # Stacked records.
        if not isinstance(records, list):
            name = f"data.__getitems__ of {count} records"
            for leaf, values in zip(leaves, self._leaves(records, name, (count,)), strict=True):
                leaf[:count] = values
            return rows

        # One record after the other.
        if len(records) != count:
            raise ValueError(
                f"data.__getitems__ must return as many records as indices, got {len(records)} for"
                f" {count}"
            )
        for row, (index, record) in enumerate(zip(indices, records, strict=True)):
            for leaf, value in zip(leaves, self._leaves(record, f"data[{index}]"), strict=True):
                leaf[row] = value
        return rows

    def fingerprint(self) -> str:
        """Returns a sha256 of the number of records, their structure, and some 1,024 of them.

        Their positions are the same for all sources of one length: all up to 1,024, else the first,
        the last and random ones of a fixed seed. A change that affects one record in a hundred, at
        random, is missed with a probability below 1e-4; a change of few records is likely missed.

        Privacy: as `dpjax._hashing`: not to be published.
        """
        last = self._num_examples - 1
        chosen = np.random.default_rng(_HASHED).integers(0, last + 1, _HASHED - 2)
        positions = np.unique([0, *chosen, last]) if last >= _HASHED else np.arange(last + 1)
        blocks = np.array_split(positions, -(-len(positions) // _HASHED_AT_ONCE))
        hashes = [hash_arrays(self.read(at.tolist(), self.empty(len(at)))) for at in blocks]
        return hash_arrays((np.int64(self._num_examples), np.array(hashes)))

    def _get(self, indices: Sequence[int]) -> PyTree:
        """Returns a list of records, or their fields stacked."""
        if hasattr(self._source, "__getitems__"):
            return self._source.__getitems__(indices)
        return [self._source[index] for index in indices]

    def _leaves(self, tree: PyTree, name: str, leading: tuple[int, ...] = ()) -> list[np.ndarray]:
        """Returns the leaves of a record, or of records with a leading axis, if they are alike."""
        leaves, treedef = jax.tree.flatten(tree)
        for leaf in leaves:
            check_unmasked(name, leaf)
        arrays = [np.asarray(leaf) for leaf in leaves]
        kinds = [(array.shape, array.dtype) for array in arrays]
        wanted = [((*leading, *shape), dtype) for shape, dtype in self._kinds]
        if treedef != self._treedef or kinds != wanted:
            of_first, of_this = (
                ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in each)
                for each in (wanted, kinds)
            )
            raise ValueError(
                f"{name} must have the structure, shapes and dtypes of data[0],"
                f" {self._treedef} of {of_first}, got {treedef} of {of_this}"
            )
        return arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SplitRecords(TrainingData["SplitRecords"]):
    """Records of a data set, each on one device of a mesh; made by `split_records`.

    Attributes:
      arrays: a tree of arrays with a leading axis of slots, the same number on each device.
      positions: the position in the whole data set of the record in each slot, int32;
        ``num_examples`` for slots without a record, whose entries in ``arrays`` are zero.
      num_examples: number of records n of the whole data set.
    """

    arrays: PyTree
    positions: jax.Array
    num_examples: int = field(metadata={"static": True})

    is_split: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole data set's array, where ``arrays`` is one."""
        return (self.num_examples, *self.arrays.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of ``arrays``, where that is one array."""
        return self.arrays.dtype

    def __len__(self) -> int:
        """The number of records of the whole data set."""
        return self.num_examples

    def __getitem__(self, entry: str | int | slice) -> "SplitRecords":
        """Returns the same records with ``arrays[entry]`` alone, as an argument of a model."""
        return SplitRecords(self.arrays[entry], self.positions, self.num_examples)

    def place(self, sharding: MeshSharding | None) -> Self:
        del sharding
        return self

    def fingerprint(self) -> str:
        """Returns `hash_records` of the whole data set; every process must call it."""
        parts = []
        leaves, treedef = jax.tree.flatten(self.arrays)
        for number, shard in enumerate(self.positions.addressable_shards):
            if shard.replica_id == 0:
                positions = np.asarray(shard.data)
                held = positions < self.num_examples
                own = [np.asarray(leaf.addressable_shards[number].data)[held] for leaf in leaves]
                parts.append(hash_records(jax.tree.unflatten(treedef, own), positions[held]))

        # Of the records of this process, then of all.
        own_hash = np.frombuffer(bytes.fromhex(add_hashes(parts)), np.uint8)
        return add_hashes([row.tobytes().hex() for row in all_gather(own_hash)])

    def shapes(self, state: RunStateT) -> tuple[RunStateT, PyTree]:
        def whole(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.num_examples, *leaf.shape[1:]), leaf.dtype)

        return state, jax.tree.map(whole, self.arrays)

    def compile(
        self,
        update: Update[RunStateT, "SplitRecords", InfoT],
        state: RunStateT,
        max_steps: int,
        *,
        every: int = 1,
    ) -> Chunk[RunStateT, InfoT]:
        chunk = compile_chunk(update, state, self, max_steps, every)
        return lambda state, *numbers: chunk(state, self, *numbers)


def split_records(data: ArrayTree, sharding: MeshSharding) -> SplitRecords:
    """Splits records over the devices along ``sharding.batch_axes``.

    With several processes (`jax.distributed`) each passes its own records, in the order of the
    processes parts of one data set. Their numbers may differ, and be zero. Every process must call
    it: the numbers of records and hashes of them are exchanged, the records are not.

    Args:
      data: any tree of arrays with a leading axis of records.
      sharding: the devices.

    Returns:
      The records, as ``data`` of `train`, `private_step` and `sample`. Each device draws, clips and
      adds up its own records: only sums are communicated. The draw depends on positions alone, so
      it is that of one device with the whole data set.

    Raises:
      ValueError: two processes have the same records, or one shard of the mesh is on two processes.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> records = split_records(np.ones((5, 2)), MeshSharding(mesh))
    >>> records.num_examples, records.positions.tolist()
    (5, [0, 1, 2, 3, 4])
    """
    check_type("sharding", sharding, MeshSharding, "a MeshSharding")
    size, arrays = batch_length(data, "data"), jax.tree.map(np.asarray, data)

    # A part of the rows is on one process, and no two processes have the same records.
    for shard, processes in enumerate(sharding.shard_processes):
        if len(processes) > 1:
            raise ValueError(
                "sharding must have each part of the rows on one process, but part"
                f" {shard} of {sharding.num_shards} along {sharding.batch_axes} is on processes"
                f" {sorted(processes)}: give the mesh axes on which a process has several devices"
                " to the parameters, or add them to batch_axes"
            )
    own = sharding.own_shards
    check_different("data", hash_records(arrays, np.arange(size)) if size else None)

    # The records of all processes, one after the other.
    sizes = all_gather(np.array([size, -(-size // len(own))], np.int64))
    num_examples, per_shard = int(sizes[:, 0].sum()), max(1, int(sizes[:, 1].max()))
    check(0 < num_examples < 2**31 - 1, "data", num_examples, "1 to 2^31 - 2 records in all")
    first = int(sizes[: jax.process_index(), 0].sum())
    bounds = np.arange(len(own) + 1) * size // len(own)

    def split(values: np.ndarray, empty: int) -> jax.Array:
        shards = {}
        for shard, begin, end in zip(own, bounds, bounds[1:], strict=False):
            shards[shard] = np.full((per_shard, *values.shape[1:]), empty, values.dtype)
            shards[shard][: end - begin] = values[begin:end]
        return sharding.place_shards(shards)

    dtypes = jax.tree.map(lambda leaf: leaf.astype(jax.dtypes.result_type(leaf)), arrays)
    positions = split(np.arange(first, first + size, dtype=np.int32), num_examples)
    return SplitRecords(jax.tree.map(lambda leaf: split(leaf, 0), dtypes), positions, num_examples)


# Records as a step takes them: a tree of arrays with a leading axis of records, or split ones.
Examples: TypeAlias = ArrayTree | SplitRecords


def check_records(sampling: Sampling, data: Examples) -> None:
    """Raises ValueError unless ``data`` has as many records as the sampler draws from."""
    if not isinstance(data, SplitRecords):
        check_data(sampling, data)
    elif data.num_examples != sampling.num_examples:
        raise ValueError(
            f"data must have the {sampling.num_examples} records that the sampler draws from,"
            f" got {data.num_examples} on all processes together"
        )


@dataclass(frozen=True)
class Arrays(TrainingData[ArrayTree]):
    """Records in memory, a tree of arrays with a leading axis of records."""

    arrays: ArrayTree

    def place(self, sharding: MeshSharding | None) -> "Arrays":
        arrays = jax.device_put(self.arrays) if sharding is None else sharding.place(self.arrays)
        return Arrays(arrays)

    def fingerprint(self) -> str:
        """Returns `hash_records` of all records, that of `SplitRecords` of them."""
        arrays = jax.tree.map(np.asarray, self.arrays)
        return hash_records(arrays, np.arange(batch_length(self.arrays, "data")))

    def shapes(self, state: RunStateT) -> tuple[RunStateT, PyTree]:
        return state, self.arrays

    def compile(
        self,
        update: Update[RunStateT, ArrayTree, InfoT],
        state: RunStateT,
        max_steps: int,
        *,
        every: int = 1,
    ) -> Chunk[RunStateT, InfoT]:
        chunk = compile_chunk(update, state, self.arrays, max_steps, every)
        return lambda state, *numbers: chunk(state, self.arrays, *numbers)


class DrawIndices(NamedTuple):
    """The positions of a draw's records in the data set, and the sampler's next state.

    Attributes:
      indices: of the slots of all physical batches, int32 ``(slots,)``; valid everywhere.
      mask: which slots hold a drawn record, bool ``(slots,)``.
      num_batches: physical batches that the draw fills, int32, possibly more than were asked for;
        ``None`` for a sampler that always fills one.
      sampler: the sampler's next state.
    """

    indices: jax.Array
    mask: jax.Array
    num_batches: jax.Array | None
    sampler: SamplerState


class PrefetchedDraw(NamedTuple):
    """Indices into a prefetch buffer of the records of one draw, for a step on a `Stream`.

    There is one buffer for each part of a physical batch's rows.

    Attributes:
      rows: of the slot's buffer, for each slot of all physical batches, int32 ``(slots,)``; on the
        host until the step.
      mask: which slots hold a drawn record, bool ``(slots,)``.
      filled: the number of physical batches that the draw fills, as in `DrawIndices`.
    """

    rows: jax.Array | np.ndarray
    mask: jax.Array | np.ndarray
    filled: jax.Array | np.ndarray | None

    @property
    def num_batches(self) -> jax.Array | int:
        """The number of physical batches that the draw fills, or the int 1."""
        return 1 if self.filled is None else jnp.asarray(self.filled)

    def batch(self, part: jax.Array | int, size: int) -> Batch:
        """Returns physical batch ``part`` of ``size`` slots, whose indices are rows of a buffer."""
        slots = (jnp.asarray(self.rows), jnp.asarray(self.mask))
        return Batch(*(jax.lax.dynamic_slice_in_dim(each, part * size, size) for each in slots))


# A draw, and the buffers of this process by their number.
DrawAndBuffers: TypeAlias = tuple[PrefetchedDraw, dict[int, ArrayTree]]


class Stream(TrainingData[ArrayTree]):
    """Training steps on a data source, of which only the sampled records are read.

    The sampler draws on the device, and its draws do not depend on the parameters: the records of
    a draw are read in a thread while the device computes the step before. They are put into a
    buffer with one row for each slot of the ``num_static_batches`` physical batches. For a draw
    that exceeds these the buffer is doubled, and the step compiled for that size too.

    On a mesh each part of the physical batches' rows has a buffer of its own, on its devices. Every
    process makes the whole draw, and reads the records of the parts that its devices have.

    Several independent samplers (``num_samplers``) have their states stacked on a leading axis.
    """

    def __init__(
        self,
        source: DataSource,
        sampling: Sampling,
        num_samplers: int | None = None,
        sharding: MeshSharding | None = None,
    ) -> None:
        self._sampling, self._sharding, everywhere = sampling, sharding, None
        if sharding is not None:
            sharding.check_batch_size(sampling.physical_batch_size)
            everywhere = NamedSharding(sharding.auto_mesh, REPLICATED)
        self._reader = check_all(lambda: RecordReader(source, sampling.num_examples), "data")

        def locate_one(num_batches: int, state: SamplerState) -> DrawIndices:
            draw, next_state = sampling.draw(state)
            parts = jnp.arange(num_batches, dtype=jnp.int32)
            indices, mask = map(jnp.ravel, jax.vmap(partial(sampling.batch, draw))(parts))
            num_filled = sampling.num_batches(draw)
            filled = None if isinstance(num_filled, int) else num_filled
            return DrawIndices(indices, mask, filled, next_state)

        def locate(state: SamplerState, num_batches: int) -> DrawIndices:
            one = partial(locate_one, num_batches)
            return one(state) if num_samplers is None else jax.vmap(one)(state)

        self._locate = jax.jit(locate, static_argnums=1, out_shardings=everywhere)

    def place(self, sharding: MeshSharding | None) -> Self:
        del sharding
        return self

    def fingerprint(self) -> str:
        """Returns a hash of the source's length, structure and some records (`RecordReader`)."""
        return self._reader.fingerprint()

    def shapes(self, state: RunStateT) -> tuple[RunStateT, PyTree]:
        usual = self._sampling.num_static_batches
        located = jax.eval_shape(lambda sampler: self._locate(sampler, usual), state.sampler)
        draw = located._replace(sampler=None)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), draw)
        prefetched, _ = self._split(nothing, 1)
        return state._replace(sampler=prefetched), self._reader.empty(nothing.mask.size)

    def compile(
        self,
        update: Update[RunStateT, ArrayTree, InfoT],
        state: RunStateT,
        max_steps: int,
        *,
        every: int = 1,
    ) -> Chunk[RunStateT, InfoT]:
        """Returns a loop on the host; the update's state has a `PrefetchedDraw` as its sampler."""
        del state, max_steps
        programs: dict[int, Chunk[RunStateT, InfoT]] = {}

        def each_step(state: RunStateT, num_steps: int) -> Generator[tuple[RunStateT, InfoT]]:
            with closing(self._prefetch(state.sampler, num_steps)) as draws:
                for draw, records, sampler in draws:
                    state = state._replace(sampler=draw)

                    # One program for each size of the buffer.
                    if draw.mask.size not in programs:
                        programs[draw.mask.size] = compile_chunk(update, state, records, 1)
                    state, info = programs[draw.mask.size](state, records, 1)

                    state = state._replace(sampler=sampler)
                    yield state, info

        def chunk(state: RunStateT, num_steps: int, phase: int = 0, /) -> tuple[RunStateT, InfoT]:
            with closing(each_step(state, num_steps)) as steps:
                return last_and_kept(steps, phase, every, jnp.concatenate)

        return chunk

    def _prefetch(
        self, sampler: SamplerState, num_draws: int
    ) -> Generator[tuple[PrefetchedDraw, ArrayTree, SamplerState]]:
        """Yields draws, their records, and the sampler's state after each."""
        usual = self._sampling.num_static_batches
        with ThreadPoolExecutor(1, "dpjax-records") as thread:
            located = self._locate(sampler, usual)
            reading = thread.submit(self._read_if_whole, located)
            for number in range(1, num_draws + 1):
                read = reading.result()
                if isinstance(read, int):  # a rare large draw, of which not all was located
                    size = usual * 2 ** math.ceil(math.log2(read / usual))
                    located = self._locate(sampler, size)
                    read = self._read_drawn(located)

                # The draw on all devices, and each buffer on its own.
                draw, buffers = read
                if self._sharding is None:
                    draw, records = jax.device_put((draw, buffers[0]))
                else:
                    draw = self._sharding.place(draw)
                    records = self._sharding.place_shards(buffers)
                sampler = located.sampler

                if number < num_draws:
                    # Dispatched before the step that takes `draw`, behind which it would wait.
                    located = self._locate(sampler, usual)
                    reading = thread.submit(self._read_if_whole, located)
                yield draw, records, sampler

    def _read_if_whole(self, located: DrawIndices) -> DrawAndBuffers | int:
        """Reads the draw if all of it was located, else returns its physical batches' number."""
        if located.num_batches is not None:
            filled = int(np.asarray(located.num_batches).max())
            if filled * self._sampling.physical_batch_size > located.mask.shape[-1]:
                return filled
        return self._read_drawn(located)

    def _read_drawn(self, located: DrawIndices) -> DrawAndBuffers:
        """Returns the draw, and this process's buffers, which hold each drawn record once."""
        num_shards = 1 if self._sharding is None else self._sharding.num_shards
        prefetched, drawn = self._split(located, num_shards)
        own = [0] if self._sharding is None else self._sharding.own_shards
        num_rows = located.mask.size // num_shards
        return prefetched, {
            shard: self._reader.read(drawn[shard].tolist(), self._reader.empty(num_rows))
            for shard in own
        }

    def _split(
        self, located: DrawIndices, num_shards: int
    ) -> tuple[PrefetchedDraw, list[np.ndarray]]:
        """Returns the draw, and the positions of the records that each buffer has.

        Slots without a record have the first row of the buffer, on which a loss is as finite as on
        any other.
        """
        mask, indices = np.asarray(located.mask), np.asarray(located.indices)
        rows, size = np.zeros(mask.shape, np.int32), self._sampling.physical_batch_size
        shards = np.arange(mask.shape[-1]) % size // (size // num_shards)
        drawn = []
        for shard in range(num_shards):
            own = mask & (shards == shard)
            positions, rows[own] = np.unique(indices[own], return_inverse=True)
            drawn.append(positions)
        # One empty physical batch more: with one alone, XLA would see that the loop over further
        # batches repeats a computation, and make it before the loop, in every step.
        empty = [(0, 0)] * (mask.ndim - 1) + [(0, size)]
        filled = None if located.num_batches is None else np.array(located.num_batches)
        return PrefetchedDraw(np.pad(rows, empty), np.pad(mask, empty), filled), drawn


def as_training_data(
    data: Examples | DataSource,
    sampling: Sampling,
    sharding: MeshSharding | None = None,
    num_samplers: int | None = None,
) -> TrainingData[Examples]:
    """Returns the records of a run; raises ValueError for masked ones, or of another length."""
    if is_source(data):
        return Stream(data, sampling, num_samplers, sharding)
    records = cast(Examples, data)
    if not isinstance(records, SplitRecords):
        records = jax.tree.map(lambda leaf: from_pandas(leaf, "data"), records)
    check_records(sampling, records)
    return records if isinstance(records, SplitRecords) else Arrays(records)
