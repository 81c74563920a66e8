"""Convolutions as matrix products: the patches that each output pixel sees, cut out by slices."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.gradients.bookkeeping.program import Site, aval


def is_plain(site: Site) -> bool:
    """Whether the convolution is one matrix product on patches (no groups, no dilated input)."""
    parameters = site.equation.params
    return (
        parameters["feature_group_count"] == 1
        and parameters["batch_group_count"] == 1
        and set(parameters["lhs_dilation"]) <= {1}
        and min(itertools.chain((0,), *parameters["padding"])) >= 0
    )


def patches(site: Site, image: jax.Array) -> jax.Array:
    """``(pixels, rows)``: for each output pixel what the kernel sees, rows as ``kernel_rows``."""
    parameters = site.equation.params
    numbers, strides = parameters["dimension_numbers"], parameters["window_strides"]
    image = image.transpose([numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]])
    image = jnp.pad(image, [(0, 0), *parameters["padding"], (0, 0)])
    pixels = [aval(site.output).shape[d] for d in numbers.out_spec[2:]]
    taps = [
        image[(slice(None), *_window(offset, pixels, strides, parameters["rhs_dilation"]))]
        for offset in itertools.product(*map(range, _window_shape(site)))
    ]
    stacked = jnp.stack(taps, axis=-2)
    return stacked.reshape(math.prod(stacked.shape[:-2]), -1)


def signal_rows(site: Site, signal: jax.Array) -> jax.Array:
    """``(pixels, channels)``: the signal at each output pixel, in the order of `patches`."""
    spec = site.equation.params["dimension_numbers"].out_spec
    signal = signal.transpose([spec[0], *spec[2:], spec[1]])
    return signal.reshape(-1, signal.shape[-1])


def to_kernel(site: Site, matrix: jax.Array) -> jax.Array:
    """From ``(rows, channels)`` to the kernel's own layout."""
    spec = site.equation.params["dimension_numbers"].rhs_spec
    kernel = aval(site.equation.invars[1]).shape
    full = matrix.reshape(*_window_shape(site), kernel[spec[1]], kernel[spec[0]])
    return full.transpose(np.argsort([*spec[2:], spec[1], spec[0]]))


def _window_shape(site: Site) -> list[int]:
    spec = site.equation.params["dimension_numbers"].rhs_spec
    return [aval(site.equation.invars[1]).shape[d] for d in spec[2:]]


def _window(offset: Any, pixels: Any, strides: Any, dilation: Any) -> list[slice]:
    starts = [o * d for o, d in zip(offset, dilation, strict=True)]
    return [
        slice(start, start + stride * (count - 1) + 1, stride)
        for start, count, stride in zip(starts, pixels, strides, strict=True)
    ]
