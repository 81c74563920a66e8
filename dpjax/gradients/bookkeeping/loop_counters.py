"""Loops whose counter indexes an array entry by entry, as ``w[i]`` in `jax.lax.fori_loop`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

# In longer loops the indices are not computed ahead.
_MOST_ITERATIONS = 512


def counted_slices(scan: JaxprEqn) -> list[JaxprEqn]:
    """Returns the slices ``w[i]`` in a scan's body whose index i is the number of the iteration."""
    params = scan.params
    body, length = params["jaxpr"].jaxpr, params["length"]
    slices = [
        equation
        for equation in body.eqns
        if equation.primitive.name == "dynamic_slice"
        and equation.invars[0] in body.invars[: params["num_consts"]]
        and equation.invars[0].aval.shape == (length, *equation.params["slice_sizes"][1:])
        and equation.params["slice_sizes"][0] == 1
    ]
    if not slices or length > _MOST_ITERATIONS:
        return []
    counters, equations = _counters(scan)
    known = {*counters, *(var for equation in equations for var in equation.outvars)}
    counted = [each for each in slices if _is_known(known, each.invars[1])]
    starts = _simulate(counters, equations, [each.invars[1] for each in counted], length)
    entries = list(range(length))[:: -1 if params["reverse"] else 1]
    return [each for each, found in zip(counted, starts, strict=True) if found == entries]


def _counters(scan: JaxprEqn) -> tuple[dict[Any, Any], list[JaxprEqn]]:
    """Integers that a scan carries and that depend on no input, and the equations that follow.

    Returns:
      For each of them its initial value and its next one, and the equations of the body that depend
      on them alone.
    """
    body, num_consts = scan.params["jaxpr"].jaxpr, scan.params["num_consts"]
    carried = slice(num_consts, num_consts + scan.params["num_carry"])
    carries = zip(body.invars[carried], scan.invars[carried], body.outvars, strict=False)
    counters = {
        into: (start.val, out)
        for into, start, out in carries
        if isinstance(start, Literal) and jnp.issubdtype(into.aval.dtype, jnp.integer)
    }
    while True:
        known, equations = set(counters), []
        for equation in body.eqns:
            if not equation.effects and all(_is_known(known, atom) for atom in equation.invars):
                known.update(equation.outvars)
                equations.append(equation)
        kept = {into: each for into, each in counters.items() if _is_known(known, each[1])}
        if len(kept) == len(counters):
            return counters, equations
        counters = kept


def _simulate(
    counters: dict[Any, Any], equations: list[JaxprEqn], atoms: list[Any], length: int
) -> list[list[int]]:
    """The values of ``atoms`` in all iterations."""
    values: dict[Any, Any] = {into: start for into, (start, _) in counters.items()}
    found: list[list[int]] = [[] for _ in atoms]

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    with jax.ensure_compile_time_eval():
        for _ in range(length):
            for equation in equations:
                parameters = equation.primitive.get_bind_params(equation.params)
                outputs = equation.primitive.bind(*map(read, equation.invars), **parameters)
                outputs = outputs if equation.primitive.multiple_results else [outputs]
                values.update(zip(equation.outvars, outputs, strict=True))
            for numbers, atom in zip(found, atoms, strict=True):
                numbers.append(int(read(atom)))
            values.update({into: read(out) for into, (_, out) in counters.items()})
    return found


def _is_known(known: set[Any], atom: Any) -> bool:
    return isinstance(atom, Literal) or atom in known
