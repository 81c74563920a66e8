"""Group privacy: the trade-off function of a group of records from that of one record."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpjax._validation import check_count
from dpjax.accounting.tradeoff._search import Array, maximum
from dpjax.accounting.tradeoff.base import TradeOff
from dpjax.accounting.tradeoff.closed_form import Identity
from dpjax.accounting.tradeoff.discrete import Discrete
from dpjax.accounting.tradeoff.gaussian import Gaussian

# Levels are searched on a linear scale, and up to 1e-9 on the logarithmic one.
_LOGARITHMS = (-700.0, -20.0)


@dataclass(frozen=True)
class Group(TradeOff):
    """1 - (1 - f) o ... o (1 - f), ``size`` times; see ``group``."""

    curve: TradeOff
    size: int

    @property
    def is_symmetric(self) -> bool:
        """Whether the curve for one record is."""
        return self.curve.is_symmetric

    def inverse(self) -> "Group":
        """Returns the curve of the group in the other order."""
        return self if self.is_symmetric else Group(self.curve.inverse(), self.size)

    def _forward(self, epsilon: Array) -> Array:
        return _largest_gain(self._detection, epsilon)

    def _backward(self, epsilon: Array) -> Array:
        return _largest_gain(self.inverse()._detection, epsilon)

    def _type_two(self, alpha: Array) -> Array:
        return np.asarray(self.curve(self._after(alpha, self.size - 1)))

    def _detection(self, alpha: Array) -> Array:
        return self._after(alpha, self.size)

    def _after(self, alpha: Array, times: int) -> Array:
        for _ in range(times):
            alpha = np.asarray(self.curve.true_positive_rate(alpha))
        return alpha


def group(curve: TradeOff, size: int) -> TradeOff:
    """Returns the curve for data sets that differ in ``size`` records, given that for one.

    It is 1 - (1 - f) o ... o (1 - f); for a Gaussian, mu becomes ``size`` mu. ``curve`` must hold
    along a chain of neighbours, each step in the order it was stated for.

    Source: Dong, Roth, Su 2022, Theorem 2.14 in the preprint's numbering.

    Raises:
      ValueError: ``size`` is not a whole number of at least 1.

    >>> group(Gaussian(0.5), 3)
    Gaussian(mu=1.5)
    """
    check_count("size", size)
    if size == 1 or isinstance(curve, Identity):
        return curve
    if isinstance(curve, Gaussian):
        return Gaussian(curve.mu * size)
    pair = curve.as_discrete()
    return Group(curve, size) if pair is None else _discrete_group(pair, size)


def _discrete_group(pair: Discrete, size: int) -> Discrete:
    """Returns the group of a piecewise linear curve, which has knots wherever a step meets one."""
    detected = np.minimum(np.append(0.0, np.cumsum(pair.q)), 1.0)
    levels = pair.alphas
    for _ in range(size - 1):
        levels = np.union1d(pair.alphas, np.interp(levels, detected, pair.alphas))
    rates = np.asarray(Group(pair, size).true_positive_rate(levels))
    return Discrete(np.append(np.diff(levels), 0.0), np.append(np.diff(rates), rates[0]))


def _largest_gain(detection: Callable[[Array], Array], epsilon: Array) -> Array:
    """Returns sup of the detection at alpha less e^epsilon alpha, over alpha."""

    def gain(alpha: Array) -> Array:
        return detection(alpha) - np.exp(epsilon) * alpha

    zero = np.zeros_like(epsilon)
    with np.errstate(all="ignore"):
        large = maximum(gain, zero, zero + 1.0)
        small = maximum(lambda log: gain(np.exp(log)), *(zero + end for end in _LOGARITHMS))
    return np.maximum(np.maximum(large, small), detection(zero))
