"""Loops whose counter indexes an array entry by entry, as ``w[i]`` in `jax.lax.fori_loop`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

from dpjax._jaxprs import read_scan

# In longer loops the indices are not computed ahead.
_MOST_ITERATIONS = 512


def counted_slices(equation: JaxprEqn) -> list[JaxprEqn]:
    """Returns the slices ``w[i]`` in a scan's body whose index i is the number of the iteration."""
    scan = read_scan(equation)
    body, length = scan.body.jaxpr, scan.length
    slices = [
        each
        for each in body.eqns
        if each.primitive.name == "dynamic_slice"
        and each.invars[0] in body.invars[: scan.num_consts]
        and each.invars[0].aval.shape == (length, *each.params["slice_sizes"][1:])
        and each.params["slice_sizes"][0] == 1
    ]
    if not slices or length > _MOST_ITERATIONS:
        return []
    counters, equations = _counters(equation)
    known = {*counters, *(var for equation in equations for var in equation.outvars)}
    counted = [each for each in slices if _is_known(known, each.invars[1])]
    starts = _simulate(counters, equations, [each.invars[1] for each in counted], length)
    entries = list(range(length))[:: -1 if scan.reverse else 1]
    return [each for each, found in zip(counted, starts, strict=True) if found == entries]


def _counters(equation: JaxprEqn) -> tuple[dict[Any, Any], list[JaxprEqn]]:
    """Integers that a scan carries and that depend on no input, and the equations that follow.

    Returns:
      For each of them its initial value and its next one, and the equations of the body that depend
      on them alone.
    """
    scan = read_scan(equation)
    body = scan.body.jaxpr
    carried = slice(scan.num_consts, scan.num_consts + scan.num_carry)
    carries = zip(body.invars[carried], equation.invars[carried], body.outvars, strict=False)
    counters = {
        into: (start.val, out)
        for into, start, out in carries
        if isinstance(start, Literal) and jnp.issubdtype(into.aval.dtype, jnp.integer)
    }
    while True:
        known, equations = set(counters), []
        for each in body.eqns:
            if not each.effects and all(_is_known(known, atom) for atom in each.invars):
                known.update(each.outvars)
                equations.append(each)
        kept = {into: ends for into, ends in counters.items() if _is_known(known, ends[1])}
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
