"""The forward and backward pass of every example, with what book-keeping needs of each site.

In a layer under ``remat`` (`jax.checkpoint`), what a site takes is not recorded. There the backward
pass itself computes the squared norms; it then runs a second time, with the clip factors, and
computes the clipped sums.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from dpjax._jaxprs import bind, body_of, evaluate
from dpjax.gradients.bookkeeping.evaluation import evaluate_remat, evaluate_scan
from dpjax.gradients.bookkeeping.ghost_norms import LOOKUPS
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr
from dpjax.gradients.bookkeeping.recomputation import Recomputed, Token, backward_hook
from dpjax.gradients.bookkeeping.sites import Block, Site, aval
from dpjax.gradients.clipping import accumulator
from dpjax.gradients.shard_map import as_varying, varying_axes

# Equations whose transpose needs the values of the other operands, not only their shapes.
_NEEDS_THE_OTHER = LOOKUPS | {"dot_general", "conv_general_dilated", "mul", "div"}


class Trace(NamedTuple):
    """Values recorded in the forward and backward pass, every array with a batch axis.

    Values recorded in scans are of shape ``(stack, batch, repeats, ...)``: the iterations over a
    stacked leaf, and those in which the same entries are used again, each of them in one axis,
    which is there if the site's block has a stack or the site repeats.

    Attributes:
      losses: one for each example.
      operands: for each recorded site the equation's other inputs; ``None`` where they are not
        needed. What several sites take is one array.
      output_grads: for each recorded site the gradient of the example's loss at its output.
      grads: per-example gradients of the leaves on the ``vmap`` route.
      squares: for each site that is not recorded, ``(batch, 2)``: squared norms of the gradients,
        and in how many iterations terms cancel (see `Recomputed`).
      sums: clipped sums of those, ``(stack, ...)``.
    """

    losses: jax.Array
    operands: dict[int, list[Any]]
    output_grads: dict[int, jax.Array]
    grads: dict[int, jax.Array]
    squares: dict[int, jax.Array]
    sums: dict[int, jax.Array]


class _Inputs(NamedTuple):
    """Inputs of one example's loss, whose cotangents are the results of the backward pass.

    Attributes:
      added: for each recorded site zeros that are added to its output.
      vmapped: the leaves on the ``vmap`` route.
      squares: zeros for each recomputed site; the cotangents are squared norms, and 1 where
        terms cancel.
      sums: zeros for each recomputed site; the cotangents are clipped sums.
    """

    added: dict[int, Any]
    vmapped: dict[int, Any]
    squares: dict[int, Any]
    sums: dict[int, Any]


def trace_batch(
    program: LossJaxpr,
    leaves: list[Any],
    recomputed: dict[int, Recomputed],
    batch: Any,
    clip: Callable[[Trace], dict[int, jax.Array]],
) -> Trace:
    """Runs the loss of every example forward and backward.

    Args:
      program: the loss.
      leaves: the parameters.
      recomputed: the sites that are not recorded, by number.
      batch: the examples.
      clip: ``Token.factors`` for these, from the trace without their sums.
    """
    recorded = [n for n in range(len(program.sites)) if n not in recomputed]
    added = {
        n: _zero_output(program.sites[n])
        for n in recorded
        if _same_grads(program, n, recorded) == n
    }
    vmapped = {leaf: leaves[leaf] for leaf in sorted(program.unsupported)}
    if recomputed:
        return _trace_recomputed(program, leaves, recomputed, batch, clip, added, vmapped)

    def trace_example(example: Any) -> Trace:
        def loss(inputs: _Inputs) -> Any:
            value, _, operands = _loss(program, leaves, {}, example, inputs, ())
            return value, operands

        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, operands), grads = gradient(_Inputs(added, vmapped, {}, {}))
        return Trace(value, operands, grads.added, grads.vmapped, {}, {})

    return _complete(program, {}, jax.vmap(trace_example)(batch))


def _trace_recomputed(
    program: LossJaxpr,
    leaves: list[Any],
    recomputed: dict[int, Recomputed],
    batch: Any,
    clip: Callable[[Trace], dict[int, jax.Array]],
    added: dict[int, Any],
    vmapped: dict[int, Any],
) -> Trace:
    """Runs the backward pass twice, in one loop.

    Compiled once, it has the same floats as gradients at the outputs in norms and in sums: in half
    precision those of two compiled programs differ by more than the margin for rounding.
    """
    size, axes = len(jax.tree.leaves(batch)[0]), varying_axes((leaves, batch))
    zeros = {n: _zeros((size, 2), accumulator(r.entry), axes) for n, r in recomputed.items()}
    totals = {
        n: _zeros((*program.sites[n].lengths, *r.entry.shape), accumulator(r.entry), axes)
        for n, r in recomputed.items()
    }
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), (added, vmapped))
    inputs = _Inputs(repeated[0], repeated[1], zeros, totals)
    token = Token(zeros, jnp.zeros(()))

    def of_example(example: Any, inputs: _Inputs, token: Token) -> Any:
        value, token, operands = _loss(program, leaves, recomputed, example, inputs, token)
        return (value, token), operands

    each = _Inputs(0, 0, 0, None), Token(0, None)  # type: ignore[arg-type]
    of_batch = jax.vmap(of_example, in_axes=(0, *each), out_axes=((0, each[1]), 0))
    (losses, _), backward, operands = jax.vjp(partial(of_batch, batch), inputs, token, has_aux=True)

    def step(carry: Any, phase: jax.Array) -> tuple[Any, None]:
        factors, squares, _ = carry
        grads, _ = backward((jnp.ones_like(losses), Token(factors, phase)))
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
        n: total.reshape(math.prod(program.sites[n].lengths), *recomputed[n].entry.shape)
        for n, total in grads.sums.items()
    }
    trace = Trace(losses, operands, grads.added, grads.vmapped, squares, sums)
    return _complete(program, recomputed, trace)


def site_values(
    program: LossJaxpr, trace: Trace, block: Block
) -> tuple[list[Site], list[Any], list[Any]]:
    """Returns the sites of a block with their recorded inputs and output gradients."""
    numbers = program.sites_of(block)
    return (
        [program.sites[n] for n in numbers],
        [trace.operands[n] for n in numbers],
        [trace.output_grads[n] for n in numbers],
    )


def _zero_output(site: Site) -> jax.Array:
    """Zeros like the site's output, in all iterations of the scans around it."""
    output = aval(site.output)
    return _zeros((*site.lengths, *output.shape), output.dtype, varying_axes(output))


def _zeros(shape: tuple[int, ...], dtype: Any, axes: frozenset[str]) -> jax.Array:
    return as_varying(jnp.zeros(shape, dtype), axes)


def _loss(
    program: LossJaxpr,
    leaves: list[Any],
    recomputed: dict[int, Recomputed],
    example: Any,
    inputs: _Inputs,
    token: Any,
) -> tuple[Any, Any, dict[int, Any]]:
    """The loss of one example, the token, and what the recorded sites take."""
    values = [inputs.vmapped.get(leaf, array) for leaf, array in enumerate(leaves)]
    hooks = {n: (backward_hook(n, r), inputs.squares[n]) for n, r in recomputed.items()}
    (value,), token, operands = _record(
        program,
        hooks,
        program.jaxpr,
        [*values, *jax.tree.leaves(example)],
        token,
        (inputs.added, inputs.sums),
    )
    return value, token, operands


def _record(
    program: LossJaxpr,
    hooks: dict[int, Any],
    jaxpr: ClosedJaxpr,
    inputs: list[Any],
    token: Any,
    of_sites: tuple[dict[int, Any], dict[int, Any]],
) -> tuple[list[Any], Any, dict[int, Any]]:
    """Evaluates a jaxpr, with zeros added to the outputs of sites, and hooks at the others.

    Returns:
      The outputs, the token, and what the recorded sites take, each value once (see `_keys`).
    """
    (added, sums), sites = of_sites, program.sites
    records: dict[int, Any] = {}
    reads = {site.equation.outvars[0]: n for n, site in enumerate(sites)}
    perturbed = {sites[n].output: n for n in added}

    def apply(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        nonlocal token
        if equation.primitive.name in ("scan", "remat2"):
            inside = tuple(
                {n: x for n, x in values.items() if any(e is equation for e in sites[n].path)}
                for values in of_sites
            )
            run = partial(_record, program, hooks, body_of(equation))
            evaluate_body = evaluate_scan if equation.primitive.name == "scan" else evaluate_remat
            outputs, token, recorded = evaluate_body(equation, operands, run, token, inside)
            records.update(recorded)
            return outputs
        outputs = bind(equation, operands)
        output = next(iter(equation.outvars), None)  # a print has none
        if output in reads:
            number = reads[output]
            others = _other_operands(sites[number], operands)
            if number in sums:
                hook, square = hooks[number]
                value, token = hook(outputs[0], others, square, sums[number], token)
                return [value]
            keyed = zip(_keys(program)[number], others, strict=True)
            records.update({key: value for key, value in keyed if value is not None})
        if output in perturbed:
            return [outputs[0] + added[perturbed[output]]]
        return outputs

    return evaluate(jaxpr, inputs, apply), token, records


def _other_operands(site: Site, inputs: list[Any]) -> list[Any]:
    keep = site.equation.primitive.name in _NEEDS_THE_OTHER
    return [
        value if keep and position != site.operand else None
        for position, value in enumerate(inputs)
    ]


def _keys(program: LossJaxpr) -> list[list[int]]:
    """A number for each input of each site's equation, the same for the same value."""
    numbers: dict[Any, int] = {}
    return [
        [
            numbers.setdefault(atom if isinstance(atom, Var) else (n, position), len(numbers))
            for position, atom in enumerate(site.equation.invars)
        ]
        for n, site in enumerate(program.sites)
    ]


def _complete(program: LossJaxpr, recomputed: Any, trace: Any) -> Trace:
    """Gives every recorded site its output gradients, and arranges all as `Trace` describes."""
    sites, keys = program.sites, _keys(program)
    recorded = [n for n in range(len(sites)) if n not in recomputed]
    arranged: dict[Any, Any] = {}  # by key and stack, so that one value stays one array
    for n in recorded:
        for key in keys[n]:
            value = trace.operands.get(key)
            if value is not None and (key, sites[n].stacked) not in arranged:
                arranged[key, sites[n].stacked] = _arrange(sites[n], value)
    operands = {
        n: _other_operands(sites[n], [arranged.get((key, sites[n].stacked)) for key in keys[n]])
        for n in recorded
    }
    grads = {
        n: _arrange(sites[n], trace.output_grads[_same_grads(program, n, recorded)])
        for n in recorded
    }
    return trace._replace(operands=operands, output_grads=grads)


def _same_grads(program: LossJaxpr, number: int, recorded: list[int]) -> int:
    """The first recorded site whose output gradients are those of this one: often itself."""
    sites = program.sites
    return next(n for n in recorded if sites[n].total == sites[number].total)


def _arrange(site: Site, array: jax.Array) -> jax.Array:
    """From ``(batch, *lengths of scans, ...)`` to ``(stack, batch, repeats, ...)``."""
    loops = range(1, len(site.stacked) + 1)
    stack = [axis for axis, stacked in zip(loops, site.stacked, strict=True) if stacked]
    repeats = [axis for axis, stacked in zip(loops, site.stacked, strict=True) if not stacked]
    ordered = array.transpose([*stack, 0, *repeats, *range(len(loops) + 1, array.ndim)])
    ends = [
        [math.prod(array.shape[axis] for axis in axes)] if axes else [] for axes in (stack, repeats)
    ]
    return ordered.reshape(*ends[0], len(array), *ends[1], *array.shape[len(loops) + 1 :])
