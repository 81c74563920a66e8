"""Evaluation of jaxprs equation by equation, into the bodies of calls and scans."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

# (equation, values of its inputs) -> values of its outputs
Apply = Callable[[JaxprEqn, list[Any]], list[Any]]

_CALLS = frozenset({"jit", "remat2"})


def evaluate(jaxpr: ClosedJaxpr, inputs: Sequence[Any], apply: Apply) -> list[Any]:
    """Evaluates a jaxpr.

    Args:
      jaxpr: the jaxpr.
      inputs: its arguments.
      apply: evaluates one equation.
    """
    values: dict[Var, Any] = dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    values.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.jaxpr.eqns:
        outputs = apply(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def bind(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Evaluates one equation as it is."""
    parameters = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*operands, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def inline_calls(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Evaluates one equation, the bodies of ``jit`` and ``remat`` inlined, also within scans.

    The body of every scan is traced anew, so that two scans never share the variables of a body,
    and what they carry unchanged becomes a constant of the scan.
    """
    if equation.primitive.name in _CALLS:
        body = equation.params["jaxpr"]
        closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
        return evaluate(closed, operands, inline_calls)
    if equation.primitive.name == "scan":
        body = equation.params["jaxpr"]
        run = lambda values, _: (evaluate(body, values, inline_calls), ())  # noqa: E731
        return evaluate_scan(equation, operands, run, ())[0]
    return bind(equation, operands)


def evaluate_scan(
    equation: JaxprEqn,
    operands: list[Any],
    body: Callable[[list[Any], Any], tuple[list[Any], Any]],
    more: Any,
) -> tuple[list[Any], Any]:
    """Evaluates a scan with another body.

    Args:
      equation: the scan.
      operands: the values of its inputs.
      body: ``body(inputs, more) -> (outputs, more)`` with inputs and outputs of the scan's body.
      more: a tree of arrays to scan over beside the scan's own.

    Returns:
      The outputs, and what ``body`` returned beside them in all iterations, stacked.
    """
    num_consts, num_carry = equation.params["num_consts"], equation.params["num_carry"]
    consts, operands = operands[:num_consts], operands[num_consts:]

    def step(carry: list[Any], scanned: Any) -> tuple[list[Any], Any]:
        xs, more = scanned
        outputs, more = body([*consts, *carry, *xs], more)
        return outputs[:num_carry], (outputs[num_carry:], more)

    carry, (ys, more) = jax.lax.scan(
        step,
        operands[:num_carry],
        (operands[num_carry:], more),
        length=equation.params["length"],
        reverse=equation.params["reverse"],
        unroll=equation.params["unroll"],
    )
    return [*carry, *ys], more
