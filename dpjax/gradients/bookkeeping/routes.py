"""How book-keeping computes each parameter leaf's norms and clipped sum, chosen from its shapes."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._checks import batch_length
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey
from dpjax.gradients.bookkeeping.ghost_norms import LOOKUPS, Shape, shape_of
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr, trace_loss
from dpjax.gradients.bookkeeping.sites import Block, Site, aval
from dpjax.gradients.loss_checks import check_loss, check_params
from dpjax.gradients.losses import split_params, with_keys
from dpjax.gradients.shard_map import one_example

RouteName = Literal["ghost", "instantiate", "sequential", "vmap", "unused"]


# Multiplications that take as long as writing and reading one float of an instantiated gradient
# (12 bytes at some 10 GB/s, against 16 multiplications a nanosecond, on two CPU cores).
_WORK_PER_FLOAT = 20
# A gradient of more floats than this (2 MB) does not stay in the CPU cache: a batch of them is
# slower than one example at a time, and may not fit in memory.
_LARGE = 2**19


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


def choose_route(program: LossJaxpr, block: Block, size: int) -> Route:
    """Returns the route of a block of leaves of ``size`` entries: the cheapest exact one.

    Source: Bu, Mao, Xu (2022), for the choice between ghost norms and instantiated gradients.
    """
    if block.leaf in program.unsupported:
        return Route("vmap", program.unsupported[block.leaf], size)
    sites = [program.sites[number] for number in program.sites_of(block)]
    if not sites or size == 0:
        return Route("unused", "the loss does not depend on it", 0)
    operations, shapes = _describe_operations(block, sites), _common_factors(sites)
    if program.is_recomputed(block):
        operations = f"{operations}, recomputed as remat asks"
    if shapes is None:
        return Route("instantiate", operations, size)
    terms = sum(shape.terms for shape in shapes)
    if len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS:
        return Route("ghost", f"{operations}, {terms} lookups", terms * shapes[0].columns)
    products = "1 outer product" if terms == 1 else f"{terms} outer products"
    entry = size // math.prod(block.stack)  # multiplications and memory are of one entry at a time
    factors = max(s.groups * (s.rows + s.columns) for s in shapes)
    in_loops = any(site.lengths for site in sites)
    # In loops the gradients that are kept take little memory beside their recorded factors.
    largest = min(_LARGE, terms * factors // 4) if in_loops else _LARGE
    kept = (len(sites) > 1 or entry <= largest) and not program.is_recomputed(block)
    work = (_WORK_PER_FLOAT + (0 if kept or not in_loops else terms)) * entry
    if terms**2 * factors < work:
        two_grams = 2 * max(shape.groups for shape in shapes) * terms**2
        return Route("ghost", f"{operations}, {products}", two_grams)
    reason = f"{operations}, {products}: instantiating the gradient is cheaper"
    return Route("instantiate", reason, size) if kept else Route("sequential", reason, 0)


def _describe_operations(block: Block, sites: list[Site]) -> str:
    names = [site.equation.primitive.name for site in sites]
    operations = " and ".join(names)
    if len(names) > 3:
        operations = f"{len(names)} operations, first {names[0]}"
    repeats = max(site.repeats or 0 for site in sites)
    loops = f" in {repeats} iterations" if repeats else ""
    return operations + loops + (f" in a stack of {math.prod(block.stack)}" if block.stack else "")


def _common_factors(sites: list[Site]) -> list[Shape] | None:
    """The factor shapes of all sites if their factors can be concatenated, else ``None``."""
    shapes = [shape_of(site) for site in sites]
    if any(shape is None for shape in shapes):
        return None
    if len(sites) > 1:  # all must see the leaf as a matrix, and lookups take rows of it
        axes = [(row_axis(site), site.equation.primitive.name) for site in sites]
        if not all(axis == 0 or (axis == 1 and name == "dot_general") for axis, name in axes):
            return None
    return shapes  # type: ignore[return-value]


def row_axis(site: Site) -> int | None:
    """Axis of a matrix leaf that the rows of the factors' ``left`` index; ``None`` if no matrix.

    Only for leaves that views at most transpose or cast.
    """
    axes = _leaf_axes(site)
    if axes is None or len(axes) != 2:
        return None
    if site.equation.primitive.name in LOOKUPS:
        return axes[0]
    if site.equation.primitive.name != "dot_general":
        return None
    contracting, batch = site.equation.params["dimension_numbers"]
    if batch[site.operand] or len(contracting[site.operand]) != 1:
        return None
    return axes[contracting[site.operand][0]]


def _leaf_axes(site: Site) -> list[int] | None:
    """The leaf's axis for each axis of the operand; ``None`` if views do more than transpose."""
    names = {view.primitive.name for view in site.views}
    if not names <= {"transpose", "convert_element_type", "copy"}:
        return None
    axes = list(range(aval(site.equation.invars[site.operand]).ndim))
    for view in site.views:
        if view.primitive.name == "transpose":
            axes = [axes[d] for d in view.params["permutation"]]
    return axes


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

    def __str__(self) -> str:
        rows = [("leaf", "shape", "route", "floats", "reason")]
        for leaf, shape, route in self.leaves:
            floats = f"{route.floats * (self.microbatch_size or self.batch_size):,}"
            rows.append((leaf, str(shape), route.name, floats, route.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if self.microbatch_size is not None:
            lines.append(
                f"micro-batches of {self.microbatch_size} examples, whose values are all stored"
                " within the memory that remat leaves: nothing is recomputed"
            )
        return "\n".join(lines)


def explain(
    loss_fn: LossFn,
    params: Params,
    batch: ArrayTree,
    *,
    wrt: Any = None,
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
    size = batch_length(batch)
    loss_input, trained, constants = split_params(params, wrt, keyed=key is not None)
    loss_fn = loss_input.bind(loss_fn, constants)
    batch = batch if key is None else with_keys(batch, key, size)
    check_params(trained)
    check_loss(loss_fn, trained, batch)
    trained = jax.tree.map(jnp.asarray, trained)  # Python numbers have no shape
    program = trace_loss(loss_fn, trained, jax.tree.map(one_example, batch), size)
    leaves = tuple(
        LeafRoute(jax.tree_util.keystr(path), leaf.shape, _route_of_leaf(program, number, leaf))
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained))
    )
    return Explanation(leaves, size, program.part_size)


def _route_of_leaf(program: LossJaxpr, number: int, leaf: Any) -> Route:
    """The route of a leaf; where several blocks are used, that of the block with most memory."""
    blocks = [block for block in program.blocks if block.leaf == number]
    routes = [choose_route(program, block, block.size(leaf)) for block in blocks]
    largest = max(routes, key=lambda route: route.floats)
    if len(routes) == 1:
        return largest
    reason = f"{len(routes)} separate parts, one with {largest.reason}"
    return Route(largest.name, reason, sum(route.floats for route in routes))
