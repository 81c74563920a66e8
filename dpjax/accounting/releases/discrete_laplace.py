"""Discrete Laplace noise on whole numbers."""

import math
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from dpjax.accounting.loss_distribution import Direction, LossDistribution
from dpjax.accounting.releases.base import PLDBuilder, Release, UnsupportedEventError


class DiscreteLaplaceRelease(Release):
    """Noise k of mass in proportion to e^(-parameter |k|), on whole numbers."""

    event_types = (dp_event.DiscreteLaplaceDpEvent,)

    @property
    def over_sensitivity(self) -> Any:
        """The same noise with the whole sensitivity; one clip bound may be half of an odd one."""
        sensitivity = self.event.sensitivity * self.clips
        if sensitivity != int(sensitivity):
            raise UnsupportedEventError(f"a sensitivity of {sensitivity:g} is not a whole number")
        return type(self.event)(self.event.noise_parameter, int(sensitivity))

    @property
    def largest_loss(self) -> float:
        """The pure epsilon."""
        scaled = self.over_sensitivity
        return float(scaled.noise_parameter * scaled.sensitivity)

    def pld_builder(self) -> PLDBuilder:
        """dp-accounting's distribution."""
        scaled = self.over_sensitivity
        return lambda interval: pld.from_discrete_laplace_mechanism(
            scaled.noise_parameter,
            scaled.sensitivity,
            use_connect_dots=True,
            value_discretization_interval=interval,
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact: atoms at the multiples of the parameter."""
        parameter, sensitivity = self.event.noise_parameter, self.over_sensitivity.sensitivity
        inner = np.arange(1, sensitivity)
        losses = parameter * (sensitivity - 2 * np.arange(sensitivity + 1))
        left = 1 / (1 + math.exp(-parameter))
        between = math.tanh(parameter / 2) * np.exp(-parameter * inner)
        masses = [left, *between, left * math.exp(-parameter * sensitivity)]
        return LossDistribution(atoms=tuple(zip(losses.tolist(), map(float, masses), strict=True)))
