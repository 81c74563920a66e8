"""Scattering transform of images (Bruna and Mallat 2013): two scales, eight angles, two orders.

Filters are those of kymatio's ``Scattering2D(J=2, L=8)`` (Andreux et al. 2020), in single
precision. An image's coefficients depend on that image only.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NUM_ANGLES = 8
NUM_CHANNELS = 1 + 2 * NUM_ANGLES + NUM_ANGLES**2  # orders 0, 1 and 2
_STRIDE = 4
_LOW_PASS_SCALE = 1.6  # standard deviation of the Gaussian window, in pixels
_AT_ONCE = 100


class Moduli(NamedTuple):
    """Moduli of wavelet transforms of images ``(n, colours, height, width)``.

    Attributes:
      fine: at the smaller scale, ``(n, colours, angles, height, width)``.
      coarse: at the larger scale, with every second pixel in either direction.
      second: at the larger scale of ``fine``, ``(n, colours, angles, angles, height / 2,
        width / 2)``, the angle of ``fine`` first.
    """

    fine: jax.Array
    coarse: jax.Array
    second: jax.Array


def scattering(images: np.ndarray) -> np.ndarray:
    """Returns 81 scattering coefficients of each colour, averaged by a Gaussian at stride 4.

    Orders 0 (1 channel), 1 (16: smaller scale first) and 2 (64). The border is padded by reflection
    before the transform.

    Args:
      images: float32 ``(n, height, width, colours)``; height and width are multiples of 4.

    Returns:
      float32 ``(n, colours * 81, height / 4, width / 4)``.
    """
    return apply_in_batches(_scattering_of_batch, images)


def apply_in_batches(transform: Callable[[jax.Array], jax.Array], images: np.ndarray) -> np.ndarray:
    """Returns the transform of images, computed 100 images at a time."""
    parts = (images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE))
    return np.concatenate([np.asarray(transform(jnp.asarray(part))) for part in parts])


@jax.jit
def _scattering_of_batch(images: jax.Array) -> jax.Array:
    margin = ((0, 0), (0, 0), (_STRIDE, _STRIDE), (_STRIDE, _STRIDE))
    padded = jnp.pad(images.transpose(0, 3, 1, 2), margin, mode="reflect")
    fine, coarse, second = wavelet_moduli(padded)
    n, colours = padded.shape[:2]
    orders = [
        _smooth(maps, stride).reshape(
            n, colours, -1, *(side // _STRIDE for side in images.shape[1:3])
        )
        for maps, stride in ((padded, 4), (fine, 4), (coarse, 2), (second, 2))
    ]
    merged = jnp.concatenate(orders, axis=2)
    return merged.reshape(n, -1, *merged.shape[3:])


def wavelet_moduli(images: jax.Array) -> Moduli:
    """Returns the moduli of the wavelet transforms; convolutions are circular.

    Args:
      images: float32 ``(n, colours, height, width)``; height and width are even.
    """
    small, large = (jnp.asarray(wavelets(images.shape[-2:], scale)) for scale in (1.0, 2.0))
    spectrum = jnp.fft.fft2(images)[:, :, None]
    fine = jnp.abs(jnp.fft.ifft2(spectrum * small))
    coarse = jnp.abs(jnp.fft.ifft2(_subsample(spectrum * large)))
    again = jnp.fft.fft2(fine)[:, :, :, None] * large
    return Moduli(fine, coarse, jnp.abs(jnp.fft.ifft2(_subsample(again))))


@functools.cache
def wavelets(shape: tuple[int, int], scale: float) -> np.ndarray:
    """Returns Morlet wavelets in the frequency domain, ``(angles, height, width)``."""
    found = []
    for angle in np.arange(NUM_ANGLES) * np.pi / NUM_ANGLES:
        wave = _gabor(shape, scale, angle, 0.75 * np.pi / scale)
        envelope = _gabor(shape, scale, angle, 0.0)
        # Subtracts the mean, so that constant images have zero coefficients.
        found.append(wave - envelope * wave[0, 0] / envelope[0, 0])
    return np.stack(found).astype(np.float32)


def _gabor(shape: tuple[int, int], scale: float, angle: float, centre: float) -> np.ndarray:
    """Returns a Gaussian around one frequency, periodised."""
    down, right = (2 * np.pi * np.fft.fftfreq(side) for side in shape)
    total = np.zeros(shape)
    for turn_down, turn_right in itertools.product((-2 * np.pi, 0, 2 * np.pi), repeat=2):
        y, x = np.meshgrid(down + turn_down, right + turn_right, indexing="ij")
        along = np.cos(angle) * x + np.sin(angle) * y - centre
        across = np.cos(angle) * y - np.sin(angle) * x
        total += np.exp(-0.5 * (0.8 * scale) ** 2 * (along**2 + (2 * across) ** 2))
    return total


def _subsample(spectrum: jax.Array) -> jax.Array:
    """Returns the spectrum of every second pixel in either direction."""
    height, width = (side // 2 for side in spectrum.shape[-2:])
    return spectrum.reshape(*spectrum.shape[:-2], 2, height, 2, width).sum((-4, -2)) / 4


def _smooth(maps: jax.Array, stride: int) -> jax.Array:
    """Returns Gaussian averages at every ``stride``-th pixel, without the padded border."""
    down, right = (jnp.asarray(_gaussian_windows(side, stride)) for side in maps.shape[-2:])
    return jnp.einsum("yi,...ij,xj->...yx", down, maps, right)


def _gaussian_windows(side: int, stride: int) -> np.ndarray:
    """Returns one circular Gaussian window for each average, ``(averages, side)``."""
    scale = _LOW_PASS_SCALE * stride / _STRIDE
    window = np.fft.ifft(np.exp(-0.5 * (scale * 2 * np.pi * np.fft.fftfreq(side)) ** 2)).real
    centres = np.arange(stride, side - stride, stride)
    return window[(centres[:, None] - np.arange(side)) % side].astype(np.float32)
