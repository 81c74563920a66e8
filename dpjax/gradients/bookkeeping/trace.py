"""The forward and backward pass of every example, with what book-keeping needs of each site."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from dpjax.gradients.bookkeeping.evaluation import bind, evaluate, evaluate_scan
from dpjax.gradients.bookkeeping.ghost_norms import LOOKUPS
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr, Site, aval
from dpjax.gradients.shard_map import as_varying, varying_axes

# Equations whose transpose needs the values of the other operands, not only their shapes.
_NEEDS_THE_OTHER = LOOKUPS | {"dot_general", "conv_general_dilated", "mul", "div"}


class Trace(NamedTuple):
    """Values recorded in one forward and backward pass, every array with a batch axis.

    Values recorded in scans are of shape ``(stack, batch, repeats, ...)``: the iterations over a
    stacked leaf, and those in which the same entries are used again, each of them in one axis,
    which is there if the site's block has a stack or the site repeats.

    Attributes:
      losses: one for each example.
      operands: for each site the equation's other inputs; ``None`` where they are not needed.
      output_grads: for each site the gradient of the example's loss at its output.
      grads: per-example gradients of the leaves on the ``vmap`` route.
    """

    losses: jax.Array
    operands: list[list[Any]]
    output_grads: list[jax.Array]
    grads: dict[int, jax.Array]


def trace_batch(program: LossJaxpr, leaves: list[Any], by_vmap: list[int], batch: Any) -> Trace:
    """Runs the loss of every example forward and backward.

    Args:
      program: the loss.
      leaves: the parameters.
      by_vmap: the numbers of the leaves on the ``vmap`` route.
      batch: the examples.
    """
    trace = jax.vmap(lambda example: _trace_example(program, leaves, by_vmap, example))(batch)
    operands = [
        [None if value is None else _arrange(site, value) for value in values]
        for site, values in zip(program.sites, trace.operands, strict=True)
    ]
    output_grads = [_arrange(s, g) for s, g in zip(program.sites, trace.output_grads, strict=True)]
    return trace._replace(operands=operands, output_grads=output_grads)


def _trace_example(
    program: LossJaxpr, leaves: list[Any], by_vmap: list[int], example: Any
) -> Trace:
    def loss(output_grads: dict[int, jax.Array], vmapped: dict[int, jax.Array]) -> Any:
        values = [vmapped.get(leaf, array) for leaf, array in enumerate(leaves)]
        inputs = [*values, *jax.tree.leaves(example)]
        (value,), operands = _record(program, program.jaxpr, inputs, output_grads)
        return value, operands

    zeros = {number: _zero_output(site) for number, site in enumerate(program.sites)}
    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, kept), (output_grads, grads) = gradient(zeros, {n: leaves[n] for n in by_vmap})
    numbers = range(len(program.sites))
    return Trace(value, [kept[n] for n in numbers], [output_grads[n] for n in numbers], grads)


def _zero_output(site: Site) -> jax.Array:
    """Zeros like the site's output, in all iterations of the scans around it."""
    output = aval(site.output)
    lengths = (loop.params["length"] for loop in site.loops)
    return as_varying(jnp.zeros((*lengths, *output.shape), output.dtype), varying_axes(output))


def _record(
    program: LossJaxpr, jaxpr: ClosedJaxpr, inputs: list[Any], added: dict[int, Any]
) -> tuple[list[Any], dict[int, list[Any]]]:
    """Evaluates a jaxpr with ``added[n]`` added to the output of site n.

    Returns:
      The outputs, and for each site in the jaxpr its recorded operands.
    """
    records: dict[int, list[Any]] = {}
    reads = {program.sites[number].equation.outvars[0]: number for number in added}
    perturbed = {program.sites[number].output: number for number in added}

    def apply(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        inside = {n: added[n] for n in added if _encloses(equation, program.sites[n])}
        if inside:
            body = equation.params["jaxpr"]
            outputs, recorded = evaluate_scan(
                equation, operands, lambda *values: _record(program, body, *values), inside
            )
            records.update(recorded)
            return outputs
        outputs = bind(equation, operands)
        output = next(iter(equation.outvars), None)  # a print has none
        if output in reads:
            records[reads[output]] = _recorded_operands(program.sites[reads[output]], operands)
        if output in perturbed:
            return [outputs[0] + added[perturbed[output]]]
        return outputs

    return evaluate(jaxpr, inputs, apply), records


def _encloses(equation: JaxprEqn, site: Site) -> bool:
    return any(loop is equation for loop in site.loops)


def _recorded_operands(site: Site, inputs: list[Any]) -> list[Any]:
    keep = site.equation.primitive.name in _NEEDS_THE_OTHER
    return [
        value if keep and position != site.operand else None
        for position, value in enumerate(inputs)
    ]


def _arrange(site: Site, array: jax.Array) -> jax.Array:
    """From ``(batch, *loops, ...)`` to ``(stack, batch, repeats, ...)`` (see `Trace`)."""
    loops = range(1, len(site.loops) + 1)
    stack = [axis for axis, stacked in zip(loops, site.stacked, strict=True) if stacked]
    repeats = [axis for axis, stacked in zip(loops, site.stacked, strict=True) if not stacked]
    rest = range(len(loops) + 1, array.ndim)
    lengths = [
        [int(np.prod([array.shape[axis] for axis in axes]))] if axes else []
        for axes in (stack, repeats)
    ]
    ordered = array.transpose([*stack, 0, *repeats, *rest])
    shape = (*lengths[0], array.shape[0], *lengths[1], *(array.shape[axis] for axis in rest))
    return ordered.reshape(shape)
