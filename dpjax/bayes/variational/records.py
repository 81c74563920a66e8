"""Which arguments of a model are its records, and the same arguments with other records."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Layout(NamedTuple):
    """A model's arguments without their arrays: hashable, so a compiled step can be kept for it.

    Attributes:
      treedef: of ``(args, kwargs)``.
      kinds: of each leaf, ``"record"``, ``"array"`` or ``"static"``.
      statics: the static leaves: numbers, strings and other objects, kept as they are.
      types: their types, as ``True == 1`` although a model may tell them apart.
    """

    treedef: Any
    kinds: tuple[str, ...]
    statics: tuple[Any, ...]
    types: tuple[type, ...]

    def arguments(self, records: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, Any]:
        """``(args, kwargs)`` with these records and these other arrays."""
        leaves = {"record": iter(records), "array": iter(arrays), "static": iter(self.statics)}
        filled = [next(leaves[kind]) for kind in self.kinds]
        return jax.tree.unflatten(self.treedef, filled)


class Arguments(NamedTuple):
    """A model's arguments in their parts.

    Attributes:
      records: arrays whose leading axis runs over the records: the data that are protected.
      arrays: all other arrays: public, and whole in every call.
      layout: how they fit together.
    """

    records: list[jax.Array]
    arrays: list[jax.Array]
    layout: Layout


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], num_examples: int) -> Arguments:
    """Tells records from the rest, by a leading axis of ``num_examples``.

    Raises:
      ValueError: if there is no such array, or if another argument is as long on another axis or
        in a list: the records of one such would be shown to all others.

    >>> parts = split_arguments((jnp.ones((5, 2)), 0.1), {"y": jnp.ones(5)}, 5)
    >>> [leaf.shape for leaf in parts.records], parts.layout.statics
    ([(5, 2), (5,)], (0.1,))
    """
    leaves, treedef = jax.tree.flatten((tuple(args), dict(kwargs)))
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
    _check_others((*args, *kwargs.values()), of["array"], num_examples)
    records, arrays = jax.tree.map(jnp.asarray, (of["record"], of["array"]))
    types = tuple(map(type, of["static"]))
    return Arguments(records, arrays, Layout(treedef, kinds, tuple(of["static"]), types))


def _kind(leaf: Any, num_examples: int) -> str:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return "static"
    return "record" if jnp.shape(leaf)[:1] == (num_examples,) else "array"


def _check_others(values: Sequence[Any], arrays: Sequence[Any], num_examples: int) -> None:
    """What is no record to the shapes, but looks like one to a person."""
    for leaf in arrays:
        if num_examples > 1 and num_examples in jnp.shape(leaf):
            raise ValueError(
                f"args must have records on their leading axis, but one of shape {jnp.shape(leaf)}"
                f" has num_examples = {num_examples} on another, and would be shown whole to every"
                " record: put the axis of records first (jnp.moveaxis)"
            )
    for node in jax.tree.leaves(values, is_leaf=lambda node: _in_list(node, num_examples)):
        if num_examples > 1 and _in_list(node, num_examples):
            raise ValueError(
                f"args must have records in arrays, but one is a {type(node).__name__} of"
                f" num_examples = {num_examples} entries, and would be shown whole to every"
                " record: pass an array made of it"
            )


def _in_list(node: Any, num_examples: int) -> bool:
    """Whether a node of the arguments is a list of as many entries, none of them records."""
    if not isinstance(node, list | tuple) or len(node) != num_examples:
        return False
    return all(_kind(leaf, num_examples) != "record" for leaf in jax.tree.leaves(node))


def blank(records: Sequence[Any], fill: float = 0.0) -> list[jax.Array]:
    """Records of the same shapes that say nothing about anybody.

    >>> blank([jnp.arange(3)])[0].tolist()
    [0, 0, 0]
    """
    return [jnp.full(leaf.shape, fill, leaf.dtype) for leaf in records]


def batch_of_one(record: Sequence[Any]) -> list[jax.Array]:
    """One record as the model sees a data set of length one."""
    return [jnp.asarray(leaf)[None] for leaf in record]
