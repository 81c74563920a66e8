"""Probabilities of noisy argmaxes by quadrature, and their exact Rényi divergences."""

import itertools

import numpy as np
from scipy.special import log_ndtr, logsumexp

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def gaussian_log_winners(votes, scale):
    """Log-probability of each winner, by the trapezoidal rule, which converges exponentially."""
    means = np.asarray(votes, float) / scale
    z = np.arange(means.min() - 12, means.max() + 12, 0.04)
    below = log_ndtr(z - means[:, None])
    density = -((z - means[:, None]) ** 2) / 2 - np.log(2 * np.pi) / 2
    return logsumexp(density - below + below.sum(axis=0), axis=1) + np.log(0.04)


def laplace_log_winners(votes, scale):
    """Log-probability of each winner, by Gauss and Legendre between the kinks."""
    means = np.asarray(votes, float) / scale
    ends = [means.min() - 60, *sorted(set(means)), means.max() + 60]
    cuts = np.unique(np.concatenate([np.linspace(a, b, 40) for a, b in itertools.pairwise(ends)]))
    half = np.diff(cuts)[:, None] / 2
    x = (cuts[:-1, None] + half * (1 + _NODES)).ravel() - means[:, None]
    weights = np.log((half * _WEIGHTS).ravel())
    tail = -np.abs(x) - np.log(2)
    below = np.where(x < 0, tail, np.log1p(-np.exp(tail)))
    return logsumexp(tail - below + below.sum(axis=0) + weights, axis=1)


def renyi(log_p, log_q, order):
    """The Rényi divergence, from terms of at least zero so that small ones keep their digits."""
    loss = log_p - log_q
    with np.errstate(over="ignore", invalid="ignore"):
        phi = np.expm1(order * loss) - order * np.expm1(loss)
        small = np.log1p(np.sum(np.exp(log_q) * np.maximum(phi, 0)))
    large = logsumexp(order * log_p + (1 - order) * log_q)
    return (large if large > 1e-3 or not np.isfinite(small) else small) / (order - 1)


def neighbors(votes):
    """Yields every histogram in which one teacher's vote moved, appeared or disappeared."""
    units = [*np.eye(len(votes)), np.zeros(len(votes))]
    for less, more in itertools.permutations(units, 2):
        changed = votes - less + more
        if np.all(changed >= 0):
            yield changed


def exact_divergences(votes, scale, orders, log_winners):
    """The largest divergences over all neighbours, forward and reverse, ``(2, num_orders)``."""
    here = log_winners(votes, scale)
    found = []
    for moved in neighbors(votes):
        there = log_winners(moved, scale)
        found.append(
            [[renyi(a, b, order) for order in orders] for a, b in ((here, there), (there, here))]
        )
    return np.max(found, axis=0)
