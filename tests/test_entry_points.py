"""Every entry point that trains or makes a private gradient: clipped exactly, public divisor.

Each makes one step on the loss ``-<w, x>``, whose gradient is minus the record. On one key the
batch and the noise are the same whatever the records hold, so they cancel in differences.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.quick import slow_except
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta

from dpjax.bayes.sgmcmc import SGHMC, SGLD, sample, sgld
from dpjax.bayes.variational import DPSVI
from dpjax.gradients import clipping
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import private_step, train
from dpjax.transforms import (
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_adam,
    noisy_sgd,
)

NUM_EXAMPLES, DIMENSION, CLIP, STEP_SIZE = 12, 3, 0.5, 0.5
SAMPLING = PoissonSampling(NUM_EXAMPLES, 0.25, physical_batch_size=8)
NEARLY_NEVER = PoissonSampling(NUM_EXAMPLES, 2.0**-20, physical_batch_size=8)
START = jnp.zeros(DIMENSION)
DIRECTION = np.array([3, -4, 12], np.float32) / 13
SMALL, HUGE = 0.25 * DIRECTION, 1e6 * DIRECTION  # below the bound and far above
RTOL = 1e-5  # float32, and the rounding margin of such small batches


def loss(w, x):
    return -jnp.vdot(w, x)


def mechanism_for(sampling):
    return SubsampledGaussian(
        sampling, l2_clip=CLIP, noise_multiplier=1.0, num_steps=1, adjacency="add_remove"
    )


# Each takes (records, key, sampling) and returns the noisy sum that it stepped along, over its own
# divisor.


def by_train(records, key, sampling):
    options = {"progress": False, "steps_per_call": 1}
    sgd = optax.sgd(1.0)
    return train(
        key, loss, START, records, sgd, mechanism=mechanism_for(sampling), **options
    ).params


@functools.partial(jax.jit, static_argnums=2)
def by_private_step(records, key, sampling):
    step = private_step(loss, optax.sgd(1.0), mechanism=mechanism_for(sampling), key=key)
    return step.update(step.init(START), records)[0].params


def by_per_example_gradients(transformation, mean_of=lambda updates, state: updates):
    """A loop of one's own around an optax chain, on the records that were drawn."""

    def released(records, key, sampling):
        draw, _ = sampling.draw(sampling.init(key))
        parts = [sampling.batch(draw, part) for part in range(int(sampling.num_batches(draw)))]
        drawn = [np.asarray(batch.indices)[np.asarray(batch.mask)] for batch in parts]
        examples = jnp.asarray(records)[np.concatenate([*drawn, np.zeros(0, int)])]
        grads = jax.vmap(jax.grad(loss), (None, 0))(START, examples)
        chain = transformation(key, sampling.expected_batch_size)
        return mean_of(*chain.update(grads, chain.init(START), START, mask=None))

    return released


def by_dpsvi(records, key, sampling):
    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([DIMENSION]).to_event(1))
        with numpyro.plate("records", len(x)):
            numpyro.factor("term", x @ w)

    guide = AutoDelta(model, init_loc_fn=init_to_value(values={"w": START}))
    mechanism = SubsampledGaussian(
        sampling, num_steps=1, l2_clip=CLIP, noise_multiplier=1.0, adjacency="add_remove"
    )
    svi = DPSVI(model, guide, numpyro.optim.SGD(1 / NUM_EXAMPLES), mechanism=mechanism)
    state, _ = svi.update(svi.init(key, jnp.asarray(records)), jnp.asarray(records))
    return svi.get_params(state)["w_auto_loc"]


def by_chains(kind):
    def released(records, key, sampling):
        chain = kind(
            sampling, l2_clip=CLIP, step_size=STEP_SIZE, num_steps=1, adjacency="add_remove"
        )
        drawn = sample(
            key, lambda w, x: -loss(w, x), None, START, records, mechanism=chain, progress=False
        )
        return drawn.samples[0, 0] / STEP_SIZE

    return released


def clip_then(noise):
    def chain(key, expected_batch_size):
        step = optax.chain(noise(key, expected_batch_size), optax.scale(-1.0))
        return optax.chain(clip_per_example(CLIP), step)

    return chain


def _noisy(key, size):
    return {"l2_clip": CLIP, "noise_multiplier": 1.0, "expected_batch_size": size, "key": key}


ENTRY_POINTS = {
    "train": by_train,
    "private_step": by_private_step,
    "noisy_sgd": by_per_example_gradients(lambda key, size: noisy_sgd(1.0, **_noisy(key, size))),
    "noisy_adam": by_per_example_gradients(
        lambda key, size: noisy_adam(1.0, **_noisy(key, size), b1=0.5),
        lambda _, state: -optax.tree_utils.tree_get(state, "mu") / 0.5,
    ),
    "clip_per_example, add_gaussian_noise": by_per_example_gradients(
        clip_then(
            lambda key, size: optax.chain(
                add_gaussian_noise(noise_multiplier=1.0, l2_clip=CLIP, key=key),
                optax.scale(1 / size),
            )
        )
    ),
    "sgld": by_per_example_gradients(
        lambda key, size: optax.chain(
            clip_per_example(CLIP),
            sgld(1.0, num_examples=NUM_EXAMPLES, expected_batch_size=size, l2_clip=CLIP, key=key),
        )
    ),
    "DPSVI": by_dpsvi,
    "SGLD": by_chains(SGLD),
    "SGHMC": by_chains(functools.partial(SGHMC, friction=0.5)),
}
KEYS = [jax.random.key(seed) for seed in (0, 1, 2)]


def alike(record):
    return np.tile(np.float32(record), (NUM_EXAMPLES, 1))


def released(entry_point, record, key):
    """What records all alike release, times the public expected batch size."""
    return SAMPLING.expected_batch_size * np.float64(entry_point(alike(record), key, SAMPLING))


def check_clipping_and_divisor(entry_point):
    """The gradient of each record drawn, times min(1, bound / norm), over a public number."""
    counts = []
    for key in KEYS:
        noise = released(entry_point, 0 * DIRECTION, key)
        assert np.all(noise != 0)
        total = released(entry_point, SMALL, key) - noise
        count = float(total @ SMALL / (SMALL @ SMALL))
        assert count == pytest.approx(round(count), abs=1e-4)
        np.testing.assert_allclose(total, round(count) * SMALL, atol=1e-4)
        counts.append(round(count))
        if len(set(counts)) > 1:
            break
    # Draws of different sizes: the drawn size as divisor would give the same for all.
    assert len(set(counts)) > 1
    huge = released(entry_point, HUGE, key) - noise
    np.testing.assert_allclose(huge, counts[-1] * CLIP * DIRECTION, rtol=RTOL, atol=1e-5)


def check_nonfinite(entry_point):
    records, zeros = alike(SMALL), alike(SMALL)
    records[::2], zeros[::2] = [np.nan, 1, np.inf], 0
    found, expected = (entry_point(data, KEYS[1], SAMPLING) for data in (records, zeros))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def check_empty_batch(entry_point):
    found, noise = (
        np.float64(entry_point(alike(record), KEYS[1], NEARLY_NEVER)) for record in (HUGE, 0 * HUGE)
    )
    np.testing.assert_array_equal(found, noise)
    assert np.all(np.isfinite(noise))
    assert np.all(noise != 0)


# SGHMC and SGLD share all but the update.
NAMES = slow_except(ENTRY_POINTS.keys() - {"SGHMC"}, ENTRY_POINTS)
LONG = {"SGHMC", "SGLD", "DPSVI", "train"}


@pytest.mark.parametrize("name", slow_except(ENTRY_POINTS.keys() - LONG, ENTRY_POINTS))
def test_entry_point_clips_exactly_and_divides_by_a_public_number(name):
    check_clipping_and_divisor(ENTRY_POINTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_entry_point_ignores_a_record_that_is_not_finite(name):
    check_nonfinite(ENTRY_POINTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_entry_point_of_an_empty_batch_is_pure_noise(name):
    check_empty_batch(ENTRY_POINTS[name])


def test_differentially_private_aggregate_clips_and_divides_by_its_length():
    """Its batches have one fixed length, which is public; `mechanism_of` refuses others."""
    aggregate = differentially_private_aggregate(CLIP, 1.0, key=0)

    def released(records):
        return np.float64(aggregate.update(jnp.asarray(records), aggregate.init(START))[0])

    noise = released(np.zeros((4, DIMENSION), np.float32))
    mixed = np.float32([HUGE, SMALL, 0 * SMALL, np.nan * SMALL])
    expected = (CLIP * DIRECTION + SMALL) / 4
    np.testing.assert_allclose(released(mixed) - noise, expected, rtol=RTOL)
    np.testing.assert_allclose(released(np.zeros((0, DIMENSION), np.float32)), 4 * noise, rtol=1e-6)


def clips_each_number(monkeypatch):
    right = clipping.weighted_sum
    monkeypatch.setattr(
        clipping,
        "weighted_sum",
        lambda f, finite, leaf: right(jnp.ones_like(f), finite, jnp.clip(leaf, -CLIP, CLIP)),
    )


def normalises(monkeypatch):
    def factor(norm, bound, _):
        return bound / jnp.maximum(norm, 1e-6)

    monkeypatch.setattr(clipping, "clip_factor", factor)


def keeps_nonfinite(monkeypatch):
    monkeypatch.setattr(clipping, "zero_nonfinite", lambda finite, leaf: leaf)


def divides_by_the_draw(records, key, sampling):
    step = private_step(loss, optax.sgd(1.0), mechanism=mechanism_for(sampling), key=key)
    state, info = step.update(step.init(START), records)
    return state.params * sampling.expected_batch_size / jnp.maximum(info.batch_size, 1)


def without_noise_where_empty(records, key, sampling):
    step = private_step(loss, optax.sgd(1.0), mechanism=mechanism_for(sampling), key=key)
    state, info = step.update(step.init(START), records)
    return state.params * (info.batch_size > 0)


@pytest.mark.slow
@pytest.mark.parametrize("twin", [clips_each_number, normalises])
def test_power_another_clipping_is_found(twin, monkeypatch):
    twin(monkeypatch)
    with pytest.raises(AssertionError):
        check_clipping_and_divisor(ENTRY_POINTS["noisy_sgd"])


@pytest.mark.slow
def test_power_private_divisor_is_found():
    with pytest.raises(AssertionError):
        check_clipping_and_divisor(divides_by_the_draw)


def test_power_record_that_is_not_finite_and_kept_is_found(monkeypatch):
    keeps_nonfinite(monkeypatch)
    with pytest.raises(AssertionError):
        check_nonfinite(ENTRY_POINTS["noisy_sgd"])


@pytest.mark.slow
def test_power_empty_batch_without_noise_is_found():
    with pytest.raises(AssertionError):
        check_empty_batch(without_noise_where_empty)
