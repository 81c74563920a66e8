"""Records split over the devices of a mesh, and over processes: each device draws its own."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import batch_length, check, check_type
from dpjax._typing import ArrayTree
from dpjax.sampling.base import Sampling, check_data
from dpjax.sampling.index_sets import PackedSet, pack
from dpjax.training.processes import all_gather, check_different
from dpjax.training.sharding import MeshSharding

_HASH_BITS = 256


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SplitRecords:
    """Records of a data set, each on one device of a mesh; made by `split_records`.

    Attributes:
      arrays: a tree of arrays with a leading axis of slots, the same number on each device.
      positions: the position in the whole data set of the record in each slot, int32;
        ``num_examples`` for slots without a record, whose entries in ``arrays`` are zero.
      num_examples: number of records n of the whole data set.
    """

    arrays: Any
    positions: jax.Array
    num_examples: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole data set's array, where ``arrays`` is one."""
        return (self.num_examples, *self.arrays.shape[1:])

    @property
    def dtype(self) -> Any:
        """The dtype of ``arrays``, where that is one array."""
        return self.arrays.dtype

    def __len__(self) -> int:
        """The number of records of the whole data set."""
        return self.num_examples

    def __getitem__(self, entry: Any) -> "SplitRecords":
        """Returns the same records with ``arrays[entry]`` alone, as an argument of a model."""
        return SplitRecords(self.arrays[entry], self.positions, self.num_examples)


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
    size, own = batch_length(data, "data"), _own_shards(sharding)
    arrays = jax.tree.map(np.asarray, data)
    check_different("data", hash_records(arrays, np.arange(size)) if size else None)
    sizes = all_gather(np.array([size, -(-size // len(own))], np.int64))
    num_examples, per_shard = int(sizes[:, 0].sum()), max(1, int(sizes[:, 1].max()))
    check(0 < num_examples < 2**31 - 1, "data", num_examples, "1 to 2^31 - 2 records in all")
    first = int(sizes[: jax.process_index(), 0].sum())
    bounds = np.arange(len(own) + 1) * size // len(own)

    def split(values: np.ndarray, empty: Any) -> Any:
        shards = {}
        for shard, begin, end in zip(own, bounds, bounds[1:], strict=False):
            shards[shard] = np.full((per_shard, *values.shape[1:]), empty, values.dtype)
            shards[shard][: end - begin] = values[begin:end]
        return sharding.place_shards(shards)

    dtypes = jax.tree.map(lambda leaf: leaf.astype(jax.dtypes.result_type(leaf)), arrays)
    positions = split(np.arange(first, first + size, dtype=np.int32), num_examples)
    return SplitRecords(jax.tree.map(lambda leaf: split(leaf, 0), dtypes), positions, num_examples)


def check_records(sampling: Sampling, data: ArrayTree | SplitRecords) -> None:
    """Raises ValueError unless ``data`` has as many records as the sampler draws from.

    Args:
      sampling: the sampler.
      data: a tree of arrays, or `SplitRecords`.
    """
    if not isinstance(data, SplitRecords):
        check_data(sampling, data)
    elif data.num_examples != sampling.num_examples:
        raise ValueError(
            f"data must have the {sampling.num_examples} records that the sampler draws from,"
            f" got {data.num_examples} on all processes together"
        )


def whole_shapes(data: ArrayTree | SplitRecords) -> Any:
    """Returns ``data``, or the shapes of the arrays that `SplitRecords` were split from."""
    if not isinstance(data, SplitRecords):
        return data
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((data.num_examples, *leaf.shape[1:]), leaf.dtype),
        data.arrays,
    )


def place_records(data: ArrayTree | SplitRecords, sharding: MeshSharding | None) -> Any:
    """Returns ``data`` on the device, or all of it on each device of ``sharding``."""
    if isinstance(data, SplitRecords):
        return data
    return jax.device_put(data) if sharding is None else sharding.place(data)


def _own_shards(sharding: MeshSharding) -> list[int]:
    """The numbers of this process's shards, none of which may be on another process too."""
    for shard, processes in enumerate(sharding.shard_processes):
        if len(processes) > 1:
            raise ValueError(
                "sharding must have each part of the rows on one process, but part"
                f" {shard} of {sharding.num_shards} along {sharding.batch_axes} is on processes"
                f" {sorted(processes)}: give the mesh axes on which a process has several devices"
                " to the parameters, or add them to batch_axes"
            )
    return sharding.own_shards


@dataclass(frozen=True)
class LocalBatches:
    """The physical batches of one device's drawn records.

    Attributes:
      size: rows of a physical batch.
      usual: number of physical batches that are always computed.
      chosen: drawn records of these, a uniformly random subset if they are more.
      further: the other drawn records; nearly always none.
      positions: of the device's records.
    """

    size: int
    usual: int
    chosen: PackedSet
    further: PackedSet
    positions: jax.Array

    @property
    def num_batches(self) -> jax.Array:
        """Number of physical batches that the drawn records fill."""
        return -(-(self.chosen.size + self.further.size) // self.size)

    def rows(self, part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns slots, mask and positions of the rows of physical batch number ``part``."""
        ranks = part * self.size + jnp.arange(self.size, dtype=jnp.int32)
        slots = jnp.where(
            ranks < self.chosen.size,
            self.chosen.records_at(ranks),
            self.further.records_at(ranks - self.chosen.size),
        )
        slots = jnp.clip(slots, 0, len(self.positions) - 1)
        return slots, ranks < self.chosen.size + self.further.size, self.positions[slots]


def draw_local(
    sampling: Sampling, state: Any, records: SplitRecords, shard: jax.Array
) -> LocalBatches:
    """Draws from one device's records, inside ``shard_map``: its part of ``sampling.draw(state)``.

    Args:
      sampling: the sampler.
      state: its state before the draw.
      records: with this device's slots alone.
      shard: number of this device along the batch axes.
    """
    drawn = sampling.members_at(state, records.positions)
    size, usual = local_batch_size(sampling, len(records.positions))
    key = jax.random.fold_in(sampling.subset_key(state), shard)
    chosen, further = pack(drawn).split_randomly(key, size * usual)
    return LocalBatches(size, usual, chosen, further, records.positions)


def local_batch_size(sampling: Sampling, num_slots: int) -> tuple[int, int]:
    """Returns size and usual number of the physical batches of a device with ``num_slots`` slots.

    Together they hold the mean number of its drawn records plus three standard deviations.

    >>> from dpjax.sampling import PoissonSampling
    >>> sampling = PoissonSampling(1000, 0.1)
    >>> sampling.physical_batch_size, local_batch_size(sampling, 125)
    (136, (30, 1))
    """
    usual = sampling.usual_batches
    total = usual * sampling.physical_batch_size
    mean = total * num_slots / sampling.num_examples
    wanted = min(math.ceil(mean + 3 * math.sqrt(mean)), total, num_slots)
    return -(-wanted // usual), usual


def hash_records(arrays: ArrayTree, positions: np.ndarray) -> str:
    """Returns a hash of records that does not depend on how they are split, in hexadecimal.

    It is the sum modulo 2^256 of one sha256 for each record and its position; sums over parts of
    the data can be added (`add_hashes`). About two microseconds a record, and those of sha256.

    Args:
      arrays: numpy arrays with a leading axis of records.
      positions: of the records, ``(size,)``.

    >>> x, where = np.arange(6.0), np.arange(6)
    >>> parts = [hash_records(x[:2], where[:2]), hash_records(x[2:], where[2:])]
    >>> add_hashes(parts) == hash_records(x, where), parts[0] == hash_records(x[:2], where[2:4])
    (True, False)
    """
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    header = [(jax.tree_util.keystr(p), leaf.dtype.name, leaf.shape[1:]) for p, leaf in leaves]
    start = hashlib.sha256(repr(header).encode())
    rows = [_as_bytes(leaf) for _, leaf in leaves]
    total = 0
    for number, position in enumerate(positions.tolist()):
        digest = start.copy()
        digest.update(position.to_bytes(8, "little"))
        for row in rows:
            digest.update(row[number].data)
        total += int.from_bytes(digest.digest(), "little")
    return _hexadecimal(total)


def add_hashes(hashes: list[str]) -> str:
    """Returns the hash of all records, from those of parts of them; see `hash_records`."""
    return _hexadecimal(sum(int(each, 16) for each in hashes))


def records_fingerprint(data: Any) -> str:
    """Returns `hash_records` of a whole data set, the same whether and how it is split.

    Args:
      data: `SplitRecords`, or a tree of arrays with a leading axis of records. All processes must
        call it for `SplitRecords`.

    Privacy: as `dpjax.datasets.base.fingerprint`; not to be published.
    """
    if not isinstance(data, SplitRecords):
        arrays = jax.tree.map(np.asarray, data)
        return hash_records(arrays, np.arange(batch_length(data, "data")))
    parts = []
    leaves, treedef = jax.tree.flatten(data.arrays)
    for number, shard in enumerate(data.positions.addressable_shards):
        if shard.replica_id == 0:
            positions = np.asarray(shard.data)
            held = positions < data.num_examples
            own = [np.asarray(leaf.addressable_shards[number].data)[held] for leaf in leaves]
            parts.append(hash_records(jax.tree.unflatten(treedef, own), positions[held]))
    words = np.frombuffer(bytes.fromhex(add_hashes(parts)), np.uint8)
    return add_hashes([row.tobytes().hex() for row in all_gather(words)])


def _as_bytes(leaf: np.ndarray) -> np.ndarray:
    leaf = np.ascontiguousarray(leaf.astype(leaf.dtype.newbyteorder("<"), copy=False))
    return leaf.reshape(len(leaf), -1).view(np.uint8) if leaf.size else leaf.view(np.uint8)


def _hexadecimal(total: int) -> str:
    return f"{total % 2**_HASH_BITS:0{_HASH_BITS // 4}x}"
