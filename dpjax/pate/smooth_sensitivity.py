"""Smooth sensitivity of the data-dependent Rényi cost, and its release with Gaussian noise (GNSS).

On one query let t be such that (m - 1) / 2 erfc(t) is the bound on the probability of an unexpected
label among m classes. A vote that moves changes t by at most 1 / scale: every gap between counts
changes by at most two, and Phi(Phi^-1(p) + c) is concave in p. The largest count changes by at most
one. So the cost of a query is a table over a lattice of t, in steps of a fraction of 1 / scale, and
of the largest count. Between lattice points the cost is that of the next smaller t, a larger
probability, for which the theorem holds too; along t it is the least cost so far, so that it does
not increase. No monotonicity of the bounds is assumed.

The local sensitivity of a query is the largest difference within one step of the lattice, that at
distance d its maximum within d steps, and smooth sensitivity the maximum over d of e^(-beta d)
times the sum over all queries.

Source: Papernot et al. (2018), Appendix B; Nissim, Raskhodnikova & Smith (2007), Definition 2.2.
The published divergence of the release (Theorem 23) is no bound near order = 1 / (2 beta): the
Gaussians of neighbours differ in variance too. It is in closed form here.
"""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter, minimum_filter
from scipy.special import log_ndtr, ndtri, ndtri_exp

from dpjax._checks import as_key, check, check_delta, check_non_negative, check_positive
from dpjax._typing import PRNGKey
from dpjax.accounting.loss_distribution import Array
from dpjax.mechanisms._exact_noise import RandomWords
from dpjax.pate.data_dependent import (
    checked_answer_rdp,
    gaussian_rdp,
    log_error_probability_gaussian,
)
from dpjax.pate.data_independent import argmax_rdp
from dpjax.pate.mechanisms import ConfidentGNMax, GNMax

# Lattice points of t by which one vote moves it, and what a window has more for rounding.
_STEPS, _REACH = 12, 13


@dataclass(frozen=True, kw_only=True)
class SmoothRDPRelease:
    """Releases an upper bound on the data-dependent Rényi cost of labels, at one order.

    Released is cost + noise_scale * S * (Z + z) with the smooth sensitivity S, a standard normal Z
    and the quantile z at which the bound is too small with ``failure_probability``. All attributes
    must be chosen before the votes are seen.

    Attributes:
      mechanism: a `GNMax`, or a `ConfidentGNMax` without a student, of which every check and answer
        is counted.
      order: of the Rényi divergence, above one.
      beta: of the smooth sensitivity; order (1 - e^(-2 beta)) must be below one.
      noise_scale: standard deviation of the noise over the smooth sensitivity.
      failure_probability: of a released bound below the cost.

    Privacy:
      What ``release`` returns is released, under the adjacency of ``mechanism``, at a cost of
      ``own_rdp``. The noise is in floating point.

    Raises:
      ValueError: an attribute is out of range.
      TypeError: ``mechanism`` is of another type.
    """

    mechanism: GNMax | ConfidentGNMax
    order: float
    beta: float
    noise_scale: float
    failure_probability: float

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, GNMax | ConfidentGNMax):
            kinds = "a GNMax or a ConfidentGNMax"
            raise TypeError(f"mechanism must be {kinds}, got {type(self.mechanism).__name__}")
        student = getattr(self.mechanism, "student_confidence", None)
        check(student is None, "mechanism's student_confidence", student, "left out")
        _check_order_and_beta(self.order, self.beta)
        check_positive("noise_scale", self.noise_scale)
        check_delta(self.failure_probability, "failure_probability")

    @property
    def own_rdp(self) -> float:
        """The Rényi divergence of the release itself, at ``order``.

        The quantile is a multiple of the smooth sensitivity, which moves by a factor of e^beta.
        """
        shift = 1 / self.noise_scale + abs(self._quantile) * math.expm1(self.beta)
        return gnss_rdp(self.order, beta=self.beta, shift=shift)

    def cost(self, votes: npt.ArrayLike) -> tuple[float, float]:
        """Returns the data-dependent Rényi cost and its smooth sensitivity; private.

        Args:
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``.

        Returns:
          An upper bound on the Rényi divergence in both directions, at ``order``, and a
          ``beta``-smooth upper bound on how much it changes with one teacher.

        Raises:
          ValueError: ``votes`` are not counts of all teachers.
        """
        counts = np.asarray(self.mechanism.check_votes(votes), float)
        table = _cost_table(self.mechanism, self.order)
        log_errors = log_error_probability_gaussian(counts, self.mechanism.scale)
        t = -ndtri_exp(log_errors - math.log(self.mechanism.num_classes - 1)) / math.sqrt(2)
        columns = np.floor(t * self.mechanism.scale * _STEPS).astype(int)
        columns = np.clip(columns, 0, table.shape[1] - 1)
        rows = counts.max(axis=1).astype(int) if len(table) > 1 else np.zeros(len(counts), int)
        value = float(np.sum(table[rows, columns]))
        return value, _smooth_sensitivity(table, rows, columns, self.beta)

    def release(self, key: PRNGKey, votes: npt.ArrayLike) -> float:
        """Returns an upper bound on the Rényi cost of the labels, with noise; at least zero.

        Args:
          key: a JAX key; a secret, and another one than that of the labels.
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``.

        Raises:
          ValueError: ``votes`` are not counts of all teachers.
        """
        cost, sensitivity = self.cost(votes)
        key_bits = np.asarray(jax.random.bits(as_key(key), (2,), jnp.uint32))
        noise = float(ndtri(RandomWords(key_bits, 1).uniform()[0]))
        scale = self.noise_scale * sensitivity
        return max(0.0, cost + scale * (noise + self._quantile))

    def epsilon(self, released_rdp: float, *, delta: float) -> float:
        """Returns the epsilon of the labels and of ``released_rdp`` together; publishable.

        It holds between these votes and their neighbours, for queries fixed before the first
        answer, as every data-dependent epsilon. The data-independent guarantee of `certificate`
        needs no such release, and may be the smaller one.

        Args:
          released_rdp: what ``release`` returned.
          delta: in (0, 1), above ``failure_probability``, which it includes.

        Raises:
          ValueError: ``delta`` is out of range.
        """
        check_non_negative("released_rdp", released_rdp)
        check_delta(delta)
        left = delta - self.failure_probability
        allowed = f"above the failure probability {self.failure_probability:g}"
        check(left > 0, "delta", delta, allowed)
        total = released_rdp + self.own_rdp
        gain = math.log1p(-1 / self.order) - math.log(left * self.order) / (self.order - 1)
        return max(0.0, total + gain)

    @property
    def _quantile(self) -> float:
        return float(-ndtri(self.failure_probability))


def gnss_rdp(order: float, *, beta: float, shift: float) -> float:
    """Returns the Rényi divergence of Gaussian noise of smooth standard deviation.

    The standard deviations of neighbours differ by a factor of at most e^beta, and the means by at
    most ``shift`` times the smaller of them. Worst is the larger one against the smaller one.

    Args:
      order: above one.
      beta: of the smooth sensitivity; order (1 - e^(-2 beta)) must be below one.
      shift: largest difference of the means over the smaller standard deviation.

    Source: Gil, Alajaji & Linder (2013), for the divergence of two Gaussians.

    >>> round(gnss_rdp(14.0, beta=0.0329, shift=1 / 6.23), 2)
    1.61
    """
    _check_order_and_beta(order, beta)
    check_non_negative("shift", shift)
    ratio = math.exp(-beta)
    variance = 1 + order * math.expm1(-2 * beta)
    wider = (-order * beta - math.log(variance) / 2) / (order - 1)
    wider += order * (shift * ratio) ** 2 / (2 * variance)
    # the smaller one against the larger one; its two terms are largest at different ratios
    narrower = (order * beta - math.log1p(order * math.expm1(2 * beta)) / 2) / (order - 1)
    return max(wider, narrower + order * shift**2 / 2)


def _check_order_and_beta(order: float, beta: float) -> None:
    check_positive("order", order)
    check(order > 1, "order", order, "above one")
    check_positive("beta", beta)
    allowed = f"so small that order (1 - e^(-2 beta)) is below one at order {order:g}"
    check(-order * math.expm1(-2 * beta) < 1, "beta", beta, allowed)


@functools.lru_cache(maxsize=16)
def _cost_table(mechanism: GNMax | ConfidentGNMax, order: float) -> Array:
    """Returns the cost of one query, by the largest count (one row without a check) and by t."""
    scale, classes = mechanism.scale, mechanism.num_classes
    orders = np.array([order])
    # one vote less: the bound holds on all neighbours, so in both directions
    t = (np.arange(mechanism.num_teachers * _STEPS // 2 + 2) - _REACH) / (scale * _STEPS)
    log_errors = np.minimum(math.log(classes - 1) + log_ndtr(-math.sqrt(2) * t), 0.0)
    answers = np.minimum(gaussian_rdp(log_errors, orders, scale), argmax_rdp(orders, scale))
    answers = np.minimum.accumulate(answers[:, 0])

    # with a check: for every largest count
    if isinstance(mechanism, GNMax):
        return answers[None, :]
    largest = np.arange(mechanism.num_teachers + 1.0)
    checked, each = (grid.ravel() for grid in np.meshgrid(largest, answers, indexing="ij"))
    pairs = checked_answer_rdp(
        checked,
        np.asarray(each[:, None], float),
        orders,
        threshold=mechanism.threshold,
        threshold_scale=mechanism.threshold_scale,
    )
    return pairs.reshape(largest.size, answers.size)


def _smooth_sensitivity(table: Array, rows: Array, columns: Array, beta: float) -> float:
    """Returns the smooth sensitivity of the sum of the costs at the given places of the table."""
    window = (min(3, 2 * len(table) - 1), 2 * _REACH + 1)
    above = maximum_filter(table, window, mode="nearest") - table
    local = np.maximum(above, table - minimum_filter(table, window, mode="nearest"))
    largest, best, distance = float(local.max()) * rows.size, 0.0, 0
    while math.exp(-beta * distance) * largest > best:
        best = max(best, math.exp(-beta * distance) * float(np.sum(local[rows, columns])))
        local = maximum_filter(local, window, mode="nearest")
        distance += 1
    return best
