"""Poisson sampling: independent coins at the stated rate, in batches that drop no record."""

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

from dpjax.gradients import clipped_grad
from dpjax.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs
from dpjax.sampling.poisson import pack
from dpjax.training.batch_gradient import sum_over_draw

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

    def _is_drawn(self, key, positions):
        return jnp.zeros(positions.shape, bool)


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
def test_poisson_draws_independent_coins(physical_batch_size):
    assert violated(PoissonSampling(N, RATE, physical_batch_size=physical_batch_size)) == set()


@pytest.mark.slow
def test_poisson_draws_at_extreme_sizes_and_rates():
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
def test_power_other_samplers(broken, seen_by):
    assert seen_by <= violated(broken)


@pytest.mark.slow
def test_power_correlated_records():
    # Two records that share one coin, at the right rate, in an otherwise perfect sampler.
    counts = drawn(POISSON, DRAWS).copy()
    counts[:, 1] = counts[:, 0]
    assert records_p(counts) < FALSE_ALARM
    assert inclusion_p(counts, RATE) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("physical_batch_size", [1, 4, 50])
def test_poisson_physical_batches_hold_the_draw(physical_batch_size):
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


@pytest.mark.slow
def test_poisson_draws_independent_of_padding():
    small, large = (
        drawn(PoissonSampling(N, RATE, physical_batch_size=size), 100, seed=3) for size in (2, N)
    )
    assert (small == large).all()


def test_poisson_rates_at_the_ends():
    assert (drawn(PoissonSampling(N, 1.0, physical_batch_size=7), 20) == 1).all()
    for rate in (1e-7, 1e-12):
        draw, num_batches, parts = laid_out(PoissonSampling(N, rate), 0, 2)
        assert int(draw.size) == int(num_batches) == 0
        assert not parts.mask.any()
        assert (parts.indices < N).all()


@pytest.mark.parametrize("rate", [1e-12, 3e-10, 0.1, 0.5, 256 / 60_000, 1 - 1e-12, 1.0])
def test_poisson_threshold_rounded_down(rate, monkeypatch):
    # A record is drawn for `threshold` of the 2^32 words: looked for around the exact number.
    threshold = math.floor(Fraction(rate) * 2**32)
    words = [w for w in (0, threshold - 1, threshold, threshold + 1) if 0 <= w < 2**32]
    monkeypatch.setattr(
        "dpjax._random.bits_at",
        lambda key, positions, size: jnp.array(words, jnp.uint32)[positions],
    )
    draw, _ = PoissonSampling(len(words), rate).draw(jax.random.key(0))
    assert members(draw).tolist() == [i for i, word in enumerate(words) if word < threshold]


def test_poisson_sizes():
    assert POISSON.expected_batch_size == pytest.approx(6)
    # mean 6 and standard deviation 2.19: 12.6, and up to the next multiple of 8
    assert POISSON.physical_batch_size == 16
    assert POISSON.num_static_batches == 1
    assert PoissonSampling(N, RATE, physical_batch_size=5).num_static_batches == 4
    assert PoissonSampling(N, 1.0).physical_batch_size == N


def test_poisson_event_rate_of_the_draws():
    event = POISSON.event([(1.3, 1)])
    assert event == PoissonSampledDpEvent(RATE, GaussianDpEvent(1.3))
    assert inclusion_p(drawn(POISSON, DRAWS, seed=5), event.sampling_probability) > FALSE_ALARM
    assert (
        inclusion_p(drawn(POISSON, DRAWS, seed=5), 1.1 * event.sampling_probability) < FALSE_ALARM
    )


# Bit sets, and the random subset in the usual batches of a draw that is larger than these.


@pytest.mark.slow
@pytest.mark.parametrize("num_records", [1, 31, 32, 33, 64, 1_000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_records_at_positions(num_records, share):
    chosen = jax.random.uniform(jax.random.key(num_records), (num_records,)) < share
    packed, expected = pack(chosen), np.flatnonzero(chosen)
    assert int(packed.size) == len(expected)
    found = packed.records_at(jnp.arange(num_records, dtype=jnp.int32))
    assert found[: len(expected)].tolist() == expected.tolist()
    assert found.dtype == jnp.int32
    assert (found >= 0).all()


@pytest.mark.slow
def test_records_at_last_bits():
    chosen = jnp.zeros(96, bool).at[jnp.array([31, 63, 95])].set(True)
    assert pack(chosen).records_at(jnp.arange(3)).tolist() == [31, 63, 95]


@pytest.mark.slow
def test_records_at_under_vmap():
    chosen = jax.random.bernoulli(jax.random.key(0), 0.3, (5, 70))
    found = jax.vmap(lambda row: pack(row).records_at(jnp.arange(10)))(chosen)
    for row, records in zip(chosen, found, strict=True):
        assert records.tolist() == np.flatnonzero(row)[:10].tolist()


OVERFULL, RARE = (
    40,
    0.05,
)  # usual batches hold 7 of them, rounded up to 8: a full draw is five times that
SAMPLING = PoissonSampling(OVERFULL, RARE, physical_batch_size=4)
MOST = SAMPLING.num_static_batches * SAMPLING.physical_batch_size


class Everyone(PoissonSampling):
    """Draws all records, whatever the rate: overfull every time."""

    def _is_drawn(self, key, positions):
        return positions < self.num_examples


class InDataOrder(Everyone):
    """Broken as before: the first batches have the first records."""

    def draw(self, state):
        draw, state = super().draw(state)
        words = draw.usual.words | draw.further.words
        bits = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
        chosen = bits.ravel()[: self.num_examples].astype(bool)
        first = jnp.cumsum(chosen) <= MOST
        return draw._replace(usual=pack(chosen & first), further=pack(chosen & ~first)), state


def reported(sampling, num_draws):
    """Norms that one step reports of records sorted by norm, ``(num_draws, slots)``."""
    data = jnp.arange(1.0, OVERFULL + 1)
    clipped = clipped_grad(lambda params, record: params * record, l2_clip=1e3)

    def step(key):
        draw, _ = sampling.draw(sampling.init(key))
        total, info = sum_over_draw(clipped, sampling, draw, jnp.float32(1.0), data)
        return total, info.batch_size, info.norms, info.mask

    keys = jax.random.split(jax.random.key(7), num_draws)
    return jax.device_get(jax.jit(lambda keys: jax.lax.map(step, keys))(keys))


def usual_inclusion_p(sampling):
    """Chi-square p-value of equal inclusion; those of one draw exclude each other."""
    total, sizes, norms, mask = reported(sampling, 2_000)
    assert (sizes == OVERFULL).all()
    np.testing.assert_allclose(total, OVERFULL * (OVERFULL + 1) / 2, rtol=1e-5)  # nobody is dropped
    assert mask.all()
    assert mask.shape[1] == MOST
    counts = np.bincount(np.rint(norms).astype(int).ravel(), minlength=OVERFULL + 1)[1:]
    share = MOST / OVERFULL
    statistic = ((counts - 2_000 * share) ** 2).sum() / (2_000 * share * (1 - share))
    return stats.chi2.sf(statistic * (OVERFULL - 1) / OVERFULL, OVERFULL - 1)


@pytest.mark.slow
def test_overfull_draw_norms_of_a_random_subset():
    assert usual_inclusion_p(Everyone(OVERFULL, RARE, physical_batch_size=4)) > FALSE_ALARM


@pytest.mark.slow
def test_power_overfull_draw_in_data_order():
    assert usual_inclusion_p(InDataOrder(OVERFULL, RARE, physical_batch_size=4)) < FALSE_ALARM


@pytest.mark.slow
def test_split_randomly_uniform():
    chosen = pack(jnp.zeros(70, bool).at[jnp.array([3, 31, 32, 64, 69])].set(True))
    keys = jax.random.split(jax.random.key(0), 5_000)
    usual, further = jax.jit(jax.vmap(lambda key: chosen.split_randomly(key, 3)))(keys)
    assert (usual.counts[:, -1] == 3).all()
    assert (further.counts[:, -1] == 2).all()
    assert (usual.words ^ further.words == chosen.words).all()
    _, counts = np.unique(np.asarray(usual.words), axis=0, return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    whole, nothing = chosen.split_randomly(keys[0], 5)
    assert (whole.words == chosen.words).all()
    assert int(nothing.size) == 0


@pytest.mark.slow
def test_draw_bits_of_the_second_key():
    """The random subset has a third key, which leaves the first two as they were."""
    key = jax.random.key(3)
    next_key, coins = jax.random.split(key)
    draw, state = SAMPLING.draw(SAMPLING.init(key))
    assert (jax.random.key_data(state) == jax.random.key_data(next_key)).all()
    expected = jax.random.bits(coins, (OVERFULL,), jnp.uint32) < int(RARE * 2**32)
    assert (draw.usual.words | draw.further.words == pack(expected).words).all()
