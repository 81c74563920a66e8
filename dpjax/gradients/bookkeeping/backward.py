"""The forward and backward pass of every example, with what book-keeping needs of each operation.

Zero is added to the output of each linear operation; the derivative with respect to it is the
output gradient. In a layer under ``remat`` (`jax.checkpoint`), what an operation takes is not
recorded. There the backward pass itself computes the squared norms; it then runs a second time,
with the clip factors, and computes the clipped sums.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.typing import DTypeLike

from dpjax._jaxprs import aval, bind, body_of, evaluate
from dpjax._typing import ArrayTree, PyTree
from dpjax.gradients.bookkeeping.program import (
    LOOKUPS,
    LinearOp,
    LossProgram,
    Operands,
    Values,
    evaluate_remat,
    evaluate_scan,
)
from dpjax.gradients.clipping import accumulator
from dpjax.gradients.shard_map import as_varying, varying_axes

# Equations whose transpose needs the values of the other operands, not only their shapes.
_NEEDS_THE_OTHER = LOOKUPS | {"dot_general", "conv_general_dilated", "mul", "div"}


class Trace(NamedTuple):
    """Values recorded in the forward and backward pass, every array with a batch axis.

    Values recorded in scans are of shape ``(stack, batch, repeats, ...)``: the iterations over a
    stacked leaf, and those in which the same entries are used again, each of them in one axis,
    which is there if the operation's block has a stack or the operation repeats.

    Attributes:
      losses: one for each example.
      operands: for each recorded operation the equation's other inputs. What several of them take
        is one array.
      output_grads: for each recorded operation the gradient of the example's loss at its output.
      grads: per-example gradients of the leaves on the ``vmap`` route.
      squares: for each operation that is not recorded, ``(batch, 2)``: squared norms of the
        gradients, and in how many iterations terms cancel (see `Recomputed`).
      sums: clipped sums of those, ``(stack, ...)``.
    """

    losses: jax.Array
    operands: dict[int, Operands]
    output_grads: dict[int, jax.Array]
    grads: dict[int, jax.Array]
    squares: dict[int, jax.Array]
    sums: dict[int, jax.Array]


class Recomputed(NamedTuple):
    """Book-keeping of an operation inside the backward pass, its inputs recomputed.

    Attributes:
      squares: ``squares(operands, output_grads)``, ``(batch, 2)``: squared norms, and 1 for each
        example whose terms cancel (see `BlockNorms`), else 0.
      clipped_sum: ``clipped_sum(factors, operands, output_grads)``, where ``factors`` is
        ``(batch, 2)``: the clip factors, and more than 0 where terms cancel in some iteration.
      entry: shape and dtype of the clipped sum.
    """

    squares: Callable[[Operands, jax.Array], jax.Array]
    clipped_sum: Callable[[jax.Array, Operands, jax.Array], jax.Array]
    entry: jax.ShapeDtypeStruct


class BackwardPhase(NamedTuple):
    """Zeros that pass through all recomputed operations.

    Attributes:
      factors: the cotangents are each example's clip factors for the recomputed operations, with
        whether its terms cancel (see `Recomputed`).
      phase: the cotangent is 0 where norms are wanted, and 1 where sums are.
    """

    factors: dict[int, jax.Array]
    phase: jax.Array


class _Inputs(NamedTuple):
    """Inputs of one example's loss, whose cotangents are the results of the backward pass.

    Attributes:
      added: for each recorded operation zeros that are added to its output.
      vmapped: the leaves on the ``vmap`` route.
      squares: zeros for each recomputed operation; the cotangents are squared norms, and 1 where
        terms cancel.
      sums: zeros for each recomputed operation; the cotangents are clipped sums.
    """

    added: dict[int, jax.Array]
    vmapped: dict[int, jax.Array]
    squares: dict[int, jax.Array]
    sums: dict[int, jax.Array]


def trace_batch(
    program: LossProgram,
    leaves: list[jax.Array],
    recomputed: dict[int, Recomputed],
    batch: ArrayTree,
    clip: Callable[[Trace], dict[int, jax.Array]],
) -> Trace:
    """Runs the loss of every example forward and backward.

    Args:
      program: the loss.
      leaves: the parameters.
      recomputed: the operations that are not recorded, by number.
      batch: the examples.
      clip: ``BackwardPhase.factors`` for these, from the trace without their sums.
    """
    # Zeros like the outputs of recorded operations, in all iterations of the scans around them.
    recorded = [n for n in range(len(program.ops)) if n not in recomputed]
    added = {}
    for n in recorded:
        output = aval(program.ops[n].output)
        if _same_grads(program, n, recorded) == n:
            shape = (*program.ops[n].lengths, *output.shape)
            added[n] = _zeros(shape, output.dtype, varying_axes(output))

    # Only the first of operations with one total is added to.
    vmapped = {leaf: leaves[leaf] for leaf in sorted(program.unsupported)}
    if recomputed:
        return _trace_recomputed(program, leaves, recomputed, batch, clip, added, vmapped)

    # Each example's gradient with respect to these zeros, and to the leaves on the vmap route.
    def trace_example(example: ArrayTree) -> Trace:
        def loss(inputs: _Inputs) -> tuple[jax.Array, dict[int, jax.Array]]:
            value, _, operands = _loss(program, leaves, {}, example, inputs, ())
            return value, operands

        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, operands), grads = gradient(_Inputs(added, vmapped, {}, {}))
        return Trace(value, operands, grads.added, grads.vmapped, {}, {})

    return _complete(program, {}, jax.vmap(trace_example)(batch))


def _trace_recomputed(
    program: LossProgram,
    leaves: list[jax.Array],
    recomputed: dict[int, Recomputed],
    batch: ArrayTree,
    clip: Callable[[Trace], dict[int, jax.Array]],
    added: dict[int, jax.Array],
    vmapped: dict[int, jax.Array],
) -> Trace:
    """Runs the backward pass twice, in one loop.

    Compiled once, it has the same floats as gradients at the outputs in norms and in sums: in half
    precision those of two compiled programs differ by more than the margin for rounding.
    """
    # Inputs whose cotangents are wanted: of each example, but for the sums.
    size, axes = len(jax.tree.leaves(batch)[0]), varying_axes((leaves, batch))
    zeros = {n: _zeros((size, 2), accumulator(r.entry), axes) for n, r in recomputed.items()}
    totals = {
        n: _zeros((*program.ops[n].lengths, *r.entry.shape), accumulator(r.entry), axes)
        for n, r in recomputed.items()
    }
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), (added, vmapped))
    inputs = _Inputs(repeated[0], repeated[1], zeros, totals)
    phases = BackwardPhase(zeros, jnp.zeros(()))

    # The forward pass of the whole batch.
    def of_example(example: ArrayTree, inputs: _Inputs, phases: BackwardPhase) -> PyTree:
        value, phases, operands = _loss(program, leaves, recomputed, example, inputs, phases)
        return (value, phases), operands

    each = _Inputs(0, 0, 0, None), BackwardPhase(0, None)  # type: ignore[arg-type]
    of_batch = jax.vmap(of_example, in_axes=(0, *each), out_axes=((0, each[1]), 0))
    (losses, _), backward, operands = jax.vjp(
        partial(of_batch, batch), inputs, phases, has_aux=True
    )

    # The backward pass: for the norms, from which the clip factors follow, then for the sums.
    def step(carry: PyTree, phase: jax.Array) -> tuple[PyTree, None]:
        factors, squares, _ = carry
        grads, _ = backward((jnp.ones_like(losses), BackwardPhase(factors, phase)))
        trace = Trace(losses, operands, grads.added, grads.vmapped, grads.squares, {})
        factors, squares = jax.lax.cond(
            phase == 0,
            lambda: (clip(_complete(program, recomputed, trace)), grads.squares),
            lambda: (factors, squares),
        )
        return (factors, squares, grads._replace(squares={})), None

    start = (zeros, zeros, jax.tree.map(jnp.zeros_like, inputs._replace(squares={})))
    (_, squares, grads), _ = jax.lax.scan(step, start, jnp.arange(2.0))
    sums = {
        n: total.reshape(math.prod(program.ops[n].lengths), *recomputed[n].entry.shape)
        for n, total in grads.sums.items()
    }
    trace = Trace(losses, operands, grads.added, grads.vmapped, squares, sums)
    return _complete(program, recomputed, trace)


def _zeros(shape: tuple[int, ...], dtype: DTypeLike, axes: frozenset[str]) -> jax.Array:
    return as_varying(jnp.zeros(shape, dtype), axes)


def _loss(
    program: LossProgram,
    leaves: list[jax.Array],
    recomputed: dict[int, Recomputed],
    example: ArrayTree,
    inputs: _Inputs,
    phases: PyTree,
) -> tuple[jax.Array, PyTree, dict[int, jax.Array]]:
    """The loss of one example, the phases, and what the recorded operations take.

    That is each value once, by its key (see `_keys`).
    """
    ops, keys = program.ops, _keys(program)
    hooks = {n: _backward_hook(n, each) for n, each in recomputed.items()}
    numbers = {op.equation.outvars[0]: n for n, op in enumerate(ops)}
    perturbed = {ops[n].output: n for n in inputs.added}

    def run(
        jaxpr: ClosedJaxpr, values: Values, phases: PyTree, of_ops: list[dict[int, jax.Array]]
    ) -> tuple[Values, PyTree, dict[int, jax.Array]]:
        """Evaluates a jaxpr; ``of_ops`` are what is added, and the sums, for operations in it."""
        records: dict[int, jax.Array] = {}
        added, sums = of_ops

        def apply(equation: JaxprEqn, operands: Values) -> Values:
            nonlocal phases

            # The operations in the body of a scan or remat.
            if equation.primitive.name in ("scan", "remat2"):
                inside = [
                    {n: x for n, x in each.items() if any(e is equation for e in ops[n].path)}
                    for each in of_ops
                ]
                evaluate_body = (
                    evaluate_scan if equation.primitive.name == "scan" else evaluate_remat
                )
                body = partial(run, body_of(equation))
                outputs, phases, recorded = evaluate_body(equation, operands, body, phases, inside)
                records.update(recorded)
                return outputs

            # An operation: its norms and sums in the backward pass, or a record of its inputs.
            outputs = bind(equation, operands)
            output = next(iter(equation.outvars), None)  # a print has none
            number = numbers.get(output) if output else None
            if number is not None:
                others = _other_operands(ops[number], operands)
                if number in sums:
                    arguments = (outputs[0], others, inputs.squares[number], sums[number])
                    value, phases = hooks[number](*arguments, phases)
                    return [value]
                keyed = zip(keys[number], others, strict=True)
                records.update({key: value for key, value in keyed if value is not None})

            # Zero, whose derivative is the gradient at the output.
            if output in perturbed:
                return [outputs[0] + added[perturbed[output]]]
            return outputs

        return evaluate(jaxpr, values, apply), phases, records

    values = [inputs.vmapped.get(leaf, array) for leaf, array in enumerate(leaves)]
    values += jax.tree.leaves(example)
    (value,), phases, records = run(program.jaxpr, values, phases, [inputs.added, inputs.sums])
    return value, phases, records


def _backward_hook(number: int, recomputed: Recomputed) -> Callable[..., PyTree]:
    """The identity on an operation's output, whose backward pass computes squared norms or sums.

    ``hook(output, operands, square, total, phases)`` for one example, under `jax.vmap`, returns
    output and phases. The cotangent of ``square`` is the squared norm, with 1 where terms cancel,
    that of ``total`` the clipped sum over the batch.
    """

    @jax.custom_vjp
    def of_batch(
        output: PyTree, operands: PyTree, square: PyTree, total: PyTree, phases: BackwardPhase
    ) -> PyTree:
        return output, phases

    def forward(
        output: PyTree, operands: PyTree, square: PyTree, total: PyTree, phases: BackwardPhase
    ) -> PyTree:
        return (output, phases), operands

    # Squared norms in the first phase, clipped sums in the second.
    def backward(operands: Operands, cotangents: tuple[jax.Array, BackwardPhase]) -> PyTree:
        output_grad, phases = cotangents
        factors, entry = phases.factors[number], recomputed.entry
        zero = _zeros(entry.shape, accumulator(entry), varying_axes(factors))
        square, total = jax.lax.cond(
            phases.phase == 0,
            lambda: (recomputed.squares(operands, output_grad), zero),
            lambda: (
                jnp.zeros_like(factors),
                recomputed.clipped_sum(factors, operands, output_grad),
            ),
        )
        return output_grad, None, square, total, phases

    of_batch.defvjp(forward, backward)

    @jax.custom_batching.custom_vmap
    def of_example(
        output: PyTree, operands: PyTree, square: PyTree, total: PyTree, phases: BackwardPhase
    ) -> PyTree:
        return output, phases

    # The batch as a whole: its sums have no axis of examples.
    @of_example.def_vmap
    def _(size: int, batched: PyTree, *args: PyTree) -> PyTree:
        def with_batch_axis(value: jax.Array, is_batched: bool) -> jax.Array:
            return value if is_batched else jnp.broadcast_to(value, (size, *value.shape))

        output, operands, square = jax.tree.map(with_batch_axis, args[:3], tuple(batched[:3]))
        factors = jax.tree.map(with_batch_axis, args[4].factors, batched[4].factors)
        phases = args[4]._replace(factors=factors)
        batched_phases = BackwardPhase(
            dict.fromkeys(factors, True),  # type: ignore[arg-type]
            False,  # type: ignore[arg-type]
        )
        return of_batch(output, operands, square, args[3], phases), (True, batched_phases)

    return of_example


def _other_operands(op: LinearOp, inputs: Operands) -> Operands:
    needed = op.primitive in _NEEDS_THE_OTHER
    return [
        value if needed and position != op.operand else None
        for position, value in enumerate(inputs)
    ]


def _keys(program: LossProgram) -> list[list[int]]:
    """A number for each input of each operation's equation, the same for the same value."""
    numbers: dict[Var | tuple[int, int], int] = {}
    return [
        [
            numbers.setdefault(atom if isinstance(atom, Var) else (n, position), len(numbers))
            for position, atom in enumerate(op.equation.invars)
        ]
        for n, op in enumerate(program.ops)
    ]


def _complete(program: LossProgram, recomputed: dict[int, Recomputed], trace: Trace) -> Trace:
    """Gives every recorded operation its output gradients, arranged as `Trace` describes.

    In ``trace`` operands are by key, and the output gradients those of the first operation of each
    total.
    """
    ops, keys = program.ops, _keys(program)
    recorded = [n for n in range(len(ops)) if n not in recomputed]

    # Operands: by key and stack, so that one value stays one array.
    by_key: PyTree = trace.operands
    arranged: dict[tuple[int, tuple[bool, ...]], jax.Array] = {}
    for n in recorded:
        for key in keys[n]:
            if key in by_key and (key, ops[n].stacked) not in arranged:
                arranged[key, ops[n].stacked] = _arrange(ops[n], by_key[key])
    operands = {
        n: _other_operands(ops[n], [arranged.get((key, ops[n].stacked)) for key in keys[n]])
        for n in recorded
    }

    # Output gradients.
    grads = {
        n: _arrange(ops[n], trace.output_grads[_same_grads(program, n, recorded)]) for n in recorded
    }
    return trace._replace(operands=operands, output_grads=grads)


def _same_grads(program: LossProgram, number: int, recorded: list[int]) -> int:
    """The first recorded operation with the same total, so the same gradients at its output."""
    return next(n for n in recorded if program.ops[n].total == program.ops[number].total)


def _arrange(op: LinearOp, array: jax.Array) -> jax.Array:
    """From ``(batch, *lengths of scans, ...)`` to ``(stack, batch, repeats, ...)``."""
    loops = range(1, len(op.stacked) + 1)
    stack = [axis for axis, stacked in zip(loops, op.stacked, strict=True) if stacked]
    repeats = [axis for axis, stacked in zip(loops, op.stacked, strict=True) if not stacked]
    ordered = array.transpose([*stack, 0, *repeats, *range(len(loops) + 1, array.ndim)])
    ends = [
        [math.prod(array.shape[axis] for axis in axes)] if axes else [] for axes in (stack, repeats)
    ]
    return ordered.reshape(*ends[0], len(array), *ends[1], *array.shape[len(loops) + 1 :])
