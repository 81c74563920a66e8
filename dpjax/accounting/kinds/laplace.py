"""Laplace noise: on a function of all records, on a sum over a Poisson sample, and discrete."""

import functools
import math

import numpy as np
from dp_accounting import dp_event

from dpjax.accounting.events import (
    AtomicEvent,
    Compound,
    GridBuilder,
    TooLittleNoiseError,
    UnsupportedEventError,
)
from dpjax.accounting.loss_distribution import (
    Coordinate,
    Direction,
    LossDistribution,
    Segment,
    grid_from_profiles,
    hockey_stick,
    subsampled_loss,
    unsampled_loss,
)
from dpjax.accounting.tradeoff.calculus import mixture
from dpjax.accounting.tradeoff.families import Laplace

# Of larger losses the grid does not fit in memory; under sampling, their exponentials overflow.
_LARGEST_LOSS, _LARGEST_SAMPLED_LOSS = 1e4, 700.0


class LaplaceNoise(AtomicEvent):
    """Laplace noise on a function of all records."""

    event_types = (dp_event.LaplaceDpEvent,)

    @property
    def aligned_loss(self) -> float:
        """The pure epsilon: the sensitivity over the scale of the noise."""
        return float(1 / self.unit_sensitivity_event.noise_multiplier)

    def grid_builder(self) -> GridBuilder:
        _check_loss(self.aligned_loss)
        losses = -self.aligned_loss, self.aligned_loss
        return functools.partial(grid_from_profiles, self.tradeoff().delta, None, losses)

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        return _loss_distribution(self.aligned_loss, 1.0, "remove")

    def tradeoff(self) -> Laplace:
        return Laplace(self.unit_sensitivity_event.noise_multiplier)


class PoissonSampledLaplace(Compound):
    """Laplace noise on a sum over a Poisson sample; only where one record is one clip bound."""

    event_types = (dp_event.PoissonSampledDpEvent,)
    inner_type = dp_event.LaplaceDpEvent
    is_asymmetric = True

    def grid_builder(self) -> GridBuilder:
        if self.sensitivity_factor != 1:
            return super().grid_builder()
        noise, rate = self.event.event.noise_multiplier, self.event.sampling_probability
        _check_loss(1 / noise, _LARGEST_SAMPLED_LOSS)
        low, high = subsampled_loss(np.array([-1 / noise, 1 / noise]), rate).tolist()
        curve = mixture(Laplace(noise), rate)
        profiles = curve.delta, curve.inverse().delta
        return functools.partial(grid_from_profiles, *profiles, (low, high))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        if self.sensitivity_factor != 1:
            return super().loss_distribution(direction, tail)
        bound = 1 / self.event.event.noise_multiplier
        return _loss_distribution(bound, self.event.sampling_probability, direction)


class DiscreteLaplaceNoise(AtomicEvent):
    """Noise k of mass in proportion to e^(-parameter |k|), on whole numbers."""

    event_types = (dp_event.DiscreteLaplaceDpEvent,)

    @property
    def unit_sensitivity_event(self) -> dp_event.DiscreteLaplaceDpEvent:
        """The same noise with the whole sensitivity; one clip bound may be half of an odd one."""
        sensitivity = self.event.sensitivity * self.sensitivity_factor
        if sensitivity != int(sensitivity):
            raise UnsupportedEventError(f"a sensitivity of {sensitivity:g} is not a whole number")
        return type(self.event)(self.event.noise_parameter, int(sensitivity))

    @property
    def aligned_loss(self) -> float:
        """The largest privacy loss, which is the pure epsilon."""
        scaled = self.unit_sensitivity_event
        return float(scaled.noise_parameter * scaled.sensitivity)

    def grid_builder(self) -> GridBuilder:
        atoms = np.array(self.loss_distribution("remove", 0.0).atoms[::-1])
        profile, largest = functools.partial(hockey_stick, *atoms.T), self.aligned_loss
        return functools.partial(grid_from_profiles, profile, None, (-largest, largest))

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Exact privacy loss distribution: atoms at the multiples of the parameter."""
        _check_loss(self.aligned_loss)
        parameter, sensitivity = self.event.noise_parameter, self.unit_sensitivity_event.sensitivity
        inner = np.arange(1, sensitivity)
        losses = parameter * (sensitivity - 2 * np.arange(sensitivity + 1))
        left = 1 / (1 + math.exp(-parameter))
        between = math.tanh(parameter / 2) * np.exp(-parameter * inner)
        masses = [left, *between, left * math.exp(-parameter * sensitivity)]
        return LossDistribution(atoms=tuple(zip(losses.tolist(), map(float, masses), strict=True)))


def _check_loss(largest: float, most: float = _LARGEST_LOSS) -> None:
    """Refuses a release of Laplace noise whose pure epsilon is too large for a distribution."""
    if largest > most:
        raise TooLittleNoiseError(
            f"the pure epsilon of Laplace noise must be at most {most:g} for a privacy loss"
            f" distribution, got {largest:g}"
        )


def _loss_distribution(bound: float, rate: float, direction: Direction) -> LossDistribution:
    """Returns the loss of Laplace noise of scale 1 / ``bound``, shifted by one at ``rate``.

    The coordinate is the loss without sampling. Inside (-``bound``, ``bound``) it has a density,
    that of the noise itself with probability ``share``, else of the shifted; at the ends atoms.
    """
    _check_loss(bound)
    share = rate if direction == "remove" else 1.0
    far = math.exp(-bound)
    coordinate = Coordinate(
        below=lambda z: (
            (share * (np.exp((z - bound) / 2) - far) - (1 - share) * np.expm1(-(z + bound) / 2)) / 2
        ),
        above=lambda z: (
            ((1 - share) * (np.exp(-(z + bound) / 2) - far) - share * np.expm1((z - bound) / 2)) / 2
        ),
        density=lambda z: (
            (share * np.exp((z - bound) / 2) + (1 - share) * np.exp(-(z + bound) / 2)) / 4
        ),
    )

    sign = 1 if direction == "remove" else -1
    segment = Segment(
        coordinate,
        lambda z: sign * subsampled_loss(sign * z, rate),
        lambda y: sign * unsampled_loss(sign * y, rate),
        -bound,
        bound,
        panel=1.0,
    )
    masses = (share * far + 1 - share) / 2, (share + (1 - share) * far) / 2
    ends = segment.loss(np.array([-bound, bound])).tolist()
    return LossDistribution((segment,), tuple(zip(ends, masses, strict=True)))
