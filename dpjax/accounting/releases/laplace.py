"""Laplace noise, on a function of all records or on a sum over a Poisson sample."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    Function,
    LossDistribution,
    Segment,
    negate_both,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.releases.base import PLDBuilder, Release
from dpjax.accounting.releases.compound import Compound
from dpjax.accounting.tradeoff.closed_form import Laplace


class LaplaceRelease(Release):
    """Laplace noise on a function of all records."""

    event_types = (dp_event.LaplaceDpEvent,)

    @property
    def over_sensitivity(self) -> Any:
        """The noise over the sensitivity."""
        return type(self.event)(self.event.noise_multiplier / self.clips)

    @property
    def largest_loss(self) -> float:
        """The pure epsilon: the sensitivity over the scale of the noise."""
        return float(1 / self.over_sensitivity.noise_multiplier)

    def pld_builder(self) -> PLDBuilder:
        """dp-accounting's distribution."""
        noise = self.over_sensitivity.noise_multiplier
        return lambda interval: pld.from_laplace_mechanism(
            noise, value_discretization_interval=interval
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact, with atoms at both ends."""
        return _loss_distribution(self.largest_loss, 1.0, "remove")

    def tradeoff(self) -> Laplace:
        """Dong, Roth & Su (2022), Proposition A.6 in the preprint's numbering."""
        return Laplace(self.over_sensitivity.noise_multiplier)


class PoissonSampledLaplace(Compound):
    """Laplace noise on a sum over a Poisson sample; only where one record is one clip bound."""

    event_types = (dp_event.PoissonSampledDpEvent,)
    inner_type = dp_event.LaplaceDpEvent
    is_asymmetric = True

    def pld_builder(self) -> PLDBuilder:
        """dp-accounting's distribution."""
        if self.clips != 1:
            return super().pld_builder()
        noise, rate = self.event.event.noise_multiplier, self.event.sampling_probability
        return lambda interval: pld.from_laplace_mechanism(
            noise, value_discretization_interval=interval, sampling_prob=rate
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact, with atoms at both ends."""
        if self.clips != 1:
            return super().loss_distribution(direction, tail)
        bound = 1 / self.event.event.noise_multiplier
        return _loss_distribution(bound, self.event.sampling_probability, direction)


@dataclass(frozen=True)
class _LaplaceCoordinate:
    """The loss, inside (-bound, bound), of Laplace noise against itself moved.

    It is drawn with the noise itself with probability ``rate``, else with the moved noise.
    """

    bound: float
    rate: float

    def below(self, z: Array) -> Array:
        """The mass in (-bound, z]."""
        here = np.exp((z - self.bound) / 2) - math.exp(-self.bound)
        return (self.rate * here - (1 - self.rate) * np.expm1(-(z + self.bound) / 2)) / 2

    def above(self, z: Array) -> Array:
        """The mass in (z, bound)."""
        moved = np.exp(-(z + self.bound) / 2) - math.exp(-self.bound)
        return ((1 - self.rate) * moved - self.rate * np.expm1((z - self.bound) / 2)) / 2

    def density(self, z: Array) -> Array:
        """The density at ``z``."""
        here, moved = np.exp((z - self.bound) / 2), np.exp(-(z + self.bound) / 2)
        return (self.rate * here + (1 - self.rate) * moved) / 4


def _loss_distribution(bound: float, rate: float, direction: Direction) -> LossDistribution:
    """Returns the loss of Laplace noise of scale 1 / ``bound``, moved by one at ``rate``."""
    removed = direction == "remove"
    coordinate = _LaplaceCoordinate(bound, rate if removed else 1.0)
    functions = _removal_loss(rate)
    loss, inverse = functions if removed else map(negate_both, functions)
    share, far = coordinate.rate, math.exp(-bound)
    masses = (share * far + 1 - share) / 2, (share + (1 - share) * far) / 2
    ends = loss(np.array([-bound, bound])).tolist()
    segment = Segment(coordinate, loss, inverse, -bound, bound, 1.0)
    return LossDistribution((segment,), tuple(zip(ends, masses, strict=True)))


def _removal_loss(rate: float) -> tuple[Function, Function]:
    """Returns the loss under removal of a loss without sampling, and its inverse."""
    return lambda z: subsampled_loss(z, rate), lambda y: unsampled_loss(y, rate)
