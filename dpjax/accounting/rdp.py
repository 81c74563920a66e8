"""The Rényi accountant: upper bounds on epsilon and delta from Rényi divergences.

The conversion is the improved one of Canonne, Kamath & Steinke (2020), Proposition 12.
"""

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from dpjax.accounting.events import RepeatedEvent
from dpjax.accounting.loss_distribution import Array

ORDERS = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)


def compute_rdp(parts: tuple[RepeatedEvent, ...], orders: tuple[float, ...] = ORDERS) -> Array:
    """Returns the Rényi divergences of all ``parts`` together at ``orders``.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence is not known.
    """
    total = np.zeros(len(orders))
    for part in parts:
        total += part.count * part.atom.rdp(orders)
    return total


def compute_epsilon(parts: tuple[RepeatedEvent, ...], delta: float) -> float:
    """Returns the least epsilon at ``delta`` over dp-accounting's orders.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence is not known.
    """
    return float(rdp_privacy_accountant.compute_epsilon(ORDERS, compute_rdp(parts), delta)[0])


def compute_profile(parts: tuple[RepeatedEvent, ...], epsilons: Array) -> Array:
    """Returns upper bounds on delta at ``epsilons`` >= 0, by the same conversion.

    Raises:
      UnsupportedEventError: a release whose Rényi divergence is not known.
    """
    rdp = compute_rdp(parts)
    deltas = [rdp_privacy_accountant.compute_delta(ORDERS, rdp, e)[0] for e in epsilons.tolist()]
    return np.minimum(np.array(deltas), 1.0)
