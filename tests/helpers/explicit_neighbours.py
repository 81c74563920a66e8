"""Exact hockey-stick divergences of neighbouring data sets of numbers, for every sampler.

A record contributes a number in [-1, 1] to the batch sum, which gets N(0, noise^2). The record in
question contributes ``x``, all others ``y``: the sum is then a mixture of normal distributions,
whose weights are those of the inclusion patterns.
"""

import itertools
import math

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

# Contributions of the record in question on both data sets; None where it is not there.
CHANGES = {
    "add_remove": [(1.0, None)],
    "zero_out": [(1.0, 0.0)],
    "replace_one": [(1.0, -1.0), (1.0, 0.0)],
}
OTHERS = (-1.0, 0.0, 1.0)


def enumerated(values, rate, most):
    """Sums of truncated Poisson batches and their probabilities, from every inclusion pattern."""
    sums = {}
    for pattern in itertools.product((0, 1), repeat=len(values)):
        drawn = [value for value, inside in zip(values, pattern, strict=True) if inside]
        weight = rate ** len(drawn) * (1 - rate) ** (len(values) - len(drawn))
        kept = list(itertools.combinations(drawn, min(most, len(drawn))))
        for batch in kept:
            sums[sum(batch)] = sums.get(sum(batch), 0.0) + weight / len(kept)
    return sums


def truncated(x, y, size, rate, most):
    """What `enumerated` returns for one ``x`` (if any) and other records ``y``, by counting."""
    sums = {}

    def add(value, weight):
        sums[value] = sums.get(value, 0.0) + weight

    others = size if x is None else size - 1
    for drawn in range(others + 1):
        weight = float(binom.pmf(drawn, others, rate))
        add(min(drawn, most) * y, weight * (1.0 if x is None else 1 - rate))
        if x is not None:
            kept = min(drawn + 1, most)
            stays = kept / (drawn + 1)
            add(x + (kept - 1) * y, weight * rate * stays)
            add(kept * y, weight * rate * (1 - stays))
    return sums


def fixed(x, y, size, batch_size):
    """Sums of uniformly random batches of one size."""
    rate = batch_size / size
    inside, outside = x + (batch_size - 1) * y, batch_size * y
    return {inside: 1.0} if rate == 1 or inside == outside else {inside: rate, outside: 1 - rate}


def hockey_stick(p, q, epsilon, noise):
    """sup over events of P - e^epsilon Q, for normal mixtures given as {mean: weight}."""
    means = np.array([*p, *q]) / noise
    weights = np.array([*p.values(), *(-math.exp(epsilon) * w for w in q.values())])
    grid = np.linspace(means.min() - 12, means.max() + 12, 4001)
    densities = np.exp(-((grid[:, None] - means) ** 2) / 2) @ weights
    positive = densities > 0
    turns = np.flatnonzero(positive[1:] != positive[:-1])
    low, high = densities[turns], densities[turns + 1]
    roots = grid[turns] + (grid[turns + 1] - grid[turns]) * low / (low - high)
    ends = np.concatenate([[-math.inf] * bool(positive[0]), roots, [math.inf] * bool(positive[-1])])
    if ends.size == 0:
        return 0.0
    below, above = ndtr(ends[:, None] - means), ndtr(means - ends[:, None])
    masses = np.where(ends[:-1, None] > means, above[:-1] - above[1:], below[1:] - below[:-1])
    return float((masses @ weights)[::2].sum())


def largest(pairs, epsilons, noise):
    """The largest divergence over ``pairs`` at each of ``epsilons``, "remove" then "add"."""
    return {
        "remove": np.array([max(hockey_stick(p, q, e, noise) for p, q in pairs) for e in epsilons]),
        "add": np.array([max(hockey_stick(q, p, e, noise) for p, q in pairs) for e in epsilons]),
    }


def poisson_pairs(adjacency, size, rate, most):
    """Neighbours of data sets of ``size`` records under truncated Poisson sampling."""
    sizes = (size, size + 1) if adjacency == "add_remove" else (size,)
    pairs = []
    for m, (x, z), y in itertools.product(sizes, CHANGES[adjacency], OTHERS):
        other = m - 1 if z is None else m
        limit = m if most is None else most
        pairs.append((truncated(x, y, m, rate, limit), truncated(z, y, other, rate, limit)))
    return pairs


def fixed_pairs(adjacency, size, batch_size):
    """Neighbours under sampling without replacement."""
    return [
        (fixed(x, y, size, batch_size), fixed(z, y, size, batch_size))
        for (x, z), y in itertools.product(CHANGES[adjacency], OTHERS)
    ]
