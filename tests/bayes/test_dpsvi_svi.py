"""Runs, what they keep compiled, and what is made of their result."""

import logging

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.dpsvi_cases import (
    RECORDS,
    X,
    Y,
    flat,
    logistic,
    private,
)
from numpyro.infer.autoguide import AutoMultivariateNormal

from dpjax.bayes.variational import to_arviz
from dpjax.bayes.variational.model_args import with_positions
from dpjax.bayes.variational.step import parameter_space
from dpjax.sampling import PoissonSampling

KEY = jax.random.key(5)


def make():
    mechanism = {"num_steps": 100, "l2_clip": 1.0, "noise_multiplier": 0.5}
    return private(optim=optax.adam(0.1), sampling=PoissonSampling(RECORDS, 0.5), **mechanism)


@pytest.fixture(scope="module")
def fitted():
    svi = make()
    return svi, svi.run(KEY, X, Y, progress_bar=False)


@pytest.mark.slow
def test_update_needs_no_init_on_the_same_object(fitted):
    svi, fresh = fitted[0], make()
    state = svi.init(KEY, X, Y)
    expected, _ = svi.update(state, X, Y)
    after, _ = fresh.update(state, X, Y)
    chex.assert_trees_all_equal(after.optim_state, expected.optim_state)
    chex.assert_trees_all_equal(fresh.get_params(after), svi.get_params(expected))


@pytest.mark.slow
def test_posterior_samples_are_of_their_arguments():
    def model(y, shift):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    def guide(y, shift):
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0) + shift.sum(), 1.0))

    svi = private(model, guide)
    result = svi.run(KEY, Y, np.zeros(1), num_steps=1, progress_bar=False)
    samples = result.posterior_samples(KEY, 5)
    svi.update(result.state, Y, np.full(2, 50.0))
    chex.assert_trees_all_equal(result.posterior_samples(KEY, 5), samples)
    far = svi.posterior_samples(KEY, result.params, 5, Y, np.full(2, 50.0))
    np.testing.assert_allclose(far["mean"], samples["mean"] + 100, rtol=1e-5)


@pytest.mark.slow
def test_run_is_its_updates(fitted):
    svi, result = fitted
    state = svi.init(KEY, X, Y)
    for _ in range(100):
        state, _ = svi.update(state, X, Y)
    np.testing.assert_allclose(flat(svi.get_params(state)), flat(result.params), rtol=1e-4)
    assert int(state.num_releases) == int(result.state.num_releases) == 100
    assert result.losses.shape == (100,)


@pytest.mark.slow
def test_run_takes_its_own_records_the_second_time(fitted):
    svi, result = fitted
    other = svi.run(KEY, X, 1 - Y, progress_bar=False)
    alone = make().run(KEY, X, 1 - Y, progress_bar=False)
    np.testing.assert_array_equal(flat(other.params), flat(alone.params))
    assert np.abs(flat(other.params) - flat(result.params)).max() > 0.1


@pytest.mark.slow
def test_update_with_info_has_the_norms_that_it_clips(fitted):
    svi, _ = fitted
    state = svi.init(KEY, X, Y)
    moved, info = svi.update_with_info(state, X, Y)
    sampling, key = svi.mechanism.sampling, jax.random.split(state.rng_key)[1]
    batch = sampling.batch(sampling.draw(state.sampler)[0], 0)
    terms = svi._step_of(state, (X, Y), {})[0].terms
    space = parameter_space(terms, svi.optim.get_params(state.optim_state), [], key)
    grads = jax.vmap(jax.grad(space.loss), (None, 0))(space.point, with_positions([X, Y]))
    norms = np.sqrt(sum(np.sum(np.square(leaf), axis=1) for leaf in jax.tree.leaves(grads)))
    expected = np.where(batch.mask, norms[batch.indices], 0)
    np.testing.assert_allclose(info.norms[: len(expected)], expected, rtol=1e-4)
    assert expected.max() > svi.mechanism.l2_clip  # they are not clipped
    np.testing.assert_array_equal(
        flat(svi.get_params(moved)), flat(svi.get_params(svi.update(state, X, Y)[0]))
    )


def test_run_and_update_compile_once(fitted, caplog):
    svi, result = fitted
    svi.update(result.state, X, Y)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        svi.run(jax.random.key(6), X, Y, progress_bar=False)
        svi.update(result.state, X + 1, Y)
    assert "Finished XLA compilation" not in caplog.text
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        jnp.linspace(0.0, 1.0, 7919).sum().block_until_ready()  # power: compiling is seen
    assert "Finished XLA compilation" in caplog.text


@pytest.mark.slow
def test_run_continues_from_a_state(fitted, capsys):
    svi, result = fitted
    before = svi.init(KEY, X, Y)
    half = svi.run(KEY, X, Y, num_steps=50, init_state=before)
    whole = svi.run(KEY, X, Y, init_state=half.state)
    np.testing.assert_allclose(flat(whole.params), flat(result.params), rtol=1e-4)
    assert int(before.num_releases) == 0  # what was passed in is not consumed
    assert "50/50" in capsys.readouterr().err


def test_posterior_samples_are_draws_of_the_guide_for_arviz(fitted):
    svi, result = fitted
    samples = result.posterior_samples(KEY, 2000)
    assert {name: draws.shape for name, draws in samples.items()} == {"w": (1, 2000, 3)}
    np.testing.assert_allclose(samples["w"][0].mean(0), result.params["loc"], atol=0.2)
    np.testing.assert_allclose(samples["w"][0].std(0), result.params["scale"], rtol=0.15)
    again = svi.posterior_samples(KEY, result.state, 2000, X, Y)
    np.testing.assert_array_equal(again["w"], samples["w"])
    assert to_arviz(samples).posterior["w"].dims == ("chain", "draw", "w_dim_0")


@pytest.mark.slow
def test_predict_at_new_inputs(fitted):
    svi, result = fitted
    new = np.array([[3.0, -3.0, 0.0], [-3.0, 3.0, 0.0]], np.float32)
    drawn = svi.predict(KEY, result.params, 500, new)["y"]
    assert drawn.shape == (500, 2)
    assert drawn[:, 0].mean() > 0.8 > 0.2 > drawn[:, 1].mean()


@pytest.mark.slow
def test_clipping_report_separates_a_bias_from_a_shorter_step(fitted):
    svi, result = fitted
    report = svi.clipping_report(KEY, result.state, X, Y)
    assert 0 < report.share_clipped < 1
    lengths = [np.linalg.norm(flat(g)) for g in (report.clipped, report.unclipped, report.bias)]
    assert lengths[0] < 1
    assert report.relative_bias == pytest.approx(lengths[2] / lengths[1], rel=1e-4)
    none = private(optim=optax.adam(0.1))
    none.init(KEY, X, Y)
    unclipped = none.clipping_report(KEY, result.state, X, Y)  # a bound of 10^6
    assert unclipped.share_clipped == 0
    assert unclipped.cosine == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(flat(unclipped.clipped), flat(report.unclipped), rtol=1e-4)


def effects(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("records", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, 1))
        numpyro.sample("y", dist.Normal(effect, 1), obs=y)


def amortised(y):
    positive = dist.constraints.positive
    loc, scale = numpyro.param("loc", 0.0), numpyro.param("scale", 0.3, constraint=positive)
    numpyro.sample("mean", dist.Normal(loc, scale))
    slope, offset = numpyro.param("slope", 0.1), numpyro.param("offset", 0.0)
    local_scale = numpyro.param("local_scale", 0.5, constraint=positive)
    with numpyro.plate("records", len(y)):
        numpyro.sample("effect", dist.Normal(slope * y + offset, local_scale))


@pytest.mark.slow
def test_run_with_an_amortised_guide_finds_the_exact_posterior():
    """y | mean ~ N(mean, 2); the effect given both is N((mean + y) / 2, 1/2)."""
    y = 3 + np.sqrt(2) * np.random.default_rng(0).normal(size=RECORDS).astype(np.float32)
    y = y.astype(np.float32)
    svi = private(effects, amortised, optax.adam(0.02), num_steps=2000)
    result = svi.run(KEY, y, progress_bar=False)
    params = result.params
    assert params["loc"] == pytest.approx(y.mean(), abs=0.15)
    assert params["slope"] == pytest.approx(0.5, abs=0.1)
    assert params["local_scale"] == pytest.approx(np.sqrt(0.5), abs=0.1)
    assert set(result.posterior_samples(KEY, 5)) == {"mean"}


@pytest.mark.slow
def test_init_is_no_function_of_the_records():
    svi = private(logistic, AutoMultivariateNormal(logistic))
    other = private(logistic, AutoMultivariateNormal(logistic))
    states = svi.init(KEY, X, Y), other.init(KEY, np.nan * X, 1 - Y)
    params = [flat(svi.optim.get_params(state.optim_state)) for state in states]
    np.testing.assert_array_equal(*params)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0.85, 1.0), (1000.0, 0.2, 0.8)])
def test_run_learns_nothing_at_a_noise_multiplier_of_1000(noise, low, high):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 10)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.float32)
    svi = private(
        optim=optax.adam(0.05),
        sampling=PoissonSampling(500, 0.2),
        num_steps=200,
        l2_clip=1.0,
        noise_multiplier=noise,
    )
    accuracies = []
    for seed in range(5):
        params = svi.run(jax.random.key(seed), x, y, progress_bar=False).params
        accuracies.append(((x @ params["loc"] > 0) == y).mean())
    assert low <= np.mean(accuracies) <= high
