"""What samplers drew, and p-values for how batches ought to be drawn.

Every p-value is corrected for the number of comparisons behind it, so a correct sampler gives one
below ``FALSE_ALARM`` with at most that probability (the keys are fixed: a test passes always or
never). The same assertion is made to fail on broken samplers.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.sampling import Sampling

FALSE_ALARM = 1e-6


_CHUNK = 1000  # one compilation serves any number of draws


@partial(jax.jit, static_argnums=0)
def _chunk(sampling: Sampling, state):
    def one_draw(state, _):
        draw, state = sampling.draw(state)

        def add(part, counts):
            batch = sampling.batch(draw, part)
            return counts.at[batch.indices].add(batch.mask.astype(counts.dtype))

        counts = jnp.zeros(sampling.num_examples, jnp.int32)
        return state, jax.lax.fori_loop(0, sampling.num_batches(draw), add, counts)

    return jax.lax.scan(one_draw, state, length=_CHUNK)


@cache
def drawn(sampling: Sampling, num_draws: int, seed: int = 0) -> np.ndarray:
    """How often each record stands in each of successive draws: ``(num_draws, num_examples)``."""
    state, chunks = sampling.init(jax.random.key(seed)), []
    for _ in range(-(-num_draws // _CHUNK)):
        state, counts = _chunk(sampling, state)
        chunks.append(counts)
    return np.concatenate(chunks)[:num_draws]


def laid_out(sampling: Sampling, seed: int, num_parts: int):
    """One draw, how many physical batches it fills, and the first ``num_parts`` of them stacked."""
    return jax.device_get(_laid_out(sampling, jax.random.key(seed), num_parts))


@partial(jax.jit, static_argnums=(0, 2))
def _laid_out(sampling: Sampling, key, num_parts: int):
    draw, _ = sampling.draw(sampling.init(key))
    parts = jax.vmap(partial(sampling.batch, draw))(jnp.arange(num_parts, dtype=jnp.int32))
    return draw, sampling.num_batches(draw), parts


def inclusion_p(counts: np.ndarray, rate: float) -> float:
    """Each record's frequency against ``rate``: exact binomial, the least of n."""
    num_draws, num_examples = counts.shape
    each = [stats.binomtest(int(k), num_draws, rate).pvalue for k in counts.sum(axis=0)]
    return min(1.0, num_examples * min(each))


def size_p(counts: np.ndarray, distribution) -> float:
    """The sizes of the draws against a distribution on 0..n: chi-square, rare sizes pooled."""
    num_draws, num_examples = counts.shape
    expected = num_draws * distribution.pmf(np.arange(num_examples + 1))
    observed = np.bincount(counts.sum(axis=1), minlength=num_examples + 1)
    usual = expected >= 10
    rare = [[expected[~usual].sum()], [observed[~usual].sum()]]
    expected, observed = (
        np.append(values[usual], pooled)
        for values, pooled in zip((expected, observed), rare, strict=True)
    )
    if observed[-1] == expected[-1] == 0:
        return chi_square_p(observed[:-1], expected[:-1])
    return chi_square_p(observed, np.maximum(expected, 1e-9))


def records_p(counts: np.ndarray) -> float:
    """Whether any two records go together or shun each other: correlations, the most of all."""
    return _correlation_p(counts, counts, distinct=True)


def steps_p(counts: np.ndarray, lags: tuple[int, ...] = (1, 2, 3)) -> float:
    """Whether a draw depends on the ones before it: correlations over all pairs of records."""
    return min(
        1.0, len(lags) * min(_correlation_p(counts[:-lag], counts[lag:], False) for lag in lags)
    )


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def uniform_p(outcomes: np.ndarray, num_outcomes: int) -> float:
    """Outcomes 0..m-1 against the uniform distribution."""
    observed = np.bincount(outcomes, minlength=num_outcomes)
    return chi_square_p(observed, np.full(num_outcomes, len(outcomes) / num_outcomes))


def same_share_p(counts: np.ndarray) -> float:
    """Whether every record is equally often in draws that all have one size (chi-square).

    Records of one draw shun each other, which takes a share of 1/n off the variance.
    """
    num_draws, num_examples = counts.shape
    share = counts.sum() / counts.size
    deviations = counts.sum(axis=0) - num_draws * share
    statistic = (deviations**2).sum() / (num_draws * share * (1 - share))
    statistic *= (num_examples - 1) / num_examples
    return float(stats.chi2.sf(statistic, num_examples - 1))


def _correlation_p(left: np.ndarray, right: np.ndarray, distinct: bool) -> float:
    scores = [_standardised(side) for side in (left, right)]
    z = scores[0].T @ scores[1] / np.sqrt(len(left))
    if distinct:
        z = z[np.triu_indices(len(z), 1)]
    return float(min(1.0, z.size * 2 * stats.norm.sf(np.abs(z).max())))


def _standardised(counts: np.ndarray) -> np.ndarray:
    spread = counts.std(axis=0)
    return (counts - counts.mean(axis=0)) / np.where(spread > 0, spread, 1)
