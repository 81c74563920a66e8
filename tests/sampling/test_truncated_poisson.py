"""Truncated Poisson sampling: a uniformly random subset of draws that are too large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import TruncatedSubsampledGaussianDpEvent
from helpers.drawn_batches import (
    FALSE_ALARM,
    drawn,
    inclusion_p,
    laid_out,
    records_p,
    same_share_p,
    size_p,
    steps_p,
)
from scipy import stats

import dpjax
from dpjax.sampling import Batch, PoissonSampling, TruncatedPoissonSampling

N, RATE, LIMIT, DRAWS = 20, 0.5, 9, 20_000
TRUNCATED = TruncatedPoissonSampling(N, RATE, truncated_batch_size=LIMIT)


class Cut:
    """Binomial sizes, cut: what `size_p` compares with."""

    def pmf(self, sizes):
        uncut = stats.binom(N, RATE)
        at_limit = np.where(sizes == LIMIT, uncut.sf(LIMIT - 1), uncut.pmf(sizes))
        return np.where(sizes > LIMIT, 0.0, at_limit)


class KeepsTheFirst(TruncatedPoissonSampling):
    """Broken: keeps the first records in the order of the data set."""

    def draw(self, state):
        next_state, key = jax.random.split(state)
        poisson = PoissonSampling(N, RATE, physical_batch_size=LIMIT)
        draw, _ = poisson.draw(key)
        kept = poisson.batch(draw, 0).indices
        return Batch(kept, jnp.arange(LIMIT) < draw.size), next_state


class NeverCuts(PoissonSampling):
    """Broken: all physical batches of the draw."""


def cut_draws(counts: np.ndarray) -> np.ndarray:
    return counts[counts.sum(axis=1) == LIMIT]


def test_truncated_draw_size():
    counts = drawn(TRUNCATED, DRAWS)
    assert counts.max() == 1
    assert counts.sum(axis=1).max() == LIMIT
    assert len(cut_draws(counts)) > DRAWS / 2


def test_truncated_sizes_distribution():
    assert size_p(drawn(TRUNCATED, DRAWS), Cut()) > FALSE_ALARM
    assert size_p(drawn(NeverCuts(N, RATE, physical_batch_size=LIMIT), DRAWS), Cut()) < FALSE_ALARM


def test_truncated_records_uniform():
    assert same_share_p(cut_draws(drawn(TRUNCATED, DRAWS))) > FALSE_ALARM
    assert (
        same_share_p(cut_draws(drawn(KeepsTheFirst(N, RATE, truncated_batch_size=LIMIT), DRAWS)))
        < FALSE_ALARM
    )


def test_truncated_pairs_uniform():
    cut = cut_draws(drawn(TRUNCATED, DRAWS))
    together = np.array([(cut[:, i] & cut[:, j]).sum() for i in range(N) for j in range(i)])
    share = LIMIT * (LIMIT - 1) / (N * (N - 1))
    each = [stats.binomtest(int(k), len(cut), share).pvalue for k in together]
    assert len(each) * min(each) > FALSE_ALARM


def test_truncated_draws_independent():
    assert steps_p(drawn(TRUNCATED, DRAWS)) > FALSE_ALARM


def test_truncated_without_a_cut_is_poisson():
    counts = drawn(TruncatedPoissonSampling(N, 0.2, truncated_batch_size=N), DRAWS)
    assert inclusion_p(counts, 0.2) > FALSE_ALARM
    assert size_p(counts, stats.binom(N, 0.2)) > FALSE_ALARM
    assert records_p(counts) > FALSE_ALARM


def test_truncated_batch_holds_the_draw():
    for seed in range(5):
        draw, num_batches, parts = laid_out(TRUNCATED, seed, 3)
        records = parts.indices[0][parts.mask[0]].tolist()
        assert num_batches == 1
        assert len(set(records)) == len(records) == int(draw.mask.sum())
        assert not parts.mask[1:].any()


@pytest.mark.slow
def test_truncated_rates_at_the_ends():
    assert (drawn(TruncatedPoissonSampling(N, 1.0, truncated_batch_size=N), 20) == 1).all()
    assert (
        drawn(TruncatedPoissonSampling(N, 1.0, truncated_batch_size=3), 20).sum(axis=1) == 3
    ).all()
    assert drawn(TruncatedPoissonSampling(N, 1e-9, truncated_batch_size=3), 20).sum() == 0


def test_truncated_event():
    event = TRUNCATED.event([(1.5, 1)])
    assert event == TruncatedSubsampledGaussianDpEvent(N, RATE, LIMIT, 1.5)
    assert TRUNCATED.expected_batch_size == event.sampling_probability * event.dataset_size
    assert TRUNCATED.physical_batch_size == event.truncated_batch_size


@pytest.mark.parametrize(
    ("size", "rate"),
    [(1, 0.5), (20, 0.5), (20, 1.0), (1000, 0.05), (60_000, 1 / 120), (10**6, 1e-3), (10**9, 1e-9)],
)
def test_default_size_is_the_least_that_draws_rarely_reach(size, rate):
    """Up to the multiple of 8, by scipy's binomial tail."""
    largest = TruncatedPoissonSampling(size, rate).truncated_batch_size
    assert largest == size or largest % 8 == 0
    assert largest == size or stats.binom.sf(largest - 1, size, rate) <= 1e-14
    assert stats.binom.sf(largest - 9, size, rate) > 1e-14


@pytest.mark.parametrize(
    ("size", "mean", "num_steps", "delta", "adjacency"),
    [
        (60_000, 500, 480, 1e-6, "zero_out"),
        (1000, 50, 5000, 1e-9, "replace_one"),
        (1000, 50, 200, 1e-4, "add_remove"),
    ],
)
def test_default_size_costs_no_noise(size, mean, num_steps, delta, adjacency):
    def epsilon(sampling, noise_multiplier):
        mechanism = dpjax.SubsampledGaussian(
            sampling,
            l2_clip=1.0,
            noise_multiplier=noise_multiplier,
            num_steps=num_steps,
            adjacency=adjacency,
        )
        return mechanism.certificate(delta).epsilon

    # A thousandth more noise than without truncation is enough; with less room it is not.
    poisson = epsilon(PoissonSampling(size, mean / size), 2.0)
    assert epsilon(TruncatedPoissonSampling(size, mean / size), 2.002) < poisson
    small = int(mean + 3 * mean**0.5)
    cut = TruncatedPoissonSampling(size, mean / size, truncated_batch_size=small)
    assert epsilon(cut, 2.002) > poisson
