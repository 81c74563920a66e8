"""Convolutions and pooling by slices, which stay fast with other weights for each teacher.

``vmap`` over the weights of a convolution makes a grouped convolution, which XLA runs without its
fast kernels. As a product of patches and kernel it becomes a batched matrix product.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpjax._jaxprs import bind, body_of, evaluate

# Of each place in a window: start, end and stride of its entries in all windows.
_Windows = tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]
_POOLING: dict[str, tuple[Callable[..., jax.Array], float]] = {
    "reduce_window_max": (jnp.maximum, -np.inf),
    "reduce_window_sum": (jnp.add, 0.0),
}


def by_slices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` with its convolutions and pooling computed from slices.

    The results are the same up to rounding, and the gradients where no two entries of a pooling
    window are its maximum: there they are shared by both instead of passed to the first. Grouped
    and transposed convolutions, and those inside of loops, are left as they are.
    """

    def sliced(*arguments: Any) -> Any:
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = evaluate(jaxpr, jax.tree.leaves(arguments), _replace)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return sliced


def _replace(equation: JaxprEqn, operands: Any) -> Any:
    """Evaluates an equation, convolutions and pooling by slices, also inside of calls."""
    name, settings = equation.primitive.name, equation.params
    if name in ("jit", "remat2"):
        return evaluate(body_of(equation), operands, _replace)
    if name == "conv_general_dilated" and _is_plain(settings):
        result: Any = equation.outvars[0].aval
        return [_convolve(operands[0], operands[1], settings).astype(result.dtype)]
    if name in _POOLING and set(settings["base_dilation"]) == {1}:
        return [_pool(operands[0], *_POOLING[name], settings)]
    return bind(equation, operands)


def _is_plain(settings: Any) -> bool:
    groups = settings["feature_group_count"] * settings["batch_group_count"]
    return groups == 1 and set(settings["lhs_dilation"]) <= {1}


def _convolve(images: jax.Array, kernel: jax.Array, settings: Any) -> jax.Array:
    """Returns the product of the patches and the kernel."""
    numbers = settings["dimension_numbers"]
    batch, in_channel, *rows = numbers.lhs_spec
    images = jnp.transpose(images, (batch, *rows, in_channel))
    out_channel, in_channel, *rows = numbers.rhs_spec
    kernel = jnp.transpose(kernel, (*rows, in_channel, out_channel))
    strides, dilation = ((1, *settings[name], 1) for name in ("window_strides", "rhs_dilation"))
    padded = _pad(images, 0.0, [(0, 0), *settings["padding"], (0, 0)])
    windows = _windows(padded.shape, (1, *kernel.shape[:-2], 1), strides, dilation)
    patches = _patches(windows, padded)
    # matrices, which stay matrices under vmap
    result = jnp.matmul(
        patches.reshape(-1, patches.shape[-1]),
        kernel.reshape(-1, kernel.shape[-1]),
        precision=settings["precision"],
        preferred_element_type=settings["preferred_element_type"],
    )
    batch, out_channel, *rows = numbers.out_spec
    order = np.argsort((batch, *rows, out_channel)).tolist()
    return jnp.transpose(result.reshape(*patches.shape[:-1], -1), order)


def _pool(
    x: jax.Array, combine: Callable[..., jax.Array], neutral: float, settings: Any
) -> jax.Array:
    """Returns ``combine`` of the entries of all windows."""
    names = ("window_dimensions", "window_strides", "window_dilation")
    padded = _pad(x, neutral, settings["padding"])
    windows = _windows(padded.shape, *(settings[name] for name in names))
    return functools.reduce(combine, [jax.lax.slice(padded, *window) for window in windows])


def _pad(x: jax.Array, value: float, padding: Sequence[tuple[int, int]]) -> jax.Array:
    return jax.lax.pad(x, jnp.array(value, x.dtype), [(*pair, 0) for pair in padding])


def _windows(
    shape: tuple[int, ...], sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> _Windows:
    """Returns for each place in a window the slice of the entries at that place of all windows."""
    spans = [(size - 1) * step for size, step in zip(sizes, dilation, strict=True)]
    starts = [np.multiply(place, dilation) for place in itertools.product(*map(range, sizes))]
    ends = [start + shape - spans for start in starts]
    return tuple(
        (tuple(start.tolist()), tuple(end.tolist()), tuple(strides))
        for start, end in zip(starts, ends, strict=True)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _patches(windows: _Windows, x: jax.Array) -> jax.Array:
    """Returns the windows' entries side by side on the last axis.

    They are computed once: XLA would compute ``x`` again for each slice. The gradient is summed up
    in place, slice after slice, instead of as a sum of padded arrays.
    """
    x = jax.lax.optimization_barrier(x)
    return jnp.concatenate([jax.lax.slice(x, *window) for window in windows], axis=-1)


def _patches_forward(windows: _Windows, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.optimization_barrier(_patches(windows, x)), jnp.zeros_like(x)


def _patches_backward(windows: _Windows, zeros: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    gradient, summed = jax.lax.optimization_barrier(gradient), zeros
    parts = jnp.split(gradient, len(windows), axis=-1)
    for window, part in zip(windows, parts, strict=True):
        places = tuple(slice(*ends) for ends in zip(*window, strict=True))
        summed = summed.at[places].add(part)
    return (summed,)


_patches.defvjp(_patches_forward, _patches_backward)
