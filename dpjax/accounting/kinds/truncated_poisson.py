"""Truncated Poisson sampling: an upper bound on the privacy loss of a Gaussian release.

Each of n records is drawn with probability q, and of a draw of more than B records a uniformly
random subset of B is kept. Given how many other records are drawn, let K be their number.

- K < B: nothing is cut. The record is in the batch with probability q, as in Poisson sampling.
- K >= B: exactly B records are kept. Without the record they are a uniformly random subset of the
  others, whatever K is. With it the batch holds it with probability q B / (K + 1) and is then a
  uniformly random subset of B - 1 others and the record. Averaged over K that is r = P(Bin(m, q) >
  B) B / (m P(K >= B)) in a data set of m records, and the record takes the place of another one, so
  the sum moves by up to *two* clip bounds.

Showing K >= B or not to an attacker does not lower the divergence, so it is at most the mean of the
two cases' (joint convexity). The second is that of removal at rate r and twice the sensitivity; it
bounds the zeroed and the replaced record too, whose sums are no farther than two clip bounds from
the sum with another record in its place, nor from each other.

Under add/remove a data set of n records has neighbours of n - 1 and of n + 1, so m is n or n + 1:
each case has a bound of its own, neither above the other everywhere, and the larger one is taken at
every epsilon. Under replace-one and zero-out m is n.

How loose it is. Two steps cost: the attacker is shown which case it is, and in the second case all
other records are taken to contribute the opposite of the record, so that the exchange moves the sum
by two clip bounds. In truth the size of the batch is random and hidden in the sum: of a sum of B
equal terms one cannot see whether B or B - 2 were drawn. No bound is known here that uses it for
every value of the other records. Against explicit neighbours whose other records are all equal, at
delta = 1e-3 and noise multipliers of 1 and 3, epsilon is larger by a factor of 1.0 to 3.6 for 5 to
20 records in batches of at most 3 to 10, and by up to 8 for 1,000 records where B is their expected
number (0.49 against 0.063). It is tight where hardly a batch or every batch is truncated: choose B
three deviations above the expected size.

Source: Ganesh 2025 (arXiv:2508.15089); the second case is the curve C_r of Dong, Roth & Su 2022,
Section 4, which is below the one that dp-accounting 0.6.0 takes.
"""

import functools
import math

import numpy as np
from dp_accounting import dp_event
from scipy.special import ndtri
from scipy.stats import binom

from dpjax.accounting.events import AtomicEvent, GridBuilder
from dpjax.accounting.kinds.gaussian import (
    check_noise,
    gaussian_loss_distribution,
    largest_replacement_loss,
    replacement_loss_distribution,
    replacement_profile,
    sampled_addition_profile,
    sampled_removal_profile,
)
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    Function,
    LossDistribution,
    grid_from_profiles,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.tradeoff.families import gaussian_log_delta
from dpjax.adjacency import Adjacency, is_size_public

# Larger losses have this probability.
_RAREST = 1e-23


class TruncatedPoissonSampledGaussian(AtomicEvent):
    """Gaussian noise on a sum over a Poisson sample, truncated to a maximum batch size."""

    event_types = (dp_event.TruncatedSubsampledGaussianDpEvent,)
    is_sampled = True
    is_asymmetric = True

    @classmethod
    def noise(cls, event: dp_event.TruncatedSubsampledGaussianDpEvent) -> float:
        """Noise std over the clip bound; infinity where every batch is empty."""
        if event.sampling_probability == 0 or event.truncated_batch_size == 0:
            return math.inf
        return float(event.noise_multiplier)

    @property
    def unit_sensitivity_event(self) -> dp_event.TruncatedSubsampledGaussianDpEvent:
        event = self.event
        return type(event)(
            event.dataset_size,
            event.sampling_probability,
            event.truncated_batch_size,
            event.noise_multiplier / self.sensitivity_factor,
        )

    def grid_builder(self) -> GridBuilder:
        check_noise(self.event.noise_multiplier)
        removal, addition = profile_bounds(self.event, self.adjacency)
        largest = largest_loss(self.event, self.adjacency)
        return functools.partial(grid_from_profiles, removal, addition, (-largest, largest))

    def loss_range(self) -> float:
        return 2 * largest_loss(self.event, self.adjacency)

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """That of data whose other records contribute nothing: Poisson sampling at a lower rate."""
        mu, rate = 1 / check_noise(self.event.noise_multiplier), inclusion_rate(self.event)
        if self.adjacency == "replace_one":
            return replacement_loss_distribution(mu, rate, tail)
        return gaussian_loss_distribution(mu, rate, tail, direction)


def profile_bounds(
    event: dp_event.TruncatedSubsampledGaussianDpEvent, adjacency: Adjacency
) -> tuple[Function, Function]:
    """Returns upper bounds on delta of one release at epsilons >= 0, for both orders.

    The first is that of data with the record (or its first value, under replace-one) against data
    without it (with its other value), the second that of the reverse.

    Args:
      event: its data set size is n, the number of records that the sampler draws from; its noise
        multiplier is over one clip bound.
      adjacency: of the neighbours.
    """
    mu, q = 1 / event.noise_multiplier, event.sampling_probability
    cuts = _cuts(event, adjacency)

    def bound(uncut: Function, epsilons: Array) -> Array:
        deltas = uncut(epsilons)
        if all(cut == 0 for cut, _ in cuts):
            return deltas
        cases = []
        for cut, rate in cuts:
            # The curve C_rate(G_2mu): the record takes another one's place.
            exchanged = (
                rate * np.exp(gaussian_log_delta(2 * mu, unsampled_loss(epsilons, rate)))
                if rate > 0
                else np.zeros_like(epsilons)
            )
            cases.append((1 - cut) * deltas + cut * exchanged)
        return np.max(cases, axis=0)

    if adjacency == "replace_one":
        replaced = functools.partial(bound, functools.partial(replacement_profile, mu, q))
        return replaced, replaced
    return (
        functools.partial(bound, functools.partial(sampled_removal_profile, mu, q)),
        functools.partial(bound, functools.partial(sampled_addition_profile, mu, q)),
    )


def inclusion_rate(event: dp_event.TruncatedSubsampledGaussianDpEvent) -> float:
    """Returns the probability that one of n records is in the batch: E min(Bin(n, q), B) / n.

    It is the rate of a Poisson-sampled release that the truncated one cannot be more private than:
    that on data where no other record contributes.

    >>> inclusion_rate(dp_event.TruncatedSubsampledGaussianDpEvent(20, 1.0, 5, 1.0))
    0.25
    """
    ((cut, rate),) = _cuts(event, "zero_out")
    q, limit = event.sampling_probability, event.truncated_batch_size
    return float(q * binom.cdf(limit - 1, event.dataset_size - 1, q) + cut * rate)


def largest_loss(event: dp_event.TruncatedSubsampledGaussianDpEvent, adjacency: Adjacency) -> float:
    """Returns a loss that is exceeded, in either direction, with a probability of some 1e-23."""
    mu, q = 1 / event.noise_multiplier, event.sampling_probability
    losses = [0.0]
    for cut, rate in _cuts(event, adjacency):
        # How far a normal variable is with the rarest probability, given the case.
        uncut_far, cut_far = (
            max(-float(ndtri(min(_RAREST / weight, 0.5))), 0.0) if weight > 0 else 0.0
            for weight in (1 - cut, cut)
        )
        if cut < 1:
            losses.append(largest_replacement_loss(mu, q, uncut_far))
        if cut * rate > 0:
            far = 2 * mu * (mu + cut_far)
            losses.append(float(subsampled_loss(np.array([far]), rate)[0]))
    return max(losses)


def _cuts(
    event: dp_event.TruncatedSubsampledGaussianDpEvent, adjacency: Adjacency
) -> list[tuple[float, float]]:
    """Returns P(K >= B) and the record's rate r given that, for the larger of two neighbours.

    It may have n or n + 1 records under add/remove, so that there are two pairs.
    """
    q, limit, n = event.sampling_probability, event.truncated_batch_size, event.dataset_size
    pairs = []
    for size in (n,) if is_size_public(adjacency) else (n, n + 1):
        if size > 0:
            cut = float(binom.sf(limit - 1, size - 1, q))
            rate = float(binom.sf(limit, size, q)) * limit / (size * cut) if cut > 0 else 0.0
            pairs.append((cut, min(rate, 1.0)))
    return pairs
