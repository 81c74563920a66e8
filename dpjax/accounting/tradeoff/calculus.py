"""The calculus of trade-off functions: Poisson subsampling, group privacy, and comparison."""

from dataclasses import dataclass

import numpy as np

from dpjax._checks import check_count, check_non_negative, check_share
from dpjax.accounting.loss_distribution import unsampled_addition, unsampled_removal
from dpjax.accounting.tradeoff.base import (
    Array,
    Discrete,
    TradeOff,
    check_curve,
    golden_section_max,
)
from dpjax.accounting.tradeoff.families import Gaussian, Identity

# The logarithms of levels that are searched for the best event; larger levels by themselves.
_LOGARITHMS = (-700.0, -20.0)
# Levels of comparisons, near 0 and mirrored near 1.
_TAIL = np.logspace(-30, np.log10(0.5), 600)


@dataclass(frozen=True)
class Mixture(TradeOff):
    """p f + (1 - p) Id, that is T(P, (1 - p) P + p Q), for the sampling rate p; see ``mixture``.

    Attributes:
      curve: f.
      sampling_rate: in (0, 1).
    """

    curve: TradeOff
    sampling_rate: float

    def as_discrete(self) -> Discrete | None:
        """Returns the mixed pair where the curve is discrete."""
        pair, p = self.curve.as_discrete(), self.sampling_rate
        return pair and Discrete(pair.p, (1.0 - p) * pair.p + p * pair.q)

    def _delta_pq(self, epsilon: Array) -> Array:
        p = self.sampling_rate
        return p * self.curve._delta_pq(unsampled_removal(epsilon, p))

    def _delta_qp(self, epsilon: Array) -> Array:
        left, loss = unsampled_addition(epsilon, self.sampling_rate)
        return left * self.curve._delta_qp(loss)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        missed, detected = self.curve._errors(alpha)
        unsampled = 1.0 - self.sampling_rate
        return (
            self.sampling_rate * missed + unsampled * (1.0 - alpha),
            self.sampling_rate * detected + unsampled * alpha,
        )


def mixture(curve: TradeOff, sampling_rate: float) -> TradeOff:
    """Returns f_p = p f + (1 - p) Id, the curve of a Poisson-sampled release in one order.

    It holds under add/remove for P, the output without the record, against Q, the output with it,
    where each record is in the batch with probability p and ``curve`` holds for the release on the
    batch in the same order. The other order has ``mixture(curve, sampling_rate).inverse()``.

    Source: Bu, Dong, Long, Su 2020, Theorem 4.

    Args:
      curve: f, of the release on the whole batch.
      sampling_rate: p in [0, 1].

    Returns:
      The curve f_p: ``curve`` itself at p = 1, `Identity` at p = 0.

    Raises:
      ValueError: ``sampling_rate`` is out of range.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(mixture(Gaussian(1.0), 0.5)(0.05), 3)
    0.845
    """
    check_curve("curve", curve)
    check_share("sampling_rate", sampling_rate)
    if sampling_rate == 0:
        return Identity()
    return curve if sampling_rate == 1 else Mixture(curve, float(sampling_rate))


def subsample(curve: TradeOff, sampling_rate: float) -> TradeOff:
    """Returns C_p(f) = min{f_p, f_p^-1}**, the curve of a Poisson-sampled release in both orders.

    For a symmetric f and epsilon >= 0 its delta is p times that of f at
    log(1 + (e^epsilon - 1) / p). Compose before symmetrizing: of many steps the tight curve is
    that of ``mixture`` composed, then symmetrized.

    Source: Dong, Roth, Su 2022, Theorem 4.2 in the preprint's numbering.

    Args:
      curve: f, of the release on the whole batch.
      sampling_rate: p in [0, 1].

    Returns:
      The symmetric curve C_p(f).

    Raises:
      ValueError: ``sampling_rate`` is out of range.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> curve = subsample(Gaussian(1.0), 0.5)
    >>> round(curve.delta(0.3), 4), curve.is_symmetric
    (0.1153, True)
    """
    return mixture(curve, sampling_rate).symmetrized()


@dataclass(frozen=True)
class Group(TradeOff):
    """1 - (1 - f) o ... o (1 - f), ``size`` times; see ``group``.

    Attributes:
      curve: f, for one record.
      size: the number of records in the group.
    """

    curve: TradeOff
    size: int

    @property
    def is_symmetric(self) -> bool:
        """Whether the curve of the group equals its inverse, as that of one record does."""
        return self.curve.is_symmetric

    def inverse(self) -> "Group":
        """Returns the inverse: the group's curve with both distributions exchanged."""
        return self if self.is_symmetric else Group(self.curve.inverse(), self.size)

    def _delta_pq(self, epsilon: Array) -> Array:
        """The supremum over alpha of the true positive rate less e^epsilon alpha."""

        def gain(alpha: Array) -> Array:
            cost = np.where(alpha > 0, np.exp(epsilon) * alpha, 0.0)
            for _ in range(self.size):
                alpha = np.asarray(self.curve.true_positive_rate(alpha))
            return alpha - cost

        zero = np.zeros_like(epsilon)
        with np.errstate(all="ignore"):
            large = golden_section_max(gain, zero, zero + 1.0)
            small = golden_section_max(
                lambda log: gain(np.exp(log)), *(zero + end for end in _LOGARITHMS)
            )
            return np.maximum(np.maximum(large, small), gain(zero))

    def _delta_qp(self, epsilon: Array) -> Array:
        return self.inverse()._delta_pq(epsilon)

    def _errors(self, alpha: Array) -> tuple[Array, Array]:
        for _ in range(self.size - 1):
            alpha = np.asarray(self.curve.true_positive_rate(alpha))
        return np.asarray(self.curve(alpha)), np.asarray(self.curve.true_positive_rate(alpha))


def group(curve: TradeOff, size: int) -> TradeOff:
    """Returns the curve for data sets that differ in ``size`` records, given that for one.

    It is 1 - (1 - f) o ... o (1 - f); for a Gaussian, mu becomes ``size`` mu. ``curve`` must hold
    along a chain of neighbours, each step in the order it was stated for.

    Source: Dong, Roth, Su 2022, Theorem 2.14 in the preprint's numbering.

    Args:
      curve: f, for data sets that differ in one record.
      size: the number of records in the group, at least 1.

    Returns:
      The curve of the group: a `Gaussian` of a Gaussian, a `Discrete` of a piecewise linear curve.

    Raises:
      ValueError: ``size`` is not a whole number of at least 1.

    >>> group(Gaussian(0.5), 3)
    Gaussian(mu=1.5)
    """
    check_curve("curve", curve)
    check_count("size", size)
    if size == 1 or isinstance(curve, Identity):
        return curve
    if isinstance(curve, Gaussian):
        return Gaussian(curve.mu * size)
    pair = curve.as_discrete()
    if pair is None:
        return Group(curve, size)
    # A piecewise linear curve has a knot wherever a step meets one.
    detected = np.minimum(np.append(0.0, np.cumsum(pair.q)), 1.0)
    levels = pair.alphas
    for _ in range(size - 1):
        levels = np.union1d(pair.alphas, np.interp(levels, detected, pair.alphas))
    rates = np.asarray(Group(pair, size).true_positive_rate(levels))
    return Discrete(np.append(np.diff(levels), 0.0), np.append(np.diff(rates), rates[0]))


def is_at_least(f: TradeOff, g: TradeOff, tolerance: float = 1e-9) -> bool:
    """Returns whether f >= g, so that f guarantees at least as much, up to a relative tolerance.

    Compared are the type II errors and, where these are near 1, the true positive rates, each up
    to ``tolerance`` times its value, at 1,200 levels between 1e-30 and 1 and at the knots of both:
    for piecewise linear curves at every level, for others on that grid only.

    Args:
      f: the curve that may guarantee more.
      g: the curve that it is compared to.
      tolerance: the relative difference that is allowed.

    >>> from dpjax.accounting.tradeoff import Gaussian, Identity
    >>> is_at_least(Identity(), Gaussian(1.0)), is_at_least(Gaussian(1.0), Identity())
    (True, False)
    """
    check_curve("f", f)
    check_curve("g", g)
    check_non_negative("tolerance", tolerance)
    levels = _levels(f, g)
    detected, allowed = f.true_positive_rate(levels), g.true_positive_rate(levels)
    steep = detected <= (1 + tolerance) * allowed
    flat = f(levels) >= (1 - tolerance) * g(levels)
    return bool(np.all(np.where(detected < 0.5, steep, flat)))


def distance(f: TradeOff, g: TradeOff) -> float:
    """Returns sup |f - g| over the levels at which ``is_at_least`` compares.

    Args:
      f: a curve.
      g: another.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> distance(Gaussian(1.0), Gaussian(1.0))
    0.0
    """
    check_curve("f", f)
    check_curve("g", g)
    levels = _levels(f, g)
    return float(np.max(np.abs(f(levels) - g(levels))))


def _levels(*curves: TradeOff) -> Array:
    """Levels near 0, near 1, where the curves are near 0, and at the knots of the discrete."""
    ends = [np.array([0.0]), _TAIL, 1.0 - _TAIL, np.linspace(0.001, 1.0, 1000)]
    near_zero = [curve.inverse()(_TAIL) for curve in curves]
    knots = [curve.alphas for curve in curves if isinstance(curve, Discrete)]
    return np.unique(np.concatenate([*ends, *near_zero, *knots]))
