"""Blocks of teachers that are computed at once: batching, memory, devices."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax._checks import check, check_choice, check_count, check_type
from dpjax._jaxprs import primitive_names
from dpjax._typing import ArrayTree

Method = Literal["auto", "vmap", "slices", "map"]
METHODS = ("auto", "vmap", "slices", "map")
PER_TEACHER, SHARED = PartitionSpec("teachers"), PartitionSpec()
# Of the intermediate results of a block on one device. On a CPU larger blocks leave the cache of a
# core, and beyond 32 MiB of buffers their pages are mapped anew in every step: a step of an MLP
# 784-64-10 took 41 microseconds a teacher in blocks of 4, 50 in blocks of 10 and 101 in one of 125.
_BYTES = {"cpu": 2**21}
_BYTES_OF_ACCELERATORS = 2**32
_T = TypeVar("_T")


class Blocks(NamedTuple):
    """Division of an ensemble into blocks of equal size.

    Attributes:
      num_teachers: of the ensemble.
      size: of a block, a multiple of the number of devices.
      mesh: the devices, over which a block is spread.
    """

    num_teachers: int
    size: int
    mesh: Mesh

    def compute(
        self, function: Callable[[npt.NDArray[np.int64]], _T], first: int = 0
    ) -> Iterator[_T]:
        """Yields ``function`` of the teachers of each block from ``first`` on, in order.

        A single CPU computes as many blocks at the same time as it has cores: most operations on a
        small block run on one core. Other devices compute one block after another.
        """
        # JAX keeps this setting for each thread
        double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

        def in_thread(numbers: npt.NDArray[np.int64]) -> _T:
            with jax.enable_x64(double):
                return function(numbers)

        with ThreadPoolExecutor(_num_threads(self.mesh.devices)) as pool:
            yield from pool.map(in_thread, self.numbers(first))

    def numbers(self, first: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the teachers of each block from ``first`` on; the last one fills up the block."""
        for start in range(first, self.num_teachers, self.size):
            yield np.minimum(np.arange(start, start + self.size), self.num_teachers - 1)

    def put(self, tree: Any, numbers: npt.NDArray[np.int64]) -> Any:
        """Returns the given teachers' entries of the leading axis, spread over the devices."""
        sharding = NamedSharding(self.mesh, PER_TEACHER)
        return jax.tree.map(lambda leaf: jax.device_put(leaf[numbers], sharding), tree)

    def spread(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        """Returns ``function`` of a block, run on each device for its teachers alone."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )


def part_shapes(tree: ArrayTree, shape: tuple[int, ...], axes: int) -> Any:
    """Returns the shapes and dtypes, as JAX has them, of ``tree`` with other first ``axes``.

    >>> part_shapes(np.zeros((5, 3, 2)), (4,), axes=2)
    ShapeDtypeStruct(shape=(4, 2), dtype=float32)
    """
    return jax.tree.map(
        # NumPy's own dtype may have 64 bits, of which JAX 0.12 warns where they are asked for
        lambda leaf: jax.ShapeDtypeStruct((*shape, *leaf.shape[axes:]), jax.typeof(leaf).dtype),
        tree,
    )


def plan_blocks(
    num_teachers: int,
    bytes_each: int,
    block_size: int | None,
    devices: Sequence[jax.Device] | None,
) -> Blocks:
    """Returns blocks of at most ``block_size`` teachers, or of as many as fit the device.

    ``bytes_each`` are those of the intermediate results of a teacher.
    """
    if devices is not None:
        check_type("devices", devices, Sequence, "a list of JAX devices")
        for device in devices:
            check_type("devices", device, jax.Device, "a list of JAX devices")
        check(len(devices) > 0, "devices", devices, "at least one device")
    if block_size is not None:
        check_count("block_size", block_size)
    available = list(jax.devices() if devices is None else devices)[:num_teachers]
    if block_size is None:
        limit = _BYTES.get(available[0].platform, _BYTES_OF_ACCELERATORS)
        block_size = max(1, limit // max(1, bytes_each)) * len(available)
        threads = _num_threads(available)
        count = -(-num_teachers // block_size)
        block_size = -(-num_teachers // (-(-count // threads) * threads))
    count = -(-num_teachers // block_size)
    even = -(-num_teachers // count)  # blocks of equal size leave fewer places empty
    per_device = -(-even // len(available))
    return Blocks(num_teachers, per_device * len(available), Mesh(np.array(available), "teachers"))


def _num_threads(devices: Any) -> int:
    """Returns how many blocks are computed at the same time."""
    one_cpu = len(devices) == 1 and devices[0].platform == "cpu"
    return (os.cpu_count() or 1) if one_cpu else 1


def choose_method(method: Method, function: Callable[..., Any], *arguments: Any) -> Method:
    """Returns ``method``, or for ``"auto"`` what is fastest for ``function`` of one teacher."""
    check_choice("method", method, METHODS)
    if method != "auto":
        return method
    names = primitive_names(jax.make_jaxpr(function)(*arguments).jaxpr)
    convolves = jax.default_backend() == "cpu" and "conv_general_dilated" in names
    return "slices" if convolves else "vmap"


def over_teachers(function: Callable[..., Any], method: Method) -> Callable[..., Any]:
    """Returns ``function`` of one teacher for arguments with a leading axis of teachers."""
    if method == "map":
        return lambda *arguments: jax.lax.map(lambda each: function(*each), arguments)
    return jax.vmap(function)


def bytes_of_results(function: Callable[..., Any], *arguments: Any) -> int:
    """Returns the size of all intermediate results, an upper bound on the memory they take."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return sum(_size(variable.aval) for eqn in jaxpr.eqns for variable in eqn.outvars)


def _size(aval: Any) -> int:
    return int(np.prod(aval.shape, dtype=np.int64)) * getattr(aval.dtype, "itemsize", 8)
