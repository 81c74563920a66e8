"""Scattering features of image data sets, kept on disk, and their normalisation.

Group normalisation uses one image at a time and costs no privacy. The mean and the variance of each
channel over the training images are released by a Gaussian mechanism.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax._hashing import hash_arrays
from dpjax._typing import PRNGKey
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity, clip_norm_to, sum_in_blocks
from experiments.data import Dataset, Split, load_data
from experiments.lib.scattering import NUM_CHANNELS, scattering

# Images transformed or normalised together.
_AT_ONCE = 1000
_LEAST_VARIANCE = 0.01


class Moments(NamedTuple):
    """Released mean and variance of each channel, in units of `_public_scale` and its square.

    Attributes:
      mean: float32 ``(channels, 1, 1)``.
      variance: float32 ``(channels, 1, 1)``, at least 0.01.
    """

    mean: np.ndarray
    variance: np.ndarray


def load_features(images: Dataset, num_train: int, num_test: int, cache: Path) -> Dataset:
    """Returns the scattering features of the first training and test images.

    Args:
      images: the data set, with images ``(n, height, width, colours)``.
      num_train: number of training images.
      num_test: number of test images.
      cache: existing folder in which features are kept for later calls.

    Returns:
      The data set with features in place of images: float16 ``(n, colours * 81, height / 4,
      width / 4)``, read from disk when used.
    """
    parts = ((images.train, num_train), (images.test, num_test))
    train, test = (Split(_cached_features(part.x[:n], cache), part.y[:n]) for part, n in parts)
    note = images.note
    if len(train.y) < len(images.train.y):
        note += f" Of these, the first {len(train.y):,} and {len(test.y):,}."
    return dataclasses.replace(images, train=train, test=test, note=note)


def _cached_features(images: np.ndarray, cache: Path) -> np.ndarray:
    # The first image's coefficients are in the name, so that no other transform's are read.
    path = cache / f"features_{hash_arrays((images, scattering(images[:1])))[:16]}.npy"
    if not path.exists():
        features = _in_chunks(scattering, images)
        temporary = path.with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            np.save(file, features)
        temporary.replace(path)
    return np.load(path, mmap_mode="r")


def normalize_groups(features: np.ndarray, num_groups: int) -> np.ndarray:
    """Returns features with mean 0 and variance 1 in each group of channels of each image.

    Group normalisation (Wu and He 2018) without trained scales.

    Args:
      features: ``(n, channels, height, width)``.
      num_groups: a divisor of the number of channels.

    Returns:
      float16 ``(n, channels * height * width)``.
    """

    def normalize(part: np.ndarray) -> np.ndarray:
        groups = part.astype(np.float32).reshape(len(part), num_groups, -1)
        centred = groups - groups.mean(axis=2, keepdims=True)
        variance = np.square(centred).mean(axis=2, keepdims=True)
        return (centred / np.sqrt(variance + 1e-5)).reshape(len(part), -1)

    return _in_chunks(normalize, features)


def normalize_channels(features: np.ndarray, moments: Moments) -> np.ndarray:
    """Returns features ``(n, channels * height * width)`` standardised by channel, float16."""
    mean, deviation = moments.mean, np.sqrt(moments.variance)

    def normalize(part: np.ndarray) -> np.ndarray:
        scaled = part.astype(np.float32) / _public_scale(part.shape[1])
        return ((scaled - mean) / deviation).reshape(len(part), -1)

    return _in_chunks(normalize, features)


def moments_mechanism(num_channels: int, noise_multiplier: float, unit: str) -> dpjax.Gaussian:
    """Returns the Gaussian mechanism of one sum of means and mean squares by channel.

    One image contributes the mean and the mean square over space of each channel, in units of
    `_public_scale`, clipped to a public bound.

    Args:
      num_channels: number of channels.
      noise_multiplier: standard deviation of the noise over the sensitivity.
      unit: the unit of privacy.
    """
    # The sum is in float64, its terms are clipped in float32.
    bound = _moments_clip(num_channels) * (1 + SUM_ROUNDING)
    sensitivity = Sensitivity(bound, "l2", "zero_out", shape=(2 * num_channels,))
    return dpjax.Gaussian(sensitivity, noise_multiplier * sensitivity.value, unit)


def release_moments(key: PRNGKey, mechanism: dpjax.Gaussian, features: np.ndarray) -> Moments:
    """Releases the mean and variance of each channel over training images.

    Args:
      key: for the noise.
      mechanism: as of `moments_mechanism`.
      features: ``(n, channels, height, width)``.

    Privacy:
      One release of ``mechanism``: the sum over images under zero-out, where n is public.
    """
    num_examples, channels = features.shape[:2]
    clip = _moments_clip(channels)
    total = np.zeros(2 * channels)
    for start in range(0, num_examples, _AT_ONCE):
        part = features[start : start + _AT_ONCE].astype(np.float32) / _public_scale(channels)
        records = np.concatenate([part.mean((2, 3)), np.square(part).mean((2, 3))], axis=1)
        total += sum_in_blocks(clip_norm_to(jnp.asarray(records), clip))
    mean, square = np.split(mechanism.release(key, total) / num_examples, 2)
    variance = np.maximum(square - mean**2, _LEAST_VARIANCE)
    return Moments(*(each.astype(np.float32)[:, None, None] for each in (mean, variance)))


def _moments_clip(num_channels: int) -> float:
    """Returns twice the norm of an image's means and mean squares if all of them are 1."""
    return 2 * math.sqrt(2 * num_channels)


@functools.cache
def _public_scale(num_channels: int) -> np.ndarray:
    """Returns the root mean square of each channel over scikit-learn's digits, which are public."""
    squares = np.square(scattering(load_data("digits").test.x)).mean((0, 2, 3), keepdims=True)[0]
    return np.tile(np.sqrt(squares), (num_channels // NUM_CHANNELS, 1, 1))


def _in_chunks(transform: Callable[[np.ndarray], np.ndarray], images: np.ndarray) -> np.ndarray:
    """Returns the transform of many images as float16, computed in parts."""
    first = transform(images[:_AT_ONCE])
    found = np.empty((len(images), *first.shape[1:]), np.float16)
    found[:_AT_ONCE] = first
    for start in range(_AT_ONCE, len(images), _AT_ONCE):
        found[start : start + _AT_ONCE] = transform(images[start : start + _AT_ONCE])
    return found
