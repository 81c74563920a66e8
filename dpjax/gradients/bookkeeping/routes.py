"""How each parameter leaf's norms and clipped sum are computed, chosen from shapes alone."""

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun

from dpjax._checks import batch_length
from dpjax._html import HTMLTable, render_html
from dpjax._jaxprs import Atom, aval, body_of, primitive_names, read_scan
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey
from dpjax.gradients.bookkeeping.program import (
    LOOKUPS,
    Block,
    LinearOp,
    LossProgram,
    OuterProducts,
    read_loss,
    varying_values,
)
from dpjax.gradients.clipping import PART_SIZE
from dpjax.gradients.loss_checks import check_loss, check_params, split_params, with_keys
from dpjax.gradients.shard_map import one_example

RouteName = Literal["ghost", "instantiate", "sequential", "vmap", "unused"]

# Multiplications that take as long as writing and reading one float of an instantiated gradient
# (12 bytes at some 10 GB/s, against 16 multiplications a nanosecond, on two CPU cores).
_WORK_PER_FLOAT = 20
# A gradient of more floats than this (2 MB) does not stay in the CPU cache: a batch of them is
# slower than one example at a time, and may not fit in memory.
_LARGE = 2**19
# Memory of a step by micro-batches over that of the plain step with ``remat``.
_MEMORY = 1.25
# With fewer rows, reading the weights again takes longer than recomputing values would.
_FEWEST_ROWS = 64


class Route(NamedTuple):
    """How one leaf's per-example norms and clipped sum are computed.

    Attributes:
      name: ``"ghost"``: ghost norms, from Gram matrices of layer inputs and output gradients; no
        per-example gradient is instantiated. ``"instantiate"``: per-example gradients from layer
        inputs and output gradients. ``"sequential"``: the same, one example (and one entry of a
        stack) at a time, for the norm only. ``"vmap"``: per-example gradients by ``vmap(grad)``.
        ``"unused"``: the loss does not depend on the leaf.
      reason: the operation on the leaf, or why ghost norms are not available.
      floats: memory for one example, in floats; for one entry of a stack where one at a time is in
        memory.
    """

    name: RouteName
    reason: str
    floats: int


class RoutedBlock(NamedTuple):
    """A block of a leaf, the linear operations that take it, and its route.

    Attributes:
      block: the entries of the leaf.
      numbers: of its operations in the program.
      ops: these operations.
      entry: shape and dtype of one entry of the block's stack, or of all of it.
      recomputed: whether ``remat`` asks not to store what its only operation takes. Several uses
        of the same entries, as in a recurrent network, are stored all the same.
      route: how its norms and sum are computed.
    """

    block: Block
    numbers: tuple[int, ...]
    ops: tuple[LinearOp, ...]
    entry: jax.ShapeDtypeStruct
    recomputed: bool
    route: Route


class Plan(NamedTuple):
    """How the clipped sum of a loss is computed.

    Attributes:
      program: the loss.
      blocks: of all leaves, each with its route.
      microbatch_size: the examples for which layers under ``remat`` store their values, so that
        nothing is recomputed; ``None`` where all examples are computed at once.
      last: number of the block of which one pass over the examples computes norms and sum, with
        the norms of all others known; ``None`` if there is none.
    """

    program: LossProgram
    blocks: tuple[RoutedBlock, ...]
    microbatch_size: int | None = None
    last: int | None = None


def plan_routes(loss_fn: LossFn, params: ArrayTree, example: ArrayTree, batch_size: int) -> Plan:
    """Chooses how per-example gradient norms of each parameter are computed, from the loss.

    Where layers are under ``remat``, a plain step stores their inputs for all examples. As much
    memory may hold all values for fewer examples: then these are one micro-batch.
    """
    called, leaves = jax.make_jaxpr(loss_fn)(params, example), jax.tree.leaves(params)
    program, size = read_loss(called, leaves), None

    # With ``remat``: a micro-batch whose values are all stored, if it fits.
    if "remat2" in primitive_names(program.jaxpr.jaxpr):
        without_remat = read_loss(called, leaves, inline_remat=True)
        size = remat_microbatch_size(program.jaxpr, len(leaves), without_remat.ops, batch_size)
        program = without_remat if size else program

    # The operations of each block, and its route.
    blocks = []
    for block in program.blocks:
        numbers = tuple(n for n, op in enumerate(program.ops) if op.block.is_same(block))
        ops, entry = tuple(program.ops[n] for n in numbers), block.entry(leaves[block.leaf])
        inside = any(equation.primitive.name == "remat2" for op in ops for equation in op.path)
        recomputed = inside and len(ops) == 1 and ops[0].repeats is None
        if block.leaf in program.unsupported:
            floats = math.prod(block.stack) * math.prod(entry.shape)
            route = Route("vmap", program.unsupported[block.leaf], floats)
        else:
            route = _choose_route(block.stack, ops, math.prod(entry.shape), recomputed)
        blocks.append(RoutedBlock(block, numbers, ops, entry, recomputed, route))
    last = _choose_last(blocks, size or batch_size)
    if last is not None:
        route = blocks[last].route
        route = route._replace(reason=f"{route.reason}; norm and sum in one pass")
        blocks[last] = blocks[last]._replace(route=route)
    return Plan(program, tuple(blocks), size, last)


def _choose_last(blocks: Sequence[RoutedBlock], batch_size: int) -> int | None:
    """Number of the block whose norms and clipped sum take one pass; ``None`` if there is none.

    Of the dense ones on the route ``"sequential"``, without a stack, it has most multiplications.
    None where the backward pass needs the clip factors for recomputed blocks, where the batch is
    added up in several parts, and on other backends than CPUs, where loops over examples are slow.
    """
    work = {}
    for number, block in enumerate(blocks):
        if block.route.name == "sequential" and block.ops[0].is_dense() and not block.block.stack:
            shape = block.ops[0].outer_products()
            assert shape is not None
            work[number] = shape.terms * shape.rows * shape.columns
    if any(block.recomputed for block in blocks) or batch_size > PART_SIZE:
        return None
    return max(work, key=work.__getitem__) if work and jax.default_backend() == "cpu" else None


def _choose_route(
    stack: tuple[int, ...], ops: Sequence[LinearOp], entry: int, recomputed: bool
) -> Route:
    """The cheapest exact route of a stack of blocks of ``entry`` numbers each.

    Source: Bu, Mao, Xu (2022), for the choice between ghost norms and instantiated gradients.
    """
    size = math.prod(stack) * entry
    if not ops or size == 0:
        return Route("unused", "the loss does not depend on it", 0)

    # The operations, as the reason names them.
    names = [op.primitive for op in ops]
    operations = " and ".join(names)
    if len(names) > 3:
        operations = f"{len(names)} operations, first {names[0]}"
    if repeats := max(op.repeats or 0 for op in ops):
        operations += f" in {repeats} iterations"
    if stack:
        operations += f" in a stack of {math.prod(stack)}"
    if recomputed:
        operations += ", recomputed as remat asks"

    # Without outer products there are no ghost norms; those of lookups are always cheaper.
    shapes = _common_factors(ops)
    if shapes is None:
        return Route("instantiate", operations, size)
    terms = sum(shape.terms for shape in shapes)
    if len(ops) == 1 and ops[0].primitive in LOOKUPS:
        return Route("ghost", f"{operations}, {terms} lookups", terms * shapes[0].columns)

    # Which gradients are instantiated for the whole batch: of one entry of a stack at a time.
    # In loops those take little memory beside the recorded factors.
    factors = max(s.groups * (s.rows + s.columns) for s in shapes)
    in_loops = any(op.lengths for op in ops)
    largest = min(_LARGE, terms * factors // 4) if in_loops else _LARGE
    stored = (len(ops) > 1 or entry <= largest) and not recomputed

    # The multiplications of two Gram matrices against those of the gradient.
    products = "1 outer product" if terms == 1 else f"{terms} outer products"
    work = (_WORK_PER_FLOAT + (0 if stored or not in_loops else terms)) * entry
    if terms**2 * factors < work:
        two_grams = 2 * max(shape.groups for shape in shapes) * terms**2
        return Route("ghost", f"{operations}, {products}", two_grams)
    reason = f"{operations}, {products}: instantiating the gradient is cheaper"
    return Route("instantiate", reason, size) if stored else Route("sequential", reason, 0)


def _common_factors(ops: Sequence[LinearOp]) -> list[OuterProducts] | None:
    """The outer products of all operations if these can be concatenated, else ``None``."""
    shapes = [shape for op in ops if (shape := op.outer_products()) is not None]
    if len(shapes) < len(ops):
        return None
    if len(ops) > 1:  # all must see the leaf as a matrix, and lookups take rows of it
        axes = [(op.row_axis(), op.primitive) for op in ops]
        if not all(axis == 0 or (axis == 1 and name == "dot_general") for axis, name in axes):
            return None
    return shapes


# Memory of the values that a loss stores for its backward pass, counted from shapes. A layer under
# ``remat`` stores its inputs only. Book-keeping needs the inputs and output gradients of all
# layers, to compute norms and then sums: recomputed twice, or stored for so few examples that they
# take no more memory.


def remat_microbatch_size(
    jaxpr: ClosedJaxpr, num_constant: int, ops: Sequence[LinearOp], batch_size: int
) -> int | None:
    """The micro-batch whose values, all of them stored, take the memory of a plain step.

    The sum over micro-batches takes none beside that of the result.

    Args:
      jaxpr: of the loss of one example, with its ``remat`` layers.
      num_constant: how many of its arguments are parameters, the first ones.
      ops: the linear operations of the same loss without ``remat``.
      batch_size: examples of the plain step.

    Returns:
      The number of examples, or ``None`` where less than one fits, or so few that their products
      would be slow.
    """
    # The bytes that one example stores in a plain step, which recomputes its largest ``remat``
    # layer, and all that it would store without ``remat``, output gradients too.
    varying = varying_values(jaxpr.jaxpr, jaxpr.jaxpr.invars[num_constant:])
    stored = _residual_bytes(jaxpr, varying)
    largest, recomputed = _recomputed_bytes(jaxpr.jaxpr, varying)
    output_grads = {op.total: _bytes(op.output) * math.prod(op.lengths) for op in ops}
    each = stored + recomputed + sum(output_grads.values())
    most = min(int(_MEMORY * batch_size * (stored + largest) / max(each, 1)), batch_size)

    # The rows of one example by which a weight is multiplied at once, on average over weights.
    rows = weights = 0
    for op in ops:
        shape = op.outer_products()
        if shape is not None and op.primitive not in LOOKUPS:
            size = shape.groups * shape.rows * shape.columns
            rows += size * shape.terms // (op.repeats or 1)
            weights += size
    if most < 1 or most * (rows / max(weights, 1)) < _FEWEST_ROWS:
        return None

    # Of sizes of which the last micro-batch is nearly full.
    return min(range(most, most // 2, -1), key=lambda size: -(-batch_size // size) * size)


def _recomputed_bytes(jaxpr: Jaxpr, varying: Collection[Atom]) -> tuple[int, int]:
    """What the largest ``remat`` layer stores, and what all of them store in all iterations."""
    largest = total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("scan", "remat2"):
            body = body_of(equation)
            inner_largest, inner_total = _recomputed_bytes(body.jaxpr, varying)
            stored = _residual_bytes(body, varying) if name == "remat2" else 0
            largest = max(largest, stored + inner_largest)
            total += (read_scan(equation).length if name == "scan" else 1) * (stored + inner_total)
    return largest, total


def _residual_bytes(jaxpr: ClosedJaxpr, varying: Collection[Atom]) -> int:
    """Bytes of the values that depend on the example, among those that the backward pass takes."""

    def residuals(*inputs: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(jax.vjp(jaxpr_as_fun(jaxpr), *inputs)[1])

    inputs = jaxpr.jaxpr.invars
    forward = jax.make_jaxpr(residuals)(*map(aval, inputs)).jaxpr
    pairs = zip(forward.invars, inputs, strict=True)
    varies = varying_values(forward, [inner for inner, outer in pairs if outer in varying])
    stored = {value for value in forward.outvars if isinstance(value, Var) and value in varies}
    return sum(map(_bytes, stored))


def _bytes(value: Var) -> int:
    size: int = aval(value).size * aval(value).dtype.itemsize
    return size


# What the user sees of the routes.

_COLUMNS = ("leaf", "shape", "route", "floats", "reason")


class LeafRoute(NamedTuple):
    """One parameter leaf's route.

    Attributes:
      leaf: its path in the tree.
      shape: its shape.
      route: its name, reason and memory (see `Route`).
    """

    leaf: str
    shape: tuple[int, ...]
    route: Route


class Explanation(NamedTuple):
    """The routes of all parameter leaves; ``print`` it for a table.

    Attributes:
      leaves: one `LeafRoute` for each parameter leaf.
      batch_size: examples in the batch.
      microbatch_size: examples computed at a time, where layers under ``remat`` store their values
        and do not recompute them (see `explain`); ``None`` if all are.
    """

    leaves: tuple[LeafRoute, ...]
    batch_size: int
    microbatch_size: int | None = None

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for leaf, shape, route in self.leaves:
            floats = f"{route.floats * (self.microbatch_size or self.batch_size):,}"
            rows.append((leaf, str(shape), route.name, floats, route.reason))
        return rows

    @property
    def _notes(self) -> list[str]:
        if self.microbatch_size is None:
            return []
        return [
            f"micro-batches of {self.microbatch_size} examples, whose values are all stored"
            " within the memory that remat leaves: nothing is recomputed"
        ]

    def __str__(self) -> str:
        rows = [_COLUMNS, *self._rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes])

    def _repr_html_(self) -> str:
        title = f"Clipping routes for a batch of {self.batch_size:,} examples"
        return render_html(title, [HTMLTable("", self._rows, _COLUMNS)], notes=self._notes)


def explain(
    loss_fn: LossFn,
    params: Params,
    batch: ArrayTree,
    *,
    wrt: object = None,
    key: PRNGKey | None = None,
) -> Explanation:
    """Returns how `clipped_grad` computes each leaf's per-example norms and clipped sum.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``.
      params: tree of float arrays, or an ``nnx.Module``.
      batch: tree of arrays with a leading example axis; only shapes are used.
      wrt: see `clipped_grad`.
      key: for losses that take a key; see `clipped_grad`.

    Returns:
      For each leaf its route, the reason for it, and the memory in floats that it takes for the
      batch beside activations. ``"ghost"`` instantiates no per-example gradient; ``"instantiate"``
      computes them from layer inputs and output gradients, ``"sequential"`` one at a time;
      ``"vmap"`` is ``vmap(grad)``. All give the norms of the float32 gradients up to rounding,
      except that those of ``"ghost"`` and ``"sequential"`` are upper bounds at most 1 % above them
      (see ``docs/concepts/clipping_routes.md``). Layers under ``remat`` (`jax.checkpoint`) store
      all values for micro-batches of as many examples as take the memory of a plain step, where
      these are enough for fast products; else the backward pass recomputes them, once for the norms
      and once for the sums.

    Raises:
      ValueError: as `clipped_grad` does for losses it refuses.

    >>> import jax.numpy as jnp
    >>> loss = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"] + p["b"]))
    >>> params = {"w": jnp.ones((784, 256)), "b": jnp.zeros(256)}
    >>> print(explain(loss, params, jnp.ones((32, 784))))
    leaf   shape       route        floats  reason
    ['b']  (256,)      instantiate  8,192   add
    ['w']  (784, 256)  ghost        64      dot_general, 1 outer product
    """
    # The loss as `clipped_grad` sees it, checked.
    size = batch_length(batch)
    loss_input, trained, constants = split_params(params, wrt, keyed=key is not None)
    loss_fn = loss_input.bind(loss_fn, constants)
    batch = batch if key is None else with_keys(batch, key, size)
    check_params(trained)
    check_loss(loss_fn, trained, batch)

    # The route of each leaf; where several blocks are used, that of the block with most memory.
    trained = jax.tree.map(jnp.asarray, trained)  # Python numbers have no shape
    plan = plan_routes(loss_fn, trained, jax.tree.map(one_example, batch), size)
    leaves = []
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        routes = [each.route for each in plan.blocks if each.block.leaf == number]
        route = max(routes, key=lambda route: route.floats)
        if len(routes) > 1:
            reason = f"{len(routes)} separate parts, one with {route.reason}"
            route = Route(route.name, reason, sum(route.floats for route in routes))
        leaves.append(LeafRoute(jax.tree_util.keystr(path), leaf.shape, route))
    return Explanation(tuple(leaves), size, plan.microbatch_size)
