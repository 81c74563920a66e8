"""Equations of a traced program: their source lines, and what their outputs depend on."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Primitive, Var
from jax.extend.core import Literal as JaxprLiteral

import dpjax
from dpjax._jaxprs import aval, bodies_of, body_of
from dpjax.audit._record_rules import ELEMENTWISE
from dpjax.audit._values import is_wide

_JAX_FILES = str(Path(jax.__file__).parent)
_PACKAGE_FILES = str(Path(dpjax.__file__).parent)
INLINED = {
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call",
}  # fmt: skip
# Functions of dpjax whose sums have the clip bound as sensitivity, as their own tests show.
TRUSTED = {
    "clipped_sum_and_info": "dpjax.clipped_grad",
    "sum_of_draw": "the sum over a sampled batch of dpjax.training",
    "batch_of_draw": "the samplers of dpjax.sampling",
}


def _lines(equation: JaxprEqn) -> list[Any]:
    """The frames outside JAX that made the equation, innermost first."""
    traceback: Any = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return [one for one in frames if not one.file_name.startswith(_JAX_FILES)]


def line_of(equation: JaxprEqn) -> str:
    """File and line of the equation: the innermost outside JAX."""
    return "".join(f"{Path(one.file_name).name}:{one.line_num}" for one in _lines(equation)[:1])


def is_own(equation: JaxprEqn) -> bool:
    """Whether the innermost line outside JAX is one of dpjax."""
    return any(one.file_name.startswith(_PACKAGE_FILES) for one in _lines(equation)[:1])


def _is_random(equation: JaxprEqn) -> bool:
    """Whether the equation was made by `jax.random`."""
    traceback: Any = equation.source_info.traceback
    for one in traceback.frames if traceback is not None else ():
        if one.file_name == jax.random.split.__code__.co_filename:
            return True
        if not one.file_name.startswith(_JAX_FILES):
            return False
    return False


# For `jnp.hypot`, which is a program of several equations, one equation.
_HYPOT = Primitive("hypot")


@cache
def _hypot_program(shape: tuple[int, ...], dtype: Any) -> str:
    arrays = [jax.ShapeDtypeStruct(shape, dtype)] * 2
    (equation,) = jax.make_jaxpr(jnp.hypot)(*arrays).jaxpr.eqns
    return str(body_of(equation).jaxpr)


def in_one(equation: JaxprEqn) -> JaxprEqn:
    """An equation that calls `jnp.hypot`, with a primitive of this name; any other as it is."""
    if equation.primitive.name not in ("jit", "pjit") or equation.params["name"] != "hypot":
        return equation
    out = aval(equation.outvars[0])
    is_hypot = str(body_of(equation).jaxpr) == _hypot_program(out.shape, out.dtype)
    return equation.replace(primitive=_HYPOT, params={}) if is_hypot else equation


def used_equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations of a jaxpr without dead code: those with effects, or with a used output."""
    needed, used = set(map(id, jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(var) in needed for var in equation.outvars):
            used.append(equation)
            needed.update(map(id, equation.invars))
    return used[::-1]


def operands_of(equation: JaxprEqn) -> list[Any]:
    return [*equation.invars, *equation.outvars]


def _parameters(equation: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation that are plain numbers, names or tuples of them."""
    kinds = (bool, int, float, str, tuple)
    return {
        key: value
        for key, value in equation.params.items()
        if isinstance(value, kinds) and key != "branches"
    }


def outputs_reached(jaxpr: Any, private: Sequence[bool]) -> list[bool]:
    """Which outputs depend on private inputs."""
    reached = {var for var, is_private in zip(jaxpr.invars, private, strict=True) if is_private}
    for equation in jaxpr.eqns:
        inside = [isinstance(atom, Var) and atom in reached for atom in equation.invars]
        if not any(inside):
            continue
        outputs = [True] * len(equation.outvars)
        if equation.primitive.name in INLINED:
            body, *_ = bodies_of(equation)
            if len(body.jaxpr.invars) == len(inside):
                outputs = outputs_reached(body.jaxpr, inside)
        reached.update(var for var, is_one in zip(equation.outvars, outputs, strict=True) if is_one)
    return [isinstance(atom, Var) and atom in reached for atom in jaxpr.outvars]


def loop_counters(body: Any, num_consts: int, num_carry: int) -> dict[int, float]:
    """Positions of carried integers to which every iteration adds a constant, and these."""
    made = {var: equation for equation in body.eqns for var in equation.outvars}
    found = {}
    for position in range(num_carry):
        before, after = body.invars[num_consts + position], body.outvars[position]
        equation = made.get(after) if isinstance(after, Var) else None
        if equation is None or equation.primitive.name != "add" or aval(before).ndim:
            continue
        if not is_wide(aval(before).dtype):
            continue
        terms = [atom for atom in equation.invars if atom is not before]
        if len(terms) == 1 and isinstance(terms[0], JaxprLiteral) and terms[0].val != 0:
            found[position] = float(terms[0].val)
    return found


def length_dependent(
    one: Any,
    other: Any,
    affected: Sequence[bool],
    lines: list[str],
    public: set[Var],
    shared: set[Var],
) -> list[bool]:
    """Which outputs differ between two programs, beyond the shapes of their arrays.

    Positions of records do not count: Python's negative ones are made positive by the length.

    Args:
      one: a jaxpr.
      other: the same function's, with another number of records.
      affected: which inputs and constants differ.
      lines: of the constants that differ, added to.
      public: variables of the first that are public.
      shared: variables of the first that are public or sums.

    Raises:
      ValueError: the programs have different equations.
    """
    reached = {
        var
        for var, is_affected in zip([*one.invars, *one.constvars], affected, strict=True)
        if is_affected
    }
    for first, second in zip(one.eqns, other.eqns, strict=True):
        name = first.primitive.name
        if name != second.primitive.name:
            raise ValueError(name)
        changed = []
        for a, b in zip(first.invars, second.invars, strict=True):
            if isinstance(a, JaxprLiteral) != isinstance(b, JaxprLiteral):
                raise ValueError(name)
            if isinstance(a, JaxprLiteral) and isinstance(b, JaxprLiteral):
                changed.append(not np.array_equal(a.val, b.val, equal_nan=True))
                if changed[-1]:
                    lines.append(line_of(first))
            else:
                changed.append(a in reached)
        # Arrays as long as the records: their shape counts where they are not the records' own.
        shapes = [
            [tuple(aval(a).shape == aval(b).shape for a, b in zip(*pair, strict=True))]
            for pair in ((first.invars, second.invars), (first.outvars, second.outvars))
        ]
        same_inputs, same_outputs = shapes[0][0], shapes[1][0]
        is_shared = all(isinstance(a, JaxprLiteral) or a in shared for a in first.invars)
        resized = [is_shared and not all(same_inputs) and same for same in same_outputs]
        if _parameters(first) != _parameters(second):
            if name == "scan":  # another number of iterations
                resized = [
                    was or (same and var in public)
                    for was, same, var in zip(resized, same_outputs, first.outvars, strict=True)
                ]
            elif name in ELEMENTWISE or all([*same_inputs, *same_outputs]):
                resized = [True] * len(resized)
        if name in INLINED:
            resized = [False] * len(resized)
        if any(resized):
            lines.append(line_of(first))

        bodies = list(zip(bodies_of(first), bodies_of(second), strict=True))
        if first.params.get("name") in TRUSTED and is_own(first):
            bodies = []
        if first.params.get("name") == "_shuffle" and _is_random(first):
            bodies = []  # the number of rounds that a permutation needs
        if not is_shared and name in (
            "gather", "dynamic_slice", "scatter", "scatter-add", "dynamic_update_slice",
        ):  # fmt: skip
            number = {"gather": 1, "dynamic_slice": 1, "dynamic_update_slice": 2}.get(name, 3)
            changed = [changed[0], *(changed[2:3] if number == 3 else changed[1:number])]
            bodies = []
        outputs = [any(changed)] * len(first.outvars)
        for body, second_body in bodies:
            inner = [*changed, *[False] * len(body.jaxpr.invars)][: len(body.jaxpr.invars)]
            if name not in INLINED:  # loops and branches: any change reaches all outputs
                inner = [any(changed)] * len(inner)
            constants = [False] * len(body.jaxpr.constvars)
            both = body.jaxpr, second_body.jaxpr
            found = length_dependent(*both, [*inner, *constants], lines, public, shared)
            if name in INLINED and len(found) == len(outputs):
                outputs = found
            elif any(found):
                outputs = [True] * len(outputs)
        outputs = [a or b for a, b in zip(outputs, resized, strict=True)]
        reached.update(
            var for var, is_changed in zip(first.outvars, outputs, strict=True) if is_changed
        )
    return [_is_changed(a, b, reached) for a, b in zip(one.outvars, other.outvars, strict=True)]


def _is_changed(one: Any, other: Any, reached: set[Var]) -> bool:
    """Whether an output of two traces differs: as a literal, or through variables that do."""
    if isinstance(one, JaxprLiteral) and isinstance(other, JaxprLiteral):
        return not np.array_equal(one.val, other.val, equal_nan=True)
    return isinstance(one, JaxprLiteral) != isinstance(other, JaxprLiteral) or one in reached
