"""Events and a mechanism that the tests of the accounting share."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import decompose
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism

Density = Callable[[float], float]
# sigma, epochs, printed CLT mu, printed CLT epsilon, printed moments epsilon, tight epsilon.
MNIST_ROWS = (
    (1.3, 15, 0.23, 0.83, 1.19, 0.865),
    (1.1, 60, 0.57, 2.32, 3.01, 2.38),
    (0.7, 45, 1.13, 5.07, 7.10, 5.64),
    (0.6, 62, 2.00, 9.98, 13.27, 10.95),
    (0.55, 68, 2.76, 14.98, 18.72, 15.72),
    (0.5, 100, 4.78, 31.12, 32.40, 28.05),
)
MNIST_RATE = 256 / 60_000


def mnist_steps(epochs: int) -> int:
    return epochs * 60_000 // 256


def gaussian(noise: float, count: int = 1) -> DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), count)


def poisson(noise: float, rate: float, count: int) -> DpEvent:
    sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(sampled, count)


def fixed_size(noise: float, size: int, total: int, count: int) -> DpEvent:
    inner = dp_event.GaussianDpEvent(noise)
    sampled = dp_event.SampledWithoutReplacementDpEvent(total, size, inner)
    return dp_event.SelfComposedDpEvent(sampled, count)


def laplace(noise: float, count: int = 1) -> DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(noise), count)


def response(noise: float, buckets: int, count: int = 1) -> DpEvent:
    return dp_event.SelfComposedDpEvent(dp_event.RandomizedResponseDpEvent(noise, buckets), count)


def truncated(noise: float, size: int, count: int = 50) -> DpEvent:
    event = dp_event.TruncatedSubsampledGaussianDpEvent(1_000, 0.02, size, noise)
    return dp_event.SelfComposedDpEvent(event, count)


@dataclass(frozen=True)
class FakeMechanism(Mechanism):
    """Gaussian steps on samples drawn in one of three ways."""

    noise_multiplier: float
    num_steps: int = 100
    sampling: str = "poisson"
    adjacency: Adjacency = "add_remove"
    unit: str = "one <image>"

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            event=self.composed_event(),
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=self.num_steps,
            description={"sampling": f"each batch is drawn by {self.sampling} sampling"},
        )

    def composed_event(self) -> DpEvent:
        events = {
            "none": gaussian(self.noise_multiplier, self.num_steps),
            "poisson": poisson(self.noise_multiplier, 0.01, self.num_steps),
            "fixed_size": fixed_size(self.noise_multiplier, 10, 1_000, self.num_steps),
        }
        return events[self.sampling]

    def with_privacy_factor(self, factor: float) -> "FakeMechanism":
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def first_steps(self, num_steps: int) -> "FakeMechanism":
        return replace(self, num_steps=num_steps)


@dataclass(frozen=True)
class Noiseless(FakeMechanism):
    """Releases the data as they are, whatever its noise."""

    def composed_event(self) -> DpEvent:
        return dp_event.NonPrivateDpEvent()


class Selection(FakeMechanism):
    """The best of several releases, of which no privacy loss distribution is known."""

    def composed_event(self) -> DpEvent:
        release = dp_event.ZCDpEvent(self.noise_multiplier**-2 / 2)
        return dp_event.RepeatAndSelectDpEvent(release, 10, 1)


def normal_mixture(rate: float, noise: float, shift: float) -> Density:
    return lambda x: (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, shift, noise)


def hockey_stick(epsilon: float, above: Density, below: Density, reach: float) -> float:
    """The integral of (above - e^epsilon below)+, cut where the integrand changes sign."""

    def excess(x: float) -> float:
        return above(x) - math.exp(epsilon) * below(x)

    grid = np.linspace(-reach, reach, 4_002)
    signs = np.sign(excess(grid))
    (changes,) = np.nonzero(signs[1:] * signs[:-1] < 0)
    cuts = [-reach, *(brentq(excess, grid[i], grid[i + 1], xtol=1e-14) for i in changes), reach]
    pieces = itertools.pairwise(cuts)
    return sum(max(quad(excess, *piece, epsabs=1e-13, limit=500)[0], 0.0) for piece in pieces)


def certified_of(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[str, float]:
    """Returns the method whose epsilon is certified, and that epsilon."""
    return certified_epsilon(decompose(event, adjacency), delta)
