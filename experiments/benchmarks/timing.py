"""Interleaved timing of the cases of one table."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

FEWEST = 3  # repetitions
QUICK, SETTLE = 0.1, 0.02  # seconds
_NONE: Mapping[str, float] = MappingProxyType({})


class Case(NamedTuple):
    """One case of a table."""

    name: str  # unique in the table
    # runs the case once and returns its seconds; None if skipped
    seconds: Callable[[], float] | None
    values: Mapping[str, float] = _NONE  # other columns, such as peak memory
    note: str = ""  # reason for skipping, or a remark on the values


@dataclass(frozen=True)
class Effort:
    """Time budget of each case."""

    seconds: float = 5.0  # approximate, for all repetitions of a case
    repetitions: int = 50  # maximum; at least FEWEST
    slow: float = 15.0  # if the first call takes longer, it is the only one

    def count(self, first: float) -> int:
        """Returns the number of repetitions of a case whose first call took ``first`` seconds.

        >>> [Effort().count(first) for first in (0.001, 0.5, 9.0)]
        [50, 10, 3]
        """
        return max(FEWEST, min(self.repetitions, int(self.seconds / first)))


class Times(NamedTuple):
    """Times of one case in seconds; ``slow`` if only its first call was timed."""

    seconds: tuple[float, ...]
    slow: bool

    @property
    def median(self) -> float:
        """Median time in milliseconds."""
        return 1e3 * statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """Least time in milliseconds."""
        return 1e3 * min(self.seconds)


def blocking(function: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Returns a function that runs ``function``, waits for JAX and returns the seconds it took."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - start

    return seconds


def interleaved(cases: Sequence[Case], effort: Effort) -> dict[str, Times]:
    """Times the cases alternately after a warm-up; fewer repetitions are spread evenly."""
    timed = {case.name: case.seconds for case in cases if case.seconds}
    first = {name: _warm_up(seconds) for name, seconds in timed.items()}
    counts = {name: effort.count(first[name]) for name in first if first[name] <= effort.slow}
    found: dict[str, list[float]] = {name: [] for name in counts}
    rounds = max(counts.values(), default=0)
    for number in range(rounds):
        for name, count in counts.items():
            if is_timed_in_round(number, rounds, count):
                found[name].append(_one_turn(timed[name], first[name]))
    return {name: Times(tuple(found.get(name, [first[name]])), name not in found) for name in timed}


def _warm_up(seconds: Callable[[], float]) -> float:
    """Returns the seconds of a first call, or of a second one if the first took under a second."""
    first = seconds()
    return seconds() if first < 1 else first


def _one_turn(seconds: Callable[[], float], first: float) -> float:
    """Times one call; a quick case is repeated until the effects of the previous case are over."""
    start = time.perf_counter()
    found = seconds()
    while first < QUICK and time.perf_counter() < start + SETTLE:
        found = seconds()
    return found


def is_timed_in_round(number: int, rounds: int, count: int) -> bool:
    """Whether a case with ``count`` repetitions in ``rounds`` rounds is timed in this round.

    >>> [is_timed_in_round(number, 6, 3) for number in range(6)]
    [False, True, False, True, False, True]
    """
    return (number + 1) * count // rounds > number * count // rounds
