"""Tests of laws and attacks, shared: each returns a number to be held against a stated level."""

from dataclasses import replace

import jax
import numpy as np
from scipy import stats

# Of one assertion. Every one of them is paired with a broken twin that fails it.
FALSE_ALARM = 1e-6


def release(mechanism, key, value):
    """A release of ``value`` by ``mechanism``, restated for a statistic of its shapes."""
    shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(value))
    moves = replace(mechanism.sensitivity, shape=shapes)
    return replace(mechanism, sensitivity=moves).release(key, value)


def chi_square_p(samples, probability_of, cells):
    """Pearson's test that integer ``samples`` follow a law, given on ``cells``; the rest is one."""
    samples = np.asarray(samples)
    probabilities = np.array([probability_of(cell) for cell in cells])
    seen = np.array([np.sum(samples == cell) for cell in cells])
    seen = np.append(seen, samples.size - seen.sum())
    expected = samples.size * np.append(probabilities, 1 - probabilities.sum())
    assert expected.min() > 5
    return stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue


def attacked_epsilon(ones, others, outcomes):
    """A lower confidence bound on epsilon at delta zero: the largest log ratio of some outcome.

    Args:
      ones: releases on one data set.
      others: releases on its neighbour, as many.
      outcomes: predicates of releases; with both orders and both bounds four chances to err each.
    """
    each = FALSE_ALARM / (4 * len(outcomes))
    bounds = [
        np.log(max(_lower(outcome(a), each), 1e-300) / _upper(outcome(b), each))
        for outcome in outcomes
        for a, b in ((ones, others), (others, ones))
    ]
    return max(bounds)


def _lower(hits, each):
    return stats.beta.ppf(each, hits.sum(), hits.size - hits.sum() + 1) if hits.any() else 0.0


def _upper(hits, each):
    return 1.0 if hits.all() else stats.beta.isf(each, hits.sum() + 1, hits.size - hits.sum())


def coverage_is_at_least(level, covered):
    """Whether the share of ``covered`` is not surely below ``level``."""
    hits = int(np.sum(covered))
    return bool(stats.binom.cdf(hits, np.size(covered), level) > FALSE_ALARM)
