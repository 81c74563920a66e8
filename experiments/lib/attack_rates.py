"""Lower bounds on ε from counted attacks, at a stated confidence."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import betaincinv

# The probability that any bound of one attack, all its tests together, is wrong.
FALSE_ALARM = 1e-6


class Counts(NamedTuple):
    """How often one test rejected "the record is in the data".

    Attributes:
      hits: of ``draws`` releases without the record.
      alarms: of ``draws`` releases with it, wrongly.
      draws: of each kind.
    """

    hits: int
    alarms: int
    draws: int

    @property
    def accuracy(self) -> float:
        """The share of right answers, both kinds equally often, of the test or its complement.

        >>> Counts(hits=30, alarms=10, draws=100).accuracy
        0.6
        """
        return 0.5 + abs(self.hits - self.alarms) / (2 * self.draws)

    def complement(self) -> "Counts":
        """The test with the opposite answers, as a test of the other kind.

        >>> Counts(hits=30, alarms=10, draws=100).complement()
        Counts(hits=90, alarms=70, draws=100)
        """
        return Counts(self.draws - self.alarms, self.draws - self.hits, self.draws)

    def exchange(self) -> "Counts":
        """The same test with the two kinds of releases exchanged."""
        return Counts(self.alarms, self.hits, self.draws)


def clopper_pearson(count: int, draws: int, error: float) -> tuple[float, float]:
    """Bounds on a probability (Clopper & Pearson 1934), each wrong with probability ``error``.

    >>> lower, upper = clopper_pearson(0, 1_000, error=0.01)
    >>> lower, round(upper, 4)
    (0.0, 0.0046)
    """
    lower = betaincinv(count, draws - count + 1, error) if count else 0.0
    upper = betaincinv(count + 1, draws - count, 1 - error) if count < draws else 1.0
    return float(lower), float(upper)


def attacked_epsilon(tests: Sequence[Counts], delta: float) -> float:
    """Lower bound on the mechanism's ε at ``delta``, by the best of some tests.

    Each counts four times: as it is, as its complement, and both with the kinds exchanged. The
    bound is wrong with probability `FALSE_ALARM` at most.

    >>> attacked_epsilon([Counts(hits=300, alarms=0, draws=1_000)], delta=0.0) > 2
    True
    >>> attacked_epsilon([Counts(hits=300, alarms=300, draws=1_000)], delta=0.0)
    0.0
    """
    error = FALSE_ALARM / (8 * len(tests))
    found = [0.0]
    for test in tests:
        complement = test.complement()
        for counts in (test, complement, test.exchange(), complement.exchange()):
            detected = clopper_pearson(counts.hits, counts.draws, error)[0] - delta
            wrong = clopper_pearson(counts.alarms, counts.draws, error)[1]
            found.append(math.log(detected / wrong) if detected > 0 else 0.0)
    return max(found)
