"""Noise-aware regression posterior: its parts, its limit without noise, its coverage."""

import itertools
import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from dpjax.bayes.regression import (
    FeaturePrior,
    PerturbedStatistics,
    RegressionBounds,
    RegressionDraws,
    RegressionStatistics,
    coefficient_interval,
    noise_aware,
    noise_aware_posterior,
    prediction_interval,
    released_regression,
    repair,
    sufficient_statistics,
    unknown_noise_posterior,
)

PRIOR = {"prior_precision": 1.0, "noise_shape": 10.0, "noise_rate": 2.25}
BOUNDS = RegressionBounds(x_norm_bound=1.0, y_bound=2.5)
GAUSSIAN = PerturbedStatistics.from_epsilon(
    BOUNDS, epsilon=1.0, delta=1e-5, adjacency="replace_one", num_features=2
)
LAPLACE = PerturbedStatistics.from_epsilon(
    BOUNDS, epsilon=2.0, delta=0.0, adjacency="replace_one", num_features=2
)


ALMOST_EXACT = PerturbedStatistics(
    BOUNDS, 2, RegressionStatistics(1e-4, 1e-4, 1e-4), "gaussian", "replace_one"
)


def draw_truth(num_sets):
    """Coefficients and residual spreads, drawn from the prior."""
    rng = np.random.default_rng(0)
    spread = np.sqrt(PRIOR["noise_rate"] / rng.gamma(PRIOR["noise_shape"], size=num_sets))
    beta = spread[:, None] * rng.normal(size=(num_sets, 2)) / np.sqrt(PRIOR["prior_precision"])
    return jnp.asarray(beta, float), jnp.asarray(spread, float)


def draw_records(key, num_examples, beta, spread):
    keys = jax.random.split(key)
    x = jax.random.uniform(keys[0], (num_examples, 2), minval=-1, maxval=1) / jnp.sqrt(2)
    return x, x @ beta + spread * jax.random.normal(keys[1], (num_examples,))


@pytest.fixture(scope="module")
def records():
    """Of one data set, 300 of them."""
    return draw_records(jax.random.key(5), 300, jnp.array([0.6, -0.3]), 0.5)


@pytest.mark.slow
def test_noise_aware_posterior_without_noise_is_the_exact_one(records):
    exact = sufficient_statistics(*(part[:60] for part in records))
    draws = noise_aware_posterior(jax.random.key(1), ALMOST_EXACT, exact, num_examples=60, **PRIOR)
    closed = unknown_noise_posterior(exact, 60, **PRIOR)
    # Draws are independent here: means of 2,000 are off by 4.5 standard errors once in 10^5 times.
    error = 4.5 * np.sqrt(np.diagonal(closed.covariance) / 2_000)
    np.testing.assert_array_less(np.abs(draws.beta.mean(axis=0) - closed.mean), error)
    covariance = np.cov(draws.beta, rowvar=False)
    np.testing.assert_allclose(covariance, closed.covariance, rtol=0.15, atol=3e-3)
    variance_distribution = stats.invgamma(float(closed.shape), scale=float(closed.rate))
    assert stats.kstest(np.asarray(draws.sigma2), variance_distribution.cdf).pvalue > 1e-4
    halved = stats.invgamma(float(closed.shape) - 5, scale=float(closed.rate))
    assert stats.kstest(np.asarray(draws.sigma2), halved.cdf).pvalue < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_log_density_is_that_of_a_wishart_matrix_and_its_noise(distribution):
    """With Gaussian features n S is Wishart; b, v and E[x x^T] are integrated out in closed form.

    The volume factor is that of automatic differentiation. The power: of another shape of the
    prior the difference is not constant.
    """
    mechanism = {"gaussian": GAUSSIAN, "laplace": LAPLACE}[distribution]
    n, rng = 30, np.random.default_rng(0)
    released = RegressionStatistics(
        jnp.array([[9.0, 2.0], [2.0, 5.0]]), jnp.array([3.0, 1.0]), jnp.array(8.0)
    )
    observation = noise_aware.observe(mechanism, released, n)
    features = FeaturePrior(jnp.array([[0.3, 0.1], [0.1, 0.2]]), num_examples=4.0)
    second_moment = noise_aware.second_moment_prior(features, mechanism, observation)
    prior = noise_aware.ConjugatePrior(*map(jnp.asarray, (1.5, 3.0, 2.0)))
    coordinates = noise_aware.make_coordinates(observation, prior, mechanism)

    def statistics(unknowns):
        found = noise_aware.decode(unknowns, coordinates, observation, prior)
        cross = found.features @ found.targets
        square = found.residual + found.targets @ found.targets
        exact = [
            [found.features @ found.features.T, cross[:, None]],
            [cross[None], square[None, None]],
        ]
        return jnp.block(exact)

    def textbook(unknowns, shape):
        exact = n * statistics(unknowns)
        xx, xy, yy = exact[:2, :2], exact[:2, 2], exact[2, 2]
        ridged = xx + 1.5 * jnp.eye(2)
        log_dets = [
            jnp.linalg.slogdet(m)[1] for m in (exact, 4.0 * features.second_moment + xx, ridged)
        ]
        rate = 2.0 + (yy - xy @ jnp.linalg.solve(ridged, xy)) / 2
        weights = (n - 3 - 1) / 2, -(3 + 4.0 + n) / 2, -0.5
        log_prior = sum(map(jnp.multiply, weights, log_dets)) - (shape + n / 2) * jnp.log(rate)
        noise = ((observation.average - exact / n) / observation.scale)[np.triu_indices(3)]
        density = {"gaussian": jax.scipy.stats.norm, "laplace": jax.scipy.stats.laplace}[
            distribution
        ]
        unit = {"gaussian": 1.0, "laplace": 1 / np.sqrt(2)}[distribution]
        jacobian = jax.jacobian(lambda u: statistics(u)[np.triu_indices(3)])(unknowns)
        volume = jnp.linalg.slogdet(jacobian)[1]
        return log_prior + density.logpdf(noise, scale=unit).sum() + volume

    def stated(unknowns):
        return noise_aware.log_density(
            unknowns, coordinates, observation, second_moment, prior, distribution
        )

    points = 0.7 * rng.normal(size=(20, 6))
    points[0, 0] = -2 / float(coordinates.scales[0])  # a negative entry on M's diagonal
    difference = jax.jit(jax.vmap(lambda u, shape: stated(u) - textbook(u, shape), (0, None)))
    differences = [np.ptp(difference(points, shape)) for shape in (3.0, 3.1)]
    assert differences[0] < 1e-8 < 1e-3 < differences[1]


def lapack_calls_are_in_a_chain(function, *arguments):
    """Whether every LAPACK call of the compiled program depends on the one before it."""
    text = jax.jit(jax.vmap(function)).lower(*arguments).compile().as_text()
    entry = text[text.index("\nENTRY") :]
    calls, needed = [], {}
    for line in entry.splitlines():
        if match := re.match(r"\s*(?:ROOT )?(%[\w.-]+) = .*? [\w-]+\((.*?)\)(.*)", line):
            name, operands, rest = match.groups()
            parents = re.findall(r"%[\w.-]+", operands)
            needed[name] = set(parents).union(*(needed.get(parent, set()) for parent in parents))
            calls += [name] if 'custom_call_target="lapack' in rest else []
    calls.sort(key=lambda call: len(needed[call] & set(calls)))
    assert len(calls) > 1
    return all(first in needed[second] for first, second in itertools.pairwise(calls))


@pytest.mark.slow
def test_factorisations_under_vmap_run_one_after_the_other():
    """Two at once can wait for each other without end on a CPU with two cores (jaxlib 0.10)."""
    released = RegressionStatistics(jnp.eye(2) * 9, jnp.array([3.0, 1.0]), jnp.array(8.0))
    observation = noise_aware.observe(GAUSSIAN, released, 30)
    second_moment = noise_aware.second_moment_prior(None, GAUSSIAN, observation)
    prior = noise_aware.ConjugatePrior(*map(jnp.float32, (1.5, 3.0, 2.0)))
    coordinates = noise_aware.make_coordinates(observation, prior, GAUSSIAN)

    def density(unknowns):
        return noise_aware.log_density(
            unknowns, coordinates, observation, second_moment, prior, "gaussian"
        )

    def draw(key, unknowns):
        found = noise_aware.decode(unknowns, coordinates, observation, prior)
        return noise_aware.draw_parameters(key, found, observation.num_examples, prior)

    def independent(unknowns):
        matrix = unknowns[:4].reshape(2, 2)
        products = matrix @ matrix.T, matrix.T @ matrix
        return [jnp.linalg.cholesky(product + jnp.eye(2)) for product in products]

    keys, points = jax.random.split(jax.random.key(0), 9), jnp.ones((9, 6))
    assert lapack_calls_are_in_a_chain(jax.value_and_grad(density), points)
    assert lapack_calls_are_in_a_chain(draw, keys, points)
    assert not lapack_calls_are_in_a_chain(independent, points)


@pytest.mark.slow
def test_diagnostics_are_those_of_numpyro():
    draws = np.random.default_rng(0).normal(size=(3, 101, 2))
    for step in range(1, 101):
        draws[:, step] += np.array([0.8, -0.6]) * draws[:, step - 1]
    for chains in (draws, draws[:1], draws + np.arange(3)[:, None, None]):
        ess, r_hat = noise_aware.effective_sample_size, noise_aware.split_r_hat
        np.testing.assert_allclose(
            ess(jnp.asarray(chains)), numpyro.diagnostics.effective_sample_size(chains), rtol=1e-3
        )
        np.testing.assert_allclose(
            r_hat(jnp.asarray(chains)), numpyro.diagnostics.split_gelman_rubin(chains), rtol=1e-4
        )


@pytest.mark.slow
def test_noise_aware_posterior_warns_of_chains_that_do_not_mix(records, monkeypatch):
    released = GAUSSIAN.release_records(jax.random.key(6), *records)
    fit = partial(
        noise_aware_posterior, jax.random.key(8), GAUSSIAN, released, num_examples=300, **PRIOR
    )
    draws, again = fit(), fit()  # warnings are errors
    np.testing.assert_array_equal(draws.beta, again.beta)
    assert float(draws.ess.min()) >= 200
    assert float(draws.r_hat.max()) <= 1.05
    assert draws.ess.shape == draws.r_hat.shape == (3,)
    for name, limit in (("_LEAST_ESS", 10_000), ("_LARGEST_R_HAT", 0.5)):
        with monkeypatch.context() as patch:
            patch.setattr(noise_aware, name, limit)
            with pytest.warns(UserWarning, match=r"sample size \d+ .* R-hat .* Raise num_draws"):
                fit()


def test_sufficient_statistics_of_pandas_tables(records):
    pandas = pytest.importorskip("pandas")
    x, y = (np.asarray(part) for part in records)
    tables = pandas.DataFrame(x, columns=["a", "b"]), pandas.Series(y)
    for exact, other in zip(
        sufficient_statistics(x, y), sufficient_statistics(*tables), strict=True
    ):
        np.testing.assert_array_equal(exact, other)


SETS, LEVEL = 300, 0.9
FEATURES = {
    "uniform": lambda u: u,
    "collinear": lambda u: u.at[:, 1].set(u[:, 0] + 0.01 * u[:, 1]),
    "constant": lambda u: u.at[:, 0].set(0.7),
}


@partial(jax.jit, static_argnums=0)
def simulated(design, keys, beta, spread):
    """Releases of 2,000 records each, and a new record beside them."""

    def one(given):
        key, beta, spread = given
        keys = jax.random.split(key)
        x, _ = draw_records(keys[0], 2_001, beta, spread)
        x = FEATURES[design](x)
        y = x @ beta + spread * jax.random.normal(keys[1], (2_001,))
        released = GAUSSIAN.release_records(jax.random.fold_in(key, 2), x[1:], y[1:])
        return released, x[:1], y[:1]

    return jax.lax.map(one, (keys, beta, spread))


@partial(jax.jit, static_argnames="is_default")
def intervals(keys, released, new_x, is_default=False):
    """Noise-aware ones of coefficients and of a new target, and naive ones of coefficients."""

    def one(key, released, new_x):
        keys = jax.random.split(key)
        draws = noise_aware_posterior(
            keys[0],
            GAUSSIAN,
            released,
            num_examples=2_000,
            **({} if is_default else PRIOR),
            num_draws=300,
            num_warmup=150,
            num_chains=1,
        )
        new = prediction_interval(keys[1], draws, new_x, LEVEL)
        return coefficient_interval(draws, LEVEL), new, naive_interval(released, 2_000)

    return jax.vmap(one)(keys, released, new_x)


def within(interval, truth):
    return float(((interval[0] <= truth) & (truth <= interval[1])).mean())


def naive_interval(released, num_examples):
    """By the normal distribution: Student's has more than a hundred degrees of freedom."""
    posterior = unknown_noise_posterior(repair(released, 1.0), num_examples, **PRIOR)
    width = 1.645 * jnp.sqrt(jnp.diagonal(posterior.covariance))
    return posterior.mean - width, posterior.mean + width


@pytest.mark.slow
@pytest.mark.parametrize("design", FEATURES)
def test_noise_aware_intervals_cover_and_naive_ones_do_not(design):
    """At a true coverage of 90 % one of the bounds is left for one key in 50 at most.

    That is where the coefficients of a data set, and so the intervals, are right or wrong together;
    for independent ones it is one key in 1,000. The naive intervals are the power check: they fail
    the same assertion.
    """
    keys = jax.random.split(jax.random.key(7), SETS)
    beta, spread = draw_truth(SETS)
    released, new_x, new_y = simulated(design, keys, beta, spread)
    aware, new, naive = intervals(keys, released, new_x)
    assert 0.86 <= within(aware, beta) <= 0.94
    assert 0.85 <= within(new, new_y) <= 0.95
    assert within(naive, beta) < 0.80


@pytest.mark.slow
def test_intervals_under_default_priors_cover():
    """With the bounds of the test above; the truths are not from these priors."""
    keys = jax.random.split(jax.random.key(8), SETS)
    beta, spread = draw_truth(SETS)
    released, new_x, new_y = simulated("uniform", keys, beta, spread)
    aware, new, _ = intervals(keys, released, new_x, is_default=True)
    assert 0.86 <= within(aware, beta) <= 0.94
    assert 0.85 <= within(new, new_y) <= 0.95


@pytest.mark.slow
def test_default_priors_follow_the_bounds(records):
    """A tenth of x_norm_bound^2, 1.5 and a twenty-fifth of y_bound^2, to the same draws."""
    released = GAUSSIAN.release_records(jax.random.key(6), *records)
    short = {"num_examples": 300, "num_draws": 8, "num_warmup": 4, "num_chains": 1}
    given = {"prior_precision": 0.1, "noise_shape": 1.5, "noise_rate": 0.25}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a chain has not mixed
        default, stated, other = (
            noise_aware_posterior(jax.random.key(8), GAUSSIAN, released, **short, **prior)
            for prior in ({}, given, PRIOR)
        )
    np.testing.assert_allclose(default.beta, stated.beta, rtol=1e-5)
    assert not np.allclose(default.beta, other.beta, rtol=1e-5)


@pytest.mark.slow
def test_feature_prior_narrows_the_posterior(records):
    released = GAUSSIAN.release_records(jax.random.key(6), *records)
    fit = partial(
        noise_aware_posterior, jax.random.key(8), GAUSSIAN, released, num_examples=300, **PRIOR
    )
    unknown, known = fit(), fit(features=FeaturePrior(jnp.eye(2) / 6, num_examples=1e5))
    assert known.beta.std() < unknown.beta.std()


@pytest.mark.slow
def test_noise_aware_posterior_of_an_impossible_release_is_finite():
    released = RegressionStatistics(-50 * jnp.eye(2), jnp.array([30.0, -9.0]), jnp.array(-80.0))
    draws = noise_aware_posterior(jax.random.key(0), GAUSSIAN, released, num_examples=100, **PRIOR)
    assert bool(jnp.isfinite(draws.beta).all())
    assert bool((draws.sigma2 > 0).all())
    # The chain moves: the release is far from what records can have, but no draw is stuck.
    assert len(np.unique(draws.beta[:, 0])) == 2_000


def test_prediction_interval_is_that_of_the_mixture():
    draws = RegressionDraws(jnp.repeat(jnp.array([[0.0], [8.0]]), 20_000, 0), jnp.full(40_000, 1.0))
    low, high = prediction_interval(jax.random.key(0), draws, jnp.array([[0.0], [1.0]]), 0.9)
    # At x = 1 half the draws are at zero and half at 8: 5 % of all are 10 % of either half.
    expected = [[-1.645, 1.645], [-1.282, 9.282]]
    np.testing.assert_allclose(np.column_stack([low, high]), expected, atol=0.05)


WITHOUT_YTY = RegressionStatistics(jnp.eye(2), jnp.zeros(2), None)
FINE = RegressionStatistics(jnp.eye(2), jnp.zeros(2), jnp.array(1.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"released": WITHOUT_YTY}, "released.yty must be released"),
        ({"released": FINE._replace(xty=jnp.zeros(3))}, r"released must be arrays of shapes"),
        ({"released": FINE._replace(xty=np.full(2, "a"))}, r"released\.xty must be real numbers"),
        ({"num_examples": 0}, "num_examples must be a finite number > 0"),
        ({"num_draws": 15}, "num_draws must be a whole number >= 16, got 15"),
        ({"num_draws": 21}, "num_draws must be a multiple of num_chains = 4, got 21"),
    ],
)
def test_noise_aware_posterior_refuses(changes, message):
    good = {"mechanism": GAUSSIAN, "released": FINE, "num_examples": 10, **PRIOR}
    with pytest.raises(ValueError, match=message):
        noise_aware_posterior(jax.random.key(0), **{**good, **changes})


NUM_RECORDS, NUM_DRAWS = 2_000, 700
ONE_FEATURE = {
    name: PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=delta, adjacency="replace_one", num_features=1
    )
    for name, delta in {"gaussian": 1e-5, "laplace": 0.0}.items()
}


def conjugate_prior():
    """What `noise_aware_posterior` has."""
    variance = numpyro.sample("sigma2", dist.InverseGamma(5.0, 1.0))
    spread = jnp.sqrt(variance)
    return numpyro.sample("beta", dist.Normal(0, spread).expand([1]).to_event(1)), variance


def released_by(mechanism):
    x_key, y_key, key = jax.random.split(jax.random.key(7), 3)
    x = jax.random.uniform(x_key, (NUM_RECORDS, 1), minval=-1, maxval=1)
    y = x @ jnp.array([0.6]) + 0.5 * jax.random.normal(y_key, (NUM_RECORDS,))
    return mechanism.release_records(key, x, y)


def by_nuts(mechanism, released, prior=conjugate_prior):
    kernel = numpyro.infer.NUTS(released_regression)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=300, num_samples=NUM_DRAWS, progress_bar=False)
    mcmc.run(jax.random.key(3), prior, mechanism, released, NUM_RECORDS)
    return mcmc.get_samples()


def are_alike(draws, others):
    """Means within a third of a deviation, deviations within a fifth: twice the chains' error."""
    mean, other_mean = np.mean(draws, axis=0), np.mean(others, axis=0)
    std, other_std = np.std(draws, axis=0), np.std(others, axis=0)
    near = np.all(np.abs(mean - other_mean) < std / 3)
    return bool(near and np.all(np.abs(np.log(std / other_std)) < np.log(1.2)))


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ONE_FEATURE)
def test_released_regression_agrees_with_the_noise_aware_posterior(distribution):
    mechanism = ONE_FEATURE[distribution]
    released = released_by(mechanism)
    samples = by_nuts(mechanism, released)

    def agrees(mechanism):
        prior = {"prior_precision": 1.0, "noise_shape": 5.0, "noise_rate": 1.0}
        draws = noise_aware_posterior(
            jax.random.key(2), mechanism, released, num_examples=NUM_RECORDS, **prior
        )
        variances = np.log(samples["sigma2"]), np.log(draws.sigma2)
        return are_alike(samples["beta"], draws.beta) and are_alike(*variances)

    assert agrees(mechanism)
    # power: of half the noise the posterior is another
    assert not agrees(mechanism.with_privacy_factor(0.5))


@pytest.mark.slow
def test_released_regression_takes_another_prior():
    def certain():
        return jnp.array([0.6]), numpyro.sample("sigma2", dist.HalfNormal(1.0))

    mechanism = ONE_FEATURE["gaussian"]
    samples = by_nuts(mechanism, released_by(mechanism), certain)
    assert 0.1 < np.mean(samples["sigma2"]) < 0.5
    assert "beta" not in samples
