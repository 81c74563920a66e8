"""The jaxpr of one example's loss, with the sites of every parameter leaf.

A parameter that enters the loss in any other way than by a site is not supported by book-keeping:
its per-example gradients are computed by ``vmap``.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from dpjax._jaxprs import primitive_names
from dpjax._typing import ArrayTree, LossFn
from dpjax.gradients.bookkeeping.evaluation import inline_calls
from dpjax.gradients.bookkeeping.parameter_search import ParameterSearch
from dpjax.gradients.bookkeeping.sites import Block, Site, aval, same_entries
from dpjax.gradients.bookkeeping.stored_values import remat_part_size
from dpjax.gradients.shard_map import abstract, varying_axes


class LossJaxpr(NamedTuple):
    """The jaxpr of one example's loss, calls inlined, with its sites.

    Attributes:
      jaxpr: inputs are the parameter leaves, then the example's leaves; one scalar output.
      sites: the sites of the leaves that book-keeping supports.
      blocks: disjoint parts of all leaves, one or several for each.
      unsupported: the reason for each leaf that book-keeping does not support.
      part_size: the micro-batch in which layers under ``remat`` store their values, so that nothing
        is recomputed; ``None`` where all examples are computed at once.
    """

    jaxpr: ClosedJaxpr
    sites: tuple[Site, ...]
    blocks: tuple[Block, ...]
    unsupported: dict[int, str]
    part_size: int | None = None

    def sites_of(self, block: Block) -> list[int]:
        """The numbers of the sites of one block."""
        return [n for n, site in enumerate(self.sites) if same_entries(site.block, block)]

    def is_recomputed(self, block: Block) -> bool:
        """Whether ``remat`` asks not to keep what the block's only site takes.

        Several uses of the same entries, as in a recurrent network, are kept all the same.
        """
        sites = [self.sites[n] for n in self.sites_of(block)]
        inside = any(
            equation.primitive.name == "remat2" for site in sites for equation in site.path
        )
        return inside and len(sites) == 1 and sites[0].repeats is None


def trace_loss(loss_fn: LossFn, params: ArrayTree, example: Any, batch_size: int) -> LossJaxpr:
    """Traces ``loss_fn`` on one example and finds the sites of each parameter leaf.

    Where layers are under ``remat``, a plain step stores their inputs for all examples. As much
    memory may hold all values for fewer examples: then these are one micro-batch.
    """
    called = jax.make_jaxpr(loss_fn)(params, example)
    leaves = jax.tree.leaves(params)
    program = _find_sites(_inline(called, len(leaves)), leaves)
    if "remat2" not in primitive_names(program.jaxpr.jaxpr):
        return program
    without_remat = _find_sites(_inline(called, len(leaves), inline_remat=True), leaves)
    part_size = remat_part_size(program.jaxpr, len(leaves), without_remat.sites, batch_size)
    return without_remat._replace(part_size=part_size) if part_size else program


def _inline(called: ClosedJaxpr, num_leaves: int, *, inline_remat: bool = False) -> ClosedJaxpr:
    inputs = [abstract(a.shape, a.dtype, varying_axes(a)) for a in map(aval, called.jaxpr.invars)]
    inlined = partial(inline_calls, called, num_constant=num_leaves, inline_remat=inline_remat)
    return jax.make_jaxpr(lambda *values: inlined(values))(*inputs)


def _find_sites(jaxpr: ClosedJaxpr, leaves: list[Any]) -> LossJaxpr:
    search = ParameterSearch(len(leaves), jaxpr.jaxpr)
    blocks = [
        block for leaf, array in enumerate(leaves) for block in search.blocks(leaf, array.shape)
    ]
    supported = [s for s in search.sites if s.block.leaf not in search.unsupported]
    sites = [_merge_row_sum(site, search.readers) for site in supported]
    sites = [site._replace(total=_total(site.output, search.readers)) for site in sites]
    return LossJaxpr(jaxpr, tuple(sites), tuple(blocks), search.unsupported)


def _merge_row_sum(site: Site, readers: dict[Any, list[JaxprEqn | None]]) -> Site:
    """Adds the sum over all rows looked up to the site, where nothing else reads the rows."""
    reader = _only_reader(site.output, readers)
    if site.equation.primitive.name != "gather" or reader is None or site.path:
        return site
    return site._replace(row_sum=reader) if _sums_rows(reader, aval(site.output).shape) else site


def _total(value: Var, readers: dict[Any, list[JaxprEqn | None]]) -> Var:
    """The sum to which a value is only added, in one or several steps, or the value."""
    reader = _only_reader(value, readers)
    if reader is None or reader.primitive.name != "add":
        return value
    total = reader.outvars[0]
    return _total(total, readers) if aval(total).shape == aval(value).shape else value


def _only_reader(value: Var, readers: dict[Any, list[JaxprEqn | None]]) -> JaxprEqn | None:
    found = readers.get(value, [])
    return found[0] if len(found) == 1 else None


def _sums_rows(equation: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """Whether the equation sums an array of ``shape`` over all axes but the last."""
    if equation.primitive.name != "reduce_sum":
        return False
    added, (*others, last) = equation.params["axes"], range(len(shape))
    return last not in added and all(axis in added or shape[axis] == 1 for axis in others)
