"""Gaussian differential privacy (Dong, Roth & Su 2022): mu of an event, its delta and epsilon.

A mechanism is mu-GDP if every test of its outputs on two neighbours has at least the type II error
of the best test of N(0, 1) against N(mu, 1). For a Gaussian release on all records mu is exact. For
subsampled ones it is a central limit (Bu, Dong, Long & Su 2020): an approximation that errs on
either side, so nothing computed from it is a guarantee. Everything here is float64 on the host.
"""

import math

from dp_accounting import DpEvent

from dpjax.accounting.accountants import compute_mu
from dpjax.accounting.events import decompose, is_nonprivate
from dpjax.accounting.kinds.gaussian import poisson_clt_mu
from dpjax.accounting.tradeoff.gaussian import delta, epsilon
from dpjax.adjacency import Adjacency

__all__ = ["delta", "epsilon", "mu_of_event", "poisson_clt_mu"]


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
    parts = decompose(event, adjacency)
    return math.inf if is_nonprivate(parts) else compute_mu(parts)
