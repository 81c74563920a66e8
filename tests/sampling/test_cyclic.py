"""Cyclic Poisson sampling: groups in turn, their rate, events, and which steps hold a record."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from helpers.drawn_batches import drawn
from scipy import stats

from dpjax import CyclicPoissonSampling, PoissonSampling, ShuffledEpochs
from dpjax.accounting import epsilon


def test_groups_take_turns():
    """Record i is drawn in steps t with t % 4 == i % 4 alone, at four times the rate."""
    sampling = CyclicPoissonSampling(13, 0.15, num_groups=4)
    counts = drawn(sampling, 400)
    steps, records = np.nonzero(counts)
    assert (steps % 4 == records % 4).all()
    for record in range(13):
        # 26 records and groups together: false alarm below 1e-6 of each
        hits = counts[record % 4 :: 4, record].sum()
        assert stats.binomtest(int(hits), 100, 0.6).pvalue > 1e-6
    # Power: at the rate of Poisson sampling of all records it would be found.
    assert stats.binomtest(int(hits), 100, 0.15).pvalue < 1e-6


def test_records_of_a_group_are_drawn_independently():
    sampling = CyclicPoissonSampling(12, 0.125, num_groups=4)
    counts = drawn(sampling, 4000)[::4, ::4]  # three records at rate 1 / 2
    table = np.zeros(8)
    np.add.at(table, counts @ np.array([1, 2, 4]), 1)
    assert stats.chisquare(table).pvalue > 1e-6


def test_whole_groups_in_fixed_order():
    sampling = CyclicPoissonSampling(10, 0.25, num_groups=4)
    assert sampling.group_rate == 1
    counts = drawn(sampling, 8)
    for step in range(8):
        assert np.flatnonzero(counts[step]).tolist() == list(range(step % 4, 10, 4))


@pytest.mark.slow
def test_several_physical_batches():
    """No record is dropped."""
    sampling = CyclicPoissonSampling(40, 0.5, num_groups=2, physical_batch_size=6)
    draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    batches = [sampling.batch(draw, part) for part in range(int(sampling.num_batches(draw)))]
    held = np.concatenate([np.asarray(b.indices)[np.asarray(b.mask)] for b in batches])
    assert sorted(held.tolist()) == list(range(0, 40, 2))


def test_participation():
    sampling = CyclicPoissonSampling(12, 0.1, num_groups=4)
    assert sampling.participation(10) == (4, False)
    assert sampling.participation(3) == (3, False)
    assert CyclicPoissonSampling(12, 0.25, num_groups=4).participation(10) == (4, True)
    assert PoissonSampling(12, 0.1).participation(10) == (1, False)
    assert ShuffledEpochs(12, 4).participation(3) == (3, True)
    assert ShuffledEpochs(12, 4).participation(4) == (1, False)


def test_participation_is_what_is_drawn():
    """No record is drawn twice within the separation, and some are that far apart."""
    sampling = CyclicPoissonSampling(13, 0.2, num_groups=4)
    counts = drawn(sampling, 200)
    gaps = np.concatenate([np.diff(np.flatnonzero(counts[:, i])) for i in range(13)])
    assert gaps.min() == sampling.participation(200).separation


def test_event():
    """Ten steps are three turns of a record at most, with the least noise in each cycle."""
    sampling = CyclicPoissonSampling(12, 0.1, num_groups=4)
    step = PoissonSampledDpEvent(0.4, GaussianDpEvent(2.0))
    assert sampling.event([(2.0, 10)]) == SelfComposedDpEvent(step, 3)
    assert sampling.event([(2.0, 3), (1.0, 1)]) == sampling.step_event(1.0)
    one = CyclicPoissonSampling(12, 0.1, num_groups=1)
    assert one.event([(2.0, 10)]) == PoissonSampling(12, 0.1).event([(2.0, 10)])
    whole = CyclicPoissonSampling(12, 0.25, num_groups=4).event([(2.0, 8)])
    released = SelfComposedDpEvent(GaussianDpEvent(2.0), 2)
    values = [epsilon(e, 1e-5, adjacency="zero_out") for e in (whole, released)]
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((12, 0.3, 4), "sampling_rate must be at most 1 / num_groups = 0.25"),
        ((12, 0.0, 4), "sampling_rate"),
        ((3, 0.1, 4), "num_groups must be at most num_examples = 3"),
        ((12, 0.1, 0), "num_groups"),
    ],
)
def test_refusals(arguments, words):
    num_examples, rate, num_groups = arguments
    with pytest.raises(ValueError, match=words):
        CyclicPoissonSampling(num_examples, rate, num_groups=num_groups)


def test_add_remove_refused():
    with pytest.raises(ValueError, match="'replace_one' or 'zero_out' for CyclicPoissonSampling"):
        CyclicPoissonSampling(12, 0.1, num_groups=4).check_adjacency("add_remove")


@pytest.mark.slow
def test_members_at():
    sampling = CyclicPoissonSampling(13, 0.2, num_groups=4)
    state = sampling.init(jax.random.key(1))
    for _ in range(6):
        members = sampling.members_at(state, jnp.arange(14))
        draw, state = sampling.draw(state)
        batch = sampling.batch(draw, 0)
        held = np.asarray(batch.indices)[np.asarray(batch.mask)]
        assert np.flatnonzero(members).tolist() == sorted(held.tolist())
