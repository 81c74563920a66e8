"""Lower bounds on ε from the error rates of attacks (Clopper-Pearson confidence bounds)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import binomtest

import dpjax

# Failure probability of the bounds of one attack, over all its tests together.
FALSE_ALARM = 1e-6


class Counts(NamedTuple):
    """True and false positives of a test that rejects "the record is in the data"."""

    hits: int  # rejections among the releases without the record
    alarms: int  # rejections among the releases with the record
    draws: int  # number of releases of each kind

    @property
    def accuracy(self) -> float:
        """Balanced accuracy of the test or of its complement, whichever is larger.

        >>> Counts(hits=30, alarms=10, draws=100).accuracy
        0.6
        """
        return 0.5 + abs(self.hits - self.alarms) / (2 * self.draws)

    def complement(self) -> "Counts":
        """Counts of the test with opposite answers, which rejects "the record is not in the data".

        >>> Counts(hits=30, alarms=10, draws=100).complement()
        Counts(hits=90, alarms=70, draws=100)
        """
        return Counts(self.draws - self.alarms, self.draws - self.hits, self.draws)

    def exchange(self) -> "Counts":
        """Counts with the two kinds of releases exchanged."""
        return Counts(self.alarms, self.hits, self.draws)


def release_many(mechanism: dpjax.Laplace, key: jax.Array, values: jax.Array | np.ndarray) -> Any:
    """Returns an independent release of every entry of ``values``, each a statistic of its own."""
    moves = replace(mechanism.sensitivity, shape=np.shape(values))
    return replace(mechanism, sensitivity=moves).release(key, values)


def epsilon_lower_bound(tests: Sequence[Counts], delta: float) -> float:
    """Lower bound on the mechanism's ε at ``delta``, the maximum over several tests.

    Each test is used in four forms: itself, its complement, and both with the two kinds of releases
    exchanged. The bound fails with probability at most `FALSE_ALARM`.

    >>> epsilon_lower_bound([Counts(hits=300, alarms=0, draws=1_000)], delta=0.0) > 2
    True
    >>> epsilon_lower_bound([Counts(hits=300, alarms=300, draws=1_000)], delta=0.0)
    0.0
    """
    error = FALSE_ALARM / (8 * len(tests))
    found = [0.0]
    for test in tests:
        complement = test.complement()
        for counts in (test, complement, test.exchange(), complement.exchange()):
            hits, alarms = (
                binomtest(count, counts.draws).proportion_ci(1 - 2 * error, "exact")
                for count in (counts.hits, counts.alarms)
            )
            detected, wrong = hits.low - delta, alarms.high
            found.append(math.log(detected / wrong) if detected > 0 else 0.0)
    return max(found)
