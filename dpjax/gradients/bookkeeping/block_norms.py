"""Squared norms of the per-example gradients of each block, without instantiating them."""

import math
from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping.cancellation import BlockNorms, norms_without_cancellation
from dpjax.gradients.bookkeeping.ghost_norms import (
    LOOKUPS,
    Factors,
    SquaredNorm,
    embedding_squared_norms,
    factors,
    inner_product,
    map_sequentially,
)
from dpjax.gradients.bookkeeping.loss_jaxpr import LossJaxpr
from dpjax.gradients.bookkeeping.routes import Route, row_axis
from dpjax.gradients.bookkeeping.sites import Site
from dpjax.gradients.bookkeeping.trace import Trace, site_values
from dpjax.gradients.clipping import EXACT


def squared_norms_of_blocks(
    program: LossJaxpr,
    routes: list[Route],
    leaves: list[Any],
    trace: Trace,
    known: Collection[int],
) -> dict[int, BlockNorms]:
    """Squared norms of the per-example gradients of the blocks not ``known``."""
    norms: dict[int, BlockNorms] = {}
    stacks: dict[int, dict[int, Any]] = {}  # by length: sites, entries and values of blocks
    for number, (block, route) in enumerate(zip(program.blocks, routes, strict=True)):
        if number in known or route.name == "unused":
            continue
        if program.is_recomputed(block):
            squares, cancelling = trace.squares[program.sites_of(block)[0]].T
            norms[number] = BlockNorms(squares, cancelling > 0)
            continue
        sites, *values = site_values(program, trace, block)
        described = (sites, block.entry(leaves[block.leaf]), *values)
        if block.stack:
            stacks.setdefault(math.prod(block.stack), {})[number] = described
        else:
            norms[number] = squared_norms_of_entry(route, *described)
    for length, blocks in stacks.items():
        norms |= _squared_norms_of_stacks(routes, length, blocks)
    return norms


def _squared_norms_of_stacks(
    routes: list[Route], length: int, blocks: dict[int, Any]
) -> dict[int, BlockNorms]:
    """The norms of blocks that are stacks of one length: their entries have separate gradients.

    In one loop, where XLA computes the Gram matrix of an input that several blocks take once.
    """

    def of_entries(index: jax.Array) -> dict[int, BlockNorms]:
        take = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
        return {
            number: squared_norms_of_entry(
                routes[number], sites, entry, *jax.tree.map(take, values)
            )
            for number, (sites, entry, *values) in blocks.items()
        }

    each = jax.lax.map(of_entries, jnp.arange(length))
    return {
        number: BlockNorms(
            jnp.sum(norms.squares, axis=0),
            None if norms.cancelling is None else jnp.any(norms.cancelling, axis=0),
        )
        for number, norms in each.items()
    }


def squared_norms_of_entry(
    route: Route, sites: list[Site], entry: Any, operands: Any, output_grads: Any
) -> BlockNorms:
    """Squared norms at one entry of a block's stack, or at a block without one.

    At most 1 % above the norms of the gradients at the recorded output gradients, and not below.

    Args:
      route: of the block.
      sites: its sites.
      entry: shape and dtype of the entry.
      operands: for each site the equation's other inputs, as recorded (see `Trace`).
      output_grads: for each site the gradient at its output.
    """
    if route.name == "sequential":
        each = partial(_instantiated_squared_norm, sites[0])
        bound = map_sequentially(each, (operands, output_grads))
    elif len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS:
        bound = embedding_squared_norms(sites[0], operands[0], output_grads[0])
    else:
        bound = jax.vmap(partial(_ghost_squared_norm, sites))(operands, output_grads)
    return norms_without_cancellation(bound, sites, entry, operands, output_grads)


def _instantiated_squared_norm(site: Site, operands: Any, output_grads: Any) -> SquaredNorm:
    left, right = factors(site, operands[0], output_grads[0])
    gradient = jnp.einsum("gtr,gtc->grc", left, right, precision=EXACT)
    terms = jnp.sum(left**2, axis=-1) * jnp.sum(right**2, axis=-1)  # may cancel
    rounding = 4 * jnp.finfo(gradient.dtype).eps * jnp.sum(terms)
    return SquaredNorm(jnp.vdot(gradient, gradient, precision=EXACT) + rounding, rounding)


def _ghost_squared_norm(sites: list[Site], operands: Any, output_grads: Any) -> SquaredNorm:
    each = [factors(*triple) for triple in zip(sites, operands, output_grads, strict=True)]
    if len(each) > 1:  # the rows of every left index the leaf's first axis
        each = [
            Factors(f.right, f.left) if row_axis(site) == 1 else f
            for site, f in zip(sites, each, strict=True)
        ]
    products = [
        jax.tree.map(lambda x, i=i, j=j: (1 if i == j else 2) * x, inner_product(each[i], each[j]))
        for i in range(len(each))
        for j in range(i + 1)
    ]
    total: SquaredNorm = jax.tree.map(lambda *each: sum(each), *products)
    return total
