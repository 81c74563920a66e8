"""Privacy events of additive noise on a statistic of given `Sensitivity`.

An event states noise over *one clip bound*, and accountants multiply the clip bound by the factor
of the adjacency. A `Sensitivity` includes that factor, so the noise is divided by
``Sensitivity.clip_bound``, the clip bound of a sum with that sensitivity.
"""

import math
from typing import TYPE_CHECKING

from dpjax.adjacency import Adjacency
from dpjax.sensitivity.base import Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# More losses than this change an accountant's answer by less than its own error, at a cost.
_MOST_LOSSES = 4096


def discrete_laplace_event(sensitivity: Sensitivity, scale: float) -> "DpEvent":
    """Returns the event of discrete Laplace noise on whole numbers, of a whole L1 sensitivity.

    Past 4,096 units of sensitivity the event is that of noise on a coarser grid, with a sensitivity
    rounded up to it: an upper bound, less than 0.03 % above. The losses of noise in steps of t are
    every t-th of those of noise in steps of one; there both have the same delta, 1 - e^(-i / scale)
    at the i-th, and between them the coarser one interpolates a convex function.
    """
    step = math.ceil(sensitivity.value / _MOST_LOSSES)
    coarse = Sensitivity(math.ceil(sensitivity.value / step), "l1", sensitivity.adjacency)
    from dp_accounting.dp_event import DiscreteLaplaceDpEvent

    return DiscreteLaplaceDpEvent(step / scale, coarse.clip_bound)


def pure_event(epsilon: float, adjacency: Adjacency) -> "DpEvent":
    """Returns an event that dominates every ``epsilon``-differentially private release.

    The dominating one is binary randomized response (Kairouz, Oh, Viswanath 2015),
    whose two losses are those of discrete Laplace noise of sensitivity one.
    """
    one = Sensitivity(1.0, "l1", adjacency)
    return discrete_laplace_event(one, 1 / epsilon)
