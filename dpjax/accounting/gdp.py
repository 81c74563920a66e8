"""Gaussian differential privacy (Dong, Roth & Su 2022): mu of an event, its delta and epsilon.

A mechanism is mu-GDP if every test of its outputs on two neighbours has at least the type II error
of the best test of N(0, 1) against N(mu, 1). For a Gaussian release on all records mu is exact. For
subsampled ones it is a central limit (Bu, Dong, Long & Su 2020): an approximation that errs on
either side, so nothing computed from it is a guarantee. `summarize` gives the least mu of any
trade-off function. Everything here is float64 on the host.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpjax._checks import as_finite, as_float64, check, check_delta, check_type
from dpjax.accounting.events import AtomicEvents, decompose, is_nonprivate
from dpjax.accounting.tradeoff.base import TradeOff, scalar
from dpjax.accounting.tradeoff.families import gaussian_log_delta
from dpjax.adjacency import Adjacency

__all__ = ["GaussianSummary", "delta", "epsilon", "mu_of_event", "poisson_clt_mu", "summarize"]

# Of the interval that holds an epsilon: to the last digits of a float.
_HALVINGS = 52
# Errors below this do not count for the mu of a curve: the far tail of a sampled release is that of
# all its steps unsampled, and a curve known up to rounding has none.
LEAST_ERROR = 1e-7
# So many levels make the mu of a Gaussian release 1e-5 too large.
_LEVELS = 2_000


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


class GaussianSummary(NamedTuple):
    """The mu of Gaussian DP that summarises a trade-off function, and the regret of the summary.

    Attributes:
      mu: the least for which the curve of mu-GDP is below the function, rounded up.
      regret: the least k such that the function, moved by k in both errors, is below that curve:
        almost 0 for a Gaussian release, 0.001 for 2,000 subsampled ones at a rate of
        0.33, some 0.03 for hundreds at rates of 0.01 to 0.1, 0.03 for one release of Laplace noise.
    """

    mu: float
    regret: float


def summarize(curve: TradeOff, *, least_error: float = LEAST_ERROR) -> GaussianSummary:
    """Returns the least mu for which a trade-off function is mu-GDP, and the regret of that.

    One number stands for all (epsilon, delta) of the function, and composes.

    Source: "Gaussian DP for Reporting Differential Privacy Guarantees in Machine Learning" (2025,
    arXiv 2503.10945); the regret is the divergence of Kaissis et al. (2024) between both curves.

    Args:
      curve: of either order of neighbours; both orders are bounded.
      least_error: in (0, 0.5); tests whose type I or type II error is below this are not bounded.

    Returns:
      ``mu``, infinite where some test of errors that count is without any of type II, and
      ``regret`` in [0, 1].

    Raises:
      TypeError: ``curve`` is not a trade-off function.
      ValueError: ``least_error`` is out of range.

    >>> from dpjax.accounting.tradeoff import Gaussian, Laplace
    >>> summary = summarize(Laplace(2.0))
    >>> round(summary.mu, 4), round(summary.regret, 4)
    (0.5618, 0.0272)
    >>> round(summarize(Gaussian(0.8)).mu, 4)
    0.8
    """
    check_type("curve", curve, TradeOff, "a trade-off function, as a certificate's curve")
    check_delta(least_error, "least_error")
    check(0 < least_error < 0.5, "least_error", least_error, "a number in (0, 0.5)")
    curve = curve.symmetrized()

    # Up to the level that equals the error there: beyond it a symmetric curve repeats itself.
    middle = float(brentq(lambda level: curve(level) - level, 0.0, 0.5))
    if middle <= least_error:
        return GaussianSummary(math.inf, 1.0)

    # A convex curve is above the extensions of its chords, and that of mu-GDP, convex too, is below
    # a line where it is at both ends. So it suffices to compare at the ends of all intervals, and
    # where the two extensions into an interval meet.
    levels = np.geomspace(least_error, middle, _LEVELS)
    levels = np.concatenate([levels[:1] * 0.99, levels, levels[-1:] * [1.001, 1.002]])
    errors = np.asarray(curve(levels), float)
    slopes = np.diff(errors) / np.diff(levels)
    left, right = slice(1, -2), slice(2, -1)
    before, after = slopes[:-2], slopes[2:]
    gap = errors[right] - errors[left] - after * (levels[right] - levels[left])
    with np.errstate(divide="ignore", invalid="ignore"):
        meeting = levels[left] + np.nan_to_num(gap / (before - after))
    least = []
    for x in (levels[left], np.clip(meeting, levels[left], levels[right]), levels[right]):
        from_left = errors[left] + before * (x - levels[left])
        from_right = errors[right] + after * (x - levels[right])
        below = np.clip(np.maximum(from_left, from_right), 0.0, 1.0)
        least.append(-ndtri(x) - ndtri(below))
    mu = max(float(np.max(least)), 0.0)
    if math.isinf(mu):
        return GaussianSummary(math.inf, 1.0)

    # The curve on both sides of the middle, and how far it must be moved.
    alphas = np.concatenate([[0.0], levels, errors[::-1], [1.0]])
    betas = np.concatenate([curve(np.zeros(1)), errors, levels[::-1], [0.0]])
    order = np.argsort(alphas, kind="stable")
    alphas, betas = alphas[order], betas[order]
    gaussian = ndtr(-ndtri(alphas) - mu)

    def excess(shift: float) -> float:
        moved = np.interp(np.minimum(alphas + shift, 1.0), alphas, betas) - shift
        return float(np.max(moved - gaussian))

    return GaussianSummary(mu, float(brentq(excess, 0.0, 1.0)) if excess(0.0) > 0 else 0.0)
