"""Poisson sampling draws independent coins at the stated rate, and never drops a record."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from helpers.drawn_batches import (
    FALSE_ALARM,
    drawn,
    inclusion_p,
    laid_out,
    records_p,
    size_p,
    steps_p,
)
from scipy import stats

from dpjax.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs

N, RATE, DRAWS = 30, 0.2, 20_000
POISSON = PoissonSampling(N, RATE)


def members(draw):
    """The records of a draw, read off its bits by numpy."""
    words = np.asarray(draw.usual.words) | np.asarray(draw.further.words)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


class CappedPoisson(PoissonSampling):
    """Broken: what does not fit into one physical batch is dropped."""

    def num_batches(self, draw):
        return jnp.minimum(super().num_batches(draw), 1)


class EmptyPoisson(PoissonSampling):
    """Broken: nobody is ever drawn."""

    def _bernoulli(self, key):
        return jnp.zeros(self.num_examples, bool)


class SameCoinsAgain(PoissonSampling):
    """Broken: the state is not moved on."""

    def draw(self, state):
        return super().draw(state)[0], state


def p_values(sampling) -> dict[str, float]:
    """Every property of Poisson sampling at rate RATE, as a p-value."""
    counts = drawn(sampling, DRAWS)
    return {
        "at most once": float(counts.max() <= 1),
        "inclusion": inclusion_p(np.minimum(counts, 1), RATE),
        "size": size_p(np.minimum(counts, 1), stats.binom(N, RATE)),
        "records": records_p(counts),
        "steps": steps_p(counts),
    }


def violated(sampling) -> set[str]:
    return {name for name, p in p_values(sampling).items() if p < FALSE_ALARM}


@pytest.mark.slow
@pytest.mark.parametrize("physical_batch_size", [0, 4, 50])
def test_draws_are_independent_coins(physical_batch_size):
    assert violated(PoissonSampling(N, RATE, physical_batch_size=physical_batch_size)) == set()


def test_draws_are_independent_coins_on_one_record_and_at_a_high_rate():
    one = drawn(PoissonSampling(1, 0.5), DRAWS)
    assert inclusion_p(one, 0.5) > FALSE_ALARM
    most = drawn(PoissonSampling(N, 0.97), DRAWS)
    assert inclusion_p(most, 0.97) > FALSE_ALARM
    assert size_p(most, stats.binom(N, 0.97)) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "seen_by"),
    [
        (EmptyPoisson(N, RATE), {"inclusion", "size"}),
        (FixedSizeSampling(N, round(N * RATE)), {"size"}),
        (PoissonSampling(N, 1.1 * RATE), {"inclusion", "size"}),
        (PoissonSampling(N, 0.9 * RATE), {"inclusion", "size"}),
        (CappedPoisson(N, RATE, physical_batch_size=6), {"inclusion", "size"}),
        (ShuffledEpochs(N, round(N * RATE)), {"size", "steps"}),
        (SameCoinsAgain(N, RATE), {"inclusion", "size"}),
    ],
    ids=["empty", "fixed", "rate+10%", "rate-10%", "capped", "shuffled", "same"],
)
def test_power_a_sampler_that_is_not_poisson_is_seen(broken, seen_by):
    assert seen_by <= violated(broken)


def test_power_pairs_that_go_together_are_seen():
    # Two records that share one coin, at the right rate, in an otherwise perfect sampler.
    counts = drawn(POISSON, DRAWS).copy()
    counts[:, 1] = counts[:, 0]
    assert records_p(counts) < FALSE_ALARM
    assert inclusion_p(counts, RATE) > FALSE_ALARM


@pytest.mark.parametrize("physical_batch_size", [1, 4, 50])
def test_physical_batches_hold_the_whole_draw_each_record_once(physical_batch_size):
    sampling = PoissonSampling(50, 0.5, physical_batch_size=physical_batch_size)
    for seed in range(5):
        draw, num_batches, parts = laid_out(sampling, seed, 50)
        records = members(draw)
        assert num_batches == -(-len(records) // physical_batch_size)
        first = slice(None, int(num_batches))
        assert sorted(parts.indices[first][parts.mask[first]].tolist()) == records.tolist()
        assert len(records) == int(draw.size)
        assert parts.mask[first].any(axis=1).all()
        assert not parts.mask[int(num_batches) :].any()
        assert 0 <= int(parts.indices.min()) <= int(parts.indices.max()) < 50


def test_what_is_drawn_does_not_depend_on_the_padded_shape():
    small, large = (
        drawn(PoissonSampling(N, RATE, physical_batch_size=size), 100, seed=3) for size in (2, N)
    )
    assert (small == large).all()


def test_rate_one_takes_everyone_and_a_tiny_rate_nobody():
    assert (drawn(PoissonSampling(N, 1.0, physical_batch_size=7), 20) == 1).all()
    for rate in (1e-7, 1e-12):
        draw, num_batches, parts = laid_out(PoissonSampling(N, rate), 0, 2)
        assert int(draw.size) == int(num_batches) == 0
        assert not parts.mask.any()
        assert (parts.indices < N).all()


@pytest.mark.parametrize("rate", [1e-12, 3e-10, 0.1, 0.5, 256 / 60_000, 1 - 1e-12, 1.0])
def test_the_real_rate_is_the_largest_multiple_of_two_to_the_minus_32_up_to_the_stated(
    rate, monkeypatch
):
    # A record is drawn for `threshold` of the 2^32 words: looked for around the exact number.
    threshold = math.floor(Fraction(rate) * 2**32)
    words = [w for w in (0, threshold - 1, threshold, threshold + 1) if 0 <= w < 2**32]
    monkeypatch.setattr("dpjax.sampling.poisson.bits", lambda *_: jnp.array(words, jnp.uint32))
    draw, _ = PoissonSampling(len(words), rate).draw(jax.random.key(0))
    assert members(draw).tolist() == [i for i, word in enumerate(words) if word < threshold]


def test_sizes_follow_from_the_rate():
    assert POISSON.expected_batch_size == pytest.approx(6)
    # mean 6 and standard deviation 2.19: 12.6, and up to the next multiple of 8
    assert POISSON.physical_batch_size == 16
    assert POISSON.num_static_batches == 1
    assert PoissonSampling(N, RATE, physical_batch_size=5).num_static_batches == 4
    assert PoissonSampling(N, 1.0).physical_batch_size == N


def test_the_events_rate_is_the_rate_of_the_draws():
    event = POISSON.event([(1.3, 1)])
    assert event == PoissonSampledDpEvent(RATE, GaussianDpEvent(1.3))
    assert inclusion_p(drawn(POISSON, DRAWS, seed=5), event.sampling_probability) > FALSE_ALARM
    assert (
        inclusion_p(drawn(POISSON, DRAWS, seed=5), 1.1 * event.sampling_probability) < FALSE_ALARM
    )


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, float("nan"), "0.1"])
def test_rates_outside_zero_to_one_are_refused(rate):
    with pytest.raises(ValueError, match=r"sampling_rate must be in \(0, 1\]"):
        PoissonSampling(10, rate)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_examples": 0}, "num_examples"),
        ({"num_examples": 2.5}, "num_examples"),
        ({"physical_batch_size": -1}, "physical_batch_size"),
    ],
)
def test_sizes_that_are_no_counts_are_refused(fields, name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1"):
        PoissonSampling(**{"num_examples": 10, "sampling_rate": 0.5, **fields})
