"""The average of the iterates of a run, and where its tail begins."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import dpjax
from dpjax.bayes import DPSVI
from dpjax.bayes.variational.gradient_trace import init_trace, record_gradient, settled_burn_in

STEPS, REPEATS, NUM = 4_000, 200, 500


@jax.jit
def iterates(key, start, rate=0.05):
    """Trace of five coordinates that go from ``start`` to zero, with noise of each step."""
    noise = 0.1 * jax.random.normal(key, (STEPS, 5))

    def step(carry, each):
        trace, x = carry
        trace = record_gradient(trace, {"x": x}, {"x": x - each})
        return (trace, x - rate * (x - each)), None

    first = start + 0.1 * jnp.sqrt(rate / 2) * jax.random.normal(jax.random.fold_in(key, 1), (5,))
    return jax.lax.scan(step, (init_trace({"x": first}), first), noise)[0][0]


def burn_ins(start, **settings):
    traces = jax.vmap(lambda key: iterates(key, start, **settings))(
        jax.random.split(jax.random.key(0), REPEATS)
    )
    return [
        settled_burn_in(jax.tree.map(lambda leaf, number=number: leaf[number], traces))
        for number in range(REPEATS)
    ]


def test_iterates_without_a_trend_are_averaged_from_the_first():
    """A false alarm in one of a hundred: 8 or more of 200 in one of 1,000 such tests."""
    found = burn_ins(jnp.zeros(5))
    assert sum(share != 0.0 for share in found) < 8


def test_the_tail_begins_after_the_iterates_have_settled():
    """They are within their noise of zero after some 100 steps of 4,000, in the first block."""
    found = np.array(burn_ins(jnp.array([1.0, 0.0, 0.0, 0.0, 0.0])), float)
    assert (found >= 0.03).all()
    assert np.mean(found > 0.04) < 0.04


def test_iterates_that_do_not_settle_have_no_tail():
    found = burn_ins(jnp.array([5.0, 0.0, 0.0, 0.0, 0.0]), rate=5e-4)
    assert found.count(None) == REPEATS


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def inference(guide=AutoNormal, rate=2e-4):
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(NUM, 0.2),
        l2_clip=4.0,
        noise_multiplier=4.0,
        num_steps=600,
        adjacency="zero_out",
    )
    init_scale = 1 / np.sqrt(NUM)
    guide = guide(model, init_scale=init_scale)
    optimizer = optax.partition(
        {"loc": optax.sgd(rate), "scale": optax.sgd(0.1 * rate)},
        lambda params: {name: "loc" if name.endswith("_loc") else "scale" for name in params},
    )
    return DPSVI(model, guide, optimizer, mechanism=mechanism, gradient="aligned")


Y = np.random.default_rng(0).normal(1, 1, NUM).astype(np.float32)


@pytest.fixture(scope="module")
def result():
    return inference().run(jax.random.key(0), Y, progress_bar=False)


def test_the_average_is_nearer_to_the_optimum_than_the_last_iterate():
    svi = inference()
    results = [svi.run(jax.random.key(seed), Y, progress_bar=False) for seed in range(20)]
    optimum = Y.sum() / (NUM + 0.01)
    last = np.array([float(each.params["mean_auto_loc"]) for each in results]) - optimum
    average = [float(each.averaged_params(burn_in=0.1)["mean_auto_loc"]) for each in results]
    average = np.array(average) - optimum
    assert np.sqrt(np.mean(average**2)) < 0.5 * np.sqrt(np.mean(last**2))


def test_averages_are_those_of_the_unconstrained_parameters(result):
    svi = inference()
    state = svi.init(jax.random.key(0), Y)
    visited = []
    for _ in range(20):
        visited.append(svi.optim.get_params(state.optim_state))
        state, _ = svi.update(state, Y)
    run = svi.run(jax.random.key(0), Y, num_steps=20, progress_bar=False)
    means = {name: np.mean([each[name] for each in visited[5:]]) for name in visited[0]}
    found = run.averaged_params(burn_in=0.25)
    assert set(found) == set(result.params)
    np.testing.assert_allclose(found["mean_auto_loc"], means["mean_auto_loc"], rtol=1e-5)
    scale = dist.biject_to(svi.guide.scale_constraint)(means["mean_auto_scale"])
    np.testing.assert_allclose(found["mean_auto_scale"], scale, rtol=1e-5)
    draws = svi.posterior_samples(jax.random.key(1), found, 100, Y)
    assert draws["mean"].shape == (1, 100)


def test_a_trend_to_the_end_is_warned_of():
    result = inference(rate=2e-6).run(jax.random.key(0), Y + 20, progress_bar=False)
    with pytest.warns(UserWarning, match="have a trend over the second half of the steps"):
        result.averaged_params()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result.averaged_params(burn_in=0.5)


def test_what_cannot_be_averaged_is_refused(result):
    with pytest.raises(ValueError, match=r"burn_in must .* got 1"):
        result.averaged_params(burn_in=1.0)
    with pytest.raises(ValueError, match=r"burn_in must leave a block of steps, got 0\.999"):
        result.averaged_params(burn_in=0.999)
    other = inference(AutoMultivariateNormal).run(
        jax.random.key(0), Y, num_steps=20, progress_bar=False
    )
    with pytest.raises(
        ValueError, match=r"must be AutoNormal, AutoDiagonalNormal or .* got AutoMu"
    ):
        other.averaged_params()

    def with_trace(**fields):
        trace = result.state.trace._replace(**fields)
        return dataclasses.replace(result, state=result.state._replace(trace=trace))

    with pytest.raises(ValueError, match="must have 16 steps or more, got 10"):
        with_trace(num_steps=jnp.asarray(10)).averaged_params()
    sums = jax.tree.map(lambda leaf: jnp.nan * leaf, result.state.trace.sums)
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity"):
        with_trace(sums=sums).averaged_params()
