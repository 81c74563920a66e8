"""Epsilon from Rényi divergences: dp-accounting's values, converted in two ways.

The improved conversion (Canonne, Kamath, Steinke 2020, Proposition 12) is the one to use. The
classical one, at the orders of the moments accountant, is kept because published figures were
computed that way. Both are upper bounds.
"""

import contextlib
import math
from collections.abc import Iterator

import numpy as np
from absl import logging
from dp_accounting.rdp import RdpAccountant

from dpjax.accounting.adjacency import Adjacency, neighboring_relation
from dpjax.accounting.events import Release, UnsupportedEventError, name

MOMENTS_ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *map(float, range(5, 65)),
    *(128.0, 256.0, 512.0),
)


def epsilon(parts: tuple[Release, ...], adjacency: Adjacency, delta: float) -> float:
    """Returns epsilon at ``delta`` by the improved conversion at dp-accounting's orders.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence dp-accounting does not know.
    """
    return _accountant(parts, adjacency, None).get_epsilon(delta)


def moments_epsilon(parts: tuple[Release, ...], adjacency: Adjacency, delta: float) -> float:
    """Returns epsilon at ``delta`` as the moments accountant had it: looser than ``epsilon``.

    It is min over the orders a of RDP(a) + log(1 / delta) / (a - 1): Abadi et al. 2016, Theorem 2.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence dp-accounting does not know.
    """
    accountant = _accountant(parts, adjacency, MOMENTS_ORDERS)
    return float(np.min(accountant.rdp - math.log(delta) / (accountant.orders - 1)))


def _accountant(
    parts: tuple[Release, ...], adjacency: Adjacency, orders: tuple[float, ...] | None
) -> RdpAccountant:
    """Returns an accountant that has seen every release, its noise over the sensitivity."""
    accountant = RdpAccountant(orders, neighboring_relation(adjacency))
    for part in parts:
        if not accountant.supports(part.over_sensitivity):
            raise UnsupportedEventError(
                f"dp-accounting has no Rényi divergence for {name(part.event)} under this adjacency"
            )
        with _quiet():
            accountant.compose(part.over_sensitivity, part.count)
    return accountant


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """An order whose series does not converge is left out, which is safe: no word of it."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
