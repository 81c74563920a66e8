"""What every sampler promises: fixed shapes, scan carries, events of changing noise, refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, SelfComposedDpEvent
from helpers.drawn_batches import drawn
from helpers.inputs import gaussian_mechanism

from dpjax.accounting import UnsupportedEventError, epsilon
from dpjax.adjacency import ADJACENCIES
from dpjax.sampling import (
    AllocatedSampling,
    CyclicPoissonSampling,
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
    AllocatedSampling(13, steps_per_epoch=4, participations=2, physical_batch_size=4),
    CyclicPoissonSampling(13, 0.2, num_groups=3),
]
FRESH_EACH_STEP = SAMPLERS[:3]
each_sampler = pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda s: type(s).__name__)


def kinds(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), leaf.dtype), tree)


@pytest.mark.slow
@each_sampler
def test_draw_traced_once(sampling):
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
def test_state_dtypes(sampling, x64):
    with jax.enable_x64(x64):
        state = sampling.init(jax.random.key(0))
        draw, moved_on = jax.eval_shape(sampling.draw, state)
        batch = jax.eval_shape(sampling.batch, draw, jnp.int32(0))
        assert kinds(moved_on) == kinds(state)
        assert batch.indices.dtype == jnp.int32
        counts = drawn(sampling, 20)
    assert counts.max() == 1
    assert (counts.sum(axis=1) > 0).any()


@pytest.mark.parametrize(
    "sampling",
    [SAMPLERS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in SAMPLERS[1:])],
    ids=lambda s: type(s).__name__,
)
def test_members_at_of_the_whole_draw(sampling):
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
def test_draw_follows_from_the_key(sampling):
    once, again, other = (drawn(sampling, 5, seed) for seed in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()


@each_sampler
def test_num_static_batches_hold_nearly_every_draw(sampling):
    sizes = drawn(sampling, 2000).sum(axis=1)
    assert (sizes <= sampling.num_static_batches * sampling.physical_batch_size).mean() > 0.99


@pytest.mark.slow
@each_sampler
def test_expected_batch_size_is_the_mean(sampling):
    if isinstance(sampling, TruncatedPoissonSampling):
        sampling = PoissonSampling(sampling.num_examples, sampling.sampling_rate)
    sizes = drawn(sampling, 3000).sum(axis=1)
    # the last batch of an epoch is smaller: 13 records in three steps of five
    expected = 13 / 3 if isinstance(sampling, ShuffledEpochs) else sampling.expected_batch_size
    # five standard errors: false alarm 6e-7
    assert abs(sizes.mean() - expected) <= 5 * sizes.std() / np.sqrt(len(sizes)) + 1e-9


@each_sampler
def test_init_takes_keys_alone(sampling):
    sampling.init(jax.random.PRNGKey(0))
    with pytest.raises(TypeError, match="key must be a scalar JAX key"):
        sampling.init(0)


@each_sampler
def test_describe_names_num_examples(sampling):
    assert "13" in sampling.describe("zero_out")


@pytest.mark.parametrize("sampling", FRESH_EACH_STEP, ids=lambda s: type(s).__name__)
def test_event_of_changing_noise(sampling):
    strong, weak = sampling.step_event(2.0), sampling.step_event(1.0)
    event = sampling.event([(2.0, 3), (1.0, 1)])
    assert event == ComposedDpEvent([SelfComposedDpEvent(strong, 3), weak])
    mixed, least, most = (
        epsilon(e, 1e-5, adjacency="replace_one")
        for e in (event, sampling.event([(2.0, 4)]), sampling.event([(1.0, 4)]))
    )
    assert least < mixed < most


def test_compose_of_one():
    event = SAMPLERS[0].step_event(1.0)
    assert repeated(event, 1) is event
    assert compose([event]) is event


def test_gather():
    data = {"x": jnp.arange(8.0).reshape(4, 2), "y": jnp.arange(4)}
    taken = gather(data, jnp.array([2, 0]))
    assert taken["x"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert taken["y"].tolist() == [2, 0]


def test_check_data():
    check_data(SAMPLERS[0], jnp.zeros((13, 2)))
    with pytest.raises(ValueError, match=r"data must have the 13 records .* got 12"):
        check_data(SAMPLERS[0], jnp.zeros((12, 2)))
    with pytest.raises(ValueError, match="data must have one batch length"):
        check_data(SAMPLERS[0], (jnp.zeros(13), jnp.zeros(12)))


# Smallest and largest settings, under every adjacency.
CORNERS = [
    PoissonSampling(1, 1.0),
    PoissonSampling(1, 1e-4),
    PoissonSampling(7, 1.0, physical_batch_size=7),
    TruncatedPoissonSampling(1, 1.0, truncated_batch_size=1),
    TruncatedPoissonSampling(7, 1.0, truncated_batch_size=7),
    TruncatedPoissonSampling(7, 1.0, truncated_batch_size=1),
    TruncatedPoissonSampling(7, 1e-4, truncated_batch_size=1),
    FixedSizeSampling(1, 1),
    FixedSizeSampling(7, 7),
    FixedSizeSampling(7, 1),
    ShuffledEpochs(1, 1),
    ShuffledEpochs(7, 7),
    ShuffledEpochs(7, 2),
]
DELTA = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("sampling", CORNERS, ids=repr)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_epsilon_of_extreme_settings(sampling, adjacency):
    for noise, steps in ((0.0, 3), (0.5, 1), (1e6, 3)):
        if adjacency == "add_remove" and isinstance(sampling, FixedSizeSampling | ShuffledEpochs):
            with pytest.raises(ValueError, match="must be 'replace_one' or 'zero_out' for"):
                gaussian_mechanism(
                    sampling, noise_multiplier=noise, num_steps=steps, adjacency=adjacency
                )
            continue
        mechanism = gaussian_mechanism(
            sampling, noise_multiplier=noise, num_steps=steps, adjacency=adjacency
        )
        certificate = mechanism.certificate(DELTA)
        if noise == 0:
            assert math.isinf(certificate.epsilon)
        elif noise == 0.5:
            least = certificate.epsilon_lower
            assert 0 <= least <= certificate.epsilon < 200
        else:
            assert certificate.epsilon < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("sampling", CORNERS, ids=repr)
def test_draw_of_extreme_settings(sampling):
    draw, _ = jax.jit(sampling.draw)(sampling.init(jax.random.key(0)))
    batch = sampling.batch(draw, 0)
    assert batch.mask.shape == (sampling.physical_batch_size,)
    assert ((batch.indices >= 0) & (batch.indices < sampling.num_examples)).all()


def test_epsilon_of_little_noise():
    for sampling in (
        PoissonSampling(7, 0.5),
        TruncatedPoissonSampling(7, 0.5, truncated_batch_size=3),
    ):
        mechanism = gaussian_mechanism(
            sampling, noise_multiplier=1e-9, num_steps=1, adjacency="replace_one"
        )
        with pytest.raises(
            UnsupportedEventError, match=r"noise_multiplier .*at least 0.01 .*, got 1e-09"
        ):
            mechanism.certificate(DELTA)


FIXED = {"num_examples": 10, "batch_size": 2}
POISSON = {"num_examples": 20, "sampling_rate": 0.5}
TRUNCATED = {**POISSON, "truncated_batch_size": 9}
NO_COUNT, NO_RATE = "must be a whole number >= 1", r"must be in \(0, 1\]"
REFUSED = [
    *(
        (sampler, FIXED, change, message)
        for sampler in (FixedSizeSampling, ShuffledEpochs)
        for change, message in [
            ({"batch_size": 11}, "batch_size must be at most num_examples = 10, got 11"),
            ({"batch_size": 0}, f"batch_size {NO_COUNT}, got 0"),
            ({"batch_size": True}, f"batch_size {NO_COUNT}, got True"),
            ({"num_examples": 0}, f"num_examples {NO_COUNT}, got 0"),
        ]
    ),
    *(
        (PoissonSampling, POISSON, {"sampling_rate": rate}, f"sampling_rate {NO_RATE}")
        for rate in (0.0, -0.1, 1.0001, math.nan, "0.1")
    ),
    *(
        (sampler, fields, {"sampling_rate": 10}, "sampling_rate=10 / 20, or use dpjax.dpsgd")
        for sampler, fields in ((PoissonSampling, POISSON), (TruncatedPoissonSampling, TRUNCATED))
    ),
    (PoissonSampling, POISSON, {"sampling_rate": 21}, f"sampling_rate {NO_RATE}, got 21$"),
    (PoissonSampling, POISSON, {"num_examples": 0}, f"num_examples {NO_COUNT}"),
    (PoissonSampling, POISSON, {"num_examples": 2.5}, f"num_examples {NO_COUNT}"),
    (PoissonSampling, POISSON, {"physical_batch_size": -1}, f"physical_batch_size {NO_COUNT}"),
    (TruncatedPoissonSampling, TRUNCATED, {"truncated_batch_size": 21}, "at most num_examples"),
    (TruncatedPoissonSampling, TRUNCATED, {"truncated_batch_size": -1}, NO_COUNT),
    (TruncatedPoissonSampling, TRUNCATED, {"sampling_rate": 0.0}, f"sampling_rate {NO_RATE}"),
    (TruncatedPoissonSampling, TRUNCATED, {"num_examples": 0}, "num_examples"),
    *(
        (sampler, fields, {"expected_batch_size": value}, "must be a finite number > 0")
        for sampler, fields in ((PoissonSampling, POISSON), (TruncatedPoissonSampling, TRUNCATED))
        for value in (-1.0, math.nan, math.inf, "100")
    ),
]


@pytest.mark.parametrize(("sampler", "fields", "change", "message"), REFUSED)
def test_sampler_refuses_numbers_out_of_range(sampler, fields, change, message):
    with pytest.raises(ValueError, match=message):
        sampler(**{**fields, **change})


@pytest.mark.parametrize(
    ("sampler", "fields"),
    [
        (PoissonSampling, {**POISSON, "physical_batch_size": 8}),
        (TruncatedPoissonSampling, TRUNCATED),
        (FixedSizeSampling, FIXED),
        (ShuffledEpochs, FIXED),
    ],
)
def test_sampler_takes_whole_floats_as_counts(sampler, fields):
    counts = {name: value for name, value in fields.items() if name != "sampling_rate"}
    sampling = sampler(**{**fields, **{name: float(value) for name, value in counts.items()}})
    assert sampling == sampler(**fields)
    assert all(type(getattr(sampling, name)) is int for name in counts)


@pytest.mark.parametrize("sampler", [FixedSizeSampling, ShuffledEpochs])
def test_check_adjacency_of_fixed_sizes(sampler):
    sampling = sampler(10, 2)
    sampling.check_adjacency("replace_one")
    sampling.check_adjacency("zero_out")
    words = f"must be 'replace_one' or 'zero_out' for {sampler.__name__}, got"
    with pytest.raises(ValueError, match=words):
        sampling.check_adjacency("add_remove")
    with pytest.raises(ValueError, match="adjacency must be one of"):
        sampling.check_adjacency("swap")
    PoissonSampling(10, 0.2).check_adjacency("add_remove")
