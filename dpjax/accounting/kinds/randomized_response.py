"""Randomized response: one of several answers, uniform with some probability."""

import functools
import math

import numpy as np
from dp_accounting import dp_event

from dpjax.accounting.events import AtomicEvent, GridBuilder, UnsupportedEventError
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    LossDistribution,
    grid_from_profiles,
)


class RandomizedResponse(AtomicEvent):
    """An answer that is uniform over all buckets with probability ``noise``, else the true one."""

    event_types = (dp_event.RandomizedResponseDpEvent,)

    @classmethod
    def noise(cls, event: dp_event.RandomizedResponseDpEvent) -> float:
        """Infinite where the answer is always uniform, or there is one only; zero if it is true."""
        if event.noise_parameter == 1 or event.num_buckets == 1:
            return math.inf
        return 0.0 if event.noise_parameter == 0 else 1.0

    @property
    def unit_sensitivity_event(self) -> dp_event.RandomizedResponseDpEvent:
        """Returns the release itself: its noise is stated for neighbours, not for clip bounds."""
        if self.adjacency == "zero_out":
            raise UnsupportedEventError("no answer to randomized response contributes nothing")
        return self.event

    @property
    def aligned_loss(self) -> float:
        """The largest privacy loss, which is the pure epsilon."""
        noise = self.event.noise_parameter
        return math.log1p(self.event.num_buckets * (1 - noise) / noise)

    def grid_builder(self) -> GridBuilder:
        """The profile on a grid: max(0, P(truth) - e^epsilon P(another answer))."""
        if self.adjacency != "replace_one":
            return super().grid_builder()
        noise, largest = self.event.noise_parameter, self.aligned_loss
        other = noise / self.event.num_buckets

        def profile(epsilons: Array) -> Array:
            return np.maximum(0.0, 1 - noise + other - np.exp(epsilons) * other)

        return functools.partial(grid_from_profiles, profile, None, (-largest, largest))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact: atoms at zero and at plus and minus the pure epsilon."""
        if self.adjacency != "replace_one":
            return super().loss_distribution(direction, tail)
        buckets = self.event.num_buckets
        other = self.event.noise_parameter / buckets
        true = 1 - self.event.noise_parameter + other
        top = math.log(true / other)
        return LossDistribution(atoms=((top, true), (0.0, (buckets - 2) * other), (-top, other)))
