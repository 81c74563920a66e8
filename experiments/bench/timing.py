"""Timing the cases of one group in turn, as often as their speed allows."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

FEWEST = 3  # repetitions
QUICK, SETTLE = 0.1, 0.02  # seconds


class Case(NamedTuple):
    """One way of doing what a group compares.

    Attributes:
      name: unique in the group.
      seconds: does it once and returns how long that took.
      peak_mib: memory that it needs at its peak, where known.
    """

    name: str
    seconds: Callable[[], float]
    peak_mib: float | None = None


@dataclass(frozen=True)
class Effort:
    """How much time a case may take.

    Attributes:
      seconds: for all timed repetitions of one case, about.
      repetitions: at most; :data:`FEWEST` at least.
      slow: a case whose first call takes more seconds than this is not called again.
    """

    seconds: float = 5.0
    repetitions: int = 50
    slow: float = 15.0

    def count(self, first: float) -> int:
        """Returns how often to time a case whose first call took this many seconds.

        >>> [Effort().count(first) for first in (0.001, 0.5, 9.0)]
        [50, 10, 3]
        """
        return max(FEWEST, min(self.repetitions, int(self.seconds / first)))


class Times(NamedTuple):
    """The timed repetitions of one case, in seconds; ``slow`` if there is only its first call."""

    seconds: tuple[float, ...]
    slow: bool

    @property
    def median(self) -> float:
        """In milliseconds."""
        return 1e3 * statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """In milliseconds."""
        return 1e3 * min(self.seconds)


def blocking(function: Callable[[], Any]) -> Callable[[], float]:
    """Returns what calls a JAX function, waits for its result and returns the seconds it took."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function())
        return time.perf_counter() - start

    return seconds


def interleaved(cases: Sequence[Case], effort: Effort) -> dict[str, Times]:
    """Times the cases in turn, after a call or two each to warm up.

    A case that is timed less often than others has its turns spread evenly among theirs.
    """
    first = {case.name: _warm_up(case) for case in cases}
    slow = {name: (seconds,) for name, seconds in first.items() if seconds > effort.slow}
    counts = {name: effort.count(first[name]) for name in first if name not in slow}
    timed: dict[str, list[float]] = {name: [] for name in counts}
    rounds = max(counts.values(), default=0)
    for number in range(rounds):
        for case in cases:
            if case.name in counts and has_turn(number, rounds, counts[case.name]):
                timed[case.name].append(_one_turn(case, first[case.name]))
    every = slow | {name: tuple(seconds) for name, seconds in timed.items()}
    return {case.name: Times(every[case.name], case.name in slow) for case in cases}


def _warm_up(case: Case) -> float:
    """Seconds of a first call; of a second one where the first is soon over."""
    seconds = case.seconds()
    return case.seconds() if seconds < 1 else seconds


def _one_turn(case: Case, first: float) -> float:
    """Times one call; of a quick case the first that comes when the case before has settled.

    It leaves cold caches, and threads that wait for more work, spinning, for some milliseconds.
    """
    start = time.perf_counter()
    seconds = case.seconds()
    while first < QUICK and time.perf_counter() < start + SETTLE:
        seconds = case.seconds()
    return seconds


def has_turn(number: int, rounds: int, count: int) -> bool:
    """Whether a case with ``count`` turns in so many rounds has one in the round of this number.

    >>> [has_turn(number, 6, 3) for number in range(6)]
    [False, True, False, True, False, True]
    """
    return (number + 1) * count // rounds > number * count // rounds
