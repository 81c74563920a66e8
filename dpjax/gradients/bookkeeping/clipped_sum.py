"""The clipped gradient sum by book-keeping: one backward pass, norms, then weighted sums."""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._jaxprs import primitive_names
from dpjax._typing import ArrayTree, ClipBound, LossFn
from dpjax.gradients.bookkeeping.ghost_norms import (
    LOOKUPS,
    Factors,
    dense_gradient,
    embedding_squared_norms,
    factors,
    inner_product,
    is_dense,
    map_sequentially,
)
from dpjax.gradients.bookkeeping.loss_jaxpr import (
    LossJaxpr,
    Site,
    apply_site,
    apply_views,
    aval,
    evaluate,
    trace_loss,
    transpose,
)
from dpjax.gradients.bookkeeping.per_example_gradients import (
    PerExampleGradients,
    from_leaf_gradients,
    instantiate_gradients,
)
from dpjax.gradients.bookkeeping.routes import Route, choose_route, row_axis
from dpjax.gradients.clipping import (
    EXACT,
    ClippedGradInfo,
    accumulator,
    clip_factors,
    clipped_grad_info,
    zero_nonfinite,
)
from dpjax.gradients.microbatching import isolate_nonfinite
from dpjax.gradients.shard_map import as_varying, one_example, varying_axes
from dpjax.gradients.summation import sum_in_parts

# Equations whose transpose needs the values of the other operands, not only their shapes.
_NEEDS_THE_OTHER = LOOKUPS | {"dot_general", "conv_general_dilated", "mul", "div"}


class Trace(NamedTuple):
    """Values recorded in one forward and backward pass, every leaf with a batch axis.

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


def clipped_sum(
    loss_fn: LossFn,
    l2_clip: ClipBound,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    max_batch_size: int | None = None,
) -> tuple[Any, ClippedGradInfo]:
    """Clipped gradient sum over the unmasked examples of one physical batch, by book-keeping.

    Zero is added to the output of each equation that is linear in a parameter; the derivative with
    respect to it is the output gradient. Norms follow from layer inputs and output gradients, and
    the clipped sum is the transposed equation applied to output gradients scaled by clip factors.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``.
      l2_clip: a number, or a prefix of the parameter tree.
      params: a tree of float arrays.
      batch: a tree whose leaves share a leading axis of length B.
      mask: bool ``(B,)``: the examples to include.
      max_batch_size: the most examples in one sum before the noise; B by default.

    Returns:
      The sum, in the structure of ``params``, and the private `ClippedGradInfo`.

    Source: Goodfellow (2015), arXiv:1510.01799, for dense layers; Bu, Wang, Zha, Karypis (2022) for
    book-keeping; Bu, Mao, Xu (2022) for the choice between ghost norms and instantiation.
    """
    params, batch = jax.tree.map(jnp.asarray, (params, batch))  # numbers and NumPy arrays too
    program = trace_loss(loss_fn, params, jax.tree.map(one_example, batch))
    routes = [choose_route(program, n, leaf.size) for n, leaf in enumerate(jax.tree.leaves(params))]
    compute = partial(_clipped_sum, program, routes, l2_clip, max_batch_size or len(mask))
    if _has_untracked_convolution(program, routes):
        return isolate_nonfinite(compute, params, batch, mask)
    return compute(params, batch, mask)


def _has_untracked_convolution(program: LossJaxpr, routes: list[Route]) -> bool:
    """Whether the loss has convolutions that book-keeping leaves to XLA, which may mix examples."""
    seen = sum(site.equation.primitive.name == "conv_general_dilated" for site in program.sites)
    names = Counter(primitive_names(program.jaxpr.jaxpr))
    by_vmap = any(route.name == "vmap" for route in routes)
    return names["conv_general_dilated"] > (0 if by_vmap else seen)


def _clipped_sum(
    program: LossJaxpr,
    routes: list[Route],
    l2_clip: ClipBound,
    max_batch_size: int,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
) -> tuple[Any, ClippedGradInfo]:
    leaves, treedef = jax.tree.flatten(params)
    trace = jax.vmap(partial(_trace_example, program, routes, leaves))(batch)
    instantiated = _instantiate(program, routes, leaves, trace)
    squares = [
        _squared_norms(program, routes, instantiated, trace, leaf) for leaf in range(len(leaves))
    ]
    usable = mask & jnp.isfinite(trace.losses)
    of_leaves = jax.tree.unflatten(treedef, squares)
    clipping, norms, finite = clip_factors(of_leaves, l2_clip, usable, max_batch_size)
    sums = [
        instantiated[leaf].clipped_sum(factor)
        if leaf in instantiated
        else _bookkeeping_sum(program, trace, leaf, array, factor, finite)
        for leaf, (array, factor) in enumerate(zip(leaves, jax.tree.leaves(clipping), strict=True))
    ]
    return jax.tree.unflatten(treedef, sums), clipped_grad_info(norms, trace.losses, mask, finite)


def _trace_example(program: LossJaxpr, routes: list[Route], leaves: Any, example: Any) -> Trace:
    """The forward and backward pass of one example (for ``vmap``)."""
    reads = {site.equation.outvars[0]: number for number, site in enumerate(program.sites)}
    perturbed = {site.output: number for number, site in enumerate(program.sites)}
    operands: list[list[Any]] = [[] for _ in program.sites]

    def loss(output_grads: list[jax.Array], instantiated: dict[int, jax.Array]) -> Any:
        def perturb(equation: Any, inputs: list[Any], outputs: list[Any]) -> list[Any]:
            output = next(iter(equation.outvars), None)  # a print has none
            if output in reads:
                operands[reads[output]] = _recorded_operands(program.sites[reads[output]], inputs)
            if output not in perturbed:
                return outputs
            return [outputs[0] + output_grads[perturbed[output]]]

        values = [instantiated.get(leaf, array) for leaf, array in enumerate(leaves)]
        (value,) = evaluate(program.jaxpr, [*values, *jax.tree.leaves(example)], perturb)
        return value, operands

    outputs = [aval(site.output) for site in program.sites]
    zeros = [as_varying(jnp.zeros(a.shape, a.dtype), varying_axes(a)) for a in outputs]
    by_vmap = {leaf: leaves[leaf] for leaf, route in enumerate(routes) if route.name == "vmap"}
    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, kept), (output_grads, grads) = gradient(zeros, by_vmap)
    return Trace(value, kept, output_grads, grads)


def _recorded_operands(site: Site, inputs: list[Any]) -> list[Any]:
    keep = site.equation.primitive.name in _NEEDS_THE_OTHER
    return [
        value if keep and position != site.operand else None
        for position, value in enumerate(inputs)
    ]


def _instantiate(
    program: LossJaxpr, routes: list[Route], leaves: list[Any], trace: Trace
) -> dict[int, PerExampleGradients]:
    """Per-example gradients of the leaves whose route instantiates them."""
    instantiated = {leaf: from_leaf_gradients(gradients) for leaf, gradients in trace.grads.items()}
    for leaf, route in enumerate(routes):
        if route.name == "instantiate":
            sites, operands, output_grads = _site_values(program, trace, leaf)
            instantiated[leaf] = instantiate_gradients(sites, leaves[leaf], operands, output_grads)
    return instantiated


def _site_values(
    program: LossJaxpr, trace: Trace, leaf: int
) -> tuple[list[Site], list[Any], list[Any]]:
    """The sites of one leaf, their other operands and their output gradients."""
    numbers = program.sites_of(leaf)
    return (
        [program.sites[n] for n in numbers],
        [trace.operands[n] for n in numbers],
        [trace.output_grads[n] for n in numbers],
    )


def _squared_norms(
    program: LossJaxpr,
    routes: list[Route],
    instantiated: dict[int, PerExampleGradients],
    trace: Trace,
    leaf: int,
) -> jax.Array:
    """Squared norms of one leaf's per-example gradients, ``(batch,)``."""
    if leaf in instantiated:
        return instantiated[leaf].squares
    if routes[leaf].name == "unused":
        return jnp.zeros(len(trace.losses), trace.losses.dtype)
    sites, *inputs = _site_values(program, trace, leaf)
    if routes[leaf].name == "sequential":
        return map_sequentially(partial(_instantiated_squared_norm, sites[0]), inputs)
    if len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS:
        return embedding_squared_norms(sites[0], inputs[0][0], inputs[1][0])
    return jax.vmap(partial(_ghost_squared_norm, sites))(*inputs)


def _instantiated_squared_norm(site: Site, operands: Any, output_grads: Any) -> jax.Array:
    left, right = factors(site, operands[0], output_grads[0])
    gradient = jnp.einsum("gtr,gtc->grc", left, right, precision=EXACT)
    terms = jnp.sum(left**2, axis=-1) * jnp.sum(right**2, axis=-1)  # may cancel
    rounding = 4 * jnp.finfo(gradient.dtype).eps * jnp.sum(terms)
    return jnp.vdot(gradient, gradient, precision=EXACT) + rounding


def _ghost_squared_norm(sites: list[Site], operands: Any, output_grads: Any) -> jax.Array:
    each = [factors(*triple) for triple in zip(sites, operands, output_grads, strict=True)]
    if len(each) > 1:  # the rows of every left index the leaf's first axis
        each = [
            Factors(f.right, f.left) if row_axis(site) == 1 else f
            for site, f in zip(sites, each, strict=True)
        ]
    return sum(  # type: ignore[return-value]
        (1 if i == j else 2) * inner_product(each[i], each[j])
        for i in range(len(each))
        for j in range(i + 1)
    )


def _bookkeeping_sum(
    program: LossJaxpr, trace: Trace, leaf: int, array: Any, factor: jax.Array, finite: jax.Array
) -> jax.Array:
    """The clipped sum of one leaf: its transposed equations on scaled output gradients."""
    sites, *operands_and_grads = _site_values(program, trace, leaf)

    def weighted_sum(factor: jax.Array, arrays: Any) -> jax.Array:
        finite, all_operands, all_grads = arrays
        total = jnp.zeros(array.shape, accumulator(array))
        for site, inputs, output_grads in zip(sites, all_operands, all_grads, strict=True):
            operands = [
                zero_nonfinite(finite, value)
                if value is not None and jnp.issubdtype(value.dtype, jnp.floating)
                else value
                for value in inputs
            ]
            output_grad = zero_nonfinite(finite, output_grads).astype(total.dtype)
            operands, output_grad = _apply_clip_factors(site, factor, operands, output_grad)
            total += _batch_transpose(site, array, operands, output_grad)
        return total

    return sum_in_parts(weighted_sum, factor, (finite, *operands_and_grads))


def _apply_clip_factors(
    site: Site, factor: jax.Array, operands: list[Any], output_grad: jax.Array
) -> tuple[list[Any], jax.Array]:
    """Scales the output gradient, or the input of a product where that is smaller."""
    other = 1 - site.operand
    if site.equation.primitive.name != "dot_general" or operands[other].size >= output_grad.size:
        return operands, _scale_examples(factor, output_grad)
    scaled = _scale_examples(factor, operands[other].astype(output_grad.dtype))
    return [scaled if position == other else None for position in (0, 1)], output_grad


def _scale_examples(factor: jax.Array, array: jax.Array) -> jax.Array:
    return array * factor.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)


def _batch_transpose(
    site: Site, leaf: Any, operands: list[Any], output_grads: jax.Array
) -> jax.Array:
    """The gradient of the leaf at one site, summed over the batch."""
    if is_dense(site):
        matrix = dense_gradient(site, operands, output_grads)
        return transpose(partial(apply_views, site), leaf, matrix)

    def outputs(x: Any) -> Any:
        each = partial(apply_site, site, leaf=x)
        return jax.vmap(each, axis_size=len(output_grads))(operands)

    return transpose(outputs, leaf, output_grads)
