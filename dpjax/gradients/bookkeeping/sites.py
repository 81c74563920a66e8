"""Sites: the equations of a loss's jaxpr in which a parameter enters linearly.

A parameter may first pass through *views*, which rearrange, cast or cut out its entries (reshape,
transpose, cast, slice) or iterate over its first axis (scan). An equation that takes a view and is
linear in it is a *site*.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from dpjax._jaxprs import read_scan
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.shard_map import abstract, as_varying, varying_axes


class Site(NamedTuple):
    """One equation that is linear in a view of one parameter leaf.

    Attributes:
      equation: the equation, which has a single output.
      operand: position of the parameter among its inputs.
      block: the entries of the leaf that it takes.
      views: the equations between the block and the operand, in order.
      path: the ``scan`` and ``remat`` equations around the equation, outermost first.
      stacked: for each scan of the path, whether it iterates over the leaf. In the iterations of
        the others the equation takes the same entries again.
      row_sum: the equation that adds up all rows looked up, if nothing else reads them (the mean
        of embeddings).
      total: the sum to which the output is only added, as ``x @ w + b + h @ v``, or the output:
        gradients at both are the same, so sites with one total share them.
    """

    equation: JaxprEqn
    operand: int
    block: "Block"
    views: tuple[JaxprEqn, ...]
    path: tuple[JaxprEqn, ...] = ()
    stacked: tuple[bool, ...] = ()
    row_sum: JaxprEqn | None = None
    total: Var | None = None

    @property
    def output(self) -> Var:
        """The output whose gradient is recorded: of ``row_sum`` if any, else of ``equation``."""
        return (self.row_sum or self.equation).outvars[0]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the scans of the path."""
        return tuple(read_scan(loop).length for loop in self.path if is_scan(loop))

    @property
    def repeats(self) -> int | None:
        """In how many iterations of scans it takes the same entries; ``None`` outside of scans."""
        lengths = [n for n, over in zip(self.lengths, self.stacked, strict=True) if not over]
        return math.prod(lengths) if lengths else None


class Block(NamedTuple):
    """A part of a parameter leaf: all of it, a slice, or the entries that a scan iterates over.

    Attributes:
      leaf: the number of the parameter leaf.
      views: the equations from the leaf to the entries, in order, up to the last slice or scan.
    """

    leaf: int
    views: tuple[JaxprEqn, ...] = ()

    @property
    def stack(self) -> tuple[int, ...]:
        """The lengths of the scans that iterate over the leaf, outermost first."""
        return tuple(read_scan(v).length for v in self.views if is_scan(v))

    def select(self, leaf: Any) -> Any:
        """The entries of ``leaf`` in a shape with the axes of the stack first, without casts."""
        return _apply_views(self.views, leaf)

    def entry(self, leaf: Any) -> Any:
        """Shape and dtype of one entry of the stack."""
        axes = varying_axes(leaf)
        selected = jax.eval_shape(self.select, abstract(leaf.shape, leaf.dtype, axes))
        return abstract(selected.shape[len(self.stack) :], leaf.dtype, axes)

    def size(self, leaf: Any) -> int:
        """The number of entries, of the whole stack."""
        return math.prod(self.stack) * math.prod(self.entry(leaf).shape)

    def to_leaf(self, leaf: Any, entries: jax.Array) -> jax.Array:
        """Zeros like ``leaf`` but for these entries (the axes of the stack flattened into one)."""
        if not self.views:
            return entries
        shape = self.stack + entries.shape[1:] if self.stack else entries.shape
        return transpose(self.select, leaf, entries.reshape(shape))


def aval(atom: Any) -> Any:
    """Shape and dtype of a value of a jaxpr."""
    return atom.aval


def same_entries(one: Block, other: Block) -> bool:
    """Whether two blocks are the same entries of one leaf."""
    return one.leaf == other.leaf and _signature(one.views) == _signature(other.views)


def _signature(views: tuple[JaxprEqn, ...]) -> list[Any]:
    """What the views do: equal for the scans over one stack, and with or without casts."""
    return [
        (view.primitive.name, read_scan(view).length if is_scan(view) else view.params)
        for view in views
        if not is_cast(view)
    ]


def is_scan(view: JaxprEqn) -> bool:
    """Whether the view iterates over the first axis."""
    return view.primitive.name == "scan"


def is_cast(view: JaxprEqn) -> bool:
    """Whether the view changes the type of the entries at most."""
    return view.primitive.name in ("convert_element_type", "copy")


def apply_site(site: Site, operands: list[Any], leaf: Any) -> Any:
    """The site's output as a linear function of its block, the other operands as recorded.

    Operands that the transpose does not need are ``None``. Computed in float32 or wider and at full
    precision whatever the loss uses: a clipped sum rounded to half precision moves by more than
    the clip bound when one example is removed.
    """
    dtype = accumulator(leaf)
    inputs = [
        _zeros_like(aval(atom), dtype) if value is None else _cast(value, dtype)
        for atom, value in zip(site.equation.invars, operands, strict=True)
    ]
    inputs[site.operand] = apply_views(site, leaf)
    output = site.equation.primitive.bind(*inputs, **_in_full_precision(site, dtype))
    return (
        output
        if site.row_sum is None
        else site.row_sum.primitive.bind(output, **site.row_sum.params)
    )


def apply_views(site: Site, leaf: Any) -> Any:
    """Applies the site's views to its block, without casts."""
    return _apply_views(site.views, leaf)


def _apply_views(views: tuple[JaxprEqn, ...], array: Any) -> Any:
    for number, view in enumerate(views):
        if is_scan(view):
            return jax.vmap(partial(_apply_views, views[number + 1 :]))(array)
        if not is_cast(view):
            array = view.primitive.bind(array, **view.params)
    return array


def transpose(function: Callable[[Any], Any], leaf: Any, output_grad: jax.Array) -> jax.Array:
    """Applies the transpose of a function that is linear in an array shaped like ``leaf``.

    The result has the leaf's shape, in float32 or wider.
    """
    dtype = accumulator(leaf)
    shape = abstract(leaf.shape, dtype, varying_axes(leaf))
    return jax.linear_transpose(function, shape)(output_grad.astype(dtype))[0]


def _in_full_precision(site: Site, dtype: Any) -> dict[str, Any]:
    parameters = dict(site.equation.params)
    if "precision" in parameters:
        parameters |= {"precision": (EXACT, EXACT), "preferred_element_type": jnp.dtype(dtype)}
    return parameters


def _zeros_like(described: Any, dtype: Any) -> jax.Array:
    return as_varying(jnp.zeros(described.shape, dtype), varying_axes(described))


def _cast(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value
