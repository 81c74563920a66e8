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

from dpjax.gradients.bookkeeping.loss_jaxpr import evaluate

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


def _replace(equation: JaxprEqn, operands: Any, outputs: Any) -> Any:
    """Returns the outputs of a convolution or pooling by slices; the unused ones are not run."""
    name, settings = equation.primitive.name, equation.params
    if name == "conv_general_dilated" and _is_plain(settings):
        return [_convolve(*operands, settings).astype(outputs[0].dtype)]
    if name in _POOLING and set(settings["base_dilation"]) == {1}:
        return [_pool(operands[0], *_POOLING[name], settings)]
    return outputs


def _is_plain(settings: Any) -> bool:
    groups = settings["feature_group_count"] * settings["batch_group_count"]
    return groups == 1 and set(settings["lhs_dilation"]) <= {1}


def _convolve(images: jax.Array, kernel: jax.Array, settings: Any) -> jax.Array:
    """Returns the product of the patches and the kernel."""
    numbers = settings["dimension_numbers"]
    images = jnp.transpose(
        images, (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    )
    out_channel, in_channel, *spatial = numbers.rhs_spec
    kernel = jnp.transpose(kernel, (*spatial, in_channel, out_channel))
    padding = [(0, 0), *settings["padding"], (0, 0)]
    strides, dilation = ((1, *settings[name], 1) for name in ("window_strides", "rhs_dilation"))
    windows = _windows(images, 0.0, (1, *kernel.shape[:-2], 1), strides, dilation, padding)
    result = jnp.matmul(
        jnp.concatenate(windows, axis=-1),
        kernel.reshape(-1, kernel.shape[-1]),
        precision=settings["precision"],
        preferred_element_type=settings["preferred_element_type"],
    )
    order = np.argsort((numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]))
    return jnp.transpose(result, order)


def _pool(
    x: jax.Array, combine: Callable[..., jax.Array], neutral: float, settings: Any
) -> jax.Array:
    """Returns ``combine`` of the slices of all windows."""
    names = ("window_dimensions", "window_strides", "window_dilation", "padding")
    sizes, strides, dilation, padding = (settings[name] for name in names)
    return functools.reduce(combine, _windows(x, neutral, sizes, strides, dilation, padding))


def _windows(
    x: jax.Array,
    fill: float,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> list[jax.Array]:
    """Returns for each place in a window the entries of ``x`` at that place of all windows."""
    padded = jax.lax.pad(x, jnp.array(fill, x.dtype), [(*pair, 0) for pair in padding])
    spans = [(size - 1) * step for size, step in zip(sizes, dilation, strict=True)]
    lengths = np.array(padded.shape) - spans  # of the range of the windows' first entries
    offsets = itertools.product(*map(range, sizes))
    starts = [np.multiply(offset, dilation) for offset in offsets]
    return [jax.lax.slice(padded, start, start + lengths, strides) for start in starts]
