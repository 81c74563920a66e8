"""Synthetic gradients of Figures 1, 3 and 4 of Triastcyn and Faltings (2020): norms and distances.

Coordinates are Weibull variables of shape 1/2: 1,000 in a gradient, 50 gradients in a step. All
that an account needs of a step is the inner products of its gradients.
"""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SHAPE, DIMENSION, BATCH = 0.5, 1_000, 50
_REFERENCE_STEPS, _REFERENCE_SEED = 200, 2**31


class Distances(NamedTuple):
    """Of one step or of several, on leading axes.

    Attributes:
      norms: of the gradients, ``(..., 50)``.
      pairs: distances of all pairs of them, ``(..., 1225)``.
    """

    norms: Array
    pairs: Array


def inner_products(num_steps: int, seed: int) -> Array:
    """Returns the inner products of the gradients of each step, ``(num_steps, 50, 50)``.

    >>> inner_products(2, seed=0).shape
    (2, 50, 50)
    """
    generator = np.random.default_rng(seed)
    gradients = generator.weibull(SHAPE, (num_steps, BATCH, DIMENSION))
    return np.asarray(gradients @ gradients.swapaxes(-1, -2))


def distances(products: Array, l2_clip: npt.ArrayLike = np.inf) -> Distances:
    """Returns norms and pair distances of gradients that are first clipped.

    Args:
      products: as `inner_products` returns them.
      l2_clip: for all steps, or one for each; by default gradients stay as they are.

    >>> clipped = distances(np.array([[9.0, 0.0], [0.0, 16.0]]), l2_clip=1.0)
    >>> clipped.norms, clipped.pairs
    (array([1., 1.]), array([1.4142]))
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    factors = np.minimum(1.0, np.asarray(l2_clip)[..., None] / np.sqrt(squares))
    clipped = factors[..., :, None] * products * factors[..., None, :]
    squares = np.diagonal(clipped, axis1=-2, axis2=-1)
    first, second = np.triu_indices(squares.shape[-1], 1)
    apart = squares[..., first] + squares[..., second] - 2 * clipped[..., first, second]
    return Distances(np.sqrt(squares), np.sqrt(np.maximum(apart, 0.0)))


@functools.cache
def norm_quantile(level: float) -> float:
    """Returns a quantile of the norms' distribution, from 10,000 draws of their own."""
    return float(np.quantile(_reference_norms(), level))


@functools.cache
def _reference_norms() -> Array:
    parts = [
        distances(inner_products(_REFERENCE_STEPS // 4, _REFERENCE_SEED + part)).norms
        for part in range(4)
    ]
    return np.concatenate(parts).ravel()
