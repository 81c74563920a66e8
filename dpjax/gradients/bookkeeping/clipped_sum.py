"""Clipped sums at the price of a plain step: norms without per-example gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping import patches
from dpjax.gradients.bookkeeping.factors import (
    Factors,
    factors,
    inner_product,
    squared_norm_of_lookups,
)
from dpjax.gradients.bookkeeping.program import Program, Site, analyse, aval, evaluate
from dpjax.gradients.bookkeeping.routes import Route, choose, row_axis
from dpjax.gradients.bookkeeping.transposed import apply_to, through_views, transpose
from dpjax.gradients.clipping import (
    EXACT,
    ClippedGradInfo,
    accumulator,
    clip_factors,
    info_of,
    silence,
    squared_norms,
    weighted_sum,
)

# Operands that the transposed equation needs; of the others only the shape matters.
_NEEDS_THE_OTHER = frozenset({"dot_general", "conv_general_dilated", "gather", "mul", "div"})


class Trace(NamedTuple):
    """What one forward and one backward pass leave of a batch, every leaf with its batch axis.

    Attributes:
      losses: one for each example.
      operands: for each site the equation's other inputs; ``None`` where they are not needed.
      signals: for each site the derivative of the example's loss at the equation's output.
      grads: each example's gradient of the leaves that take the ``vmap`` route.
    """

    losses: jax.Array
    operands: list[list[Any]]
    signals: list[jax.Array]
    grads: dict[int, jax.Array]


def clipped_sum(
    loss_fn: Callable[[Any, Any], jax.Array], l2_clip: Any, params: Any, batch: Any, mask: jax.Array
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch, by bookkeeping.

    Each equation that is linear in a parameter is perturbed by zero; the derivative with respect to
    the perturbation is the example's backpropagated signal there. Norms follow from (input, signal)
    pairs, and the clipped sum is the transposed equation on signals scaled by the clip factors.

    Source: Goodfellow (2015), arXiv:1510.01799, for dense layers; Bu, Mao, Xu (2022) for the choice
    between Gram matrices and gradients.
    """
    leaves, treedef = jax.tree.flatten(params)
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    program = analyse(loss_fn, params, example)
    routes = [choose(program, leaf, array.size) for leaf, array in enumerate(leaves)]
    trace = jax.vmap(partial(_trace_example, program, routes, leaves))(batch)
    formed = _form(program, routes, leaves, trace)
    squares = [_squares(program, routes, formed, trace, leaf) for leaf in range(len(leaves))]
    usable = mask & jnp.isfinite(trace.losses)
    clipping, norms, finite = clip_factors(jax.tree.unflatten(treedef, squares), l2_clip, usable)
    sums = [
        weighted_sum(factor, finite, formed[leaf])
        if leaf in formed
        else _sum_from_signals(program, trace, leaf, array, factor, finite)
        for leaf, (array, factor) in enumerate(zip(leaves, jax.tree.leaves(clipping), strict=True))
    ]
    return jax.tree.unflatten(treedef, sums), info_of(norms, trace.losses, mask, finite)


def _trace_example(program: Program, routes: list[Route], leaves: Any, example: Any) -> Trace:
    """One example's forward and backward pass (to be mapped over the batch)."""
    reads = {site.equation.outvars[0]: number for number, site in enumerate(program.sites)}
    perturbed = {site.output: number for number, site in enumerate(program.sites)}
    operands: list[list[Any]] = [[] for _ in program.sites]

    def loss(signals: list[jax.Array], formed: dict[int, jax.Array]) -> Any:
        def perturb(equation: Any, inputs: list[Any], outputs: list[Any]) -> list[Any]:
            output = equation.outvars[0]
            if output in reads:
                operands[reads[output]] = _kept(program.sites[reads[output]], inputs)
            return [outputs[0] + signals[perturbed[output]]] if output in perturbed else outputs

        values = [formed.get(leaf, array) for leaf, array in enumerate(leaves)]
        (value,) = evaluate(program.jaxpr, [*values, *jax.tree.leaves(example)], perturb)
        return value, operands

    zeros = [jnp.zeros(aval(s.output).shape, aval(s.output).dtype) for s in program.sites]
    by_vmap = {leaf: leaves[leaf] for leaf, route in enumerate(routes) if route.name == "vmap"}
    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, kept), (signals, grads) = gradient(zeros, by_vmap)
    return Trace(value, kept, signals, grads)


def _kept(site: Site, inputs: list[Any]) -> list[Any]:
    keep = site.equation.primitive.name in _NEEDS_THE_OTHER
    return [
        value if keep and position != site.operand else None
        for position, value in enumerate(inputs)
    ]


def _form(
    program: Program, routes: list[Route], leaves: list[Any], trace: Trace
) -> dict[int, jax.Array]:
    """Each example's gradient of the leaves whose route forms it."""
    formed = dict(trace.grads)
    for leaf, route in enumerate(routes):
        if route.name == "materialise":
            parts = [
                jax.vmap(partial(_site_gradient, program.sites[n], leaves[leaf]))(
                    trace.operands[n], trace.signals[n]
                )
                for n in program.sites_of(leaf)
            ]
            formed[leaf] = sum(parts[1:], start=parts[0])
    return formed


def _site_gradient(site: Site, leaf: Any, operands: list[Any], signal: jax.Array) -> jax.Array:
    if site.equation.primitive.name == "conv_general_dilated" and patches.is_plain(site):
        left, right = factors(site, operands, signal)
        kernel = patches.to_kernel(site, jnp.matmul(left[0].T, right[0], precision=EXACT))
        return transpose(partial(through_views, site), leaf, kernel)
    return transpose(partial(apply_to, site, operands), leaf, signal)


def _squares(
    program: Program, routes: list[Route], formed: dict[int, Any], trace: Trace, leaf: int
) -> jax.Array:
    """Each example's squared norm of one leaf's gradient, ``(batch,)``."""
    if leaf in formed:
        return squared_norms(formed[leaf])
    if routes[leaf].name == "unused":
        return jnp.zeros(len(trace.losses), trace.losses.dtype)
    numbers = program.sites_of(leaf)
    sites = [program.sites[number] for number in numbers]
    inputs = ([trace.operands[n] for n in numbers], [trace.signals[n] for n in numbers])
    return jax.vmap(partial(_square_from_factors, sites))(*inputs)


def _square_from_factors(sites: list[Site], operands: Any, signals: Any) -> jax.Array:
    if len(sites) == 1 and sites[0].equation.primitive.name == "gather":
        return squared_norm_of_lookups(sites[0], operands[0], signals[0])
    each = [factors(*triple) for triple in zip(sites, operands, signals, strict=True)]
    if len(each) > 1:  # side by side, every left along the leaf's first axis
        each = [
            Factors(f.right, f.left) if row_axis(site) == 1 else f
            for site, f in zip(sites, each, strict=True)
        ]
    return sum(  # type: ignore[return-value]
        (1 if i == j else 2) * inner_product(each[i], each[j])
        for i in range(len(each))
        for j in range(i + 1)
    )


def _sum_from_signals(
    program: Program, trace: Trace, leaf: int, array: Any, factor: jax.Array, finite: jax.Array
) -> jax.Array:
    """The clipped sum of one leaf: its sites' equations, transposed, on scaled signals."""
    total = jnp.zeros(array.shape, accumulator(array))
    for number in program.sites_of(leaf):
        operands = [_silence(finite, value) for value in trace.operands[number]]
        signal = silence(finite, trace.signals[number])
        scaled = signal * factor.reshape(-1, *[1] * (signal.ndim - 1)).astype(signal.dtype)
        total += _transposed_batch(program.sites[number], array, operands, scaled)
    return total


def _transposed_batch(site: Site, leaf: Any, operands: list[Any], signals: jax.Array) -> jax.Array:
    def of_leaf(x: Any) -> Any:
        each = partial(apply_to, site, leaf=x)
        return jax.vmap(each, axis_size=len(signals))(operands)

    return transpose(of_leaf, leaf, signals)


def _silence(finite: jax.Array, value: Any) -> Any:
    if value is None or not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    return silence(finite, value)
