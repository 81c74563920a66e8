"""Memory of the values that a loss stores for its backward pass, counted from shapes.

A layer under ``remat`` (`jax.checkpoint`) stores its inputs only. Book-keeping needs the inputs and
output gradients of all layers, to compute norms and then sums: recomputed twice, or stored for a
part of the batch that takes no more memory.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun

from dpjax._jaxprs import body_of, read_scan
from dpjax.gradients.bookkeeping.evaluation import varying_values
from dpjax.gradients.bookkeeping.ghost_norms import LOOKUPS, shape_of
from dpjax.gradients.bookkeeping.sites import Site, aval, is_scan

# Memory of a step by micro-batches over that of the plain step with ``remat``.
_MEMORY = 1.25
# With fewer rows, reading the weights again takes longer than recomputing values would.
_FEWEST_ROWS = 64


def remat_part_size(
    jaxpr: ClosedJaxpr, num_constant: int, sites: Sequence[Site], batch_size: int
) -> int | None:
    """The micro-batch whose values, all of them stored, take the memory of a plain step.

    The sum over micro-batches takes none beside that of the result.

    Args:
      jaxpr: of the loss of one example, with its ``remat`` layers.
      num_constant: how many of its arguments are parameters, the first ones.
      sites: the sites of the same loss without ``remat``.
      batch_size: examples of the plain step.

    Returns:
      The number of examples, or ``None`` where less than one fits, or so few that their products
      would be slow.
    """
    with_remat, without_remat = _stored_bytes(jaxpr, num_constant)
    output_grads = {site.total: _bytes(site.output) * math.prod(site.lengths) for site in sites}
    each = without_remat + sum(output_grads.values())
    most = min(int(_MEMORY * batch_size * with_remat / max(each, 1)), batch_size)
    if most < 1 or most * _rows_of_products(sites) < _FEWEST_ROWS:
        return None
    # Of sizes of which the last micro-batch is nearly full.
    return min(range(most, most // 2, -1), key=lambda size: -(-batch_size // size) * size)


def _rows_of_products(sites: Sequence[Site]) -> float:
    """The rows of one example by which a weight is multiplied at once, on average over weights."""
    rows = weights = 0
    for site in sites:
        shape = shape_of(site)
        if shape is not None and site.equation.primitive.name not in LOOKUPS:
            size = shape.groups * shape.rows * shape.columns
            rows += size * shape.terms // (site.repeats or 1)
            weights += size
    return rows / max(weights, 1)


def _stored_bytes(jaxpr: ClosedJaxpr, num_constant: int) -> tuple[int, int]:
    """Bytes that one example stores for the backward pass of a plain step, and without ``remat``.

    The first includes what the largest ``remat`` layer stores while it is recomputed.
    """
    varying = varying_values(jaxpr.jaxpr, jaxpr.jaxpr.invars[num_constant:])
    stored = _residual_bytes(jaxpr, varying)
    largest, total = _recomputed_bytes(jaxpr.jaxpr, varying)
    return stored + largest, stored + total


def _recomputed_bytes(jaxpr: Jaxpr, varying: Collection[Var]) -> tuple[int, int]:
    """What the largest ``remat`` layer stores, and what all of them store in all iterations."""
    largest = total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name not in ("scan", "remat2"):
            continue
        body = body_of(equation)
        inner_largest, inner_total = _recomputed_bytes(body.jaxpr, varying)
        stored = _residual_bytes(body, varying) if equation.primitive.name == "remat2" else 0
        largest = max(largest, stored + inner_largest)
        repeats = read_scan(equation).length if is_scan(equation) else 1
        total += repeats * (stored + inner_total)
    return largest, total


def _residual_bytes(jaxpr: ClosedJaxpr, varying: Collection[Var]) -> int:
    """Bytes of the values that depend on the example, among those that the backward pass takes."""

    def residuals(*inputs: Any) -> list[Any]:
        return jax.tree.leaves(jax.vjp(jaxpr_as_fun(jaxpr), *inputs)[1])

    inputs = jaxpr.jaxpr.invars
    forward = jax.make_jaxpr(residuals)(*map(aval, inputs)).jaxpr
    own = [mine for mine, given in zip(forward.invars, inputs, strict=True) if given in varying]
    varies = varying_values(forward, own)
    stored = {value for value in forward.outvars if isinstance(value, Var) and value in varies}
    return sum(map(_bytes, stored))


def _bytes(value: Var) -> int:
    size: int = aval(value).size * aval(value).dtype.itemsize
    return size
