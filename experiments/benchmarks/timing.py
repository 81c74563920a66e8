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
    """One of the alternatives that a table compares.

    Attributes:
      name: unique in the table.
      seconds: runs the case once and returns the seconds that took; None where it is skipped.
      values: further quantities by column, such as peak memory.
      note: why the case is skipped, or what a reader must know of its values.
    """

    name: str
    seconds: Callable[[], float] | None
    values: Mapping[str, float] = _NONE
    note: str = ""


@dataclass(frozen=True)
class Effort:
    """Time budget of each case.

    Attributes:
      seconds: for all timed repetitions of one case, about.
      repetitions: at most; :data:`FEWEST` at least.
      slow: a case whose first call takes more seconds than this is not called again.
    """

    seconds: float = 5.0
    repetitions: int = 50
    slow: float = 15.0

    def count(self, first: float) -> int:
        """Returns how often to time a case whose first call took ``first`` seconds.

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


def blocking(function: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Returns a function that runs ``function``, waits for JAX and returns the seconds it took."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - start

    return seconds


def interleaved(cases: Sequence[Case], effort: Effort) -> dict[str, Times]:
    """Times the cases in turn, after a call or two each to warm up; skipped ones are left out.

    A case that is timed less often than others has its turns spread evenly among theirs.
    """
    timed = {case.name: case.seconds for case in cases if case.seconds}
    first = {name: _warm_up(seconds) for name, seconds in timed.items()}
    counts = {name: effort.count(first[name]) for name in first if first[name] <= effort.slow}
    found: dict[str, list[float]] = {name: [] for name in counts}
    rounds = max(counts.values(), default=0)
    for number in range(rounds):
        for name, count in counts.items():
            if has_turn(number, rounds, count):
                found[name].append(_one_turn(timed[name], first[name]))
    return {name: Times(tuple(found.get(name, [first[name]])), name not in found) for name in timed}


def _warm_up(seconds: Callable[[], float]) -> float:
    """Seconds of a first call; of a second one where the first is soon over."""
    first = seconds()
    return seconds() if first < 1 else first


def _one_turn(seconds: Callable[[], float], first: float) -> float:
    """Times one call; of a quick case the first that comes when the case before has settled.

    It leaves cold caches, and threads that wait for more work, spinning, for some milliseconds.
    """
    start = time.perf_counter()
    found = seconds()
    while first < QUICK and time.perf_counter() < start + SETTLE:
        found = seconds()
    return found


def has_turn(number: int, rounds: int, count: int) -> bool:
    """Whether a case with ``count`` turns in so many rounds has one in the round of this number.

    >>> [has_turn(number, 6, 3) for number in range(6)]
    [False, True, False, True, False, True]
    """
    return (number + 1) * count // rounds > number * count // rounds
