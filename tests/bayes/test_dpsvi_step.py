"""One step against sums written by hand: who is drawn, clipped, scaled, noised, with which keys."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.dpsvi_cases import (
    private,
    step_of,
)
from numpyro.infer import Trace_ELBO

from dpjax.sampling import PoissonSampling

N, RATE, CLIP = 200, 0.1, 0.5
STATES = [jax.random.key(seed) for seed in range(3)]
FAR = np.where(np.arange(N) % 3 == 0, 100.0, -100.0).astype(np.float32)
NEAR = np.linspace(-0.4, 0.4, N, dtype=np.float32)
POISSON = PoissonSampling(N, RATE)


def location(x):
    """A flat prior: the data-free part of the gradient is zero."""
    prior = dist.ImproperUniform(dist.constraints.real, (), x.shape[1:])
    mean = numpyro.sample("mean", prior)
    with numpyro.plate("records", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1).to_event(x.ndim - 1), obs=x)


def guide_of(scale):
    def guide(x):
        loc = numpyro.param("loc", jnp.zeros(x.shape[1:]))
        numpyro.sample("mean", dist.Normal(loc, scale).to_event(x.ndim - 1))

    return guide


def drawn(svi, state):
    """The records of the step that is made from ``state``, as indices."""
    sampling = svi.mechanism.sampling
    draw, _ = sampling.draw(state.sampler)
    batch = sampling.batch(draw, 0)
    assert int(batch.mask.sum()) == int(draw.size) != sampling.expected_batch_size
    return np.asarray(batch.indices)[batch.mask]


@pytest.mark.parametrize("x", [FAR, NEAR, np.where(np.arange(N) % 2, FAR, NEAR)])
def test_update_clips_then_sums_then_scales(x):
    """A record's gradient is ``mean - x``, with ``mean`` within 0.001 of zero."""
    svi = private(location, guide_of(1e-4), sampling=POISSON, l2_clip=CLIP)
    for key in STATES:
        state = svi.init(key, x)
        chosen = x[drawn(svi, state)]
        expected = -np.clip(chosen, -CLIP, CLIP).sum() / RATE
        slack = 1e-3 * len(chosen) / RATE
        assert step_of(svi, state, x)["loc"] == pytest.approx(expected, abs=slack)
        # Power: dividing by the drawn size, or every gradient brought to the bound, is far off.
        assert abs(expected * (1 - RATE * N / len(chosen))) > slack


def tempered(x):
    with numpyro.handlers.scale(scale=3.0):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)


def tempered_guide(x):
    loc = numpyro.param("loc", 2.0)
    width = numpyro.param("width", 1e-4, constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, width))


@pytest.mark.slow
def test_update_on_no_record_is_the_data_free_gradient():
    """Of ``log q - 3 log p`` at ``mean = loc + width z``: 3 loc, and -1 for the log of the width.

    Within 0.01, as ``|z| < 10``; whatever the records are.
    """
    nearly_never = PoissonSampling(N, 2.0**-20)
    svi = private(tempered, tempered_guide, sampling=nearly_never, adjacency="add_remove")
    state = svi.init(STATES[0], FAR)
    assert int(nearly_never.draw(state.sampler)[0].size) == 0
    step = step_of(svi, state, FAR)
    assert step["loc"] == pytest.approx(3 * 2.0, abs=0.01)
    assert step["width"] == pytest.approx(-1, abs=0.01)
    chex.assert_trees_all_equal(step, step_of(svi, state, 7 - NEAR))


@pytest.mark.slow
def test_clipped_sum_and_update_from_sum_are_update():
    """Without noise: the clipped sum of the same draw, then the update from it."""
    svi = private(location, guide_of(1e-2), sampling=POISSON, l2_clip=CLIP)
    state = svi.init(STATES[0], FAR)
    whole, _ = svi.update(state, FAR)
    summed = svi.clipped_sum(state.sampler, state, FAR)
    parts = svi.update_from_sum(state, summed, np.zeros_like(FAR))
    np.testing.assert_allclose(
        svi.get_params(parts)["loc"], svi.get_params(whole)["loc"], rtol=1e-6
    )
    assert parts.num_releases == state.num_releases
    # Power: another draw, and another state of the guide's key.
    other = svi.clipped_sum(STATES[1], state, FAR)
    assert abs(float(other["loc"] - summed["loc"])) > 1e-3
    near = svi.clipped_sum(state.sampler, parts, NEAR)
    assert abs(float(near["loc"] - svi.clipped_sum(state.sampler, state, NEAR)["loc"])) > 1e-5


@pytest.mark.slow
def test_update_averages_particles_before_clipping():
    """With gradients on both sides of zero, an average of clipped ones is shorter than the bound.

    Three particles are on one side once in four times; in all five states once in 1,000 runs.
    """
    x = np.zeros(20, np.float32)
    svi = private(
        location,
        guide_of(1.0),
        loss=Trace_ELBO(num_particles=3),
        sampling=PoissonSampling(20, 1.0),
        l2_clip=1e-3,
        adjacency="add_remove",
    )
    for seed in range(5):
        step = step_of(svi, svi.init(jax.random.key(seed), x), x)
        assert abs(step["loc"]) == pytest.approx(20 * 1e-3, rel=1e-3)


def effects(y):
    with numpyro.plate("records", len(y)):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(effect, 1), obs=y)


def effects_guide(y):
    slope = numpyro.param("slope", 0.0)
    with numpyro.plate("records", len(y)):
        numpyro.sample("effect", dist.Delta(slope * y + 0.25))


@pytest.mark.slow
def test_update_counts_local_latent_variables_in_their_records_term():
    """Both densities of a record give ``y e - y (y - e)`` at ``e = 1/4``, clipped and scaled."""
    svi = private(effects, effects_guide, sampling=POISSON, l2_clip=1.0)
    y = 4 * NEAR
    for key in STATES:
        state = svi.init(key, y)
        chosen = y[drawn(svi, state)]
        expected = np.clip(chosen * 0.25 - chosen * (chosen - 0.25), -1, 1).sum() / RATE
        assert step_of(svi, state, y)["slope"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_update_draws_local_latent_variables_for_each_record():
    def guide(y):
        slope = numpyro.param("slope", 0.0)
        with numpyro.plate("records", len(y)):
            numpyro.sample("effect", dist.Normal(slope * y, 1.0))

    svi, y = private(effects, guide, sampling=POISSON), np.ones(N, np.float32)
    _, info = svi.update_with_info(svi.init(STATES[0], y), y)
    norms = np.asarray(info.norms)[np.asarray(info.mask)]
    assert len(np.unique(norms)) == len(norms) > 1


@pytest.mark.slow
def test_update_gives_the_optimizer_no_loss():
    def update(updates, state, params=None, *, value, **_):
        return updates, value

    keeping = optax.GradientTransformationExtraArgs(lambda _: jnp.zeros(()), update)
    svi = private(location, guide_of(1.0), keeping, sampling=POISSON)
    after, loss = svi.update(svi.init(STATES[0], NEAR), NEAR)
    assert np.isfinite(loss)
    values = [leaf for leaf in jax.tree.leaves(after.optim_state) if not np.isfinite(leaf).all()]
    assert len(values) == 1
    assert np.isnan(values[0])


def pair(x):
    prior = dist.ImproperUniform(dist.constraints.real, (), (400,))
    first, second = (numpyro.sample(name, prior) for name in ("first", "second"))
    with numpyro.plate("records", len(x)):
        numpyro.sample("x", dist.Normal(first + second, 1).to_event(1), obs=x)


def pair_guide(x):
    for name in ("first", "second"):
        loc = numpyro.param(f"{name}_loc", jnp.zeros(400))
        numpyro.sample(name, dist.Delta(loc, event_dim=1))


def test_noise_is_that_of_the_event_and_independent():
    """400 draws of each: a deviation off by 18 % or a correlation over 0.25 comes once in 10^6.

    At its start the model's gradient is zero, so a step is its noise times n/b.
    """
    x = np.zeros((20, 400), np.float32)
    made = {"sampling": PoissonSampling(20, 0.5), "l2_clip": 2.0, "num_steps": 2}
    svi = private(pair, pair_guide, **made, noise_multiplier=(1.5, 0.9))
    state = svi.init(STATES[0], x)
    after, _ = svi.update(state, x)
    again = after._replace(optim_state=state.optim_state)
    noises = [leaf / 2 for s in (state, again) for leaf in jax.tree.leaves(step_of(svi, s, x))]
    assert len(noises) == 4
    counted = [step.event.noise_multiplier for step in svi.mechanism.event.events]
    expected = 2.0 * np.repeat(counted, 2)
    np.testing.assert_allclose(np.std(noises, axis=1), expected, rtol=0.18)
    correlations = np.corrcoef(noises)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.25


@pytest.mark.slow
def test_update_past_the_last_step_gives_nan():
    svi = private(location, guide_of(1.0), num_steps=2, sampling=POISSON)
    state, finite = svi.init(STATES[0], NEAR), []
    for _ in range(3):
        state, _ = svi.update(state, NEAR)
        finite.append(bool(np.isfinite(svi.get_params(state)["loc"])))
    assert finite == [True, True, False]
    assert int(state.num_releases) == 3


@pytest.mark.slow
def test_update_uses_no_key_twice():
    """Guide, sampler and noise have keys of their own, in every step."""
    x = NEAR
    svi = private(location, guide_of(1e-4), sampling=POISSON)
    states = [svi.init(STATES[0], x)]
    for _ in range(3):
        states.append(svi.update(states[-1], x)[0])
    seen = {
        name: [np.asarray(jax.random.key_data(key)).tobytes() for key in keys]
        for name, keys in (
            ("guide", [state.rng_key for state in states]),
            ("sampler", [state.sampler for state in states]),
            ("noise", [state.noise.key for state in states]),
        )
    }
    for name, other in itertools.combinations(seen, 2):
        assert not set(seen[name]) & set(seen[other])
    assert len(set(seen["guide"])) == len(set(seen["sampler"])) == 4
