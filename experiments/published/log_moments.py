"""The published bound on log moments of the reverse direction."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import binom


def published_reverse_log_moments(
    orders: Sequence[int],
    distances: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: float,
) -> npt.NDArray[np.float64]:
    """Returns the published upper bound c^R on the log moments log E_Q[(Q / P)^lambda].

    It follows from convexity and is loose: at q = 0.01, lambda = s = d = 1 it is 0.0170, and the
    moment that it bounds is 0.00016. `dpjax.bdp.subsampled_gaussian_log_moments` has the other
    direction and the roles of P and Q.

    Args:
      orders: whole numbers lambda >= 1.
      distances: between the two values, of any shape.
      sampling_rate: q, the probability with which a record is drawn.
      noise_std: standard deviation of the noise.

    Source: Triastcyn & Faltings (2020), Theorem 3 (c^R).

    >>> published_reverse_log_moments((1,), 1.0, sampling_rate=0.01, noise_std=1.0)
    array([0.0170])
    """
    squares = np.square(np.asarray(distances, float) / noise_std)[..., None, None]
    numbers = np.asarray(orders, float)
    k = np.arange(1, numbers.max() + 1)
    excesses = np.expm1(k * (k + 1) / 2 * squares)
    return np.log1p(np.sum(binom.pmf(k, numbers[:, None], sampling_rate) * excesses, axis=-1))
