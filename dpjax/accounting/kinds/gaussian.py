"""Gaussian noise: on a function of all records, and on a sum over a sample of them."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import GaussianDpEvent
from scipy.special import ndtr

from dpjax.accounting.events import AtomicEvent, Compound, GridBuilder, TooLittleNoiseError
from dpjax.accounting.gdp import poisson_clt_mu
from dpjax.accounting.log_moments import log_ratio_moment
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    LossDistribution,
    Segment,
    grid_from_profiles,
    normal_mixture,
    subsampled_loss,
    unsampled_addition,
    unsampled_loss,
    unsampled_removal,
)
from dpjax.accounting.tradeoff.families import Gaussian, gaussian_log_delta

# The losses span about 1 / noise**2: their grid and their quadrature have to fit in memory.
_LEAST_NOISE = 0.01
# A normal variable is larger with probability 1e-23.
_FARTHEST_NORMAL = 10.0
# A width over which losses are smooth: of a complex coordinate they are singular no nearer than
# pi / mu.
_WIDEST_PANEL = 1.0


class GaussianNoise(AtomicEvent):
    """Gaussian noise on a function of all records."""

    event_types = (dp_event.GaussianDpEvent,)

    def grid_builder(self) -> GridBuilder:
        return gaussian_grid_builder(check_noise(self.unit_sensitivity_event.noise_multiplier))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        mu = 1 / check_noise(self.unit_sensitivity_event.noise_multiplier)
        return gaussian_loss_distribution(mu, 1.0, tail, direction)

    def tradeoff(self) -> Gaussian:
        return Gaussian(float(1 / self.unit_sensitivity_event.noise_multiplier))

    def log_moments(self, orders: Sequence[float]) -> Array:
        return sampled_log_moments(orders, self.unit_sensitivity_event.noise_multiplier, 1.0)

    def squared_mu(self) -> float:
        return float(self.unit_sensitivity_event.noise_multiplier) ** -2


class PoissonSampledGaussian(Compound):
    """Gaussian noise on a sum in which every record takes part independently with probability q.

    Under add/remove and zero-out the pair is (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2).
    Under replace-one it is the same mixture against its mirror image: the record's two values lie
    one clip bound to either side of none.
    """

    event_types = (dp_event.PoissonSampledDpEvent,)
    inner_type = GaussianDpEvent
    is_asymmetric = True

    def grid_builder(self) -> GridBuilder:
        mu = 1 / check_noise(self.event.event.noise_multiplier)
        rate = float(self.event.sampling_probability)
        if self.sensitivity_factor == 1:
            removal = functools.partial(sampled_removal_profile, mu, rate)
            addition = functools.partial(sampled_addition_profile, mu, rate)
            return functools.partial(
                grid_from_profiles, removal, addition, removal_losses(mu, rate)
            )
        profile = functools.partial(replacement_profile, mu, rate)
        largest = largest_replacement_loss(mu, rate, _FARTHEST_NORMAL)
        return functools.partial(grid_from_profiles, profile, None, (-largest, largest))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        mu = 1 / check_noise(self.event.event.noise_multiplier)
        rate = float(self.event.sampling_probability)
        if self.sensitivity_factor == 1:
            return gaussian_loss_distribution(mu, rate, tail, direction)
        return replacement_loss_distribution(mu, rate, tail)

    def log_moments(self, orders: Sequence[float]) -> Array:
        """Exact by ``log_moments`` where one record is added, removed or zeroed out."""
        if self.sensitivity_factor != 1:
            return super().log_moments(orders)
        event = self.event
        return sampled_log_moments(orders, event.event.noise_multiplier, event.sampling_probability)

    def squared_mu(self) -> float:
        """The central limit of Bu, Dong, Long & Su (2020), Theorem 5, for one step."""
        if self.sensitivity_factor != 1:
            return super().squared_mu()
        event = self.event
        return (
            float(poisson_clt_mu(event.event.noise_multiplier, event.sampling_probability, 1)) ** 2
        )


class FixedSizeSampledGaussian(Compound):
    """Gaussian noise on a sum over a sample of fixed size, without replacement.

    Under replace-one its trade-off function is bounded by C_p(G_mu), p the sample's share of the
    records (Dong, Roth & Su 2022, Section 4), and so it is under zero-out. Lower bounds are those
    of that curve, or under zero-out of data whose other records contribute nothing: the mechanism
    may be more private than the first, and less than the second.
    """

    event_types = (dp_event.SampledWithoutReplacementDpEvent,)
    inner_type = GaussianDpEvent

    def grid_builder(self) -> GridBuilder:
        if self.adjacency == "add_remove":
            return super().grid_builder()
        mu = 1 / check_noise(self.unit_sensitivity_event.event.noise_multiplier)
        rate = float(self.event.sample_size / self.event.source_dataset_size)
        largest = removal_losses(mu, rate)[1]

        def profile(epsilons: Array) -> Array:
            return rate * np.exp(gaussian_log_delta(mu, unsampled_loss(epsilons, rate)))

        return functools.partial(grid_from_profiles, profile, None, (-largest, largest))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Returns the loss of the pair that the bound on the trade-off function is attained by.

        Above zero it is that of removal after Poisson sampling, below zero its mirror image, and
        the remaining mass is an atom at zero.
        """
        if self.adjacency == "add_remove":
            return super().loss_distribution(direction, tail)
        rate = float(self.event.sample_size / self.event.source_dataset_size)
        if self.adjacency == "zero_out":
            mu = 1 / check_noise(self.event.event.noise_multiplier)
            return gaussian_loss_distribution(mu, rate, tail, direction)
        mu = 1 / check_noise(self.unit_sensitivity_event.event.noise_multiplier)
        above, below = (
            gaussian_loss_distribution(mu, rate, tail, side, beyond=mu / 2).segments[0]
            for side in ("remove", "add")
        )
        # What the mirror image, of e^y times the weight of the loss -y, leaves over.
        middle = (1 - rate) * math.erf(mu / math.sqrt(8))
        segments = tuple(segment for segment in (above, below) if segment.low < segment.high)
        return LossDistribution(segments, ((0.0, middle),))

    def squared_mu(self) -> float:
        """The central limit of Dong, Roth & Su (2022), Section 5, for one step.

        Up to a factor 2, exp(1 / s^2) - 1 of Poisson samples becomes the constant below.
        """
        if self.adjacency != "replace_one":
            return super().squared_mu()
        rate = float(self.event.sample_size / self.event.source_dataset_size)
        noise = float(self.unit_sensitivity_event.event.noise_multiplier)
        with np.errstate(over="ignore"):
            constant = np.exp(noise**-2.0) * ndtr(1.5 / noise) + 3 * ndtr(-0.5 / noise) - 2
        return float(2 * rate**2 * float(constant))


def removal_losses(mu: float, rate: float) -> tuple[float, float]:
    """Returns the losses of removal beyond which there is next to no mass."""
    far = mu * (mu / 2 + _FARTHEST_NORMAL)
    low, high = subsampled_loss(np.array([-far, far]), rate).tolist()
    return low, high


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
    return np.array([log_ratio_moment(float(order), *settings)[0] for order in orders])


def gaussian_grid_builder(noise: float) -> GridBuilder:
    """Returns the constructor of the losses of a Gaussian release of this noise multiplier."""
    largest = (1 / noise) * (1 / (2 * noise) + _FARTHEST_NORMAL)
    return functools.partial(
        grid_from_profiles,
        lambda epsilons: np.exp(gaussian_log_delta(1 / noise, epsilons)),
        None,
        (-largest, largest),
    )


def sampled_removal_profile(mu: float, rate: float, epsilons: Array) -> Array:
    """Returns delta at ``epsilons`` >= 0 of (1 - rate) N(0, 1) + rate N(mu, 1) against N(0, 1)."""
    return rate * np.exp(gaussian_log_delta(mu, unsampled_removal(epsilons, rate)))


def sampled_addition_profile(mu: float, rate: float, epsilons: Array) -> Array:
    """Returns delta at ``epsilons`` >= 0 of N(0, 1) against (1 - rate) N(0, 1) + rate N(mu, 1)."""
    left, losses = unsampled_addition(epsilons, rate)
    return left * np.exp(gaussian_log_delta(mu, losses))


def gaussian_loss_distribution(
    mu: float, rate: float, tail: float, direction: Direction, beyond: float = -math.inf
) -> LossDistribution:
    """Returns the privacy loss distribution of a Poisson-subsampled Gaussian release.

    ``"remove"``: P is (1 - rate) N(0, 1) + rate N(mu, 1), with the record, and Q is N(0, 1),
    without; ``"add"`` exchanges them. The loss at z is log(1 - rate + rate e^(mu z - mu^2 / 2)) for
    ``"remove"``, and the negative of that at -z for ``"add"``.

    Args:
      mu: the shift that the record causes.
      rate: the sampling rate.
      tail: a mass of up to this is left out on either side.
      direction: of the two.
      beyond: only coordinates above this count for ``"remove"``, below its negative for ``"add"``.
    """
    removed, shift = direction == "remove", mu**2 / 2
    sign = 1 if removed else -1
    weights, means = ((1 - rate, rate), (0.0, mu)) if removed else ((1.0,), (0.0,))
    coordinate, low, high = normal_mixture(weights, means, tail)
    segment = Segment(
        coordinate,
        lambda z: sign * subsampled_loss(mu * (sign * z) - shift, rate),
        lambda y: sign * ((unsampled_loss(sign * y, rate) + shift) / mu),
        max(low, beyond) if removed else low,
        high if removed else min(high, -beyond),
        min(_WIDEST_PANEL, 2 / mu),
    )
    return LossDistribution((segment,))


def replacement_loss_distribution(mu: float, rate: float, tail: float) -> LossDistribution:
    """Returns the loss of (1 - rate) N(0, 1) + rate N(mu, 1) against its mirror image."""
    if rate == 1:
        return gaussian_loss_distribution(2 * mu, 1.0, tail, "remove")
    shift = mu**2 / 2
    log_ratio = math.log1p(-rate) - math.log(rate) + shift

    def loss(z: Array) -> Array:
        return subsampled_loss(mu * z - shift, rate) - subsampled_loss(-mu * z - shift, rate)

    def inverse(y: Array) -> Array:
        # The arcsinh of e^log_ratio sinh(|y| / 2), through the logarithm of that.
        half = np.abs(y) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        x = log_ratio + log_sinh
        away = np.where(x > 30, x + math.log(2), np.arcsinh(np.exp(np.minimum(x, 30.0))))
        return (y / 2 + np.sign(y) * away) / mu

    coordinate, low, high = normal_mixture((1 - rate, rate), (0.0, mu), tail)
    panel = min(_WIDEST_PANEL, 2 / mu)
    return LossDistribution((Segment(coordinate, loss, inverse, low, high, panel),))


def replacement_profile(mu: float, rate: float, epsilons: Array) -> Array:
    """Returns delta of (1 - rate) N(0, 1) + rate N(mu, 1) against its mirror image."""
    if rate == 1:
        return np.exp(gaussian_log_delta(2 * mu, epsilons))
    segment = replacement_loss_distribution(mu, rate, tail=0.5).segments[0]
    threshold = segment.inverse(epsilons)
    above, mirrored = segment.coordinate.above(threshold), segment.coordinate.below(-threshold)
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.where(mirrored > 0, np.exp(epsilons) * mirrored, 0.0)
    return np.maximum(above - beyond, 0.0)


def largest_replacement_loss(mu: float, rate: float, deviations: float) -> float:
    """Returns the loss of the mixture against its mirror image so far beyond its larger mean."""
    far = mu * (mu / 2 + deviations)
    low, high = subsampled_loss(np.array([-far - mu**2, far]), rate).tolist()
    return float(high - low)
