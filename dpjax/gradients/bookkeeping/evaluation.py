"""Evaluation of jaxprs equation by equation, into the bodies of calls and scans."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

# (equation, values of its inputs) -> values of its outputs
Apply = Callable[[JaxprEqn, list[Any]], list[Any]]


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
    """Evaluates one equation, the bodies of ``jit`` inlined, also within scans and ``remat``.

    The body of every scan and ``remat`` is traced anew, so that no two of them share variables, and
    what a scan carries unchanged becomes one of its constants.
    """
    if equation.primitive.name == "jit":
        return evaluate(equation.params["jaxpr"], operands, inline_calls)
    if equation.primitive.name in ("scan", "remat2"):
        run = lambda values, *_: (evaluate(body_of(equation), values, inline_calls), (), ())  # noqa: E731
        evaluate_body = evaluate_scan if equation.primitive.name == "scan" else evaluate_remat
        return evaluate_body(equation, operands, run, (), ())[0]
    return bind(equation, operands)


def body_of(equation: JaxprEqn) -> ClosedJaxpr:
    """The body of a scan or ``remat``."""
    body = equation.params["jaxpr"]
    return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


# (inputs, state, more) -> (outputs, state, more), with inputs and outputs of the equation's body
Body = Callable[[list[Any], Any, Any], tuple[list[Any], Any, Any]]


def evaluate_remat(
    equation: JaxprEqn, operands: list[Any], body: Body, state: Any, more: Any
) -> tuple[list[Any], Any, Any]:
    """Evaluates a ``remat`` equation with another body."""
    params = equation.params
    run = jax.checkpoint(body, policy=params["policy"], prevent_cse=params["prevent_cse"])
    return run(operands, state, more)


def evaluate_scan(
    equation: JaxprEqn, operands: list[Any], body: Body, state: Any, more: Any
) -> tuple[list[Any], Any, Any]:
    """Evaluates a scan with another body.

    Args:
      equation: the scan.
      operands: the values of its inputs.
      body: ``body(inputs, state, more) -> (outputs, state, more)``.
      state: a tree of arrays to carry beside the scan's own.
      more: a tree of arrays to scan over beside the scan's own.

    Returns:
      The outputs, the last state, and the third results of ``body``, stacked.
    """
    num_consts, num_carry = equation.params["num_consts"], equation.params["num_carry"]
    consts, operands = operands[:num_consts], operands[num_consts:]

    def step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        (values, state), (xs, more) = carry, scanned
        outputs, state, more = body([*consts, *values, *xs], state, more)
        return (outputs[:num_carry], state), (outputs[num_carry:], more)

    (carry, state), (ys, more) = jax.lax.scan(
        step,
        (operands[:num_carry], state),
        (operands[num_carry:], more),
        length=equation.params["length"],
        reverse=equation.params["reverse"],
        unroll=equation.params["unroll"],
    )
    return [*carry, *ys], state, more
