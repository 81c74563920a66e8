"""The jaxpr of one example's loss, and the equations in which each parameter enters linearly.

A parameter may first pass through *views*, which only rearrange or cast its entries (reshape,
transpose, cast). An equation that takes a view and is linear in it is a *site*. A parameter used in
any other way is not supported by book-keeping: its per-example gradients are computed by ``vmap``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from dpjax._typing import ArrayTree, LossFn
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.shard_map import abstract, as_varying, varying_axes

# Entrywise: they keep norms.
_VIEWS = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy"})
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
_INLINED = frozenset({"jit", "remat2"})


def _keep(equation: JaxprEqn, operands: Any, outputs: Any) -> Any:
    return outputs


class Site(NamedTuple):
    """One equation that is linear in a view of one parameter leaf.

    Attributes:
      equation: the equation, which has a single output.
      operand: position of the parameter among its inputs.
      leaf: the number of the parameter leaf.
      views: the equations between the leaf and the operand, in order.
      row_sum: the equation that adds up all rows looked up, if nothing else reads them (the mean
        of embeddings).
    """

    equation: JaxprEqn
    operand: int
    leaf: int
    views: tuple[JaxprEqn, ...]
    row_sum: JaxprEqn | None = None

    @property
    def output(self) -> Var:
        """The output whose gradient is recorded: of ``row_sum`` if any, else of ``equation``."""
        return (self.row_sum or self.equation).outvars[0]


class LossJaxpr(NamedTuple):
    """The jaxpr of one example's loss, calls inlined, with its sites.

    Attributes:
      jaxpr: inputs are the parameter leaves, then the example's leaves; one scalar output.
      sites: the sites of the leaves that book-keeping supports.
      unsupported: the reason for each leaf that it does not support.
    """

    jaxpr: ClosedJaxpr
    sites: tuple[Site, ...]
    unsupported: dict[int, str]

    def sites_of(self, leaf: int) -> list[int]:
        """The numbers of the sites of one leaf."""
        return [number for number, site in enumerate(self.sites) if site.leaf == leaf]


def aval(atom: Any) -> Any:
    """Shape and dtype of a value of a jaxpr."""
    return atom.aval


def trace_loss(loss_fn: LossFn, params: ArrayTree, example: Any) -> LossJaxpr:
    """Traces ``loss_fn`` on one example and finds the sites of each parameter leaf."""
    called = jax.make_jaxpr(loss_fn)(params, example)
    inputs = [abstract(a.shape, a.dtype, varying_axes(a)) for a in map(aval, called.jaxpr.invars)]
    jaxpr = jax.make_jaxpr(lambda *values: evaluate(called, values))(*inputs)  # calls inlined
    search = _ParameterSearch(len(jax.tree.leaves(params)), jaxpr)
    readers = _readers(jaxpr)
    sites = [
        _merge_row_sum(site, readers)
        for site in search.sites
        if site.leaf not in search.unsupported
    ]
    return LossJaxpr(jaxpr, tuple(sites), search.unsupported)


def _readers(jaxpr: ClosedJaxpr) -> dict[Any, list[JaxprEqn | None]]:
    """The equations that read each value; ``None`` is the jaxpr's own output."""
    readers: dict[Any, list[JaxprEqn | None]] = {var: [None] for var in jaxpr.jaxpr.outvars}
    for equation in jaxpr.jaxpr.eqns:
        for value in equation.invars:
            if not isinstance(value, Literal):
                readers.setdefault(value, []).append(equation)
    return readers


def _merge_row_sum(site: Site, readers: dict[Any, list[JaxprEqn | None]]) -> Site:
    """Adds the sum over all rows looked up to the site, where nothing else reads the rows."""
    readers_of_output = readers.get(site.output, [])
    reader = readers_of_output[0] if len(readers_of_output) == 1 else None
    if site.equation.primitive.name != "gather" or reader is None:
        return site
    return site._replace(row_sum=reader) if _sums_rows(reader, aval(site.output).shape) else site


def _sums_rows(equation: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """Whether the equation sums an array of ``shape`` over all axes but the last."""
    if equation.primitive.name != "reduce_sum":
        return False
    added, (*others, last) = equation.params["axes"], range(len(shape))
    return last not in added and all(axis in added or shape[axis] == 1 for axis in others)


def evaluate(
    jaxpr: ClosedJaxpr, inputs: Sequence[Any], revise: Callable[[JaxprEqn, Any, Any], Any] = _keep
) -> list[Any]:
    """Evaluates a jaxpr, with the bodies of ``jit`` and ``remat`` inlined.

    Args:
      jaxpr: the jaxpr.
      inputs: its arguments.
      revise: called with each equation and the values of its inputs and outputs; returns the
        outputs to use instead.
    """
    values: dict[Var, Any] = dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    values.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        outputs = revise(equation, operands, _apply(equation, operands))
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def _apply(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    if equation.primitive.name in _INLINED:
        body = equation.params["jaxpr"]
        return evaluate(body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ()), operands)
    parameters = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*operands, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


class _ParameterSearch:
    """Finds the sites of every parameter leaf."""

    def __init__(self, num_leaves: int, jaxpr: ClosedJaxpr) -> None:
        self.sites: list[Site] = []
        self.unsupported: dict[int, str] = {}
        self.views: dict[Any, tuple[int, tuple[JaxprEqn, ...]]] = {
            var: (leaf, ()) for leaf, var in enumerate(jaxpr.jaxpr.invars[:num_leaves])
        }
        for equation in jaxpr.jaxpr.eqns:
            self._visit(equation)
        for output in jaxpr.jaxpr.outvars:
            self._mark_unsupported(output, "returned as the loss")

    def _visit(self, equation: JaxprEqn) -> None:
        name, inputs = equation.primitive.name, equation.invars
        found = [i for i, value in enumerate(inputs) if self._is_view(value)]
        floats = all(jnp.issubdtype(aval(v).dtype, jnp.floating) for v in equation.outvars)
        if len(found) == 1 and name in _VIEWS and len(inputs) == 1 and floats:
            leaf, views = self.views[inputs[0]]
            self.views[equation.outvars[0]] = (leaf, (*views, equation))
        elif len(found) == 1 and found[0] in _LINEAR_IN.get(name, ()):
            leaf, views = self.views[inputs[found[0]]]
            self.sites.append(Site(equation, found[0], leaf, views))
        else:
            reason = f"{name} of several parameters" if len(found) > 1 else f"used in {name}"
            for operand in found:
                self._mark_unsupported(inputs[operand], reason)

    def _mark_unsupported(self, value: Any, reason: str) -> None:
        if self._is_view(value):
            self.unsupported.setdefault(self.views[value][0], reason)

    def _is_view(self, value: Any) -> bool:
        return not isinstance(value, Literal) and value in self.views


def apply_site(site: Site, operands: list[Any], leaf: Any) -> Any:
    """The site's output as a linear function of ``leaf``, the other operands as recorded.

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
    """Applies the site's views to the leaf, without casts."""
    for view in site.views:
        if view.primitive.name != "convert_element_type":
            leaf = view.primitive.bind(leaf, **view.params)
    return leaf


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
