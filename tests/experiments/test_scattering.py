"""The scattering transform: kymatio's coefficients, and what its definition implies."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.lib.scattering import NUM_CHANNELS, scattering, wavelet_moduli, wavelets

# Of the pattern below, by kymatio 0.3.0: at the first average, at one inside, and the mean.
KYMATIO = Path(__file__).parent / "kymatio_scattering.json"
RNG = np.random.default_rng(0)
# kymatio's filters have 3.1415 in place of pi: every filter is larger by this factor.
PI = np.pi / 3.1415


def pattern():
    """Height 28, width 32: exchanged axes would show."""
    y, x = np.mgrid[:28, :32]
    image = 0.5 + 0.5 * np.sin(0.9 * y + 0.05 * y * x) * np.cos(0.4 * x)
    return image.astype(np.float32)[None, ..., None]


def order_of_kymatio():
    """The same channels: kymatio's angle t is the angle t + 1 here."""
    angles = np.roll(np.arange(8), -1)
    pairs = 8 * angles[:, None] + angles
    return np.concatenate([[0], 1 + angles, 9 + angles, 17 + pairs.ravel()])


def test_scattering_is_that_of_kymatio():
    coefficients = scattering(pattern())
    published = json.loads(KYMATIO.read_text("utf-8"))
    stages = np.repeat([1, 2, 3], [1, 16, 64])
    found = coefficients[0, order_of_kymatio()] * PI ** stages[:, None, None]
    assert found.shape == (NUM_CHANNELS, 7, 8)
    values = {"corner": found[:, 0, 0], "inside": found[:, 4, 2], "mean": found.mean((1, 2))}
    for name, value in values.items():
        np.testing.assert_allclose(value, published[name], rtol=2e-5, atol=1e-7)
    # The power check: another order of the channels is not kymatio's.
    assert np.abs(coefficients[0].mean((1, 2)) - published["mean"]).max() > 1e-3


def test_scattering_of_a_constant():
    constant = scattering(np.full((1, 28, 32, 1), 0.3, np.float32))[0]
    np.testing.assert_allclose(constant[0], 0.3, atol=1e-6)
    assert np.abs(constant[1:]).max() < 1e-6


@pytest.mark.slow
def test_scattering_of_an_image_depends_on_it_alone():
    images = RNG.random((103, 28, 32, 2), dtype=np.float32)
    together = scattering(images)
    assert together.shape == (103, 2 * NUM_CHANNELS, 7, 8)
    assert together.dtype == np.float32
    one = scattering(images[101:, ..., 1:])
    np.testing.assert_allclose(together[101:, NUM_CHANNELS:], one, atol=1e-6)


@pytest.mark.slow
def test_wavelet_moduli_are_circular_convolutions():
    """Against a convolution in space, of the first angle at the larger scale."""
    image = RNG.random((1, 1, 8, 8)).astype(np.float32)
    filters = np.fft.ifft2(wavelets((8, 8), 2.0)[0])
    response = np.zeros((8, 8), complex)
    for y, x in np.ndindex(8, 8):
        response += image[0, 0, y, x] * np.roll(filters, (y, x), axis=(0, 1))
    moduli = wavelet_moduli(image)
    np.testing.assert_allclose(moduli.coarse[0, 0, 0], np.abs(response)[::2, ::2], atol=1e-6)
