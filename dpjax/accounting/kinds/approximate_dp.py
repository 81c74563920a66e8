"""A release of which only its (epsilon, delta) guarantee is known.

Of all releases with that guarantee one is the worst: the record is revealed with probability delta,
and else a randomized response of two answers and largest loss epsilon. All others are
post-processing of it (Kairouz, Oh & Viswanath 2015, Theorem 2.1), so its losses are an upper bound
for each of them and for their compositions, and its own composition is the optimal one (Murtagh &
Vadhan 2016).
"""

import functools
import math
from dataclasses import KW_ONLY, dataclass

from dp_accounting import DpEvent

from dpjax._checks import check, check_non_negative, check_share
from dpjax.accounting.events import AtomicEvent, GridBuilder
from dpjax.accounting.loss_distribution import Direction, LossDistribution, grid_from_profiles
from dpjax.accounting.tradeoff.families import ApproximateDP

# Beyond it e^epsilon overflows.
_LARGEST_EPSILON = 700.0
_LEAST_ALIGNED = 1e-3
# What an infinite loss counts as in lower bounds, above epsilon.
_INFINITE = 10.0


@dataclass(frozen=True)
class ApproximateDpEvent(DpEvent):
    """A release of which only (epsilon, delta)-differential privacy is known.

    For mechanisms of others, or with noise that dpjax has no event for: the guarantee composes
    with those of dpjax's mechanisms. It is the same whatever the mechanism, so an event with the
    mechanism's own loss gives a smaller epsilon after several releases.

    Attributes:
      epsilon: of the guarantee, in [0, 700].
      delta: of the guarantee, in [0, 1); zero is pure differential privacy.

    Privacy:
      The guarantee must hold under the adjacency for which the event is accounted: nothing is
      doubled where a record is replaced. Lower bounds are those of the worst release with the
      guarantee; the release itself may be more private.

    Raises:
      ValueError: a number out of range.

    Source: Kairouz, Oh & Viswanath (2015), Theorem 3.3; Murtagh & Vadhan (2016).

    >>> from dpjax.accounting import epsilon
    >>> from dp_accounting import SelfComposedDpEvent
    >>> ten = SelfComposedDpEvent(ApproximateDpEvent(0.1, delta=1e-7), 10)
    >>> round(epsilon(ten, 1e-5, adjacency="zero_out"), 3)
    0.994
    """

    epsilon: float
    _: KW_ONLY
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative("epsilon", self.epsilon)
        allowed = f"a number in [0, {_LARGEST_EPSILON:g}]"
        check(self.epsilon <= _LARGEST_EPSILON, "epsilon", self.epsilon, allowed)
        check_share("delta", self.delta)
        check(self.delta < 1, "delta", self.delta, "a number in [0, 1)")


class ApproximateDPRelease(AtomicEvent):
    """The worst release with an (epsilon, delta) guarantee."""

    event_types = (ApproximateDpEvent,)
    is_stated_for_neighbors = True

    @classmethod
    def noise(cls, event: ApproximateDpEvent) -> float:
        """Infinite where no record has an influence."""
        return math.inf if event.epsilon == event.delta == 0 else 1.0

    @property
    def aligned_loss(self) -> float | None:
        """The largest finite loss, which is epsilon; a small one would make all grids too fine."""
        return self.event.epsilon if self.event.epsilon >= _LEAST_ALIGNED else None

    def grid_builder(self) -> GridBuilder:
        losses = -self.event.epsilon, self.event.epsilon
        return functools.partial(grid_from_profiles, self.tradeoff().delta, None, losses)

    def loss_distribution(self, direction: Direction, tail: float) -> LossDistribution:
        """Atoms at plus and minus epsilon, and one for the infinite loss, which is larger."""
        epsilon, delta = self.event.epsilon, self.event.delta
        low = (1 - delta) / (1 + math.exp(epsilon))
        atoms = (epsilon + _INFINITE, delta), (epsilon, (1 - delta) - low), (-epsilon, low)
        return LossDistribution(atoms=atoms)

    def tradeoff(self) -> ApproximateDP:
        return ApproximateDP(self.event.epsilon, slack=self.event.delta)
