"""What every sampler promises: jittable, a fixed shape, a scan carry, heterogeneous noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, SelfComposedDpEvent
from helpers.drawn_batches import drawn

from dpjax.accounting import epsilon
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
    gather,
)
from dpjax.sampling.base import check_data, compose, repeated

SAMPLERS = [
    PoissonSampling(13, 0.3, physical_batch_size=4),
    TruncatedPoissonSampling(13, 0.5, truncated_batch_size=5),
    FixedSizeSampling(13, 5),
    ShuffledEpochs(13, 5),
]
FRESH_EACH_STEP = SAMPLERS[:3]
each_sampler = pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda s: type(s).__name__)


def kinds(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), leaf.dtype), tree)


@each_sampler
def test_one_trace_serves_every_draw(sampling):
    traces = []

    @jax.jit
    def step(state):
        traces.append(None)
        draw, state = sampling.draw(state)
        return sampling.batch(draw, 0), sampling.num_batches(draw), state

    state = sampling.init(jax.random.key(0))
    for _ in range(8):
        batch, num_batches, state = step(state)
        assert batch.indices.shape == batch.mask.shape == (sampling.physical_batch_size,)
        assert batch.indices.dtype == jnp.int32
        assert batch.mask.dtype == bool
        assert int(num_batches) >= 0
    assert len(traces) == 1


@each_sampler
@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
def test_the_state_is_a_scan_carry_and_batches_are_int32(sampling, x64):
    with jax.enable_x64(x64):
        state = sampling.init(jax.random.key(0))
        draw, moved_on = jax.eval_shape(sampling.draw, state)
        batch = jax.eval_shape(sampling.batch, draw, jnp.int32(0))
        assert kinds(moved_on) == kinds(state)
        assert batch.indices.dtype == jnp.int32
        counts = drawn(sampling, 20)
    assert counts.max() == 1
    assert (counts.sum(axis=1) > 0).any()


@each_sampler
def test_records_that_are_asked_for_alone_are_drawn_as_in_the_whole_draw(sampling):
    """By records of any order, and places without a record, over several draws."""
    order = np.random.default_rng(0).permutation(sampling.num_examples)
    positions = jnp.asarray(np.append(order, [13, 13]), jnp.int32)
    state, sizes = sampling.init(jax.random.key(0)), []
    for _ in range(6):
        members = np.asarray(sampling.members_at(state, positions))
        draw, moved = sampling.draw(state)
        held = set()
        for part in range(int(sampling.num_batches(draw))):
            batch = sampling.batch(draw, part)
            held |= set(np.asarray(batch.indices)[np.asarray(batch.mask)].tolist())
        assert set(np.asarray(positions)[members].tolist()) == held
        keys = (sampling.subset_key(each) for each in (state, moved))
        words = {tuple(jax.random.key_data(key).tolist()) for key in keys}
        assert len(words) == 2 or isinstance(sampling, ShuffledEpochs)
        state, sizes = moved, [*sizes, len(held)]
    assert sum(sizes) > 0


@each_sampler
def test_draws_follow_from_the_key_alone(sampling):
    once, again, other = (drawn(sampling, 5, seed) for seed in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()


@each_sampler
def test_the_usual_batches_hold_nearly_every_draw(sampling):
    sizes = drawn(sampling, 2000).sum(axis=1)
    assert (sizes <= sampling.num_static_batches * sampling.physical_batch_size).mean() > 0.99


@each_sampler
def test_the_expected_size_is_the_mean_before_any_cut(sampling):
    if isinstance(sampling, TruncatedPoissonSampling):
        sampling = PoissonSampling(sampling.num_examples, sampling.sampling_rate)
    sizes = drawn(sampling, 3000).sum(axis=1)
    # the last batch of an epoch is smaller: 13 records in three steps of five
    expected = 13 / 3 if isinstance(sampling, ShuffledEpochs) else sampling.expected_batch_size
    # five standard errors: false alarm 6e-7
    assert abs(sizes.mean() - expected) <= 5 * sizes.std() / np.sqrt(len(sizes)) + 1e-9


@each_sampler
def test_keys_are_typed_or_raw_and_never_seeds(sampling):
    sampling.init(jax.random.PRNGKey(0))
    with pytest.raises(TypeError, match="key must be a scalar JAX key"):
        sampling.init(0)


@each_sampler
def test_it_is_described_with_its_numbers(sampling):
    assert "13" in sampling.describe("zero_out")


@pytest.mark.parametrize("sampling", FRESH_EACH_STEP, ids=lambda s: type(s).__name__)
def test_noise_that_changes_composes_step_by_step(sampling):
    strong, weak = sampling.step_event(2.0), sampling.step_event(1.0)
    event = sampling.event([(2.0, 3), (1.0, 1)])
    assert event == ComposedDpEvent([SelfComposedDpEvent(strong, 3), weak])
    mixed, least, most = (
        epsilon(e, 1e-5, adjacency="replace_one")
        for e in (event, sampling.event([(2.0, 4)]), sampling.event([(1.0, 4)]))
    )
    assert least < mixed < most


def test_compositions_of_one_are_plain():
    event = SAMPLERS[0].step_event(1.0)
    assert repeated(event, 1) is event
    assert compose([event]) is event


def test_gather_takes_records_from_every_leaf():
    data = {"x": jnp.arange(8.0).reshape(4, 2), "y": jnp.arange(4)}
    taken = gather(data, jnp.array([2, 0]))
    assert taken["x"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert taken["y"].tolist() == [2, 0]


def test_data_of_another_size_is_refused():
    check_data(SAMPLERS[0], jnp.zeros((13, 2)))
    with pytest.raises(ValueError, match=r"data must have the 13 records .* got 12"):
        check_data(SAMPLERS[0], jnp.zeros((12, 2)))
    with pytest.raises(ValueError, match="data must have one batch length"):
        check_data(SAMPLERS[0], (jnp.zeros(13), jnp.zeros(12)))
