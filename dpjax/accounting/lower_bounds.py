r"""Proven lower bounds on the epsilon and delta of a composition, by any accountant.

The upper bound is ``dpjax.accounting.epsilon``, which alone is a guarantee. The lower bound shows
how much a tighter accountant could gain at most.

Let P and Q be the outputs on two neighbours, Y = log dP/dQ the loss under P, and
delta(eps) = E[(1 - e^(eps - Y))_+]. Over several releases the losses add up.

1.  All outcomes whose loss Y is nearest to one multiple R of h are made one outcome, of loss
    Y' = -log E[e^-Y] over them. This is post-processing, so delta is nowhere larger: as a function
    of e^-Y, (1 - e^(eps - Y))_+ is convex, and Jensen's inequality holds step by step.
2.  Y' is on the lattice but for R - Y', which is of second order in h where the loss has a density.
    By Chernoff's bound on the exact distribution of R - Y', its sum over T independent releases
    exceeds some t with probability at most eta.
3.  (1 - e^(eps - y))_+ rises with y and is at most one. So delta(eps) >= delta'(eps + t) - eta with
    delta' that of the sum of the R. (Coupling as by Gopi, Lee & Wutschitz 2021, "Numerical
    Composition of Differential Privacy", Section 5, with Hoeffding's inequality, which needs a
    lattice some ten times finer.)
4.  Outcomes in the far tails of P are dropped. This only lowers delta, and steps 1 to 3 hold for
    the rest, whose mass is at most one.
5.  Lattice distributions are convolved on a circle by Fourier transform. What wraps around is at
    most the mass outside the window: eta at each end by Chernoff for the sum of the Y, and eta at
    each end by Hoeffding for that of the R - Y, of range h. With 3 this takes 5 eta from delta.
6.  Rounding of the transform is covered as in the upper bound, by 2^-50 for each release; the
    quadrature of R - Y' by 2^-40 of h.

Every pair used is one of neighbours of the mechanism: record present against absent, each way
round, and under replace-one two opposite values of one clip bound. The exception is sampling
without replacement, where the pair is that of the *curve* C_p(G_mu) that bounds one step (Dong,
Roth, Su 2022, Section 4): the lower bound is then that of the composed curve, of what can be proved
from the steps' curves, and the mechanism itself may be more private than that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpjax.accounting.events import (
    AtomicEvents,
    coarsen_noise_schedule,
    is_nonprivate,
    loss_deviation,
)
from dpjax.accounting.loss_distribution import (
    DIRECTIONS,
    TRANSFORM_ROUNDING,
    Array,
    Direction,
    LossDistribution,
    Releases,
    chernoff_ends,
    chernoff_upper_end,
    convolve,
    crossing,
    hockey_stick,
    sum_deviation,
)

Steps = Sequence[tuple[LossDistribution, int]]

# How far rounding may lower epsilon, over epsilon, and what else may be lost, over delta.
_SLACK, _ETA = 7e-4, 1e-4
# For whole profiles: rounding over the standard deviation of the total loss, and what else is lost.
_PROFILE_SLACK, _PROFILE_ETA = 1e-3, 1e-10
# The share of an interval that the quadrature of its rounding may be off by, far above what it is.
_QUADRATURE = 2.0**-40
# The first interval of the lattice over the standard deviation of one loss, what it is at most, and
# by how much it shrinks at a time at most.
_INTERVAL, _COARSEST_INTERVAL, _LEAST_SHRINKAGE = 1 / 16, 4.0, 1 / 16
_MOST_CELLS = 2**22
# Larger losses are lowered to this and those below its negative dropped, lest e^loss overflow.
_LARGEST = 600.0


@dataclass(frozen=True)
class LowerProfile:
    """A proven lower bound on the privacy profile delta(epsilon) of a composition.

    Attributes:
      losses: where the lattice distribution has mass, in increasing order.
      masses: how much.
      slack: what the sum of rounding errors exceeds with probability at most eta.
      margin: an upper bound on all that may be too much in a delta.
    """

    losses: Array
    masses: Array
    slack: float
    margin: float

    def delta(self, epsilons: npt.ArrayLike) -> Array:
        """Returns lower bounds on delta at any real ``epsilons``; they may be negative."""
        shifted = np.asarray(epsilons, float) + self.slack
        return hockey_stick(self.losses, self.masses, shifted) - self.margin

    def epsilon(self, delta: float) -> float:
        """Returns an epsilon below which the release is not (epsilon, ``delta``)-private."""
        _, excess, weight = crossing(self.losses, self.masses, delta + self.margin)
        if excess <= 0 or weight <= 0:
            return 0.0
        return max(0.0, math.log(excess / weight) - self.slack)


def epsilon_lower_bound(atoms: AtomicEvents, delta: float, upper_bound: float) -> float:
    """Returns a lower bound on epsilon, close to it if ``upper_bound`` is."""
    if is_nonprivate(atoms):
        # At a delta above the rate of a sample without noise some epsilon may be finite.
        unsampled = (atom for atom, _ in atoms if not atom.is_sampled)
        return math.inf if any(atom.noise(atom.event) == 0 for atom in unsampled) else 0.0
    if upper_bound == 0:
        return 0.0
    slack = _SLACK * max(upper_bound, delta)
    return max(
        profile.epsilon(delta)
        for direction in distinct_directions(atoms)
        for profile in lower_profiles(atoms, direction, slack, _ETA * delta)
    )


def delta_lower_bounds(
    atoms: AtomicEvents, epsilons: Array, directions: Sequence[Direction]
) -> Array:
    """Returns lower bounds on delta in the given ``directions``, convex in e^epsilon."""
    deviation = loss_deviation(atoms) * math.sqrt(sum(count for _, count in atoms))
    # Every different release takes a transform, which are shorter if rounding may lose more.
    slack = _PROFILE_SLACK * math.sqrt(max(len(atoms), 1)) * deviation
    deltas = [
        profile.delta(epsilons)
        for direction in directions
        for profile in lower_profiles(atoms, direction, slack, _PROFILE_ETA)
    ]
    without_data = np.maximum(0.0, -np.expm1(np.minimum(epsilons, 0.0)))
    return np.max([without_data, *deltas], axis=0)


def distinct_directions(atoms: AtomicEvents) -> tuple[Direction, ...]:
    """Returns the directions whose losses differ: one if all are the same in both."""
    if not atoms:
        return ()
    differ = any(atom.is_asymmetric for atom, _ in atoms)
    return DIRECTIONS if differ else ("remove",)


def lower_profiles(
    atoms: AtomicEvents, direction: Direction, slack: float, eta: float
) -> Iterator[LowerProfile]:
    """Yields lower bounds on delta(epsilon) of a composition, one for each pair of neighbours.

    The pair is the same at every repetition of a release; see ``compose_lower_profile``.
    """
    atoms = coarsen_noise_schedule(atoms, "lower")

    # The losses of each event, as many pairs of neighbours as one of them has.
    tail = eta / (2 * sum(count for _, count in atoms))
    pairs = [atom.neighbor_losses(direction, tail) for atom, _ in atoms]
    for place in range(max(map(len, pairs))):
        steps = [
            (losses[place % len(losses)], count)
            for losses, (_, count) in zip(pairs, atoms, strict=True)
        ]
        yield compose_lower_profile(steps, slack, eta)


def compose_lower_profile(steps: Steps, slack: float, eta: float) -> LowerProfile:
    """Returns a lower profile of all ``steps`` together, each a loss distribution and its count.

    The lattice is so fine that the sum of the rounding errors exceeds its mean by ``slack`` with
    probability at most ``eta``, unless that would take too many cells.
    """
    # The range of the sum of the losses, and the interval that suffices by Hoeffding's inequality.
    num_steps = sum(count for _, count in steps)
    nodes = [(*step.nodes, count) for step, count in steps]
    low, high = chernoff_ends(nodes, math.log(1 / eta))
    hoeffding = math.sqrt(num_steps / 2 * math.log(1 / eta))
    finest = max(slack / hoeffding, (high - low) / _MOST_CELLS)

    # The coarsest lattice on which the rounding errors are as small. Its interval is a number of
    # few digits: the bound depends on the place of every loss in its cell, and would otherwise
    # follow the last digits of exp and log, which differ between processors.
    interval = min(_INTERVAL * sum_deviation(nodes) / math.sqrt(num_steps), _COARSEST_INTERVAL)
    finest = _rounded_down(finest)
    while True:
        interval = max(_rounded_down(interval), finest)
        merged = [(*step.merged(interval), count) for step, count in steps]
        errors = [(-left, masses, count) for _, masses, left, count in merged]
        error = chernoff_upper_end(errors, math.log(1 / eta))
        excess = error - _sum_mean(errors)
        if excess <= slack or interval == finest:
            break
        interval *= max(0.9 * math.sqrt(slack / excess), _LEAST_SHRINKAGE)

    # Convolve within the window, which is moved and widened by rounding.
    lattices = [(least, masses, count) for least, masses, _, count in merged]
    multiples = [
        (np.asarray(interval * np.arange(least, least + masses.size), np.float64), masses, count)
        for least, masses, count in lattices
    ]
    moved, widened = _sum_mean(multiples) - _sum_mean(nodes), interval * hoeffding
    first = math.floor((low + moved - widened) / interval)
    last = math.ceil((high + moved + widened) / interval)
    masses = convolve(lattices, first, last)
    losses = np.minimum(np.arange(first, last + 1) * interval, _LARGEST)

    # Drop what would overflow, and count all that may be too much.
    start = np.searchsorted(losses, -_LARGEST)
    margin = 5 * eta + TRANSFORM_ROUNDING * (num_steps + len(steps))
    margin += sum(count * step.margin for step, count in steps)
    error += _QUADRATURE * interval * num_steps
    return LowerProfile(losses[start:], masses[start:], error, margin)


def _rounded_down(interval: float) -> float:
    """Returns the largest number of five binary digits that is at most ``interval``."""
    mantissa, exponent = math.frexp(interval)
    return math.ldexp(math.floor(mantissa * 32) / 32, exponent)


def _sum_mean(releases: Releases) -> float:
    """Returns the mean of a sum of losses, given as for `chernoff_ends`."""
    return sum(
        count * float(weights @ losses / np.sum(weights)) for losses, weights, count in releases
    )
