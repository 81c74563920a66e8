"""A fixed front for photographs: scattering coefficients, which nothing was trained for.

Source: J. Bruna, S. Mallat, "Invariant scattering convolution networks", 2013; as a front of
private classifiers: F. Tramèr, D. Boneh, "Differentially private learning needs better features (or
much more data)", 2021.
"""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

NUM_FEATURES = 3888
_SIDE, _CELLS, _NUM_ANGLES = 32, 4, 8
_OPPONENT = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])
_AT_ONCE = 100


def scattering(images: np.ndarray) -> np.ndarray:
    """Returns 3,888 features of norm 1 of each image, float32 (n, 3888).

    Brightness and two differences of colours, each averaged over 4x4 cells: as they are, as moduli
    of 16 wavelets (two sizes, eight angles), and as moduli of the large wavelets of the small ones'
    moduli. Each of these three groups is centred and scaled to norm 1 within the image.

    Privacy: an image's features depend on that image alone; nothing is learned from the data.

    Args:
      images: float32 in [0, 1], (n, 32, 32, 3).
    """
    front = _front()
    parts = (images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE))
    return np.concatenate([np.asarray(front(jnp.asarray(part))) for part in parts])


@functools.cache
def _front() -> Callable[[jax.Array], jax.Array]:
    small, large = (jnp.asarray(_wavelets(size)) for size in (0, 1))

    @jax.jit
    def features(images: jax.Array) -> jax.Array:
        colours = jnp.einsum("nijc,kc->nkij", images, jnp.asarray(_OPPONENT, jnp.float32))
        spectrum = jnp.fft.fft2(colours)[:, :, None]
        fine = jnp.abs(jnp.fft.ifft2(spectrum * small))
        coarse = jnp.abs(jnp.fft.ifft2(_halved(spectrum * large)))
        again = jnp.fft.fft2(fine)[:, :, :, None] * large
        twice = jnp.abs(jnp.fft.ifft2(_halved(again)))
        first = jnp.concatenate([_cells(fine), _cells(coarse)], axis=1)
        groups = [_normalised(group) for group in (_cells(colours), first, _cells(twice))]
        return jnp.concatenate(groups, axis=1) / jnp.sqrt(3.0)

    return features


def _wavelets(size: int) -> np.ndarray:
    """Morlet wavelets in the frequency domain, (angles, 32, 32)."""
    angles = np.arange(_NUM_ANGLES) * np.pi / _NUM_ANGLES
    return np.stack([_morlet(2.0**size, angle) for angle in angles]).astype(np.float32)


def _morlet(scale: float, angle: float) -> np.ndarray:
    centre = 0.75 * np.pi / scale
    wave, envelope = _bump(scale, angle, centre), _bump(scale, angle, 0.0)
    return wave - envelope * wave[0, 0] / envelope[0, 0]  # blind to a constant


def _bump(scale: float, angle: float, centre: float) -> np.ndarray:
    """A Gaussian around one frequency, periodised."""
    axis = 2 * np.pi * np.fft.fftfreq(_SIDE)
    total = np.zeros((_SIDE, _SIDE))
    for down, right in itertools.product((-2 * np.pi, 0, 2 * np.pi), repeat=2):
        y, x = np.meshgrid(axis + down, axis + right, indexing="ij")
        along = np.cos(angle) * x + np.sin(angle) * y - centre
        across = np.cos(angle) * y - np.sin(angle) * x
        total += np.exp(-0.5 * (0.8 * scale) ** 2 * (along**2 + (2 * across) ** 2))
    return total


def _halved(spectrum: jax.Array) -> jax.Array:
    """The spectrum of every second pixel in either direction."""
    half = spectrum.shape[-1] // 2
    return spectrum.reshape(*spectrum.shape[:-2], 2, half, 2, half).sum((-4, -2)) / 4


def _cells(maps: jax.Array) -> jax.Array:
    """Averages over 4x4 cells: from (n, ..., side, side) to (n, features)."""
    width = maps.shape[-1] // _CELLS
    split = maps.reshape(*maps.shape[:-2], _CELLS, width, _CELLS, width)
    return split.mean((-3, -1)).reshape(len(maps), -1)


def _normalised(group: jax.Array) -> jax.Array:
    centred = group - group.mean(axis=1, keepdims=True)
    return centred / (jnp.linalg.norm(centred, axis=1, keepdims=True) + 1e-3)
