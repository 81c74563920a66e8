"""Comparison of trade-off functions: order and supremum distance, far into both tails."""

import numpy as np

from dpjax.accounting.tradeoff._search import Array
from dpjax.accounting.tradeoff.base import TradeOff
from dpjax.accounting.tradeoff.discrete import Discrete

_TAIL = np.logspace(-30, np.log10(0.5), 600)


def is_at_least(f: TradeOff, g: TradeOff, tolerance: float = 1e-9) -> bool:
    """Returns whether f >= g, so that f guarantees at least as much, up to a relative tolerance.

    Compared are the type II errors and, where these are near 1, the true positive rates, each up
    to ``tolerance`` times its value, at 1,200 levels between 1e-30 and 1 and at the knots of both:
    for piecewise linear curves at every level, for others on that grid only.

    >>> from dpjax.accounting.tradeoff import Gaussian, Identity
    >>> is_at_least(Identity(), Gaussian(1.0)), is_at_least(Gaussian(1.0), Identity())
    (True, False)
    """
    levels = _levels(f, g)
    detected, allowed = f.true_positive_rate(levels), g.true_positive_rate(levels)
    steep = detected <= (1 + tolerance) * allowed
    flat = f(levels) >= (1 - tolerance) * g(levels)
    return bool(np.all(np.where(detected < 0.5, steep, flat)))


def distance(f: TradeOff, g: TradeOff) -> float:
    """Returns sup |f - g| over the levels at which ``is_at_least`` compares.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> distance(Gaussian(1.0), Gaussian(1.0))
    0.0
    """
    levels = _levels(f, g)
    return float(np.max(np.abs(f(levels) - g(levels))))


def _levels(*curves: TradeOff) -> Array:
    """Levels near 0, near 1, where the curves are near 0, and at the knots of the discrete."""
    ends = [np.array([0.0]), _TAIL, 1.0 - _TAIL, np.linspace(0.001, 1.0, 1000)]
    near_zero = [curve.inverse()(_TAIL) for curve in curves]
    knots = [curve.alphas for curve in curves if isinstance(curve, Discrete)]
    return np.unique(np.concatenate([*ends, *near_zero, *knots]))
