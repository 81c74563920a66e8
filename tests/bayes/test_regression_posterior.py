"""Posteriors in closed form against numpy, scipy and NUTS; repair; prediction intervals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from dpjax.bayes.regression import (
    RegressionStatistics,
    known_noise_posterior,
    largest_noise_eigenvalue,
    repair,
    sufficient_statistics,
    unknown_noise_posterior,
)

PRIOR = {"prior_precision": 0.7, "noise_shape": 2.0, "noise_rate": 1.5}


def data(n=40, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ rng.normal(size=d) + 0.5 * rng.normal(size=n)


def test_known_noise_posterior_is_that_of_the_joint_normal(x64):
    x, y = data()
    found = known_noise_posterior(
        sufficient_statistics(x, y), prior_precision=0.7, noise_precision=4.0
    )
    # By conditioning the joint normal distribution of coefficients and targets.
    joint = x @ x.T / 0.7 + np.eye(len(y)) / 4.0
    gain = np.linalg.solve(joint, x / 0.7).T
    np.testing.assert_allclose(found.mean, gain @ y, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, np.eye(3) / 0.7 - gain @ x / 0.7, rtol=1e-6)


def test_predict_with_unknown_noise_is_the_marginal_student(x64):
    x, y = data()
    found = unknown_noise_posterior(sufficient_statistics(x, y), len(y), **PRIOR)
    predicted = found.predict(x[:2])
    # All targets together are multivariate Student; those seen are conditioned on.
    new = np.concatenate([x[:2], x])
    scale = np.eye(len(new)) + new @ new.T / PRIOR["prior_precision"]
    seen, cross = scale[2:, 2:], scale[:2, 2:]
    weights = np.linalg.solve(seen, y)
    shape, rate = PRIOR["noise_shape"] + len(y) / 2, PRIOR["noise_rate"] + y @ weights / 2
    variances = np.diag(scale[:2, :2] - cross @ np.linalg.solve(seen, cross.T)) * rate / shape
    np.testing.assert_allclose(predicted.mean, cross @ weights, rtol=1e-6)
    np.testing.assert_allclose(predicted.scale, np.sqrt(variances), rtol=1e-6)
    np.testing.assert_allclose(predicted.degrees_of_freedom, 2 * shape)
    low, high = predicted.interval(0.8)
    distribution = stats.t(2 * shape, predicted.mean, predicted.scale)
    np.testing.assert_allclose(
        [low, high], [distribution.ppf(0.1), distribution.ppf(0.9)], rtol=1e-6
    )
    np.testing.assert_allclose(
        found.covariance, np.linalg.inv(found.precision) * rate / (shape - 1), rtol=1e-6
    )


@pytest.mark.slow
def test_unknown_noise_posterior_agrees_with_nuts():
    x, y = data(n=25, d=2)
    found = unknown_noise_posterior(sufficient_statistics(x, y), len(y), **PRIOR)

    def model():
        variance = numpyro.sample("v", dist.InverseGamma(PRIOR["noise_shape"], PRIOR["noise_rate"]))
        scale = jnp.sqrt(variance / PRIOR["prior_precision"]) * jnp.ones(2)
        beta = numpyro.sample("beta", dist.Normal(0.0, scale).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.asarray(x, float) @ beta, jnp.sqrt(variance)), obs=y)

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=500, num_samples=4_000, progress_bar=False
    )
    sampler.run(jax.random.key(0))
    draws = {name: np.asarray(value, float) for name, value in sampler.get_samples().items()}
    sizes = numpyro.diagnostics.summary(sampler.get_samples(group_by_chain=True))
    # Five standard errors of a mean and four means: a false alarm of 2.3e-6.
    spread = np.sqrt(np.diag(found.covariance))
    errors = (draws["beta"].mean(axis=0) - found.mean) / spread * np.sqrt(sizes["beta"]["n_eff"])
    assert np.abs(errors).max() < 5
    np.testing.assert_allclose(draws["beta"].std(axis=0), spread, rtol=0.1)
    mean = found.rate / (found.shape - 1)
    deviation = mean / math.sqrt(found.shape - 2)
    assert abs(draws["v"].mean() - mean) < 5 * deviation / np.sqrt(sizes["v"]["n_eff"])
    # The power check: one record more would be seen.
    other = unknown_noise_posterior(sufficient_statistics(x, y), 2 * len(y), **PRIOR)
    assert abs(draws["v"].mean() - other.rate / (other.shape - 1)) > 5 * deviation / 60


def test_unknown_noise_posterior_without_records_is_the_prior(x64):
    nothing = sufficient_statistics(jnp.zeros((0, 2)), jnp.zeros(0))
    found = unknown_noise_posterior(nothing, 0, **PRIOR)
    np.testing.assert_allclose(found.mean, 0)
    np.testing.assert_allclose(found.precision, 0.7 * np.eye(2))
    assert (float(found.shape), float(found.rate)) == (2.0, 1.5)
    np.testing.assert_allclose(found.covariance, np.eye(2) * 1.5 / 0.7)


def test_interval_of_predictions_covers():
    rng = np.random.default_rng(1)
    num, n, d = 4_000, 12, 3
    noise = rng.gamma(3.0, 1 / 2.0, size=num) ** -0.5
    beta = rng.normal(size=(num, d)) * noise[:, None]
    x = rng.normal(size=(num, n + 1, d))
    y = np.einsum("rnd,rd->rn", x, beta) + noise[:, None] * rng.normal(size=(num, n + 1))

    def predict(x, y):
        prior = {"prior_precision": 1.0, "noise_shape": 3.0, "noise_rate": 2.0}
        fitted = unknown_noise_posterior(sufficient_statistics(x[:-1], y[:-1]), n, **prior)
        return fitted.predict(x[-1:])

    predicted = jax.jit(jax.vmap(predict))(jnp.asarray(x, float), jnp.asarray(y, float))
    degrees = np.asarray(predicted.degrees_of_freedom)[:, None]

    def covers(width):
        low, high = predicted._replace(
            degrees_of_freedom=degrees, scale=predicted.scale * width
        ).interval(0.9)
        hits = int(np.sum((low <= y[:, -1:]) & (y[:, -1:] <= high)))
        return stats.binomtest(hits, num, 0.9).pvalue > 1e-6

    assert covers(1.0)
    assert not covers(0.9)


def test_repair_keeps_valid_statistics_and_raises_others(x64):
    x, y = data()
    exact = sufficient_statistics(x, y)
    for part, same in zip(repair(exact, 1e-6), exact, strict=True):
        np.testing.assert_allclose(part, same, atol=1e-9)
    noisy = exact._replace(xtx=exact.xtx - 50 * jnp.eye(3), yty=jnp.array(-1.0))
    mended = jax.jit(repair)(noisy, 2.0)
    values = np.linalg.eigvalsh(noisy.xtx)
    np.testing.assert_allclose(np.linalg.eigvalsh(mended.xtx), np.maximum(values, 2.0))
    np.testing.assert_allclose(mended.yty, mended.xty @ np.linalg.solve(mended.xtx, mended.xty))
    assert repair(noisy._replace(yty=None), 2.0).yty is None


def test_largest_noise_eigenvalue_is_typical():
    for off in (1.0, math.sqrt(0.5)):
        d = 60
        scales = np.where(np.eye(d) > 0, 1.0, off)
        triangle = np.triu(np.random.default_rng(0).normal(size=(40, d, d)) * scales)
        noise = triangle + np.swapaxes(np.triu(triangle, 1), 1, 2)
        largest = np.linalg.eigvalsh(noise)[:, -1].mean()
        assert 0.9 < largest / float(largest_noise_eigenvalue(scales)) < 1.05


WITHOUT_YTY = RegressionStatistics(jnp.eye(2), jnp.ones(2), None)
KNOWN = known_noise_posterior(WITHOUT_YTY, prior_precision=1, noise_precision=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unknown_noise_posterior(WITHOUT_YTY, 2, **PRIOR), r"statistics\.yty must be rel"),
        (lambda: repair(WITHOUT_YTY, 0.0), "floor must be a finite number > 0"),
        (lambda: KNOWN.predict(jnp.ones((1, 2))).interval(1.0), "level must be in"),
    ],
)
def test_arguments_of_posteriors_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
