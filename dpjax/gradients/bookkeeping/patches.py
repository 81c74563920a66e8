"""Convolutions as matrix products: the patches that each output pixel sees."""

import itertools
import math

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
        and math.prod(aval(site.output).shape) > 0
    )


def patches(site: Site, image: jax.Array) -> jax.Array:
    """``(pixels, rows)``: for each output pixel what the kernel sees, rows as ``to_kernel``.

    One gather by constant positions: less than half the time of a slice for each tap.
    """
    parameters = site.equation.params
    numbers = parameters["dimension_numbers"]
    image = image.transpose([numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]])
    image = jnp.pad(image, [(0, 0), *parameters["padding"], (0, 0)])
    positions = _positions(site, image.shape[1:-1])
    flat = image.reshape(image.shape[0], -1, image.shape[-1])
    return jnp.take(flat, positions, axis=1, mode="clip").reshape(
        -1, positions.shape[1] * flat.shape[2]
    )


def signal_rows(site: Site, signal: jax.Array) -> jax.Array:
    """``(pixels, channels)``: the signal at each output pixel, in the order of `patches`."""
    spec = site.equation.params["dimension_numbers"].out_spec
    signal = signal.transpose([spec[0], *spec[2:], spec[1]])
    return signal.reshape(-1, signal.shape[-1])


def to_kernel(site: Site, matrix: jax.Array) -> jax.Array:
    """From ``(channels, rows)`` to the kernel's own layout."""
    spec = site.equation.params["dimension_numbers"].rhs_spec
    kernel = aval(site.equation.invars[1]).shape
    full = matrix.reshape(kernel[spec[0]], *_window_shape(site), kernel[spec[1]])
    return full.transpose(np.argsort([spec[0], *spec[2:], spec[1]]))


def _window_shape(site: Site) -> list[int]:
    spec = site.equation.params["dimension_numbers"].rhs_spec
    return [aval(site.equation.invars[1]).shape[d] for d in spec[2:]]


def _positions(site: Site, spatial: tuple[int, ...]) -> np.ndarray:
    """``(pixels, taps)``: where in the flat padded image each tap of each output pixel lies."""
    parameters = site.equation.params
    output = [aval(site.output).shape[d] for d in parameters["dimension_numbers"].out_spec[2:]]
    axes = [
        np.arange(pixels)[:, None] * stride + np.arange(taps) * dilation
        for pixels, stride, taps, dilation in zip(
            output,
            parameters["window_strides"],
            _window_shape(site),
            parameters["rhs_dilation"],
            strict=True,
        )
    ]
    positions = np.zeros((1, 1), np.int32)
    for axis, extent in zip(axes, spatial, strict=True):
        positions = positions[:, None, :, None] * extent + axis[None, :, None, :]
        positions = positions.reshape(math.prod(positions.shape[:2]), -1)
    return positions
