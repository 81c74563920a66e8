"""Cyclic Poisson sampling: groups of records take turns, and are sampled in their turn."""

from __future__ import annotations

import itertools
import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NamedTuple

from dpjax._checks import as_count, check, check_rate
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.sampling.base import (
    Batch,
    NoiseRuns,
    Participation,
    Sampling,
    check_noise_runs,
    check_size_is_public,
    compose,
    repeated,
)
from dpjax.sampling.poisson import PoissonDraw, PoissonSampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# A group's rate is 1 where num_groups * sampling_rate is, up to rounding.
_ROUNDING = 1e-12


class CyclicState(NamedTuple):
    """State of `CyclicPoissonSampling`: the key of the next draw, and the number of draws made."""

    key: PRNGKey
    step: jax.Array


class CyclicDraw(NamedTuple):
    """A draw from one group: a Poisson draw of its members, and the group's number."""

    members: PoissonDraw
    group: jax.Array


@dataclass(frozen=True)
class CyclicPoissonSampling(Sampling):
    """Fixed groups of records take turns; in its turn, each record of a group is drawn at random.

    Record i is in group ``i % num_groups``, and step t draws each record of group
    ``t % num_groups`` with probability ``num_groups * sampling_rate``. At 1 a step takes all of the
    group: fixed batches in a fixed order. The order of the records must not depend on them.

    Attributes:
      num_examples: number of records n (public).
      sampling_rate: share of all records expected in a batch, at most ``1 / num_groups``.
      num_groups: number of groups, which is also the number of steps between two turns.
      physical_batch_size: the padded shape; as that of `PoissonSampling` on one group.

    Privacy:
      A record takes part every ``num_groups`` steps at most, so n steps cost as much as
      ``n / num_groups`` steps, rounded up, of Poisson sampling at the rate within a group: more
      than Poisson sampling of all records, but the same with independent noise as with correlated
      noise of up to ``num_groups`` bands. Not under add/remove, as the groups follow from the
      order of the records.

    Raises:
      ValueError: a number out of range.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization", Theorem 4.

    >>> sampling = CyclicPoissonSampling(1000, 0.05, num_groups=4)
    >>> sampling.group_rate, sampling.expected_batch_size
    (0.2, 50.0)
    >>> draw, state = sampling.draw(sampling.init(jax.random.key(0)))
    >>> batch = sampling.batch(draw, 0)
    >>> set((batch.indices[batch.mask] % 4).tolist()), int(state.step)
    ({0}, 1)
    """

    num_examples: int
    sampling_rate: float
    _: KW_ONLY
    num_groups: int
    physical_batch_size: int = 0

    def __post_init__(self) -> None:
        for name in ("num_examples", "num_groups"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        check_rate("sampling_rate", self.sampling_rate)
        allowed = f"at most num_examples = {self.num_examples}"
        check(self.num_groups <= self.num_examples, "num_groups", self.num_groups, allowed)
        within = self.sampling_rate * self.num_groups <= 1 + _ROUNDING
        allowed = f"at most 1 / num_groups = {1 / self.num_groups:g}, a whole group"
        check(within, "sampling_rate", self.sampling_rate, allowed)
        object.__setattr__(self, "physical_batch_size", self._group.physical_batch_size)

    @property
    def group_rate(self) -> float:
        """Probability with which a record is drawn in its group's turn."""
        rate = self.sampling_rate * self.num_groups
        return 1.0 if math.isclose(rate, 1.0, rel_tol=_ROUNDING) else rate

    @property
    def expected_batch_size(self) -> float:  # type: ignore[override]
        """Mean number of records in a batch over a cycle: ``sampling_rate * num_examples``."""
        return self.sampling_rate * self.num_examples

    @property
    def num_static_batches(self) -> int:
        """Physical batches for the mean plus three standard deviations."""
        return self._group.num_static_batches

    def init(self, key: PRNGKey) -> CyclicState:
        """Returns the first state."""
        return CyclicState(self._group.init(key), jnp.zeros((), jnp.int32))

    def draw(self, state: CyclicState) -> tuple[CyclicDraw, CyclicState]:
        """Returns a Poisson draw from the group whose turn it is, and the next state."""
        members, key = self._group.draw(state.key)
        next_step = (state.step + 1) % self.num_groups
        return CyclicDraw(members, state.step), CyclicState(key, next_step)

    def members_at(self, state: CyclicState, positions: jax.Array) -> jax.Array:
        drawn = self._group.members_at(state.key, positions // self.num_groups)
        in_group = positions % self.num_groups == state.step
        return drawn & in_group & (positions < self.num_examples)

    def num_batches(self, draw: CyclicDraw) -> jax.Array:
        """Returns the number of physical batches: ``ceil(size / physical_batch_size)``."""
        return self._group.num_batches(draw.members)

    def batch(self, draw: CyclicDraw, part: jax.Array | int) -> Batch:
        """Returns ``physical_batch_size`` records of the group at a time."""
        members = self._group.batch(draw.members, part)
        indices = members.indices * self.num_groups + draw.group
        # The last place of a smaller group has no record.
        mask = members.mask & (indices < self.num_examples)
        return Batch(jnp.minimum(indices, self.num_examples - 1), mask)

    def check_adjacency(self, adjacency: Adjacency) -> None:
        """Rejects add/remove: groups follow from the order of the records."""
        check_size_is_public(self, adjacency)

    def participation(self, num_steps: int) -> Participation:
        """Returns steps ``num_groups`` apart, without chance where whole groups are drawn."""
        separation = min(self.num_groups, as_count("num_steps", num_steps))
        return Participation(separation, self.group_rate == 1)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Returns a Gaussian, Poisson-sampled at the rate within a group."""
        return self._group.step_event(noise_multiplier)

    def event(self, noise_runs: NoiseRuns) -> DpEvent:
        """Returns one step for each cycle begun, with the least noise of its steps."""
        check_noise_runs(noise_runs)
        steps = [sigma for sigma, count in noise_runs for _ in range(count)]
        starts = range(0, len(steps), self.num_groups)
        least = itertools.groupby(min(steps[i : i + self.num_groups]) for i in starts)
        return compose([repeated(self.step_event(s), len(list(group))) for s, group in least])

    def describe(self, adjacency: Adjacency) -> str:
        self.check_adjacency(adjacency)
        drawn = (
            "all records of"
            if self.group_rate == 1
            else f"each record, independently with probability {self.group_rate:.6g}, of"
        )
        return (
            f"cyclic: {drawn} one of {self.num_groups:,} fixed groups in turn, of"
            f" {self.num_examples:,} records in all"
        )

    @property
    def _group(self) -> PoissonSampling:
        """The Poisson sampler on the places of one group."""
        places = -(-self.num_examples // self.num_groups)
        return PoissonSampling(
            places, self.group_rate, physical_batch_size=self.physical_batch_size
        )
