"""Arguments of a model: private records, in arrays or a data source, and public values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from dpjax._checks import check, check_unmasked, from_pandas
from dpjax._typing import ArrayTree, PyTree
from dpjax.training.data import DataSource, RecordReader, SplitRecords, is_source

# Leaves of records or of public arrays; parameters by name.
Leaves: TypeAlias = Sequence[jax.Array]
Values: TypeAlias = Mapping[str, ArrayTree]
# Records, each with its position in the data set.
PositionedRecords: TypeAlias = tuple[Leaves, jax.Array] | SplitRecords
# What a step is given: records with positions, and the public arrays.
StepData: TypeAlias = tuple[PositionedRecords, Leaves]
# Positional and keyword arguments of a model.
ArgsAndKwargs: TypeAlias = tuple[tuple[object, ...], dict[str, object]]

# Zero-filled records in the place of a source's: a number that hardly any other axis has, so that
# a parameter with one entry for each record is recognised.
FEW_RECORDS = 113


class ModelArgsSpec(NamedTuple):
    """What model and guide are traced for: hashable, and equal where they are traced alike.

    Attributes:
      treedef: tree structure of ``(args, kwargs)``.
      kinds: for each leaf ``"record"``, ``"array"`` or ``"static"``.
      statics: the static leaves (numbers, strings, other objects) as given.
      types: their types, as ``True == 1`` although a model may treat them differently.
      record: shapes and dtypes of one record, without the leading axis.
      arrays: shapes and dtypes of the public arrays.
      num_examples: number of records.
      num_traced: number of constant records that stand for all of them: of a source few, which fit
        into memory.
    """

    treedef: jax.tree_util.PyTreeDef
    kinds: tuple[str, ...]
    statics: tuple[object, ...]
    types: tuple[type, ...]
    record: tuple[jax.ShapeDtypeStruct, ...]
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    num_examples: int
    num_traced: int

    def to_args(self, records: Leaves, arrays: Leaves) -> ArgsAndKwargs:
        """Returns ``(args, kwargs)`` with these records and these public arrays."""
        leaves = {"record": iter(records), "array": iter(arrays), "static": iter(self.statics)}
        return jax.tree.unflatten(self.treedef, [next(leaves[kind]) for kind in self.kinds])

    def constant_records(self, count: int, value: float = 0.0) -> list[jax.Array]:
        """Returns ``count`` synthetic records, whose entries are all ``value``."""
        return [jnp.full((count, *leaf.shape), value, leaf.dtype) for leaf in self.record]

    def constant_args(self, arrays: Leaves, value: float = 0.0) -> ArgsAndKwargs:
        """Returns ``(args, kwargs)`` with constant records in the place of all records."""
        return self.to_args(self.constant_records(self.num_traced, value), arrays)


class ModelArgs(NamedTuple):
    """A model's arguments, split into private records and public arrays.

    Attributes:
      records: arrays whose leading axis runs over the records: the data that are protected.
      arrays: all other arrays: public, passed whole in every call.
      spec: structure, shapes and static arguments.
      source: the data source of the records, of which ``records`` are the shapes then.
    """

    records: list[Any]
    arrays: list[jax.Array]
    spec: ModelArgsSpec
    source: DataSource | None = None

    def without_records(self) -> "ModelArgs":
        """Returns the arguments with shapes in the place of the records."""
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.records]
        return self._replace(records=shapes, source=None)

    def step_data(self) -> StepData:
        """Returns what a step is given; raises ValueError for a source, which only runs read."""
        if self.source is not None:
            raise ValueError(
                f"args must be arrays here, got a data source of {len(self.source)} records, of"
                " which only `run` reads the drawn ones"
            )
        return with_positions(self.records), self.arrays


def split_model_args(
    args: Sequence[object], kwargs: Mapping[str, object], num_examples: int
) -> ModelArgs:
    """Splits arguments: arrays with a leading axis of ``num_examples`` are records.

    So are those of a `DataSource` of this length, for which its records stand, stacked.

    Raises:
      ValueError: if there is no such array, if there is one beside a source, or if another argument
        has ``num_examples`` entries on another axis or in a list, as every record's term would read
        all of it.

    >>> split = split_model_args((jnp.ones((5, 2)), 0.1), {"y": jnp.ones(5)}, 5)
    >>> [leaf.shape for leaf in split.records], split.spec.statics
    ([(5, 2), (5,)], (0.1,))
    """
    # The shapes of all records in the place of a data source.
    args, kwargs = as_arrays(args, kwargs)
    leaves = jax.tree.leaves((args, kwargs), is_leaf=_is_split)
    sources = [leaf for leaf in leaves if _is_source_of(leaf, num_examples)]
    check(len(sources) <= 1, "data sources in args", len(sources), "one, of all fields")
    source = sources[0] if sources else None
    if source is not None:
        shapes = RecordReader(source, num_examples).shapes()
        args, kwargs = jax.tree.map(
            lambda leaf: shapes if leaf is source else leaf, (args, kwargs), is_leaf=_is_split
        )

    # Records, public arrays and static leaves.
    leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_split)
    kinds = tuple(_kind(leaf, num_examples) for leaf in leaves)
    records, arrays, statics = (
        [leaf for leaf, k in zip(leaves, kinds, strict=True) if k == kind]
        for kind in ("record", "array", "static")
    )
    if not records:
        raise ValueError(
            "args must hold the whole data set, as arrays with a leading axis of"
            f" num_examples = {num_examples} (the sampler draws the batch), got arrays of shape"
            f" {[jnp.shape(leaf) for leaf in arrays]}"
        )
    if num_examples > 1:
        _check_public_arguments((*args, *kwargs.values()), arrays, num_examples)
    if source is not None and not all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in records):
        raise ValueError(
            "args must hold the records in one data source or in arrays, got both: let the source"
            " return all fields of a record"
        )

    # Arrays of JAX, and what a program is compiled for.
    records, arrays = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf),
        (records, arrays),
    )
    spec = ModelArgsSpec(
        treedef,
        kinds,
        tuple(statics),
        tuple(map(type, statics)),
        tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in records),
        tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays),
        num_examples,
        num_examples if source is None else min(FEW_RECORDS, num_examples),
    )
    return ModelArgs(records, arrays, spec, source)


def as_arrays(args: Sequence[object], kwargs: Mapping[str, object]) -> ArgsAndKwargs:
    """Returns ``(args, kwargs)`` with numpy arrays for pandas Series and DataFrames.

    Raises:
      ValueError: an array that holds no numbers, named with its dtype, or a masked one.
    """

    def convert(path: KeyPath, leaf: Any) -> object:
        name = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
        check_unmasked(name, leaf)
        array = from_pandas(leaf, name)
        if isinstance(array, np.ndarray) and array.dtype != bool:
            numeric = jax.dtypes.issubdtype(array.dtype, np.number)
            check(numeric, name, array.dtype, "an array of numbers or booleans")
        return array

    return jax.tree.map_with_path(convert, (tuple(args), dict(kwargs)), is_leaf=_is_split)


def whole_arrays(
    args: Sequence[object], kwargs: Mapping[str, object], num_examples: int
) -> ArgsAndKwargs:
    """`as_arrays`; raises ValueError for `SplitRecords` and data sources, which steps take."""
    args, kwargs = as_arrays(args, kwargs)
    for leaf in jax.tree.leaves((args, kwargs), is_leaf=_is_split):
        if _is_split(leaf) or _is_source_of(leaf, num_examples):
            name = type(leaf).__name__
            raise ValueError(f"args must be whole arrays here, got {name}, which only steps take")
    return args, kwargs


def _is_source_of(leaf: object, num_examples: int) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray | SplitRecords)
    return not is_array and is_source(leaf) and len(leaf) == num_examples


def _is_split(node: object) -> bool:
    return isinstance(node, SplitRecords)


def _kind(leaf: object, num_examples: int) -> str:
    if isinstance(leaf, SplitRecords):
        one = isinstance(leaf.arrays, jax.Array)
        check(one, "args", type(leaf.arrays), "one array of SplitRecords each, as records['x']")
        check(len(leaf) == num_examples, "args", len(leaf), f"of {num_examples} records in all")
        return "record"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "record"
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or isinstance(leaf, str | bytes):
        return "static"
    return "record" if jnp.shape(leaf)[:1] == (num_examples,) else "array"


def _check_public_arguments(values: Sequence[object], arrays: Leaves, num_examples: int) -> None:
    """Refuses public arguments with as many entries as there are records, probably records too."""
    # Records on another axis than the leading one.
    for leaf in arrays:
        if num_examples in jnp.shape(leaf):
            raise ValueError(
                f"args must have records on their leading axis, but one of shape {jnp.shape(leaf)}"
                f" has num_examples = {num_examples} on another, and would be shown whole to every"
                " record: put the axis of records first (jnp.moveaxis)"
            )

    # Records in a list.
    def is_list_of_records(node: object) -> bool:
        if not isinstance(node, list | tuple) or len(node) != num_examples:
            return False
        return all(_kind(leaf, num_examples) != "record" for leaf in jax.tree.leaves(node))

    for node in filter(is_list_of_records, jax.tree.leaves(values, is_leaf=is_list_of_records)):
        raise ValueError(
            f"args must have records in arrays, but one is a {type(node).__name__} of"
            f" num_examples = {num_examples} entries, and would be shown whole to every"
            " record: pass an array made of it"
        )


def with_positions(records: Sequence[Any]) -> PositionedRecords:
    """Returns the records, each with its position in the data set; `SplitRecords` as one."""
    first = records[0]
    if not isinstance(first, SplitRecords):
        return records, jnp.arange(len(first))
    return replace(first, arrays=([leaf.arrays for leaf in records], first.positions))


class PositionedSource:
    """A data source whose records come with their positions."""

    def __init__(self, source: DataSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[PyTree, np.int32]:
        return self._source[index], np.int32(index)

    def __getitems__(self, indices: Sequence[int]) -> PyTree:
        if not hasattr(self._source, "__getitems__"):
            return [self[index] for index in indices]
        records, positions = self._source.__getitems__(indices), np.array(indices, np.int32)
        if isinstance(records, list):
            return list(zip(records, positions, strict=True))
        return records, positions
