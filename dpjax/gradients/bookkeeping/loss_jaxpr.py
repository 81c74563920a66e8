"""The jaxpr of one example's loss, and the equations in which each parameter enters linearly.

A parameter may first pass through *views*, which rearrange, cast or cut out its entries (reshape,
transpose, cast, slice) or iterate over its first axis (scan). An equation that takes a view and is
linear in it is a *site*. A parameter used in any other way is not supported by book-keeping: its
per-example gradients are computed by ``vmap``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dpjax._typing import ArrayTree, LossFn
from dpjax.gradients.bookkeeping.evaluation import inline_calls
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.shard_map import abstract, as_varying, varying_axes

# Entrywise: they keep norms.
_VIEWS = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy", "slice"})
# Operands in which each primitive is linear for every value of the others.
_LINEAR_IN: dict[str, frozenset[int]] = {
    "dot_general": frozenset({0, 1}),
    "conv_general_dilated": frozenset({1}),
    "gather": frozenset({0}),
    "dynamic_slice": frozenset({0}),
    "add": frozenset({0, 1}),
    "sub": frozenset({0, 1}),
    "mul": frozenset({0, 1}),
    "div": frozenset({0}),
    "broadcast_in_dim": frozenset({0}),
}


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
      added: the output of another site that is this one's plus something, as of the bias in
        ``x @ w + b``: gradients at both are the same.
    """

    equation: JaxprEqn
    operand: int
    block: "Block"
    views: tuple[JaxprEqn, ...]
    path: tuple[JaxprEqn, ...] = ()
    stacked: tuple[bool, ...] = ()
    row_sum: JaxprEqn | None = None
    added: Var | None = None

    @property
    def output(self) -> Var:
        """The output whose gradient is recorded: of ``row_sum`` if any, else of ``equation``."""
        return (self.row_sum or self.equation).outvars[0]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the scans of the path."""
        return tuple(loop.params["length"] for loop in self.path if _is_scan(loop))

    @property
    def repeats(self) -> int | None:
        """In how many iterations of scans it takes the same entries; ``None`` outside of scans."""
        lengths = [n for n, over in zip(self.lengths, self.stacked, strict=True) if not over]
        return math.prod(lengths) if lengths else None


class Block(NamedTuple):
    """Entries of a leaf: all of them, a slice, or one entry of a stack in each iteration of a scan.

    Attributes:
      leaf: the number of the parameter leaf.
      views: the equations from the leaf to the entries, in order, up to the last slice or scan.
    """

    leaf: int
    views: tuple[JaxprEqn, ...] = ()

    @property
    def stack(self) -> tuple[int, ...]:
        """The lengths of the scans that iterate over the leaf, outermost first."""
        return tuple(v.params["length"] for v in self.views if v.primitive.name == "scan")

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


class LossJaxpr(NamedTuple):
    """The jaxpr of one example's loss, calls inlined, with its sites.

    Attributes:
      jaxpr: inputs are the parameter leaves, then the example's leaves; one scalar output.
      sites: the sites of the leaves that book-keeping supports.
      blocks: disjoint parts of all leaves, one or several for each.
      unsupported: the reason for each leaf that book-keeping does not support.
    """

    jaxpr: ClosedJaxpr
    sites: tuple[Site, ...]
    blocks: tuple[Block, ...]
    unsupported: dict[int, str]

    def sites_of(self, block: Block) -> list[int]:
        """The numbers of the sites of one block."""
        return [n for n, site in enumerate(self.sites) if _same_entries(site.block, block)]

    def is_recomputed(self, block: Block) -> bool:
        """Whether ``remat`` asks not to keep what the block's only site takes.

        Several uses of the same entries, as in a recurrent network, are kept all the same.
        """
        sites = [self.sites[n] for n in self.sites_of(block)]
        inside = any(
            equation.primitive.name == "remat2" for site in sites for equation in site.path
        )
        return inside and len(sites) == 1 and sites[0].repeats is None


def aval(atom: Any) -> Any:
    """Shape and dtype of a value of a jaxpr."""
    return atom.aval


def trace_loss(loss_fn: LossFn, params: ArrayTree, example: Any) -> LossJaxpr:
    """Traces ``loss_fn`` on one example and finds the sites of each parameter leaf."""
    called = jax.make_jaxpr(loss_fn)(params, example)
    inputs = [abstract(a.shape, a.dtype, varying_axes(a)) for a in map(aval, called.jaxpr.invars)]
    leaves = jax.tree.leaves(params)
    inlined = partial(inline_calls, called, num_constant=len(leaves))
    jaxpr = jax.make_jaxpr(lambda *values: inlined(values))(*inputs)
    search = _ParameterSearch(len(leaves), jaxpr.jaxpr)
    blocks = [
        block for leaf, array in enumerate(leaves) for block in search.blocks(leaf, array.shape)
    ]
    supported = [s for s in search.sites if s.block.leaf not in search.unsupported]
    sites = [_merge_row_sum(site, search.readers) for site in supported]
    outputs = {site.output for site in sites}
    sites = [site._replace(added=_added_to(site, search.readers, outputs)) for site in sites]
    return LossJaxpr(jaxpr, tuple(sites), tuple(blocks), search.unsupported)


def _merge_row_sum(site: Site, readers: dict[Any, list[JaxprEqn | None]]) -> Site:
    """Adds the sum over all rows looked up to the site, where nothing else reads the rows."""
    reader = _only_reader(site.output, readers)
    if site.equation.primitive.name != "gather" or reader is None or site.path:
        return site
    return site._replace(row_sum=reader) if _sums_rows(reader, aval(site.output).shape) else site


def _added_to(
    site: Site, readers: dict[Any, list[JaxprEqn | None]], outputs: set[Var]
) -> Var | None:
    """The output of another site to which only this one's output is added: as ``x @ w + b``."""
    reader = _only_reader(site.output, readers)
    if reader is None or reader.primitive.name != "add" or reader.outvars[0] not in outputs:
        return None
    return reader.outvars[0] if aval(reader.outvars[0]).shape == aval(site.output).shape else None


def _only_reader(value: Var, readers: dict[Any, list[JaxprEqn | None]]) -> JaxprEqn | None:
    found = readers.get(value, [])
    return found[0] if len(found) == 1 else None


def _sums_rows(equation: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """Whether the equation sums an array of ``shape`` over all axes but the last."""
    if equation.primitive.name != "reduce_sum":
        return False
    added, (*others, last) = equation.params["axes"], range(len(shape))
    return last not in added and all(axis in added or shape[axis] == 1 for axis in others)


class _View(NamedTuple):
    """How a value of the jaxpr is a view of a leaf (see `Site`)."""

    leaf: int
    views: tuple[JaxprEqn, ...] = ()
    stacked: tuple[bool, ...] = ()


class _ParameterSearch:
    """Finds the sites of every parameter leaf."""

    def __init__(self, num_leaves: int, jaxpr: Jaxpr) -> None:
        self.sites: list[Site] = []
        self.unsupported: dict[int, str] = {}
        self.views: dict[Any, _View] = {
            var: _View(leaf) for leaf, var in enumerate(jaxpr.invars[:num_leaves])
        }
        self.returned: dict[Any, int | None] = {}  # views that scans return: rarely used
        # The equations that read each value; None is the end of a body.
        self.readers: dict[Any, list[JaxprEqn | None]] = {}
        self._search(jaxpr, ())
        for output in jaxpr.outvars:
            self._mark_unsupported(output, "returned as the loss")

    def blocks(self, leaf: int, shape: tuple[int, ...]) -> list[Block]:
        """The disjoint blocks of one leaf; marks the leaf as unsupported if they overlap."""
        found: list[Block] = []
        for block in (site.block for site in self.sites if site.block.leaf == leaf):
            if not any(_same_entries(block, other) for other in found):
                found.append(block)
        regions = [_indices(block, shape) for block in found]
        if any(
            not _are_disjoint(one, other)
            for number, one in enumerate(regions)
            for other in regions[:number]
        ):
            self.unsupported.setdefault(leaf, "used in parts that overlap")
        return [Block(leaf)] if leaf in self.unsupported or not found else found

    def _search(self, jaxpr: Jaxpr, path: tuple[JaxprEqn, ...]) -> None:
        self.readers.update({var: [None] for var in jaxpr.outvars if isinstance(var, Var)})
        for equation in jaxpr.eqns:
            for value in equation.invars:
                if isinstance(value, Var):
                    self.readers.setdefault(value, []).append(equation)
            found = [i for i, value in enumerate(equation.invars) if self._is_view(value)]
            for value in equation.invars:
                if not self._is_view(value):
                    self._mark_unsupported(value, "returned from scan")
            self._visit(equation, found, path)

    def _visit(self, equation: JaxprEqn, found: list[int], path: tuple[JaxprEqn, ...]) -> None:
        name, inputs = equation.primitive.name, equation.invars
        floats = all(jnp.issubdtype(aval(v).dtype, jnp.floating) for v in equation.outvars)
        if name == "scan":
            self._enter_scan(equation, found, path)
        elif name == "remat2":
            self._enter_remat(equation, found, path)
        elif len(found) == 1 and name in _VIEWS and len(inputs) == 1 and floats:
            seen = self.views[inputs[0]]
            self.views[equation.outvars[0]] = seen._replace(views=(*seen.views, equation))
        elif found and name == "split":
            seen = self.views[inputs[0]]
            for output, part in zip(equation.outvars, _slices(equation), strict=True):
                self.views[output] = seen._replace(views=(*seen.views, part))
        elif len(found) == 1 and found[0] in _LINEAR_IN.get(name, ()):
            leaf, views, stacked = self.views[inputs[found[0]]]
            block, rest = _split_views(leaf, views)
            self.sites.append(Site(equation, found[0], block, rest, path, stacked))
        else:
            reason = f"{name} of several parameters" if len(found) > 1 else f"used in {name}"
            for operand in found:
                self._mark_unsupported(inputs[operand], reason)

    def _enter_scan(self, equation: JaxprEqn, found: list[int], path: tuple[JaxprEqn, ...]) -> None:
        num_consts, num_carry = equation.params["num_consts"], equation.params["num_carry"]
        body = equation.params["jaxpr"].jaxpr
        for operand in found:
            leaf, views, stacked = self.views[equation.invars[operand]]
            if operand < num_consts:
                self.views[body.invars[operand]] = _View(leaf, views, (*stacked, False))
            elif operand >= num_consts + num_carry:
                seen = _View(leaf, (*views, equation), (*stacked, True))
                self.views[body.invars[operand]] = seen
            else:
                self._mark_unsupported(equation.invars[operand], "the initial state of a scan")
        self._search(body, (*path, equation))
        carried, stacked = body.outvars[:num_carry], body.outvars[num_carry:]
        for inner, outer in zip(stacked, equation.outvars[num_carry:], strict=True):
            if self._leaf_of(inner) is not None:
                self.returned[outer] = self._leaf_of(inner)
        for inner in carried:
            self._mark_unsupported(inner, "carried by scan")

    def _enter_remat(
        self, equation: JaxprEqn, found: list[int], path: tuple[JaxprEqn, ...]
    ) -> None:
        body = equation.params["jaxpr"]
        for operand in found:
            self.views[body.invars[operand]] = self.views[equation.invars[operand]]
        self._search(body, (*path, equation))
        for inner, outer in zip(body.outvars, equation.outvars, strict=True):
            if self._is_view(inner):
                self.views[outer] = self.views[inner]
            elif self._leaf_of(inner) is not None:
                self.returned[outer] = self.returned[inner]

    def _mark_unsupported(self, value: Any, reason: str) -> None:
        leaf = self._leaf_of(value)
        if leaf is not None:
            self.unsupported.setdefault(leaf, reason)

    def _is_view(self, value: Any) -> bool:
        return not isinstance(value, Literal) and value in self.views

    def _leaf_of(self, value: Any) -> int | None:
        """The leaf that the value is a view of, possibly returned from a scan."""
        if self._is_view(value):
            return self.views[value].leaf
        return None if isinstance(value, Literal) else self.returned.get(value)


def _split_views(leaf: int, views: tuple[JaxprEqn, ...]) -> tuple[Block, tuple[JaxprEqn, ...]]:
    """The views up to the last slice or scan, as a block, and those after it."""
    cuts = [n for n, view in enumerate(views) if view.primitive.name in ("slice", "scan")]
    end = cuts[-1] + 1 if cuts else 0
    return Block(leaf, views[:end]), views[end:]


def _slices(split: JaxprEqn) -> list[JaxprEqn]:
    """A ``slice`` equation for each output of a ``split`` equation."""
    shape, axis, start = aval(split.invars[0]).shape, split.params["axis"], 0
    slices = []
    for size in split.params["sizes"]:
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, start + size
        cut = partial(jax.lax.slice, start_indices=starts, limit_indices=limits)
        slices.append(jax.make_jaxpr(cut)(aval(split.invars[0])).jaxpr.eqns[0])
        start += size
    return slices


def _same_entries(one: Block, other: Block) -> bool:
    return one.leaf == other.leaf and _signature(one.views) == _signature(other.views)


def _signature(views: tuple[JaxprEqn, ...]) -> list[Any]:
    """What the views do: equal for the scans over one stack, and with or without casts."""
    return [
        (view.primitive.name, view.params["length"] if _is_scan(view) else view.params)
        for view in views
        if not _is_cast(view)
    ]


def _indices(block: Block, shape: tuple[int, ...]) -> list[range] | None:
    """The block's indices along each axis of the leaf; ``None`` if views mix the axes."""
    indices, axes = [range(size) for size in shape], list(range(len(shape)))
    for view in block.views:
        name, params = view.primitive.name, view.params
        if name == "slice":
            strides = params["strides"] or [1] * len(axes)
            cuts = map(slice, params["start_indices"], params["limit_indices"], strides)
            for axis, cut in zip(axes, cuts, strict=True):
                indices[axis] = indices[axis][cut]
        elif name == "transpose":
            axes = [axes[d] for d in params["permutation"]]
        elif name == "squeeze":
            axes = [axis for d, axis in enumerate(axes) if d not in params["dimensions"]]
        elif _is_scan(view):
            axes = axes[1:]
        elif not _is_cast(view):
            return None
    return indices


def _are_disjoint(one: list[range] | None, other: list[range] | None) -> bool:
    if one is None or other is None:
        return False
    return any(set(a).isdisjoint(b) for a, b in zip(one, other, strict=True))


def _is_scan(view: JaxprEqn) -> bool:
    return view.primitive.name == "scan"


def _is_cast(view: JaxprEqn) -> bool:
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
        if _is_scan(view):
            return jax.vmap(partial(_apply_views, views[number + 1 :]))(array)
        if not _is_cast(view):
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
