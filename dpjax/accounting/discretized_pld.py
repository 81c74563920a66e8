"""Pessimistic privacy loss distributions of trade-off functions, and hockey-stick divergences.

The distributions and their composition are dp-accounting's, which connects the dots (Doroshenko,
Ghazi, Kamath, Kumar & Manurangsi 2022). Its constructor of a subsampled Gaussian finds the dots one
by one, and its evaluation of many deltas walks through the masses one by one; over thousands of
steps that takes longer than the composition. Here both are array operations.
"""

import math

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpjax.accounting.loss_distribution import Array, Direction, Function
from dpjax.accounting.tradeoff.base import TradeOff

# Larger losses count as this in sums weighted by e^-loss.
_LARGEST = 700.0


def from_profiles(
    removal: Function, addition: Function | None, largest: float, interval: float
) -> PrivacyLossDistribution:
    """Returns the distributions of a pair with the given privacy profiles.

    Args:
      removal: delta at an array of epsilons >= 0.
      addition: the same of the other direction; ``None`` if the two are equal.
      largest: a loss beyond which there is next to no mass.
      interval: the spacing of the losses.
    """
    last = math.ceil(largest / interval)
    epsilons = np.arange(last + 1, dtype=np.float64) * interval
    removed = removal(epsilons)
    added = removed if addition is None else addition(epsilons)
    orders = [(removed, added), (added, removed)][: 1 if addition is None else 2]
    deltas = [np.concatenate([_below_zero(epsilons, o)[:0:-1], a]) for a, o in orders]
    return PrivacyLossDistribution(*(_connect_dots(interval, -last, each) for each in deltas))


def from_tradeoff(
    removal: TradeOff, losses: tuple[float, float], interval: float
) -> PrivacyLossDistribution:
    """Returns the distributions of both directions of a trade-off function T(P, Q).

    Args:
      removal: T(P, Q), with Q the output on data that have the record.
      losses: the least and the largest loss of Q to P; beyond them there is next to no mass.
      interval: the spacing of the losses.
    """
    first, last = math.floor(losses[0] / interval), math.ceil(losses[1] / interval)
    grid = np.arange(first, last + 1) * interval
    return PrivacyLossDistribution(
        _connect_dots(interval, first, removal.delta(grid)),
        _connect_dots(interval, -last, removal.inverse().delta(-grid[::-1])),
    )


def hockey_stick_divergence(
    total: PrivacyLossDistribution, epsilons: npt.ArrayLike, direction: Direction | None
) -> Array:
    """Returns delta at any real ``epsilons``, by default the larger of the two directions."""
    pmfs = {"add": total._pmf_add, "remove": total._pmf_remove}
    taken = pmfs.values() if direction is None else [pmfs[direction]]
    return np.max([_deltas(pmf.to_dense_pmf(), np.asarray(epsilons)) for pmf in taken], 0)


def _deltas(pmf: pld_pmf.DensePLDPmf, epsilons: Array) -> Array:
    """Returns the mass of losses above each epsilon less e^epsilon times that under Q."""
    losses = (pmf._lower_loss + np.arange(pmf._probs.size)) * pmf._discretization
    above, weighted = (
        np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        for masses in (pmf._probs, pmf._probs * np.exp(-np.maximum(losses, -_LARGEST)))
    )
    place = np.searchsorted(losses, epsilons, side="right")
    lost = np.exp(np.minimum(epsilons, _LARGEST)) * weighted[place]
    return np.asarray(pmf._infinity_mass + above[place] - lost)


def _below_zero(epsilons: Array, reverse: Array) -> Array:
    """Returns delta at -epsilons from that of the other direction at ``epsilons``."""
    return np.exp(-epsilons) * reverse - np.expm1(-epsilons)


def _connect_dots(interval: float, first: int, deltas: Array) -> pld_pmf.PLDPmf:
    """Returns the pessimistic masses at multiples of ``interval`` from ``first`` on."""
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, first + deltas.size - 1, deltas
    )
