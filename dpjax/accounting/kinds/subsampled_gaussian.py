"""Gaussian noise on a sum over a random sample: Poisson, or of fixed size."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr

from dpjax._checks import as_finite, as_float64
from dpjax.accounting.events import PLDBuilder
from dpjax.accounting.kinds.compound import Compound
from dpjax.accounting.kinds.gaussian import (
    check_noise,
    gaussian_loss_distribution,
    gaussian_segment,
    panel_width,
    sampled_log_moments,
)
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    LossDistribution,
    Segment,
    normal_mixture,
    pld_from_profiles,
    pld_from_tradeoff,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.tradeoff import gaussian as gaussian_tradeoff
from dpjax.accounting.tradeoff.calculus import mixture
from dpjax.accounting.tradeoff.gaussian import Gaussian
from dpjax.adjacency import neighboring_relation

# A normal variable is larger with probability 1e-23.
_FARTHEST_NORMAL = 10.0


class PoissonSampledGaussian(Compound):
    """Gaussian noise on a sum in which every record takes part independently with probability q.

    Under add/remove and zero-out the pair is (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2).
    Under replace-one it is the same mixture against its mirror image: the record's two values lie
    one clip bound to either side of none.
    """

    event_types = (dp_event.PoissonSampledDpEvent,)
    inner_type = GaussianDpEvent
    is_asymmetric = True

    def pld_builder(self) -> PLDBuilder:
        """The mixture's trade-off function on a grid; dp-accounting's under replace-one."""
        noise = check_noise(self.event.event.noise_multiplier)
        rate = float(self.event.sampling_probability)
        if self.sensitivity_factor == 1:
            removal, losses = mixture(Gaussian(1 / noise), rate), removal_losses(1 / noise, rate)
            return lambda interval: pld_from_tradeoff(removal, losses, interval)
        return lambda interval: pld.from_gaussian_mechanism(
            noise,
            value_discretization_interval=interval,
            sampling_prob=rate,
            neighboring_relation=neighboring_relation(self.adjacency),
        )

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Privacy loss distribution, exact under both adjacencies."""
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

    def pld_builder(self) -> PLDBuilder:
        """Builds the privacy loss distribution from the trade-off function, on a grid."""
        if self.adjacency == "add_remove":
            return super().pld_builder()
        mu = 1 / check_noise(self.unit_sensitivity_event.event.noise_multiplier)
        rate = float(self.event.sample_size / self.event.source_dataset_size)
        largest = removal_losses(mu, rate)[1]

        def profile(epsilons: Array) -> Array:
            return np.asarray(rate * gaussian_tradeoff.delta(mu, unsampled_loss(epsilons, rate)))

        return lambda interval: pld_from_profiles(profile, None, largest, interval)

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """The curve's: that of removal above zero, its mirror image below, and an atom at zero."""
        if self.adjacency == "add_remove":
            return super().loss_distribution(direction, tail)
        rate = float(self.event.sample_size / self.event.source_dataset_size)
        if self.adjacency == "zero_out":
            mu = 1 / check_noise(self.event.event.noise_multiplier)
            return gaussian_loss_distribution(mu, rate, tail, direction)
        mu = 1 / check_noise(self.unit_sensitivity_event.event.noise_multiplier)
        above = gaussian_segment(mu, rate, tail, "remove", beyond=mu / 2)
        below = gaussian_segment(mu, rate, tail, "add", beyond=mu / 2)
        # What the mirror image, of e^y times the weight of the loss -y, leaves over.
        middle = (1 - rate) * math.erf(mu / math.sqrt(8))
        segments = tuple(part for part in (above, below) if part.low < part.high)
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


def poisson_clt_mu(
    noise_multiplier: npt.ArrayLike, sampling_rate: npt.ArrayLike, num_steps: npt.ArrayLike
) -> Any:
    """Returns q sqrt(T (exp(1 / sigma^2) - 1)), the limit for Poisson-sampled Gaussian releases.

    It holds under add/remove, in the limit of many steps T at a rate q of order 1 / sqrt(T); at
    finite T it may err on either side.

    Args:
      noise_multiplier: sigma >= 0, over the clip bound.
      sampling_rate: q in (0, 1].
      num_steps: T; the three arguments broadcast.

    Returns:
      The mu of the limit, infinite where there is next to no noise; scalars give a scalar.

    Source: Bu, Dong, Long & Su (2020), Theorem 5.

    >>> round(poisson_clt_mu(noise_multiplier=1.3, sampling_rate=256 / 60_000, num_steps=3_515), 2)
    0.23
    """
    noise_multiplier = as_float64(noise_multiplier, "noise_multiplier")
    sampling_rate = as_float64(sampling_rate, "sampling_rate")
    num_steps = as_finite(num_steps, "num_steps", "numbers >= 0", lambda steps: steps >= 0)
    with np.errstate(over="ignore", divide="ignore"):
        chi_square = np.expm1(np.square(np.divide(1.0, noise_multiplier)))
        mu = np.multiply(sampling_rate, np.sqrt(np.multiply(num_steps, chi_square)))
        return mu.item() if np.ndim(mu) == 0 else mu


def removal_losses(mu: float, rate: float) -> tuple[float, float]:
    """Returns the losses of removal beyond which there is next to no mass."""
    far = mu * (mu / 2 + _FARTHEST_NORMAL)
    low, high = subsampled_loss(np.array([-far, far]), rate).tolist()
    return low, high


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
    return LossDistribution((Segment(coordinate, loss, inverse, low, high, panel_width(mu)),))
