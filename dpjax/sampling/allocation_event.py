"""The event of random allocation, which dp-accounting 0.6.0 does not have."""

from dataclasses import dataclass

from dp_accounting import DpEvent

from dpjax._checks import as_count, check, check_non_negative


@dataclass(frozen=True)
class RandomAllocationDpEvent(DpEvent):
    """Gaussian noise on ``num_steps`` sums, with each record in one uniformly random sum of them.

    Attributes:
      num_steps: number of steps t, at least 2; of one step it is a Gaussian release.
      noise_multiplier: noise standard deviation over one clip bound.

    >>> from dpjax.accounting import epsilon
    >>> event = RandomAllocationDpEvent(num_steps=100, noise_multiplier=1.0)
    >>> round(epsilon(event, 1e-5, adjacency="add_remove"), 3)
    0.621
    """

    num_steps: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_steps", as_count("num_steps", self.num_steps))
        check(self.num_steps >= 2, "num_steps", self.num_steps, "at least 2")
        check_non_negative("noise_multiplier", self.noise_multiplier)
