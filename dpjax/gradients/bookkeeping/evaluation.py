"""Evaluation of jaxprs equation by equation, the bodies of ``jit``, ``remat`` and scans too."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dpjax._jaxprs import Apply, bind, bodies_of, body_of, evaluate, read_scan
from dpjax.gradients.bookkeeping.loop_counters import counted_slices


def inline_calls(
    jaxpr: ClosedJaxpr, inputs: Sequence[Any], num_constant: int, *, inline_remat: bool = False
) -> list[Any]:
    """Evaluates a jaxpr with the bodies of ``jit`` inlined, also within scans and ``remat``.

    The body of every scan and ``remat`` is traced anew, so that no two of them share variables, and
    what a scan carries unchanged becomes one of its constants. A ``cond`` whose branch depends on
    the example becomes a choice between the results of all branches, as `jax.vmap` makes it.

    Args:
      jaxpr: the jaxpr.
      inputs: its arguments.
      num_constant: how many of them are the same for every example, the first ones.
      inline_remat: whether the bodies of ``remat`` are inlined too.
    """
    varying = varying_values(jaxpr.jaxpr, jaxpr.jaxpr.invars[num_constant:])
    inlined = ("jit", "remat2") if inline_remat else ("jit",)

    def apply(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in inlined:
            return evaluate(body_of(equation), operands, apply)
        if name == "cond" and _is_in(varying, equation.invars[0]):
            results = [evaluate(b, operands[1:], apply) for b in bodies_of(equation)]
            return [jax.lax.select_n(operands[0], *each) for each in zip(*results, strict=True)]
        if name == "scan":
            return _scan_inlined(equation, operands, apply)
        if name != "remat2":
            return bind(equation, operands)
        run = lambda values, *_: (evaluate(body_of(equation), values, apply), (), ())  # noqa: E731
        return evaluate_remat(equation, operands, run, (), ())[0]

    return evaluate(jaxpr, inputs, apply)


def _scan_inlined(equation: JaxprEqn, operands: list[Any], apply: Apply) -> list[Any]:
    """Evaluates a scan by ``apply``; it iterates over arrays that its counter indexes."""
    body, counted = body_of(equation), counted_slices(equation)
    arrays = [operands[body.jaxpr.invars.index(each.invars[0])] for each in counted]

    def run(values: list[Any], _: Any, entries: list[Any]) -> Any:
        taken = {each.outvars[0]: x for each, x in zip(counted, entries, strict=True)}

        def apply_in_body(inner: JaxprEqn, operands: list[Any]) -> list[Any]:
            if not (inner.outvars and inner.outvars[0] in taken):
                return apply(inner, operands)
            entry = taken[inner.outvars[0]]
            return [jax.lax.reshape(entry, (1, *entry.shape))]

        return evaluate(body, values, apply_in_body), (), ()

    return evaluate_scan(equation, operands, run, (), arrays)[0]


def varying_values(jaxpr: Jaxpr, inputs: Collection[Var]) -> set[Any]:
    """The values of a jaxpr, and of the bodies in it, that depend on some of its ``inputs``."""
    varying: set[Any] = set(inputs)
    _add_varying(jaxpr, varying)
    return varying


def _add_varying(jaxpr: Jaxpr, varying: set[Any]) -> None:
    """Adds the values of a jaxpr that depend on those in ``varying``, also within its bodies."""
    for equation in jaxpr.eqns:
        inputs = [i for i, atom in enumerate(equation.invars) if _is_in(varying, atom)]
        bodies = [body.jaxpr for body in bodies_of(equation)]
        if equation.primitive.name not in ("jit", "scan", "remat2"):
            for body in bodies:
                varying.update(body.invars if inputs else ())
                _add_varying(body, varying)
            varying.update(equation.outvars if inputs else ())
            continue
        (body,) = bodies
        varying.update(body.invars[i] for i in inputs)
        _add_varying(body, varying)
        carried: list[Any] = []
        if equation.primitive.name == "scan":
            scan = read_scan(equation)
            outputs = body.outvars[: scan.num_carry]
            carried = list(zip(body.invars[scan.num_consts :], outputs, strict=False))
        while any(_is_in(varying, out) and into not in varying for into, out in carried):
            varying.update(into for into, out in carried if _is_in(varying, out))
            _add_varying(body, varying)
        results = zip(body.outvars, equation.outvars, strict=True)
        varying.update(outer for inner, outer in results if _is_in(varying, inner))


def _is_in(values: set[Any], atom: Any) -> bool:
    return not isinstance(atom, Literal) and atom in values


# (inputs, state, more) -> (outputs, state, more), with inputs and outputs of the equation's body
Body = Callable[[list[Any], Any, Any], tuple[list[Any], Any, Any]]


def evaluate_remat(
    equation: JaxprEqn, operands: list[Any], body: Body, state: Any, more: Any
) -> tuple[list[Any], Any, Any]:
    """Evaluates a ``remat`` equation with another body; see `evaluate_scan`."""
    params, jaxpr = equation.params, body_of(equation).jaxpr
    run = jax.checkpoint(body, policy=params["policy"], prevent_cse=params["prevent_cse"])
    outputs, state, more = run(operands, state, more)
    passed_on = dict(zip(jaxpr.invars, operands, strict=True))
    outputs = [
        value if isinstance(atom, Literal) else passed_on.get(atom, value)
        for atom, value in zip(jaxpr.outvars, outputs, strict=True)
    ]
    return outputs, state, more


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
    scan = read_scan(equation)
    consts, operands = operands[: scan.num_consts], operands[scan.num_consts :]

    def step(carry: Any, scanned: Any) -> tuple[Any, Any]:
        (values, state), (xs, more) = carry, scanned
        outputs, state, more = body([*consts, *values, *xs], state, more)
        return (outputs[: scan.num_carry], state), (outputs[scan.num_carry :], more)

    (carry, state), (ys, more) = jax.lax.scan(
        step,
        (operands[: scan.num_carry], state),
        (operands[scan.num_carry :], more),
        length=scan.length,
        reverse=scan.reverse,
        unroll=scan.unroll,
    )
    return [*carry, *ys], state, more
