"""Distributions of the number of repetitions of private selection: negative binomial, Poisson.

K is the number of runs and phi(x) = E[x^K] its generating function. The best of K runs falls below
a value with probability phi(F), where F is that of one run.

Source: Papernot & Steinke (2022), Sections 2 and 3.
"""

import abc
import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from dpjax._checks import check, check_non_negative, check_positive, check_share, check_type

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

# The largest log(1 / gamma) that is tried, and how much a bound is raised against rounding.
_LARGEST_LOG, _ROUNDING = 600.0, 2.0**-40
_LARGEST_SHAPE = 100.0
_BISECTIONS = 60
# More runs than this are never drawn: their probability is below 1e-15 of any mean up to a million.
_MOST_RUNS = 10**9


@dataclass(frozen=True)
class Repetitions(abc.ABC):
    """Base class of distributions of the number of repetitions.

    Attributes:
      expected: the mean number of runs, at least 1.
    """

    expected: float
    largest_expected: ClassVar[float]
    shape: ClassVar[float]  # by which dp-accounting names the distribution

    def __post_init__(self) -> None:
        check_positive("expected", self.expected)
        allowed = f"from 1 to {self.largest_expected:g}"
        check(1 <= self.expected <= self.largest_expected, "expected", self.expected, allowed)

    @property
    @abc.abstractmethod
    def probability_of_zero(self) -> float:
        """The probability that there is no run."""

    @abc.abstractmethod
    def largest_log_ratio(self, delta: Function) -> float:
        """Returns an upper bound on log(phi'(F) / phi'(G)), rounded up.

        F and G are the probabilities under P and Q that a run is not better than some output.

        Args:
          delta: an upper bound on the divergence of Q from P, at arrays of epsilons >= 0.
        """

    @abc.abstractmethod
    def select(self, masses: Array) -> Array:
        """Returns the probabilities that each output is released, beside `probability_of_zero`.

        Args:
          masses: probabilities of the outputs of one run, the worst output first.
        """

    @abc.abstractmethod
    def _first(self) -> tuple[int, float]:
        """The least number of runs and its probability."""

    @abc.abstractmethod
    def _ratio(self, number: int) -> float:
        """Returns the probability of ``number + 1`` runs over that of ``number``."""

    def event(self, run: "DpEvent") -> "DpEvent":
        """Returns the event of the best of the runs.

        Args:
          run: the event of one of them.

        Raises:
          TypeError: it is none.
        """
        from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent

        check_type("run", run, DpEvent, "a dp_accounting.DpEvent")
        return RepeatAndSelectDpEvent(run, mean=float(self.expected), shape=float(self.shape))

    def quantile(self, level: float) -> int:
        """Returns the least number of runs that is exceeded with probability at most 1 - level.

        At a uniformly random level it is a draw.

        Args:
          level: in [0, 1).

        Raises:
          ValueError: ``level`` is out of range.

        >>> PoissonRepetitions(2.0).quantile(0.5)
        2
        """
        check_share("level", level)
        check(level < 1, "level", level, "in [0, 1)")
        number, probability = self._first()
        total = probability
        while total <= level and number < _MOST_RUNS:
            probability *= self._ratio(number)
            number += 1
            if total + probability == total and number > self.expected:
                break
            total += probability
        return number


@dataclass(frozen=True)
class TruncatedNegativeBinomial(Repetitions):
    """The truncated negative binomial distribution of the number of runs, which is at least one.

    With shape 0 it is the logarithmic distribution, with shape 1 the geometric one. A smaller shape
    costs less and has heavier tails: at shape 0 one run is the likeliest number.

    Attributes:
      expected: the mean number of runs, from 1 to a million.
      shape: eta, from 0 to 100.

    Raises:
      ValueError: a number out of range.

    Source: Papernot & Steinke (2022), Definition 1.

    >>> runs = TruncatedNegativeBinomial(10, shape=1.0)
    >>> round(runs.gamma, 6), runs.quantile(0.5)
    (0.1, 7)
    """

    _: KW_ONLY
    shape: float = 1.0  # type: ignore[misc]
    largest_expected: ClassVar[float] = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative("shape", self.shape)
        check(self.shape <= _LARGEST_SHAPE, "shape", self.shape, f"at most {_LARGEST_SHAPE:g}")

    @functools.cached_property
    def _log(self) -> float:
        """Log(1 / gamma)."""

        def mean(log: float) -> float:
            if self.shape == 0:
                return math.expm1(log) / log
            return self.shape * math.expm1(log) / -math.expm1(-self.shape * log)

        return _least_root(lambda log: self.expected - mean(log)) if self.expected > 1 else 0.0

    @property
    def gamma(self) -> float:
        """The parameter gamma, in (0, 1]; at 1 there is always one run."""
        return math.exp(-self._log)

    @property
    def probability_of_zero(self) -> float:
        return 0.0

    def largest_log_ratio(self, delta: Function) -> float:
        """(1 + eta) log r, of the least r with (1 - gamma) delta(log r) <= gamma (r - 1)."""
        if self._log == 0:
            return 0.0
        odds = math.expm1(self._log) * (1 + _ROUNDING)  # (1 - gamma) / gamma

        def excess(log: float) -> float:
            return odds * float(delta(np.array(log))) - math.expm1(log)

        root = _least_root(excess)
        return (1 + self.shape) * root * (1 + _ROUNDING)

    def select(self, masses: Array) -> Array:
        if self._log == 0:
            return masses
        # The arguments of phi' before and after each output, from the best on.
        above = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
        after = self.gamma - math.expm1(-self._log) * above
        steps = np.log1p(-math.expm1(-self._log) * masses / after)
        if self.shape == 0:
            return np.asarray(steps / self._log)
        powers = after**-self.shape * -np.expm1(-self.shape * steps)
        return np.asarray(powers / math.expm1(self.shape * self._log))

    def _first(self) -> tuple[int, float]:
        if self._log == 0:
            return 1, 1.0
        share = -math.expm1(-self._log)
        if self.shape == 0:
            return 1, share / self._log
        return 1, self.shape * share / math.expm1(self.shape * self._log)

    def _ratio(self, number: int) -> float:
        return -math.expm1(-self._log) * (number + self.shape) / (number + 1)

    def __str__(self) -> str:
        names = {0.0: "logarithmic", 1.0: "geometric"}
        name = names.get(self.shape, f"truncated negative binomial of shape {self.shape:g}")
        return f"{name}, of mean {self.expected:g}"


@dataclass(frozen=True)
class PoissonRepetitions(Repetitions):
    """The Poisson distribution of the number of runs, which may be zero.

    It is the most concentrated one, and its cost grows with the mean.

    Attributes:
      expected: the mean number of runs, from 1 to 500.

    Raises:
      ValueError: ``expected`` is out of range.

    Source: Papernot & Steinke (2022), Theorem 6.

    >>> runs = PoissonRepetitions(10)
    >>> runs.probability_of_zero < 1e-4, runs.quantile(0.5)
    (True, 10)
    """

    largest_expected: ClassVar[float] = 500.0
    shape: ClassVar[float] = math.inf

    @property
    def probability_of_zero(self) -> float:
        return math.exp(-self.expected)

    def largest_log_ratio(self, delta: Function) -> float:
        """The mean times delta(0), as F - G is at most that."""
        return self.expected * float(delta(np.array(0.0))) * (1 + _ROUNDING)

    def select(self, masses: Array) -> Array:
        above = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)
        return np.asarray(np.exp(-self.expected * above) * -np.expm1(-self.expected * masses))

    def _first(self) -> tuple[int, float]:
        return 0, self.probability_of_zero

    def _ratio(self, number: int) -> float:
        return self.expected / (number + 1)

    def __str__(self) -> str:
        return f"Poisson, of mean {self.expected:g}"


def repetitions_of(mean: float, shape: float) -> Repetitions:
    """Returns the distribution that dp-accounting names by ``mean`` and ``shape``.

    Args:
      mean: number of runs.
      shape: infinite for a Poisson distribution.

    Raises:
      ValueError: a number out of range.
    """
    if shape == math.inf:
        return PoissonRepetitions(float(mean))
    return TruncatedNegativeBinomial(float(mean), shape=float(shape))


def _least_root(excess: Callable[[float], float]) -> float:
    """Returns a number >= 0 at which a decreasing function is not positive, next to its root."""
    high = 1e-3
    while excess(high) > 0:
        high *= 2
        if high > _LARGEST_LOG:
            return math.inf
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
