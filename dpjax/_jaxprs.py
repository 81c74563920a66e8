"""Equations of jaxprs that contain jaxprs, read from all supported versions of JAX."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import jax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dpjax._typing import PyTree

Atom = Var | Literal


class Scan(NamedTuple):
    """The parameters of a scan.

    The inputs of the equation are its constants, the carried values and the arrays to iterate over,
    in this order; its outputs are the carried values and the stacked ones.

    Attributes:
      body: the jaxpr of one iteration.
      num_consts: the number of constants.
      num_carry: the number of carried values.
      length: the number of iterations.
      reverse: whether the last entries of the arrays come first.
      unroll: how many iterations are compiled as one.
    """

    body: ClosedJaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def read_scan(equation: JaxprEqn) -> Scan:
    """The parameters of a scan."""
    params = equation.params
    if "ft_in" in params:  # from JAX 0.12 on: trees with one leaf for each input
        num_consts, num_carry, _ = map(len, params["ft_in"].unpack())
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    body, length = body_of(equation), params["length"]
    return Scan(body, num_consts, num_carry, length, params["reverse"], params["unroll"])


def body_of(equation: JaxprEqn) -> ClosedJaxpr:
    """The body of a ``jit``, ``remat`` or scan."""
    return _closed(equation.params["jaxpr"])


def bodies_of(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """All jaxprs of an equation: its body, or the branches of a ``cond``."""
    leaves = jax.tree.leaves(list(equation.params.values()))
    return [_closed(leaf) for leaf in leaves if isinstance(leaf, ClosedJaxpr | Jaxpr)]


def _closed(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """A jaxpr with its constants; from JAX 0.12 on the two types are one."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def aval(atom: Atom) -> ShapedArray:
    """Shape and dtype of a value of a jaxpr."""
    return cast(ShapedArray, atom.aval)


def equations_at_any_depth(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a jaxpr and of its inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in bodies_of(equation):
            yield from equations_at_any_depth(inner.jaxpr)


def constants_at_any_depth(jaxpr: ClosedJaxpr) -> Iterator[object]:
    """The arrays that a traced function closes over, those of its inner functions included."""
    yield from jaxpr.consts
    for equation in jaxpr.jaxpr.eqns:
        yield from (atom.val for atom in equation.invars if isinstance(atom, Literal))
        for inner in bodies_of(equation):
            yield from constants_at_any_depth(inner)


def primitive_names(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of the primitives of a jaxpr, including its inner jaxprs."""
    return (equation.primitive.name for equation in equations_at_any_depth(jaxpr))


# (equation, values of its inputs) -> values of its outputs
Apply = Callable[[JaxprEqn, list[jax.Array]], list[jax.Array]]


def evaluate(jaxpr: ClosedJaxpr, inputs: Sequence[jax.Array], apply: Apply) -> list[jax.Array]:
    """Evaluates a jaxpr at ``inputs``, each of its equations by ``apply``."""
    values: dict[Var, jax.Array] = dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    values.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))

    def read(atom: Atom) -> jax.Array:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.jaxpr.eqns:
        outputs = apply(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def bind(equation: JaxprEqn, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Evaluates one equation as it is."""
    parameters = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*operands, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def is_slow_in_loops(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether ``function(*args)`` is much slower in a loop: on a CPU, if it has convolutions.

    XLA has no fast CPU kernels for them in loops: 72 against 7.7 ms a step for a small MNIST
    network. On other devices the function is not traced.
    """
    if jax.default_backend() != "cpu":
        return False
    return "conv_general_dilated" in primitive_names(jax.make_jaxpr(function)(*args).jaxpr)
