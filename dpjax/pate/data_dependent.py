"""Data-dependent Rényi divergences of noisy votes: the bounds of Papernot et al. (2017, 2018).

The published theorems bound the divergence of the output M(D) on the given votes D from M(D') on
neighbouring ones, but not the reverse, which is larger where the noise is small (Gaussian noise of
standard deviation 20 and less, Laplace noise of scale 5 and less, by quadrature). The theorems hold
for any votes in the place of D. So with a bound on the probability q of an unexpected outcome that
holds on D *and* on all its neighbours, they bound both directions: ``worst_neighbor=True``.

All arrays are float64 on the host, and all probabilities logarithms, so nothing overflows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

from dpjax._checks import as_float64, check, check_positive
from dpjax.accounting.loss_distribution import Array
from dpjax.pate.data_independent import check_orders

__all__ = [
    "gaussian_rdp",
    "laplace_rdp",
    "log_error_probability_gaussian",
    "log_error_probability_laplace",
]

# By shifts of one vote; between them the moments are convex in the probability of an answer.
_SHIFTS = (-1.0, 1.0)


def log_error_probability_gaussian(
    votes: npt.ArrayLike, scale: float, *, worst_neighbor: bool = False
) -> Array:
    """Returns an upper bound on log Pr[the noisy argmax is not the plurality], Gaussian noise.

    Args:
      votes: counts ``(num_queries, num_classes)``.
      scale: standard deviation of the noise on every count.
      worst_neighbor: whether the bound holds also on all neighbours, each with its own plurality.

    Returns:
      Natural logarithms ``(num_queries,)``, at most log(1 - 1 / num_classes).

    Source: Papernot et al. (2018), Proposition 7: a union bound over the other classes.

    >>> np.exp(log_error_probability_gaussian([[215, 35]], 40.0)).round(5).tolist()
    [0.00073]
    """
    check_positive("scale", scale)
    gaps = _gaps(votes, worst_neighbor)
    return _capped(logsumexp(log_ndtr(-gaps / (np.sqrt(2) * scale)), axis=1), gaps)


def log_error_probability_laplace(
    votes: npt.ArrayLike, scale: float, *, worst_neighbor: bool = False
) -> Array:
    """Returns an upper bound on log Pr[the noisy argmax is not the plurality], Laplace noise.

    Args:
      votes: counts ``(num_queries, num_classes)``.
      scale: of the noise on every count.
      worst_neighbor: whether the bound holds also on all neighbours, each with its own plurality.

    Returns:
      Natural logarithms ``(num_queries,)``, at most log(1 - 1 / num_classes).

    Source: Papernot et al. (2017), Lemma 4.
    """
    check_positive("scale", scale)
    gaps = _gaps(votes, worst_neighbor)
    in_scales = np.maximum(gaps, 0) / scale
    return _capped(logsumexp(np.log((2 + in_scales) / 4) - in_scales, axis=1), gaps)


def gaussian_rdp(log_errors: npt.ArrayLike, orders: Sequence[float] | Array, scale: float) -> Array:
    """Returns upper bounds on the Rényi divergences of GNMax.

    Args:
      log_errors: upper bounds on log Pr[an unexpected outcome], ``(num_queries,)``.
      orders: above one, ``(num_orders,)``.
      scale: standard deviation of the noise on every count.

    Returns:
      Bounds ``(num_queries, num_orders)``: the lesser of the data-independent one, order over
      squared scale, and the data-dependent one where its conditions hold.

    Source: Papernot et al. (2018), Theorem 6 with the orders of Proposition 10.
    """
    check_positive("scale", scale)
    log_q, orders = _column(log_errors, "log_errors"), check_orders(orders)
    variance = scale**2
    independent = np.broadcast_to(orders / variance, (log_q.size, orders.size))

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # orders and conditions of the theorem
        mu_2 = scale * np.sqrt(-log_q)
        mu_1 = mu_2 + 1
        rdp_1, rdp_2 = mu_1 / variance, mu_2 / variance
        penalty = mu_2 * (np.log1p(1 / (mu_1 - 1)) + np.log1p(1 / (mu_2 - 1)))
        applies = (mu_2 > 1) & (orders <= mu_1) & (-log_q > rdp_2)
        applies &= log_q <= (mu_2 - 1) * rdp_2 - penalty

        # the moment: log((1 - q) A^(order - 1) + q B^(order - 1))
        log_a = _log1mexp(log_q) - _log1mexp((log_q + rdp_2) * (1 - 1 / mu_2))
        log_b = rdp_1 - log_q / (mu_1 - 1)
        moments = np.logaddexp(
            _log1mexp(log_q) + (orders - 1) * log_a, log_q + (orders - 1) * log_b
        )
        dependent = np.maximum(moments, 0) / (orders - 1)
    bound = np.where(applies, np.fmin(dependent, independent), independent)
    return np.where(np.isneginf(log_q), 0.0, bound)


def laplace_rdp(log_errors: npt.ArrayLike, orders: Sequence[float] | Array, scale: float) -> Array:
    """Returns upper bounds on the Rényi divergences of LNMax.

    Args:
      log_errors: upper bounds on log Pr[an unexpected outcome], ``(num_queries,)``.
      orders: above one, ``(num_orders,)``.
      scale: of the noise on every count; 1 / gamma in the notation of the source.

    Returns:
      Bounds ``(num_queries, num_orders)``: the lesser of the data-independent one (Theorem 2) and
      the data-dependent one where its condition holds.

    Source: Papernot et al. (2017), Theorem 3.
    """
    check_positive("scale", scale)
    log_q, moments = _column(log_errors, "log_errors"), check_orders(orders) - 1
    pure = 2 / scale
    with np.errstate(divide="ignore", invalid="ignore"):
        # q < 1 / (1 + e^(2 / scale))
        applies = log_q < -np.logaddexp(0, pure)
        log_expected = _log1mexp(log_q)
        log_moments = np.logaddexp(
            log_expected + moments * (log_expected - _log1mexp(np.minimum(pure + log_q, 0))),
            log_q + pure * moments,
        )
        dependent = np.where(applies, np.maximum(log_moments, 0) / moments, np.inf)
    return np.minimum(dependent, laplace_rdp_independent(orders, scale))


def laplace_rdp_independent(orders: Sequence[float] | Array, scale: float) -> Array:
    """Returns the data-independent bound on the Rényi divergences of LNMax, ``(num_orders,)``.

    Source: Papernot et al. (2017), Theorem 2: (2 / scale, 0)-DP, by Bun & Steinke (2016).
    """
    pure = 2 / scale
    return np.minimum(check_orders(orders) * pure**2 / 2, pure)


def _column(values: npt.ArrayLike, name: str) -> Array:
    """Returns numbers ``(num_queries,)`` as a column of float64."""
    numbers = as_float64(values, name)
    check(numbers.ndim == 1, name, numbers.shape, "of shape (num_queries,)")
    return numbers[:, None]


def checked_answer_rdp(
    checked: npt.ArrayLike,
    answer_rdp: Array,
    orders: Sequence[float] | Array,
    *,
    threshold: float,
    threshold_scale: float,
) -> Array:
    """Returns bounds on the Rényi divergences of a check together with the answer if it passes.

    The divergence of the pair is log(P0^a Q0^(1-a) + P1^a Q1^(1-a) e^((a-1) answer)) / (a - 1),
    with P and Q the probabilities of failing and passing on the two neighbours; the larger of both
    directions. It is exact in the check. With an ``answer_rdp`` of zero it is that of the check.

    Args:
      checked: what is compared with the threshold, ``(num_queries,)``; a neighbour's is at most one
        vote away.
      answer_rdp: bounds on the divergences of the answers in both directions,
        ``(num_queries, num_orders)``.
      orders: above one, ``(num_orders,)``.
      threshold: in votes.
      threshold_scale: standard deviation of the noise of the check.

    Returns:
      Bounds ``(num_queries, num_orders)``.
    """
    orders = check_orders(orders)
    scaled = (_column(checked, "checked") - threshold) / threshold_scale
    largest = np.zeros(np.broadcast_shapes(scaled.shape, orders.shape))
    for shift in _SHIFTS:
        other = scaled + shift / threshold_scale
        for one, two in ((scaled, other), (other, scaled)):
            fails = orders * log_ndtr(-one) + (1 - orders) * log_ndtr(-two)
            passes = orders * log_ndtr(one) + (1 - orders) * log_ndtr(two)
            moment = np.logaddexp(fails, passes + (orders - 1) * answer_rdp)
            largest = np.maximum(largest, moment / (orders - 1))
    return largest


def _gaps(votes: npt.ArrayLike, worst_neighbor: bool) -> Array:
    """Returns by how much the largest count exceeds the others, smallest first.

    Of all neighbours the error is most probable on the one where a vote moves from the plurality to
    the runner-up: the bounds on the probability that one class overtakes are convex in its gap.
    Gaps below two may change their order; minus infinity then stands for no bound.
    """
    numbers = as_float64(votes, "votes")
    check(numbers.ndim == 2, "votes", numbers.shape, "of shape (num_queries, num_classes)")
    counts = np.sort(numbers, axis=1)[:, ::-1]
    gaps = counts[:, :1] - counts[:, 1:]
    if worst_neighbor:
        gaps = gaps - 1.0
        gaps[:, 0] -= 1.0
        gaps[gaps[:, 0] < 0] = -np.inf
    return gaps


def _capped(log_errors: Array, gaps: Array) -> Array:
    """Returns at most log(1 - 1 / num_classes): the plurality wins no less often than others."""
    return np.minimum(log_errors, np.log1p(-1 / (gaps.shape[1] + 1)))


def _log1mexp(x: Array) -> Array:
    """Returns log(1 - e^x) for x <= 0."""
    with np.errstate(divide="ignore"):
        small = np.log(-np.expm1(np.minimum(x, 0.0)))
        large = np.log1p(-np.exp(np.minimum(x, -0.5)))
    return np.where(x > -0.7, small, large)
