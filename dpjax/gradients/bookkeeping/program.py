"""The loss of one example as a flat program, and where its parameters enter.

Bookkeeping needs to know every place where a parameter meets the example. A parameter may first
pass through *views*, which only rearrange its entries (reshape, transpose, cast); the equation that
then takes it, and is linear in it, is a *site*. Nothing else that a parameter may do is looked
into: the leaf is left to the exact route, the gradient of each example by ``vmap``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from dpjax.gradients.varying import abstract, varying_axes

# One entry in, one entry out: norms are kept.
_VIEWS = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy"})
# For each primitive, the operands in which it is linear whatever the others are.
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
      equation: the equation; its single output is what is perturbed.
      operand: which of its inputs is the parameter.
      leaf: the number of the parameter leaf.
      views: the equations between the leaf and the operand, in order.
      total: for rows looked up only to be added up (an embedding's mean), the equation that adds.
    """

    equation: JaxprEqn
    operand: int
    leaf: int
    views: tuple[JaxprEqn, ...]
    total: JaxprEqn | None = None

    @property
    def output(self) -> Var:
        """What is perturbed: the total if there is one, else what the equation computes."""
        return (self.total or self.equation).outvars[0]


class Program(NamedTuple):
    """The flat program of one example's loss.

    Attributes:
      jaxpr: inputs are the parameter leaves, then the example's leaves; one scalar output.
      sites: the sites of the leaves that bookkeeping treats.
      refused: for each leaf that it does not, the reason in words.
    """

    jaxpr: ClosedJaxpr
    sites: tuple[Site, ...]
    refused: dict[int, str]

    def sites_of(self, leaf: int) -> list[int]:
        """The numbers of the sites of one leaf."""
        return [number for number, site in enumerate(self.sites) if site.leaf == leaf]


def aval(atom: Any) -> Any:
    """Shape and dtype of a value of the program."""
    return atom.aval


def analyse(loss_fn: Callable[[Any, Any], jax.Array], params: Any, example: Any) -> Program:
    """Traces ``loss_fn`` on one example and finds where each parameter leaf enters."""
    jaxpr = _flat(jax.make_jaxpr(loss_fn)(params, example))
    search = _Search(len(jax.tree.leaves(params)), jaxpr)
    uses = _uses(jaxpr)
    sites = [_with_total(site, uses) for site in search.sites if site.leaf not in search.refused]
    return Program(jaxpr, tuple(sites), search.refused)


def _uses(jaxpr: ClosedJaxpr) -> dict[Any, list[JaxprEqn | None]]:
    """Which equations read each value; ``None`` stands for the program's own output."""
    uses: dict[Any, list[JaxprEqn | None]] = {var: [None] for var in jaxpr.jaxpr.outvars}
    for equation in jaxpr.jaxpr.eqns:
        for value in equation.invars:
            if not isinstance(value, Literal):
                uses.setdefault(value, []).append(equation)
    return uses


def _with_total(site: Site, uses: dict[Any, list[JaxprEqn | None]]) -> Site:
    """Takes in the sum over all rows looked up, where nothing else reads them."""
    readers = uses.get(site.output, [])
    total = readers[0] if len(readers) == 1 else None
    if site.equation.primitive.name != "gather" or total is None:
        return site
    return site._replace(total=total) if _adds_rows(total, aval(site.output).shape) else site


def _adds_rows(equation: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """Whether of an array of ``shape`` only the last axis is left (others have length one)."""
    if equation.primitive.name != "reduce_sum":
        return False
    added, (*others, last) = equation.params["axes"], range(len(shape))
    return last not in added and all(axis in added or shape[axis] == 1 for axis in others)


def _flat(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with the bodies of plain calls (jit, remat) in place of the calls."""
    inputs = [abstract(a.shape, a.dtype, varying_axes(a)) for a in map(aval, jaxpr.jaxpr.invars)]
    return jax.make_jaxpr(lambda *values: evaluate(jaxpr, values))(*inputs)


def evaluate(
    jaxpr: ClosedJaxpr, inputs: Sequence[Any], revise: Callable[[JaxprEqn, Any, Any], Any] = _keep
) -> list[Any]:
    """Runs a program, the bodies of plain calls in line.

    Args:
      jaxpr: the program.
      inputs: its arguments.
      revise: called with each equation, its inputs' values and its outputs'; returns the outputs to
        go on with.
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


class _Search:
    """Follows every parameter leaf through the program."""

    def __init__(self, num_leaves: int, jaxpr: ClosedJaxpr) -> None:
        self.sites: list[Site] = []
        self.refused: dict[int, str] = {}
        self.views: dict[Any, tuple[int, tuple[JaxprEqn, ...]]] = {
            var: (leaf, ()) for leaf, var in enumerate(jaxpr.jaxpr.invars[:num_leaves])
        }
        for equation in jaxpr.jaxpr.eqns:
            self._look_at(equation)
        for output in jaxpr.jaxpr.outvars:
            self._refuse(output, "it is returned as the loss itself")

    def _look_at(self, equation: JaxprEqn) -> None:
        name, inputs = equation.primitive.name, equation.invars
        found = [i for i, value in enumerate(inputs) if self._is_view(value)]
        if len(found) == 1 and name in _VIEWS and len(inputs) == 1 and _keeps_floats(equation):
            leaf, views = self.views[inputs[0]]
            self.views[equation.outvars[0]] = (leaf, (*views, equation))
        elif len(found) == 1 and found[0] in _LINEAR_IN.get(name, ()):
            leaf, views = self.views[inputs[found[0]]]
            self.sites.append(Site(equation, found[0], leaf, views))
        else:
            reason = f"{name} of several parameters" if len(found) > 1 else f"it enters {name}"
            for operand in found:
                self._refuse(inputs[operand], reason)

    def _refuse(self, value: Any, reason: str) -> None:
        if self._is_view(value):
            self.refused.setdefault(self.views[value][0], reason)

    def _is_view(self, value: Any) -> bool:
        return not isinstance(value, Literal) and value in self.views


def _keeps_floats(equation: JaxprEqn) -> bool:
    return all(jax.numpy.issubdtype(aval(v).dtype, jax.numpy.floating) for v in equation.outvars)
