"""Clipped sums at the price of a plain step: norms without per-example gradients."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._jaxprs import primitive_names
from dpjax.gradients.bookkeeping.factors import (
    LOOKUPS,
    Factors,
    factors,
    in_turn,
    inner_product,
    squared_norms_of_lookups,
)
from dpjax.gradients.bookkeeping.formed import Formed, form, settle
from dpjax.gradients.bookkeeping.program import Program, Site, analyse, aval, evaluate
from dpjax.gradients.bookkeeping.routes import Route, choose, row_axis
from dpjax.gradients.bookkeeping.transposed import apply_to, transpose
from dpjax.gradients.clipping import (
    EXACT,
    ClippedGradInfo,
    accumulator,
    clip_factors,
    info_of,
    silence,
)
from dpjax.gradients.parts import isolated
from dpjax.gradients.varying import as_varying, one_example, varying_axes

# Operands that the transposed equation needs; of the others only the shape matters.
_NEEDS_THE_OTHER = LOOKUPS | {"dot_general", "conv_general_dilated", "mul", "div"}


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
    params, batch = jax.tree.map(jnp.asarray, (params, batch))  # numbers and NumPy arrays too
    program = analyse(loss_fn, params, jax.tree.map(one_example, batch))
    routes = [choose(program, n, leaf.size) for n, leaf in enumerate(jax.tree.leaves(params))]
    compute = partial(_clipped_sum, program, routes, l2_clip)
    if _convolves_unseen(program, routes):
        return isolated(compute, params, batch, mask)
    return compute(params, batch, mask)


def _convolves_unseen(program: Program, routes: list[Route]) -> bool:
    """Whether XLA may mix the examples of a convolution that bookkeeping does not see to itself."""
    seen = sum(site.equation.primitive.name == "conv_general_dilated" for site in program.sites)
    names = Counter(primitive_names(program.jaxpr.jaxpr))
    by_vmap = any(route.name == "vmap" for route in routes)
    return names["conv_general_dilated"] > (0 if by_vmap else seen)


def _clipped_sum(
    program: Program,
    routes: list[Route],
    l2_clip: Any,
    params: Any,
    batch: Any,
    mask: jax.Array,
) -> tuple[Any, ClippedGradInfo]:
    leaves, treedef = jax.tree.flatten(params)
    trace = jax.vmap(partial(_trace_example, program, routes, leaves))(batch)
    formed = _form(program, routes, leaves, trace)
    squares = [_squares(program, routes, formed, trace, leaf) for leaf in range(len(leaves))]
    usable = mask & jnp.isfinite(trace.losses)
    clipping, norms, finite = clip_factors(jax.tree.unflatten(treedef, squares), l2_clip, usable)
    sums = [
        formed[leaf].clipped_sum(factor)
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
            output = next(iter(equation.outvars), None)  # a print has none
            if output in reads:
                operands[reads[output]] = _kept(program.sites[reads[output]], inputs)
            return [outputs[0] + signals[perturbed[output]]] if output in perturbed else outputs

        values = [formed.get(leaf, array) for leaf, array in enumerate(leaves)]
        (value,) = evaluate(program.jaxpr, [*values, *jax.tree.leaves(example)], perturb)
        return value, operands

    outputs = [aval(site.output) for site in program.sites]
    zeros = [as_varying(jnp.zeros(a.shape, a.dtype), varying_axes(a)) for a in outputs]
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
) -> dict[int, Formed]:
    """The gradients of the leaves whose route forms them."""
    formed = {leaf: settle(gradients) for leaf, gradients in trace.grads.items()}
    for leaf, route in enumerate(routes):
        if route.name == "materialise":
            sites, operands, signals = _at_sites(program, trace, leaf)
            formed[leaf] = form(sites, leaves[leaf], operands, signals)
    return formed


def _at_sites(program: Program, trace: Trace, leaf: int) -> tuple[list[Site], list[Any], list[Any]]:
    """Where the leaf enters, the other operands there and the signals that come back."""
    numbers = program.sites_of(leaf)
    return (
        [program.sites[n] for n in numbers],
        [trace.operands[n] for n in numbers],
        [trace.signals[n] for n in numbers],
    )


def _squares(
    program: Program, routes: list[Route], formed: dict[int, Formed], trace: Trace, leaf: int
) -> jax.Array:
    """Each example's squared norm of one leaf's gradient, ``(batch,)``."""
    if leaf in formed:
        return formed[leaf].squares
    if routes[leaf].name == "unused":
        return jnp.zeros(len(trace.losses), trace.losses.dtype)
    sites, *inputs = _at_sites(program, trace, leaf)
    if routes[leaf].name == "in turn":
        return in_turn(partial(_square_of_gradient, sites[0]), inputs)
    if len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS:
        return squared_norms_of_lookups(sites[0], inputs[0][0], inputs[1][0])
    return jax.vmap(partial(_square_from_factors, sites))(*inputs)


def _square_of_gradient(site: Site, operands: Any, signals: Any) -> jax.Array:
    left, right = factors(site, operands[0], signals[0])
    gradient = jnp.einsum("gtr,gtc->grc", left, right, precision=EXACT)
    terms = jnp.sum(left**2, axis=-1) * jnp.sum(right**2, axis=-1)  # they may cancel: see factors
    rounding = 4 * jnp.finfo(gradient.dtype).eps * jnp.sum(terms)
    return jnp.vdot(gradient, gradient, precision=EXACT) + rounding


def _square_from_factors(sites: list[Site], operands: Any, signals: Any) -> jax.Array:
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
    for site, inputs, signals in zip(*_at_sites(program, trace, leaf), strict=True):
        operands = [_silence(finite, value) for value in inputs]
        signal = silence(finite, signals).astype(total.dtype)
        operands, signal = _scaled(site, factor, operands, signal)
        total += _transposed_batch(site, array, operands, signal)
    return total


def _scaled(
    site: Site, factor: jax.Array, operands: list[Any], signal: jax.Array
) -> tuple[list[Any], jax.Array]:
    """Scales the signal, or the input of a product where that is the smaller of the two."""
    other = 1 - site.operand
    if site.equation.primitive.name != "dot_general" or operands[other].size >= signal.size:
        return operands, _times(factor, signal)
    scaled = _times(factor, operands[other].astype(signal.dtype))
    return [scaled if position == other else None for position in (0, 1)], signal


def _times(factor: jax.Array, array: jax.Array) -> jax.Array:
    return array * factor.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)


def _is_float(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _transposed_batch(site: Site, leaf: Any, operands: list[Any], signals: jax.Array) -> jax.Array:
    def of_leaf(x: Any) -> Any:
        each = partial(apply_to, site, leaf=x)
        return jax.vmap(each, axis_size=len(signals))(operands)

    return transpose(of_leaf, leaf, signals)


def _silence(finite: jax.Array, value: Any) -> Any:
    if value is None or not _is_float(value):
        return value
    return silence(finite, value)
