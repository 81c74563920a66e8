"""Arguments of a model: private records, in arrays or a data source, and public values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import check, check_unmasked
from dpjax._typing import ArrayTree
from dpjax.training.data import DataSource, RecordReader, SplitRecords, is_source

# Leaves of records or of public arrays, and parameters by name.
Leaves = Sequence[jax.Array]
Values = Mapping[str, ArrayTree]
# Positional and keyword arguments of a model.
ArgsAndKwargs = tuple[tuple[Any, ...], dict[str, Any]]

# Zero-filled records in the place of a source's: a number that hardly any other axis has, so that
# a parameter with one entry for each record is recognised.
FEW_RECORDS = 113


class Layout(NamedTuple):
    """A model's arguments without their arrays: hashable, so a compiled step can be kept for it.

    Attributes:
      treedef: tree structure of ``(args, kwargs)``.
      kinds: for each leaf ``"record"``, ``"array"`` or ``"static"``.
      statics: the static leaves (numbers, strings, other objects) as given.
      types: their types, as ``True == 1`` although a model may treat them differently.
    """

    treedef: jax.tree_util.PyTreeDef
    kinds: tuple[str, ...]
    statics: tuple[Any, ...]
    types: tuple[type, ...]

    def arguments(self, records: Leaves, arrays: Leaves) -> ArgsAndKwargs:
        """Returns ``(args, kwargs)`` with these records and these public arrays."""
        leaves = {"record": iter(records), "array": iter(arrays), "static": iter(self.statics)}
        filled = [next(leaves[kind]) for kind in self.kinds]
        return jax.tree.unflatten(self.treedef, filled)


class Arguments(NamedTuple):
    """A model's arguments, split into private records and public arrays.

    Attributes:
      records: arrays whose leading axis runs over the records: the data that are protected.
      arrays: all other arrays: public, passed whole in every call.
      layout: tree structure and static arguments.
      source: the data source of the records, of which ``records`` are the shapes then.
    """

    records: list[Any]
    arrays: list[jax.Array]
    layout: Layout
    source: DataSource | None = None

    @property
    def example_records(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of the records, of a source of few: so that zero-filled ones fit into memory."""
        count = len(self.records[0]) if self.source is None else FEW_RECORDS
        return shapes_of(self.records, min(count, len(self.records[0])))

    def signature(self) -> tuple[Any, ...]:
        """Returns layout, shapes and dtypes: equal where model and guide are traced alike."""
        leaves = (*self.records, *self.arrays)
        return self.layout, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], num_examples: int) -> Arguments:
    """Splits arguments: arrays with a leading axis of ``num_examples`` are records.

    So are those of a `DataSource` of this length, for which its records stand, stacked.

    Raises:
      ValueError: if there is no such array, if there is one beside a source, or if another argument
        has ``num_examples`` entries on another axis or in a list, as every record's term would read
        all of it.

    >>> parts = split_arguments((jnp.ones((5, 2)), 0.1), {"y": jnp.ones(5)}, 5)
    >>> [leaf.shape for leaf in parts.records], parts.layout.statics
    ([(5, 2), (5,)], (0.1,))
    """
    args, kwargs = as_arrays(args, kwargs)
    source, (args, kwargs) = _stack_source((args, kwargs), num_examples)
    leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_split)
    kinds = tuple(_kind(leaf, num_examples) for leaf in leaves)
    of = {
        kind: [leaf for leaf, k in zip(leaves, kinds, strict=True) if k == kind]
        for kind in ("record", "array", "static")
    }
    if not of["record"]:
        shapes = [jnp.shape(leaf) for leaf in of["array"]]
        raise ValueError(
            "args must hold the whole data set, as arrays with a leading axis of"
            f" num_examples = {num_examples} (the sampler draws the batch), got arrays of shape"
            f" {shapes}"
        )
    if num_examples > 1:
        _check_public_arguments((*args, *kwargs.values()), of["array"], num_examples)
    records, arrays = jax.tree.map(_as_jax, (of["record"], of["array"]))
    if source is not None and not all(map(_is_shape, records)):
        raise ValueError(
            "args must hold the records in one data source or in arrays, got both: let the source"
            " return all fields of a record"
        )
    types = tuple(map(type, of["static"]))
    return Arguments(records, arrays, Layout(treedef, kinds, tuple(of["static"]), types), source)


def _stack_source(
    arguments: ArgsAndKwargs, num_examples: int
) -> tuple[DataSource | None, ArgsAndKwargs]:
    """Returns the source of ``num_examples`` records, and arguments with shapes in its place."""
    leaves = jax.tree.leaves(arguments, is_leaf=_is_split)
    sources = [leaf for leaf in leaves if _is_source_of(leaf, num_examples)]
    if not sources:
        return None, arguments
    check(len(sources) == 1, "data sources in args", len(sources), "one, of all fields")
    shapes = RecordReader(sources[0], num_examples).shapes()
    stacked = jax.tree.map(
        lambda leaf: shapes if leaf is sources[0] else leaf, arguments, is_leaf=_is_split
    )
    return sources[0], stacked


def _as_jax(leaf: Any) -> Any:
    return leaf if _is_shape(leaf) else jnp.asarray(leaf)


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def check_split(records: SplitRecords, num_examples: int) -> None:
    """Raises ValueError for records of another number, or more than one array of them."""
    one = isinstance(records.arrays, jax.Array)
    check(one, "args", type(records.arrays), "one array of SplitRecords each, as records['x']")
    check(len(records) == num_examples, "args", len(records), f"of {num_examples} records in all")


def check_in_arrays(arguments: Arguments) -> Arguments:
    """Returns ``arguments``; raises ValueError for those of a data source, which only runs take."""
    if arguments.source is not None:
        raise ValueError(
            f"args must be arrays here, got a data source of {len(arguments.source)} records, of"
            " which only `run` reads the drawn ones"
        )
    return arguments


def check_whole(arguments: Any, num_examples: int) -> None:
    """Raises ValueError for `SplitRecords` and data sources, which only steps take."""
    for leaf in jax.tree.leaves(arguments, is_leaf=_is_split):
        if _is_split(leaf) or _is_source_of(leaf, num_examples):
            name = type(leaf).__name__
            raise ValueError(f"args must be whole arrays here, got {name}, which only steps take")


def as_arrays(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgsAndKwargs:
    """Returns ``(args, kwargs)`` with numpy arrays for pandas Series and DataFrames.

    Raises:
      ValueError: an array that holds no numbers, named with its dtype, or a masked one.
    """

    def convert(path: tuple[Any, ...], leaf: Any) -> Any:
        name = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
        check_unmasked(name, leaf)
        array = leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf
        if isinstance(array, np.ndarray) and array.dtype != bool:
            numeric = jax.dtypes.issubdtype(array.dtype, np.number)
            check(numeric, name, array.dtype, "an array of numbers or booleans")
        return array

    return jax.tree.map_with_path(convert, (tuple(args), dict(kwargs)), is_leaf=_is_split)


def _is_split(node: Any) -> bool:
    return isinstance(node, SplitRecords)


def _is_source_of(leaf: Any, num_examples: int) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray | SplitRecords)
    return not is_array and is_source(leaf) and len(leaf) == num_examples


def _kind(leaf: Any, num_examples: int) -> str:
    if _is_split(leaf):
        check_split(leaf, num_examples)
        return "record"
    if _is_shape(leaf):
        return "record"
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or isinstance(leaf, str | bytes):
        return "static"
    return "record" if jnp.shape(leaf)[:1] == (num_examples,) else "array"


def _check_public_arguments(
    values: Sequence[Any], arrays: Sequence[Any], num_examples: int
) -> None:
    """Refuses public arguments with as many entries as there are records, probably records too."""
    for leaf in arrays:
        if num_examples in jnp.shape(leaf):
            raise ValueError(
                f"args must have records on their leading axis, but one of shape {jnp.shape(leaf)}"
                f" has num_examples = {num_examples} on another, and would be shown whole to every"
                " record: put the axis of records first (jnp.moveaxis)"
            )

    def is_list_of_records(node: Any) -> bool:
        if not isinstance(node, list | tuple) or len(node) != num_examples:
            return False
        return all(_kind(leaf, num_examples) != "record" for leaf in jax.tree.leaves(node))

    for node in filter(is_list_of_records, jax.tree.leaves(values, is_leaf=is_list_of_records)):
        raise ValueError(
            f"args must have records in arrays, but one is a {type(node).__name__} of"
            f" num_examples = {num_examples} entries, and would be shown whole to every"
            " record: pass an array made of it"
        )


def fill_records(
    records: Sequence[jax.Array | jax.ShapeDtypeStruct], value: float = 0.0
) -> list[jax.Array]:
    """Returns records of the same shapes with every entry ``value``: independent of the data.

    >>> fill_records([jnp.arange(3)])[0].tolist()
    [0, 0, 0]
    """
    return [jnp.full(leaf.shape, value, leaf.dtype) for leaf in records]


def shapes_of(records: Sequence[Any], count: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of ``count`` such records.

    >>> shapes_of([jnp.ones((5, 2))], 3)
    [ShapeDtypeStruct(shape=(3, 2), dtype=float32)]
    """
    return [jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype) for leaf in records]


def batch_of_one(record: Leaves) -> list[jax.Array]:
    """Returns the leaves of one record with a leading axis of length one."""
    return [jnp.asarray(leaf)[None] for leaf in record]
