"""Placement of a private step on a mesh of devices: batch, parameters, optimiser state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeGuard, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from dpjax._checks import check, check_count, check_function, check_type
from dpjax._typing import Array, ArrayTree, PyTree

# From the path of a parameter, such as "dense.kernel", and its array (or shape) to its partition.
PartitionRule: TypeAlias = Callable[[str, Any], PartitionSpec]
# Partitions: one for a whole tree, or a tree of them.
Specs: TypeAlias = PartitionSpec | Iterable["Specs"] | Mapping[Any, "Specs"]
# What a partition has for one axis of an array.
SpecEntry: TypeAlias = str | tuple[str, ...] | None

T = TypeVar("T")
REPLICATED = PartitionSpec()


def replicate_all(path: str, leaf: object) -> PartitionSpec:
    """The rule of data parallelism: every device holds all parameters.

    >>> replicate_all("dense.kernel", np.ones(3))
    P()
    """
    del path, leaf
    return REPLICATED


@dataclass(frozen=True)
class MeshSharding:
    """How a private step is divided over the devices of a mesh.

    The rows of each physical batch are split over ``batch_axes``: a device computes and clips the
    gradients of its rows, and their sums are added in one all-reduce. Noise is added once, to that
    sum, from one key: its bits are the same on every mesh. It is drawn where the parameters are.

    Attributes:
      mesh: the devices. Axes of a mesh with explicit axes (the default of `jax.make_mesh`) are used
        as automatic ones.
      batch_axes: name or names of the mesh axes over which the rows of a batch are split.
      param_rule: ``param_rule(path, leaf) -> PartitionSpec`` for each parameter, where ``path`` is
        like ``"dense.kernel"``; by default all are replicated. Optimiser states of a parameter are
        placed like it. A parameter that is split over an axis of ``batch_axes`` is gathered for the
        gradients (fully sharded data parallelism); over other axes XLA divides the computation.

    Raises:
      ValueError: a name that is no axis of the mesh, or a name twice.

    >>> sharding = MeshSharding(jax.make_mesh((1,), ("data",)), "data")
    >>> sharding.num_shards, sharding.batch_axes
    (1, ('data',))
    """

    mesh: Mesh
    batch_axes: str | tuple[str, ...] = "data"
    param_rule: PartitionRule = field(default=replicate_all)

    def __post_init__(self) -> None:
        check(isinstance(self.mesh, Mesh), "mesh", self.mesh, "a jax.sharding.Mesh")
        check_type("batch_axes", self.batch_axes, str | tuple | list, "an axis or a tuple of axes")
        check_function("param_rule", self.param_rule, "path", "shape")
        axes = (self.batch_axes,) if isinstance(self.batch_axes, str) else tuple(self.batch_axes)
        known = set(axes) <= set(self.mesh.axis_names) and len(set(axes)) == len(axes) > 0
        wanted = f"different axes of the mesh, of {self.mesh.axis_names}"
        check(known, "batch_axes", self.batch_axes, wanted)
        object.__setattr__(self, "batch_axes", axes)

    @property
    def num_shards(self) -> int:
        """Number of parts that the rows of a batch are split into."""
        return int(np.prod([self.mesh.shape[axis] for axis in self.batch_axes]))

    @cached_property
    def auto_mesh(self) -> Mesh:
        """The mesh with automatic axes, whose partitions XLA completes."""
        return Mesh(self.mesh.devices, self.mesh.axis_names)

    @property
    def rows(self) -> PartitionSpec:
        """The `PartitionSpec` of arrays whose leading axis is the batch."""
        return PartitionSpec(self.batch_axes)

    @cached_property
    def shard_processes(self) -> list[set[int]]:
        """Process indices of each batch shard."""
        of_devices: Any = self._named(self.rows).devices_indices_map((self.num_shards,))
        processes: list[set[int]] = [set() for _ in range(self.num_shards)]
        for device, (index,) in of_devices.items():
            processes[index.start or 0].add(device.process_index)
        return processes

    @property
    def own_shards(self) -> list[int]:
        """Numbers of the batch shards that devices of this process hold.

        Raises:
          ValueError: the mesh has no device of this process.
        """
        own = jax.process_index()
        shards = [shard for shard, processes in enumerate(self.shard_processes) if own in processes]
        check(bool(shards), "mesh", self.mesh.shape, "one with a device of every process")
        return shards

    def check_batch_size(self, physical_batch_size: int) -> None:
        """Raises ValueError unless ``physical_batch_size`` rows can be split evenly."""
        check_count("physical_batch_size", physical_batch_size)
        check(
            physical_batch_size % self.num_shards == 0,
            "physical_batch_size",
            physical_batch_size,
            f"a multiple of {self.num_shards}, the number of devices along {self.batch_axes}",
        )

    def param_specs(self, params: ArrayTree) -> Specs:
        """Returns the `PartitionSpec` of each of ``params``, arrays or shapes, by ``param_rule``.

        Raises:
          ValueError: a partition that is none, has more axes than the parameter, names an axis that
            the mesh does not have, or does not divide the parameter evenly.
        """

        def spec(path: KeyPath, leaf: Array) -> PartitionSpec:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            partition = self.param_rule(name, leaf)
            self._check_spec(name, np.shape(leaf), partition)
            return partition

        return jax.tree_util.tree_map_with_path(spec, params)

    def state_specs(self, state: PyTree, params: ArrayTree) -> Specs:
        """Returns partitions of a state: those of the parameters wherever it holds trees like them.

        A leaf is placed like the parameter whose path ends its own path and whose shape it has, or
        has after a leading axis, as buffers of correlated noise; keys, counters and all other
        leaves are replicated.

        Args:
          state: a tree of arrays, or of their shapes.
          params: the parameters.
        """
        specs = jax.tree.leaves(self.param_specs(params), is_leaf=is_spec)
        known = [
            (path, np.shape(leaf), spec)
            for (path, leaf), spec in zip(
                jax.tree_util.tree_leaves_with_path(params), specs, strict=True
            )
        ]

        def spec(path: KeyPath, leaf: Array) -> PartitionSpec:
            same = [
                spec
                for tail, shape, spec in known
                if shape == np.shape(leaf) and path[len(path) - len(tail) :] == tail
            ] or [
                PartitionSpec(None, *spec)
                for tail, shape, spec in known
                if np.ndim(leaf)
                and shape == np.shape(leaf)[1:]
                and path[len(path) - len(tail) :] == tail
            ]
            return same[0] if same else REPLICATED

        return jax.tree_util.tree_map_with_path(spec, state)

    def describe(self, params: ArrayTree) -> str:
        """Returns mesh, batch axes and the specs of ``params`` as text, to compare processes."""
        devices = [device.id for device in self.mesh.devices.flat]
        specs = jax.tree.leaves(self.param_specs(params), is_leaf=is_spec)
        return repr((dict(self.mesh.shape), devices, self.batch_axes, specs))

    def constrain(self, tree: T, specs: Specs) -> T:
        """Returns ``tree`` with its arrays constrained to ``specs``, inside ``jit``.

        Args:
          tree: of arrays.
          specs: partitions, one for each leaf or for a subtree.
        """
        return jax.tree.map(
            lambda leaf, spec: jax.lax.with_sharding_constraint(leaf, self._named(spec)),
            tree,
            _broadcast(specs, tree),
        )

    def place(self, tree: T, specs: Specs = REPLICATED) -> T:
        """Returns ``tree`` on the devices of the mesh; inside ``jit`` as `constrain`.

        On several processes each passes the same values (they are not compared here, because JAX
        prints the values that differ, which may be keys).

        Args:
          tree: of arrays, keys included.
          specs: partitions, one for each leaf or for a subtree.
        """
        check_context()
        return jax.tree.map(self._place, tree, _broadcast(specs, tree))

    def place_shards(self, shards: Mapping[int, PyTree]) -> PyTree:
        """Returns sharded arrays, made of ``shards``: numpy's trees of `own_shards` by number."""

        def place(*leaves: np.ndarray) -> jax.Array:
            parts, (size, *shape) = dict(zip(shards, leaves, strict=True)), leaves[0].shape

            def part(index: Any) -> np.ndarray:
                return parts[(index[0].start or 0) // size]

            whole = (self.num_shards * size, *shape)
            return jax.make_array_from_callback(whole, self._named(self.rows), part)

        return jax.tree.map(place, *shards.values())

    def sum_over_shards(self, summed: T, specs: Specs) -> T:
        """Returns the sum over all shards, inside ``shard_map``; a device keeps its part of it.

        Args:
          summed: a tree of arrays.
          specs: partitions of the result, one for each leaf.
        """
        if self.num_shards == 1:  # XLA would copy it
            return summed
        return jax.tree.map(
            lambda leaf, spec: self._reduce(leaf, spec), summed, _broadcast(specs, summed)
        )

    def batch_spec(self, spec: PartitionSpec) -> PartitionSpec:
        """Returns the part of ``spec`` that names batch axes, for ``shard_map`` over them."""

        def own(entry: SpecEntry) -> tuple[str, ...] | None:
            return tuple(name for name in _names(entry) if name in self.batch_axes) or None

        return PartitionSpec(*map(own, spec))

    def _reduce(self, leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
        scattered: list[str] = []
        for dimension, entry in enumerate(self.batch_spec(spec)):
            if names := _names(entry):
                leaf = jax.lax.psum_scatter(leaf, names, scatter_dimension=dimension, tiled=True)
                scattered += names
        others = tuple(name for name in self.batch_axes if name not in scattered)
        return jax.lax.psum(leaf, others) if others else leaf

    def _place(self, leaf: npt.ArrayLike, spec: PartitionSpec) -> jax.Array:
        sharding = self._named(spec)
        if isinstance(leaf, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(leaf, sharding)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            key_data = self._place(jax.random.key_data(leaf), spec)
            return jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(leaf))
        values = np.asarray(leaf, jax.dtypes.result_type(leaf))
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    def _named(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.auto_mesh, spec)

    def _check_spec(self, name: str, shape: tuple[int, ...], spec: PartitionSpec) -> None:
        argument = f"param_rule({name!r}, ...)"
        check(is_spec(spec), argument, spec, "a jax.sharding.PartitionSpec")
        names = [axis for entry in spec for axis in _names(entry)]
        known = set(names) <= set(self.mesh.axis_names) and len(set(names)) == len(names)
        check(known, argument, spec, f"of different axes of the mesh, of {self.mesh.axis_names}")
        parts = [int(np.prod([self.mesh.shape[a] for a in _names(entry)])) for entry in spec]
        divides = len(parts) <= len(shape) and not any(
            size % count for size, count in zip(shape, parts, strict=False)
        )
        check(divides, argument, spec, f"a partition into equal parts of the shape {shape}")


def check_context() -> None:
    """Raises ValueError inside ``jax.set_mesh`` of a mesh with explicit axes."""
    context = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit in context.axis_types:
        raise ValueError(
            "sharding cannot be used inside jax.set_mesh of a mesh with explicit axes"
            f" {context.axis_names}: leave that context, as MeshSharding holds its own mesh"
        )


def _names(entry: SpecEntry) -> tuple[str, ...]:
    """The axis names in one entry of a partition."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def is_spec(node: object) -> TypeGuard[PartitionSpec]:
    """Whether ``node`` is a partition, which is a leaf of a tree of partitions."""
    return isinstance(node, PartitionSpec)


def _broadcast(specs: Specs, tree: PyTree) -> Specs:
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda _: spec, part), specs, tree, is_leaf=is_spec
    )
