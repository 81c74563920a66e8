"""Events and a mechanism that the tests of the accounting share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dpjax.adjacency import Adjacency
from dpjax.mechanisms.base import Mechanism

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
    def num_releases(self) -> int:
        return self.num_steps

    @property
    def event(self) -> DpEvent:
        events = {
            "none": gaussian(self.noise_multiplier, self.num_steps),
            "poisson": poisson(self.noise_multiplier, 0.01, self.num_steps),
            "fixed_size": fixed_size(self.noise_multiplier, 10, 1_000, self.num_steps),
        }
        return events[self.sampling]

    def scale_noise(self, factor: float) -> "FakeMechanism":
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    def prefix(self, num_steps: int) -> "FakeMechanism":
        return replace(self, num_steps=num_steps)

    def describe(self) -> Mapping[str, str]:
        return {"sampling": f"each batch is drawn by {self.sampling} sampling"}


@dataclass(frozen=True)
class Noiseless(FakeMechanism):
    """Releases the data as they are, whatever its noise."""

    @property
    def event(self) -> DpEvent:
        return dp_event.NonPrivateDpEvent()
