"""Gaussian noise on a function of all records."""

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from dpjax.accounting import log_moments
from dpjax.accounting.events import AtomicEvent, PLDBuilder, TooLittleNoiseError
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    LossDistribution,
    Segment,
    normal_mixture,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.tradeoff.gaussian import Gaussian

# The losses span about 1 / noise**2: their grid and their quadrature have to fit in memory.
_LEAST_NOISE = 0.01


class GaussianNoise(AtomicEvent):
    """Gaussian noise on a function of all records."""

    event_types = (dp_event.GaussianDpEvent,)

    def pld_builder(self) -> PLDBuilder:
        """Builds the privacy loss distribution by dp-accounting."""
        noise = check_noise(self.unit_sensitivity_event.noise_multiplier)
        return lambda interval: pld.from_gaussian_mechanism(
            noise, value_discretization_interval=interval
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Privacy loss distribution: normal, of mean mu^2 / 2 and variance mu^2."""
        mu = 1 / check_noise(self.unit_sensitivity_event.noise_multiplier)
        return gaussian_loss_distribution(mu, 1.0, tail, direction)

    def tradeoff(self) -> Gaussian:
        """Returns the trade-off function G_mu, mu being the sensitivity over the noise's deviation.

        Source: Dong, Roth & Su (2022), Definition 2.6 in the preprint's numbering.
        """
        return Gaussian(float(1 / self.unit_sensitivity_event.noise_multiplier))

    def log_moments(self, orders: Sequence[float]) -> Array:
        """Log moments of the privacy loss, exact (`log_moments`)."""
        return sampled_log_moments(orders, self.unit_sensitivity_event.noise_multiplier, 1.0)

    def squared_mu(self) -> float:
        """mu^2 of Gaussian DP: the squared sensitivity over the variance, exact."""
        return float(self.unit_sensitivity_event.noise_multiplier) ** -2


def check_noise(noise: float) -> float:
    """Returns ``noise``, a noise multiplier over the sensitivity, unless it is too small.

    Raises:
      TooLittleNoiseError: its losses would need too large a grid.
    """
    if noise < _LEAST_NOISE:
        raise TooLittleNoiseError(
            f"noise_multiplier over the sensitivity must be at least {_LEAST_NOISE:g} for a privacy"
            f" loss distribution, got {noise:g}"
        )
    return float(noise)


def sampled_log_moments(orders: Sequence[float], noise: float, rate: float) -> Array:
    """Returns log E_Q[(P / Q)^order] of a Poisson-sampled Gaussian release, for each order."""
    settings = np.array([float(noise)]), np.array([float(rate)])
    return np.array([log_moments.log_moment(float(p), *settings)[0] for p in orders])


def gaussian_loss_distribution(
    mu: float, rate: float, tail: float, direction: Direction
) -> LossDistribution:
    """Returns the privacy loss distribution of a Poisson-subsampled Gaussian release.

    ``mu`` is the shift that the record causes, ``rate`` the sampling rate.
    ``"remove"``: P is (1 - rate) N(0, 1) + rate N(mu, 1), with the record, and Q is N(0, 1),
    without; ``"add"`` exchanges them. A mass of up to ``tail`` is left out on either side.
    """
    return LossDistribution((gaussian_segment(mu, rate, tail, direction),))


def gaussian_segment(
    mu: float, rate: float, tail: float, direction: Direction, beyond: float = -math.inf
) -> Segment:
    """Returns the segment of ``gaussian_loss_distribution`` whose coordinates pass ``beyond``.

    They are those above ``beyond`` for ``"remove"``, where the loss at z is
    log(1 - rate + rate e^(mu z - mu^2 / 2)), and below -``beyond`` for ``"add"``, where it is the
    negative of that at -z.
    """
    removed, shift = direction == "remove", mu**2 / 2
    sign = 1 if removed else -1
    weights, means = ((1 - rate, rate), (0.0, mu)) if removed else ((1.0,), (0.0,))
    coordinate, low, high = normal_mixture(weights, means, tail)
    return Segment(
        coordinate,
        lambda z: sign * subsampled_loss(mu * (sign * z) - shift, rate),
        lambda y: sign * ((unsampled_loss(sign * y, rate) + shift) / mu),
        max(low, beyond) if removed else low,
        high if removed else min(high, -beyond),
        panel_width(mu),
    )


def panel_width(mu: float) -> float:
    """The loss as a function of a complex coordinate is singular no nearer than pi / mu."""
    return min(1.0, 2 / mu)
