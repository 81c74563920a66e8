"""Gaussian noise on a function of all records."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from dpjax.accounting import gaussian_moments
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    Function,
    LossDistribution,
    NormalMixture,
    Segment,
    negate_both,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.releases.base import PLDBuilder, Release, UnsupportedEventError
from dpjax.accounting.tradeoff.gaussian import Gaussian

# The grid of losses spans about 1 / noise**2 and has to fit in memory.
_LEAST_NOISE = 1e-3


class GaussianRelease(Release):
    """Gaussian noise on a function of all records."""

    event_types = (dp_event.GaussianDpEvent,)

    @property
    def over_sensitivity(self) -> Any:
        """The noise over the sensitivity."""
        return type(self.event)(self.event.noise_multiplier / self.clips)

    @property
    def mu(self) -> float:
        """The sensitivity over the standard deviation."""
        return float(1 / self.over_sensitivity.noise_multiplier)

    def pld_builder(self) -> PLDBuilder:
        """dp-accounting's distribution."""
        noise = check_noise(self.over_sensitivity.noise_multiplier)
        return lambda interval: pld.from_gaussian_mechanism(
            noise, value_discretization_interval=interval
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """A normal distribution of mean mu^2 / 2 and variance mu^2."""
        return gaussian_loss_distribution(self.mu, 1.0, tail, direction)

    def tradeoff(self) -> Gaussian:
        """G_mu (Dong, Roth & Su 2022, Definition 2.6 in the preprint's numbering)."""
        return Gaussian(self.mu)

    def log_moments(self, orders: Sequence[float]) -> Array:
        """Exact, by ``gaussian_moments``."""
        return log_moments(orders, self.over_sensitivity.noise_multiplier, 1.0)

    def squared_mu(self) -> float:
        """Exact: the squared sensitivity over the variance."""
        return float(self.over_sensitivity.noise_multiplier) ** -2


def check_noise(noise: float) -> float:
    """Returns ``noise``, a noise multiplier, unless its grid of losses would be too large."""
    if noise < _LEAST_NOISE:
        raise UnsupportedEventError(
            f"a noise multiplier of {noise:g} needs too large a grid of losses"
        )
    return noise


def log_moments(orders: Sequence[float], noise: float, rate: float) -> Array:
    """Returns log E_Q[(P / Q)^order] of a Poisson-sampled Gaussian release, for each order."""
    settings = np.array([float(noise)]), np.array([float(rate)])
    return np.array([gaussian_moments.log_moment(float(p), *settings)[0] for p in orders])


def gaussian_loss_distribution(
    mu: float, rate: float, tail: float, direction: Direction
) -> LossDistribution:
    """Returns the loss of a normal release that is moved by ``mu`` with probability ``rate``.

    ``"remove"``: P is (1 - rate) N(0, 1) + rate N(mu, 1), with the record, and Q is N(0, 1),
    without; ``"add"`` exchanges them. A mass of up to ``tail`` is left out on either side.
    """
    if direction == "remove":
        mixture = NormalMixture((1 - rate, rate), (0.0, mu))
        return LossDistribution((removal_segment(mixture, mu, rate, tail),))
    return LossDistribution((addition_segment(NormalMixture((1.0,), (0.0,)), mu, rate, tail),))


def removal_segment(
    coordinate: NormalMixture, mu: float, rate: float, tail: float, start: float = -math.inf
) -> Segment:
    """The loss log(1 - rate + rate e^(mu z - mu^2 / 2)) for coordinates z above ``start``."""
    loss, inverse = _removal_loss(mu, rate)
    low, high = coordinate.reach(tail)
    return Segment(coordinate, loss, inverse, max(low, start), high, panel_width(mu))


def addition_segment(
    coordinate: NormalMixture, mu: float, rate: float, tail: float, end: float = math.inf
) -> Segment:
    """The loss -log(1 - rate + rate e^(-mu z - mu^2 / 2)) for coordinates z below ``end``."""
    loss, inverse = map(negate_both, _removal_loss(mu, rate))
    low, high = coordinate.reach(tail)
    return Segment(coordinate, loss, inverse, low, min(high, end), panel_width(mu))


def panel_width(mu: float) -> float:
    """The loss as a function of a complex coordinate is singular no nearer than pi / mu."""
    return min(1.0, 2 / mu)


def _removal_loss(mu: float, rate: float) -> tuple[Function, Function]:
    """Returns the loss of a coordinate under removal, and the coordinate of a loss."""
    return (
        lambda z: subsampled_loss(mu * z - mu**2 / 2, rate),
        lambda y: (unsampled_loss(y, rate) + mu**2 / 2) / mu,
    )
