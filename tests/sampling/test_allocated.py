"""Random allocation: each record exactly k times an epoch, uniform, independent; its event."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
from helpers.drawn_batches import drawn
from helpers.inputs import gaussian_mechanism
from scipy import stats

from dpjax.accounting import epsilon
from dpjax.sampling import AllocatedSampling
from dpjax.sampling.allocated import AllocatedState
from dpjax.sampling.allocation_event import RandomAllocationDpEvent

SETTINGS = [(4, 1), (5, 2), (7, 3), (3, 3)]


@pytest.mark.parametrize(("steps", "times"), SETTINGS)
def test_once_in_every_block(steps, times):
    sampling = AllocatedSampling(40, steps_per_epoch=steps, participations=times)
    counts = drawn(sampling, 6 * steps).reshape(6, steps, 40)
    blocks = np.split(counts, np.cumsum(sampling.block_lengths)[:-1], axis=1)
    assert all((block.sum(axis=1) == 1).all() for block in blocks)
    assert sum(sampling.block_lengths) == steps
    # An epoch that begins a step later is not one: the check above finds it.
    if times < steps:
        late = np.roll(counts.reshape(-1, 40), 1, axis=0).reshape(6, steps, 40)
        assert not all(
            (block.sum(axis=1) == 1).all()
            for block in np.split(late, np.cumsum(sampling.block_lengths)[:-1], axis=1)
        )


def uniform_p(steps):
    """p-value of uniform steps of two records in consecutive epochs, together."""
    table = np.zeros((5,) * 3)
    np.add.at(table, tuple(steps), 1)
    return stats.chisquare(table.ravel()).pvalue


def test_steps_are_uniform_and_independent():
    """Step of a record, of another one, and of its next epoch; false alarm 1e-6."""
    sampling = AllocatedSampling(400, steps_per_epoch=5)
    where = drawn(sampling, 5 * 40).reshape(40, 5, 400).argmax(axis=1)
    first, second = where[:-1, :-1], where[:-1, 1:]
    following = where[1:, :-1]
    # Every other record and epoch, so that no pair has a record twice.
    triples = [each[::2, ::2].ravel() for each in (first, second, following)]
    assert uniform_p(triples) > 1e-6
    # The same allocation in every epoch, or of two records, is found.
    assert uniform_p([triples[0], triples[1], triples[0]]) < 1e-6
    assert uniform_p([triples[0], triples[0], triples[2]]) < 1e-6


def test_steps_from_64_bits():
    """Remainders of two words are those of exact integers."""
    from dpjax._random import bits_at

    sampling = AllocatedSampling(50, steps_per_epoch=65_521)
    key = jax.random.key(3)
    epoch_key = jax.random.fold_in(jax.random.fold_in(key, 0), 0)
    positions = jnp.arange(50)
    high, low = (np.asarray(bits_at(k, positions, 50)) for k in jax.random.split(epoch_key))
    exact = [((int(h) << 32) + int(w)) % 65_521 for h, w in zip(high, low, strict=True)]
    for record in (0, 17, 49):
        state = AllocatedState(jax.random.key(0), key, jnp.int32(exact[record]))
        assert bool(sampling.members_at(state, positions)[record])


def test_event():
    sampling = AllocatedSampling(100, steps_per_epoch=5, participations=2)
    assert sampling.block_lengths == (3, 2)
    three, two = (RandomAllocationDpEvent(length, 1.0) for length in (3, 2))
    # Two epochs and a block; the block that was begun counts in full.
    assert sampling.event([(1.0, 11)]) == ComposedDpEvent(
        [SelfComposedDpEvent(two, 2), SelfComposedDpEvent(three, 3)]
    )
    # The least noise of a block's steps.
    assert sampling.event([(2.0, 2), (1.0, 1)]) == three
    assert AllocatedSampling(9, steps_per_epoch=3, participations=3).event(
        [(1.0, 2)]
    ) == SelfComposedDpEvent(GaussianDpEvent(1.0), 2)


def test_unfinished_epoch_is_bounded():
    """One step alone is a Poisson sample, which the event of the whole epoch bounds."""
    sampling = AllocatedSampling(100, steps_per_epoch=10)
    alone, whole = (
        epsilon(event, 1e-5, adjacency="zero_out")
        for event in (sampling.step_event(1.0), sampling.event([(1.0, 1)]))
    )
    assert alone < whole


@pytest.mark.slow
def test_worst_case_sums_have_the_certified_delta():
    """Sums over the sampler's own batches, of the record alone; false alarm below 1e-6.

    The test is the likelihood ratio of the event; a sampler that is wrong by one participation has
    another true positive rate.
    """
    sampling, sigma, size = AllocatedSampling(2000, steps_per_epoch=4), 0.8, 2000
    where = drawn(sampling, 4).argmax(axis=0)
    noise = np.random.default_rng(1).standard_normal((2, size, 4)) * sigma
    present = noise[0] + (np.arange(4) == where[:, None])

    def scores(sums):
        return np.mean(np.exp((2 * sums - 1) / (2 * sigma**2)), axis=-1)

    eps = 0.5
    attained = np.mean(scores(present) > np.exp(eps)) - np.exp(eps) * np.mean(
        scores(noise[1]) > np.exp(eps)
    )
    from dpjax.accounting import profile_bounds

    lower, upper = profile_bounds(
        RandomAllocationDpEvent(4, sigma), [eps], adjacency="zero_out", direction="remove"
    )
    error = 5 * (1 + np.exp(eps)) * 0.5 / np.sqrt(size)
    assert lower[0] - error <= attained <= upper[0] + error
    # In two steps instead of one, delta is larger by more than the error.
    twice = present + (np.arange(4) == (where[:, None] + 1) % 4)
    broken = np.mean(scores(twice) > np.exp(eps)) - np.exp(eps) * np.mean(
        scores(noise[1]) > np.exp(eps)
    )
    assert broken > upper[0] + error


def test_certificate_and_refusals():
    mechanism = gaussian_mechanism(
        AllocatedSampling(1000, steps_per_epoch=20),
        noise_multiplier=1.0,
        num_steps=40,
        adjacency="zero_out",
    )
    certificate = mechanism.certificate(delta=1e-5)
    assert certificate.epsilon_lower == pytest.approx(certificate.epsilon, rel=3e-3)
    assert "random allocation: each of 1,000 records in 1 of the 20 steps" in repr(
        mechanism.guarantee.description
    )
    with pytest.raises(ValueError, match="no theorem bounds random allocation"):
        dataclasses.replace(mechanism, adjacency="replace_one")
    with pytest.raises(ValueError, match="participations must be at most steps_per_epoch = 3"):
        AllocatedSampling(10, steps_per_epoch=3, participations=4)
    with pytest.raises(ValueError, match="steps_per_epoch must be at most 65536"):
        AllocatedSampling(10, steps_per_epoch=65_537)
