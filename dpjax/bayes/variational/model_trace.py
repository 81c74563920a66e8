"""Model structure, traced on zero-filled records: record arguments, plate, latent variables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Unit
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from dpjax._typing import ArrayTree
from dpjax._validation import check, check_unmasked
from dpjax.training.split_records import SplitRecords

# A message of numpyro's trace, and all messages of a program by name.
Site = Mapping[str, Any]
Trace = Mapping[str, Site]
# Leaves of records or of public arrays, and parameters by name.
Leaves = Sequence[jax.Array]
Values = Mapping[str, ArrayTree]
# Positional and keyword arguments of a model.
ArgsAndKwargs = tuple[tuple[Any, ...], dict[str, Any]]


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
    """

    records: list[jax.Array]
    arrays: list[jax.Array]
    layout: Layout

    def signature(self) -> tuple[Any, ...]:
        """Returns layout, shapes and dtypes: equal where model and guide are traced alike."""
        leaves = (*self.records, *self.arrays)
        return self.layout, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], num_examples: int) -> Arguments:
    """Splits arguments: arrays with a leading axis of ``num_examples`` are records.

    Raises:
      ValueError: if there is no such array, or if another argument has ``num_examples`` entries on
        another axis or in a list, as every record's term would read all of it.

    >>> parts = split_arguments((jnp.ones((5, 2)), 0.1), {"y": jnp.ones(5)}, 5)
    >>> [leaf.shape for leaf in parts.records], parts.layout.statics
    ([(5, 2), (5,)], (0.1,))
    """
    args, kwargs = as_arrays(args, kwargs)
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
    records, arrays = jax.tree.map(jnp.asarray, (of["record"], of["array"]))
    types = tuple(map(type, of["static"]))
    return Arguments(records, arrays, Layout(treedef, kinds, tuple(of["static"]), types))


def check_split(records: SplitRecords, num_examples: int) -> None:
    """Raises ValueError for records of another number, or more than one array of them."""
    one = isinstance(records.arrays, jax.Array)
    check(one, "args", type(records.arrays), "one array of SplitRecords each, as records['x']")
    check(len(records) == num_examples, "args", len(records), f"of {num_examples} records in all")


def check_whole(arguments: Any) -> None:
    """Raises ValueError for `SplitRecords`, which only steps take."""
    if any(map(_is_split, jax.tree.leaves(arguments, is_leaf=_is_split))):
        raise ValueError("args must be whole arrays here, got SplitRecords, which only steps take")


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


def _kind(leaf: Any, num_examples: int) -> str:
    if _is_split(leaf):
        check_split(leaf, num_examples)
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


def batch_of_one(record: Leaves) -> list[jax.Array]:
    """Returns the leaves of one record with a leading axis of length one."""
    return [jnp.asarray(leaf)[None] for leaf in record]


class ModelTrace(NamedTuple):
    """Structure of a model called with one signature of arguments.

    Attributes:
      plate: name of the plate over the records.
      latents: names of the latent variables outside of it.
      records: shapes and dtypes of the records.
      arrays: the public arrays.
      layout: of the arguments.
    """

    plate: str
    latents: tuple[str, ...]
    records: list[jax.ShapeDtypeStruct]
    arrays: list[jax.Array]
    layout: Layout

    def zero_arguments(self) -> ArgsAndKwargs:
        """Returns ``(args, kwargs)`` with zero-filled records."""
        return self.layout.arguments(fill_records(self.records), self.arrays)


def trace_model(model: Callable[..., Any], arguments: Arguments) -> ModelTrace:
    """Returns the structure of ``model``, traced abstractly on zero-filled records.

    Raises:
      ValueError: if there is not exactly one plate of ``num_examples`` that holds every observed
        site; if a latent variable is discrete, or the model has mutable sites.
    """
    found: list[tuple[str, tuple[str, ...]]] = []

    def trace_sites(records: list[jax.Array], arrays: list[jax.Array]) -> None:
        args, kwargs = arguments.layout.arguments(fill_records(records), arrays)
        filled = substitute(seed(model, jax.random.key(0)), substitute_fn=initial_value)
        sites = trace(filled).get_trace(*args, **kwargs)
        check_not_mutable(sites, "model")
        latents = [n for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]]
        for name in latents:
            if sites[name]["fn"].support.is_discrete:
                raise ValueError(
                    f"model must have continuous latent variables, but site {name!r} is discrete"
                    " and has no gradient: marginalise it, e.g. by"
                    " numpyro.distributions.MixtureSameFamily"
                )
        plate = _find_record_plate(sites, len(records[0]))
        found.append((plate, tuple(n for n in latents if not in_plate(sites[n], plate))))

    jax.eval_shape(trace_sites, arguments.records, arguments.arrays)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arguments.records]
    return ModelTrace(*found[0], shapes, arguments.arrays, arguments.layout)


def initial_value(site: Site) -> jax.Array | None:
    """Returns numpyro's starting value of a latent variable; None where it has to be sampled.

    An improper prior cannot be sampled, and for some supports there are no starting values.
    """
    if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
        return None
    try:
        return init_to_uniform(site)
    except (NotImplementedError, ValueError):
        return None


def in_plate(site: Site, plate: str) -> bool:
    """Returns whether a traced site is under the plate of this name."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


def check_not_mutable(sites: Trace, owner: str) -> None:
    """Refuses mutable sites of ``owner``, ``"model"`` or ``"guide"``."""
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise ValueError(
                f"{owner} must not keep state, but site {name!r} is mutable: what it keeps of the"
                " records would be released without noise; use layers without running statistics"
            )


def _find_record_plate(sites: Trace, num_examples: int) -> str:
    observed = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample" and site["is_observed"]
    }
    sizes = {name: site["args"][0] for name, site in sites.items() if site["type"] == "plate"}
    if not observed:
        raise ValueError("model must observe its records, but none of its sites has obs")
    plates = {
        name: {f.name for f in site["cond_indep_stack"] if sizes.get(f.name) == num_examples}
        for name, site in observed.items()
    }
    for name, around in plates.items():
        if not around and isinstance(observed[name]["fn"], Unit):
            raise ValueError(
                "model must not have a numpyro.factor outside of the plate over the records, got"
                f" {name!r}: a factor counts as an observation. Write one that is free of data as"
                " the prior of a latent variable (a Distribution with this log-density), and move"
                " one that reads the records under the plate"
            )
        if not around:
            raise ValueError(
                f"model must observe under a numpyro.plate of num_examples = {num_examples}, but"
                f" site {name!r} is observed outside of one (plates: {sizes}): what it is given are"
                " data too, with no record to clip"
            )
    common = set.intersection(*plates.values())
    if len(common) != 1:
        raise ValueError(
            f"model must have one plate of num_examples = {num_examples} for all observed sites, so"
            f" that a record has one term, got { ({k: sorted(v) for k, v in plates.items()}) }"
        )
    return common.pop()
