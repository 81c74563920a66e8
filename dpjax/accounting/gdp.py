"""Gaussian differential privacy (Dong, Roth & Su 2022): mu of an event, its delta and epsilon.

A mechanism is mu-GDP if every test of its outputs on two neighbours has at least the type II error
of the best test of N(0, 1) against N(mu, 1). For a Gaussian release on all records mu is exact. For
subsampled ones it is a central limit (Bu, Dong, Long & Su 2020): an approximation that errs on
either side, so nothing computed from it is a guarantee. Everything here is float64 on the host.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent

from dpjax._checks import as_finite, as_float64, check
from dpjax.accounting.events import AtomicEvents, decompose, is_nonprivate
from dpjax.accounting.tradeoff.base import scalar
from dpjax.accounting.tradeoff.families import gaussian_log_delta
from dpjax.adjacency import Adjacency

__all__ = ["delta", "epsilon", "mu_of_event", "poisson_clt_mu"]

# Of the interval that holds an epsilon: to the last digits of a float.
_HALVINGS = 52


def delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Any:
    """Returns the delta at which mu-GDP is (epsilon, delta)-DP; scalars give a scalar.

    It is Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2), without cancellation
    for large ``epsilon``. A ``mu`` of zero gives zero.

    Source: Dong, Roth, Su 2022, Corollary 2.13 in the preprint's numbering.

    Args:
      mu: numbers >= 0, the sensitivity over the standard deviation of the noise.
      epsilon: any real numbers; broadcasts against ``mu``.

    Returns:
      Delta in [0, 1], in float64, of the arguments' common shape.

    >>> round(delta(mu=1.0, epsilon=1.0), 4)
    0.1269
    """
    return scalar(np.exp(gaussian_log_delta(as_float64(mu, "mu"), as_float64(epsilon, "epsilon"))))


def epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Any:
    """Returns the least epsilon >= 0 at which mu-GDP is (epsilon, ``delta``)-DP, rounded up.

    Args:
      mu: numbers >= 0, the sensitivity over the standard deviation of the noise.
      delta: numbers in (0, 1); broadcasts against ``mu``.

    Returns:
      Epsilon in float64, of the arguments' common shape; scalars give a scalar.

    Raises:
      ValueError: a ``mu`` is negative or a ``delta`` not in (0, 1).

    >>> round(epsilon(mu=1.0, delta=0.1269), 3)
    1.0
    """
    mu, delta = as_float64(mu, "mu"), as_float64(delta, "delta")
    check(bool(np.all(mu >= 0)), "mu", scalar(mu), "numbers >= 0")
    check(bool(np.all((delta > 0) & (delta < 1))), "delta", scalar(delta), "in (0, 1)")
    # At the upper end delta is at most Phi(-sqrt(2 log(1 / delta))), which is below delta / 2.
    upper = np.asarray(mu * (mu / 2 + np.sqrt(-2 * np.log(delta))))
    lower = np.zeros_like(upper)
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2
        within = gaussian_log_delta(mu, middle) <= np.log(delta)
        lower, upper = np.where(within, lower, middle), np.where(within, middle, upper)
    return scalar(np.where(gaussian_log_delta(mu, np.zeros(())) <= np.log(delta), 0.0, upper))


def poisson_clt_mu(
    noise_multiplier: npt.ArrayLike, sampling_rate: npt.ArrayLike, num_steps: npt.ArrayLike
) -> Any:
    """Returns q sqrt(T (exp(1 / sigma^2) - 1)), the limit for Poisson-sampled Gaussian releases.

    It holds under add/remove, in the limit of many steps T at a rate q of order 1 / sqrt(T); at
    finite T it may err on either side.

    Args:
      noise_multiplier: sigma >= 0, over the clip bound.
      sampling_rate: q in (0, 1].
      num_steps: T; the three arguments broadcast.

    Returns:
      The mu of the limit, infinite where there is next to no noise; scalars give a scalar.

    Source: Bu, Dong, Long & Su (2020), Theorem 5.

    >>> round(poisson_clt_mu(noise_multiplier=1.3, sampling_rate=256 / 60_000, num_steps=3_515), 2)
    0.23
    """
    noise_multiplier = as_float64(noise_multiplier, "noise_multiplier")
    sampling_rate = as_float64(sampling_rate, "sampling_rate")
    num_steps = as_finite(num_steps, "num_steps", "numbers >= 0", lambda steps: steps >= 0)
    with np.errstate(over="ignore", divide="ignore"):
        chi_square = np.expm1(np.square(np.divide(1.0, noise_multiplier)))
        mu = np.multiply(sampling_rate, np.sqrt(np.multiply(num_steps, chi_square)))
        return mu.item() if np.ndim(mu) == 0 else mu


def mu_of_event(event: DpEvent, adjacency: Adjacency) -> float:
    """Returns the mu of ``event``, whose noise multipliers are over one clip bound.

    Exact for Gaussian releases on all records; a central limit for Gaussian releases on Poisson
    samples (add/remove) and on samples of fixed size without replacement (replace-one; Dong, Roth
    & Su 2022, Section 5). A composition has the root of the sum of the squares.

    Args:
      event: what is released.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      mu >= 0; infinity where something is released without noise.

    Raises:
      UnsupportedEventError: any other event.

    >>> import dp_accounting
    >>> mu_of_event(dp_accounting.GaussianDpEvent(2.0), "replace_one")
    1.0
    """
    atoms = decompose(event, adjacency)
    return math.inf if is_nonprivate(atoms) else compute_mu(atoms)


def compute_mu(atoms: AtomicEvents) -> float:
    """Returns the mu of all ``atoms`` together, exact or by the central limit."""
    return math.sqrt(sum(count * atom.squared_mu() for atom, count in atoms))
