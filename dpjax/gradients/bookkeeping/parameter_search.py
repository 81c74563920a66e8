"""The search for the sites of every parameter leaf in a jaxpr, its scans and ``remat`` layers."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from dpjax._jaxprs import body_of, read_scan
from dpjax.gradients.bookkeeping.sites import Block, Site, aval, is_cast, is_scan, same_entries

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


class _View(NamedTuple):
    """How a value of the jaxpr is a view of a leaf (see `Site`)."""

    leaf: int
    views: tuple[JaxprEqn, ...] = ()
    stacked: tuple[bool, ...] = ()


class ParameterSearch:
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
            if not any(same_entries(block, other) for other in found):
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
        scan = read_scan(equation)
        body, num_carry = scan.body.jaxpr, scan.num_carry
        for operand in found:
            leaf, views, stacked = self.views[equation.invars[operand]]
            if operand < scan.num_consts:
                self.views[body.invars[operand]] = _View(leaf, views, (*stacked, False))
            elif operand >= scan.num_consts + num_carry:
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
        body = body_of(equation).jaxpr
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
        elif is_scan(view):
            axes = axes[1:]
        elif not is_cast(view):
            return None
    return indices


def _are_disjoint(one: list[range] | None, other: list[range] | None) -> bool:
    if one is None or other is None:
        return False
    return any(set(a).isdisjoint(b) for a, b in zip(one, other, strict=True))
