"""A site's equation as a function of its parameter alone, and that function transposed.

Everything here is computed in float32 or wider and in full precision, whatever the program uses. A
clipped sum that is rounded to half precision moves by more than a clip bound when one example goes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.gradients.bookkeeping.program import Site, aval
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.varying import abstract, as_varying, varying_axes


def apply_to(site: Site, operands: list[Any], leaf: Any) -> Any:
    """The equation's output, for the leaf given and its other operands as recorded.

    An operand that is ``None`` was not recorded, because the equation's transpose does not need it.
    """
    dtype = accumulator(leaf)
    inputs = [
        _zeros_like(aval(atom), dtype) if value is None else _cast(value, dtype)
        for atom, value in zip(site.equation.invars, operands, strict=True)
    ]
    inputs[site.operand] = through_views(site, leaf)
    output = site.equation.primitive.bind(*inputs, **_in_full_precision(site, dtype))
    return output if site.total is None else site.total.primitive.bind(output, **site.total.params)


def through_views(site: Site, leaf: Any) -> Any:
    """The leaf as the equation sees it, but for its dtype."""
    for view in site.views:
        if view.primitive.name != "convert_element_type":
            leaf = view.primitive.bind(leaf, **view.params)
    return leaf


def transpose(function: Callable[[Any], Any], leaf: Any, signal: jax.Array) -> jax.Array:
    """The transpose, at ``signal``, of a function that is linear in an array shaped like ``leaf``.

    The result has the leaf's shape, in float32 or wider.
    """
    dtype = accumulator(leaf)
    shape = abstract(leaf.shape, dtype, varying_axes(leaf))
    return jax.linear_transpose(function, shape)(signal.astype(dtype))[0]


def _in_full_precision(site: Site, dtype: Any) -> dict[str, Any]:
    parameters = dict(site.equation.params)
    if "precision" in parameters:
        parameters |= {"precision": (EXACT, EXACT), "preferred_element_type": jnp.dtype(dtype)}
    return parameters


def _zeros_like(described: Any, dtype: Any) -> jax.Array:
    return as_varying(jnp.zeros(described.shape, dtype), varying_axes(described))


def _cast(value: Any, dtype: Any) -> Any:
    return value.astype(dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value
