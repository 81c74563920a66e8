"""Noise-aware posteriors of multivariate normal guides: trace, regression, draws and checks."""

import warnings
from dataclasses import replace
from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal
from scipy import stats

import dpjax
from dpjax.bayes.variational import DPSVI, FullCurvaturePosterior, full_curvature, to_arviz
from dpjax.bayes.variational.full_curvature import (
    IN_DIRECTIONS,
    fit_curvature,
    guide_covariance,
    read_latents,
)
from dpjax.bayes.variational.gradient_trace import (
    LATENTS,
    MAX_LATENTS,
    init_trace,
    record_gradient,
    tail_products,
    tail_sums,
    vector_mean,
)
from dpjax.bayes.variational.noise_aware import find_problems

SIZE, STEPS, REPEATS, NOISE = 3, 2_000, 100, 300.0
CURVATURE = np.array([[1000.0, 700.0, 0.0], [700.0, 1000.0, 200.0], [0.0, 200.0, 500.0]])
OPTIMUM = np.array([0.1, -0.2, 0.3])
COVARIANCE = np.linalg.inv(CURVATURE)


def recorded(vectors, gradients):
    """Trace of vectors and gradients ``(steps, d)``."""
    start = init_trace({}, {LATENTS: jnp.zeros(vectors.shape[1])})

    def step(trace, pair):
        vector, gradient = pair
        return record_gradient(trace, {LATENTS: vector}, {LATENTS: gradient}), None

    return jax.lax.scan(step, start, (jnp.asarray(vectors), jnp.asarray(gradients)))[0]


recorded_at_once = jax.jit(recorded)


@jax.jit
def simulate(key, optimum=OPTIMUM, noise=NOISE, bend=0.0, rise=0.0, rate=5e-5):
    """Trace of SGD on a quadratic, by draws of a guide around the iterates."""
    factor = jnp.linalg.cholesky(jnp.asarray(COVARIANCE))

    def step(carry, number):
        mean, trace = carry
        draw_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
        vector = mean + factor @ jax.random.normal(draw_key, (SIZE,))
        away = vector - optimum - rise * number / STEPS
        gradient = jnp.asarray(CURVATURE) @ away + bend * (away**2 - jnp.diag(COVARIANCE))
        gradient += noise * jax.random.normal(noise_key, (SIZE,))
        trace = record_gradient(trace, {LATENTS: vector}, {LATENTS: gradient})
        return (mean - rate * gradient, trace), None

    start = jnp.asarray(optimum, float), init_trace({}, {LATENTS: jnp.zeros(SIZE)})
    return jax.lax.scan(step, start, jnp.arange(STEPS))[0][1]


@cache
def simulated(**options):
    keys = jax.random.split(jax.random.key(0), REPEATS)
    return jax.vmap(lambda key: simulate(key, **options))(keys)


def fit(trace, noise=NOISE, covariance=COVARIANCE, burn_in=0.2):
    tail = tail_sums(trace, burn_in)[LATENTS]
    products = tail_products(trace, burn_in, LATENTS)
    return fit_curvature(tail, products, noise**2, covariance, np.ones(len(covariance), bool))


def fits(covariance=COVARIANCE, **options):
    traces = simulated(**options)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], traces) for i in range(REPEATS)]
    return [fit(trace, options.get("noise", NOISE), covariance) for trace in each]


# The trace.


@pytest.mark.parametrize("num_steps", [33, 300])
def test_tail_products_are_those_of_the_steps(num_steps):
    rng = np.random.default_rng(0)
    vectors = np.float32(100 + np.cumsum(0.01 * rng.normal(size=(num_steps, 4)), axis=0))
    gradients = np.float32(rng.normal(size=(num_steps, 4)))
    trace = recorded(vectors, gradients)
    tail, products = tail_sums(trace, 0.2)[LATENTS], tail_products(trace, 0.2, LATENTS)
    first = num_steps - int(tail.counts.sum())
    assert first >= 0.2 * num_steps

    x, g = vectors[first:].astype(float) - tail.center, gradients[first:].astype(float)
    for found, (one, other) in zip(products, [(x, x), (x, g), (g, g), (x**2, x)], strict=True):
        terms = one[:, :, None] * other[:, None, :]
        allowed = 1e-4 * np.abs(terms).sum(0) + 1e-7
        assert (np.abs(found.sum(0) - terms.sum(0)) < allowed).all()
    np.testing.assert_allclose(np.diagonal(products.xx, 0, 1, 2), tail.xx, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.diagonal(products.xg, 0, 1, 2), tail.xg, rtol=1e-6, atol=1e-6)


# The regression.


def test_regression_without_noise_is_the_curvature():
    found = fits(noise=1e-3)[0]
    np.testing.assert_allclose(found.mean, OPTIMUM, atol=0.01)

    # In its directions curvature and noise are diagonal.
    inverse = np.linalg.inv(found.directions)
    np.testing.assert_allclose(
        found.directions.T @ np.diag(found.each.slope) @ found.directions, CURVATURE, atol=2
    )
    np.testing.assert_allclose(np.linalg.norm(found.directions, axis=1), 1.0)
    optimum = found.center - inverse @ (found.each.mean_gradient / found.each.slope)
    np.testing.assert_allclose(optimum, OPTIMUM, atol=1e-4)


def scores(found):
    """Standardised errors of the curvature in each direction, ``(repeats, d)``."""
    combinations = [np.linalg.inv(each.directions) for each in found]
    truth = [np.diag(each.T @ CURVATURE @ each) for each in combinations]
    slopes = np.array([(each.each.slope, each.each.slope_std) for each in found])
    return (slopes[:, 0] - truth) / slopes[:, 1]


def assert_standard(values):
    """Mean and variance of independent rows of unit variance; false alarms: 1e-3 a number."""
    # Directions are chosen by the estimate, which moves the mean by about 0.1.
    assert np.abs(values.mean(0)).max() < 0.1 + stats.norm.isf(5e-4) / np.sqrt(len(values))
    squares = (values**2).sum(0)
    low, high = stats.chi2(len(values)).ppf([5e-4, 1 - 5e-4])
    assert squares.min() > low
    assert squares.max() < high


def test_curvatures_have_their_standard_errors():
    values = scores(fits())
    assert_standard(values)
    for factor in (0.7, 1.4):  # power: standard errors that are too large, and too small
        with pytest.raises(AssertionError):
            assert_standard(factor * values)


def test_curvature_is_one_for_few_and_for_many_latents(monkeypatch):
    """Solved directly, and by conjugate gradients."""
    trace = jax.tree.map(lambda leaf: leaf[0], simulated())
    few = fit(trace)
    monkeypatch.setattr(full_curvature, "_SOLVED_DIRECTLY", 0)
    many = fit(trace)
    assert few.scale == many.scale > 0
    np.testing.assert_allclose(many.each.slope, few.each.slope, rtol=1e-4)
    monkeypatch.setattr(full_curvature, "cg", lambda operator, right, **options: (right, 1))
    with pytest.raises(ValueError, match="the curvature of 3 latent variables cannot be computed"):
        fit(trace)


def test_a_nearly_singular_guide_has_a_curvature():
    """Two latent variables that differ by less than single precision resolves in a covariance."""
    factor = np.array([[1.0, 0.0, 0.0], [1.0, 2e-5, 0.0], [0.5, 0.5, 1.0]], np.float32) / 30
    guide = dist.MultivariateNormal(jnp.zeros(3), scale_tril=jnp.asarray(factor))
    assert np.linalg.eigvalsh(np.asarray(guide.covariance_matrix, float))[0] <= 1e-12
    covariance = guide_covariance(guide)
    np.testing.assert_allclose(covariance, guide.covariance_matrix, rtol=1e-5)
    trace = jax.tree.map(lambda leaf: leaf[0], simulated())
    assert np.isfinite(fit(trace, covariance=covariance).each.slope).all()
    low_rank = dist.LowRankMultivariateNormal(jnp.zeros(3), jnp.ones((3, 1)), jnp.full(3, 0.5))
    np.testing.assert_allclose(guide_covariance(low_rank), 1 + 0.5 * np.eye(3))


@pytest.mark.slow
def test_noise_hides_correlations_that_the_prior_leaves_out():
    """For a guide without correlations."""
    covariance = np.diag(np.diag(COVARIANCE))
    few, many = (
        [each.scale for each in fits(covariance, noise=noise, rate=0.0)]
        for noise in (NOISE, 60 * NOISE)
    )
    assert np.mean(few) > 0.25
    assert np.mean(many) < 0.5 * np.mean(few)


def test_latents_that_no_record_reads_are_left_out():
    trace = jax.tree.map(lambda leaf: leaf[0], simulated())
    tail, products = tail_sums(trace, 0.2)[LATENTS], tail_products(trace, 0.2, LATENTS)
    is_read = np.array([True, False, True])
    found = fit_curvature(tail, products, NOISE**2, COVARIANCE, is_read)
    assert found.directions.shape == (2, 2)
    assert found.mean.shape == (3,)
    np.testing.assert_allclose(found.center, found.mean[is_read])


def test_too_few_steps_for_the_latents_are_refused():
    vectors = np.random.default_rng(0).normal(size=(150, 20)).astype(np.float32)
    trace = recorded(vectors, vectors)
    with pytest.raises(ValueError, match="must have 10 steps for each latent variable or more, g"):
        fit(trace, covariance=np.eye(20))
    with pytest.raises(ValueError, match="covariance of the guide must be positive definite"):
        fit(trace, covariance=np.ones((20, 20)))
    tail, products = tail_sums(trace, 0.2)[LATENTS], tail_products(trace, 0.2, LATENTS)
    with pytest.raises(ValueError, match="must read a latent variable, but reads none"):
        fit_curvature(tail, products, 1.0, np.eye(20), np.zeros(20, bool))


# Its checks.


def problems_of(found):
    moves = {IN_DIRECTIONS: np.zeros(SIZE)}
    return [find_problems({IN_DIRECTIONS: each.each}, moves, None, of_draws=True) for each in found]


def share_with(problems, word):
    return np.mean([any(word in text for text in each) for each in problems])


def test_no_problem_is_found_where_the_model_holds():
    """At most one in a hundred has some; more than 5 of 100 at a probability of 5e-4."""
    assert np.mean([bool(each) for each in problems_of(fits())]) <= 0.05


@pytest.mark.slow
def test_quadratic_terms_are_independent_where_noise_is_correlated():
    """Their sums of squares are chi-square; more than 6 of 300 beyond 0.5 %: at 1e-3."""
    size, steps = 5, 400
    noise_of = np.linalg.cholesky(0.05 * np.eye(size) + 0.95)
    vector_of = np.linalg.cholesky(0.1 * np.eye(size) + 0.9)
    found = []
    for repeat in range(300):
        rng = np.random.default_rng(repeat)
        vectors = rng.normal(size=(steps, size)) @ vector_of.T
        gradients = 10 * vectors + rng.normal(size=(steps, size)) @ noise_of.T
        trace = recorded_at_once(np.float32(vectors), np.float32(gradients))
        found.append(fit(trace, noise=0.1, covariance=vector_of @ vector_of.T).each.bend)
    p_values = stats.chi2(size).sf((np.array(found) ** 2).sum(1))
    assert (p_values < 0.005).sum() <= 6
    assert (p_values < 0.3).mean() > 0.2


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("have not settled", {"rise": 0.3, "rate": 0.0}),
        ("quadratic terms", {"bend": 2_000.0, "noise": 20.0}),
        ("is not identified", {"noise": 60 * NOISE, "rate": 0.0}),
    ],
)
def test_problems_are_found(word, options):
    assert share_with(problems_of(fits(**options)), word) > 0.9


# Runs and draws.

NUM = 500
X = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], NUM)
X = X.astype(np.float32)
Y = (X @ [1.0, -1.0] + np.random.default_rng(1).normal(size=NUM)).astype(np.float32)
MECHANISM = dpjax.SubsampledGaussian(
    dpjax.PoissonSampling(NUM, 0.2),
    num_steps=1_000,
    l2_clip=10.0,
    noise_multiplier=0.5,
    adjacency="zero_out",
)


def regression(x, y=None):
    """Sites in another order than that of their names; no record reads ``prior_scale``."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("prior_scale", dist.LogNormal(0.0, 0.5))
    intercept = numpyro.sample("intercept", dist.Normal(3.0, scale))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights + intercept, 1), obs=y)


def inference(guide=AutoMultivariateNormal, gradient="aligned", loss=None, share=False, **fields):
    return DPSVI(
        regression,
        guide(regression, init_scale=0.1),
        optax.adam(0.02),
        loss,
        mechanism=replace(MECHANISM, **fields),
        gradient=gradient,
        release_clipped_share=share,
    )


@pytest.fixture(scope="module")
def result():
    return inference().run(jax.random.key(0), X, Y + 3, progress_bar=False)


def posterior_of(result):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return result.noise_aware_posterior()


@pytest.fixture(scope="module")
def posterior(result):
    return posterior_of(result)


@pytest.mark.slow
def test_read_latents_are_those_of_the_likelihood(posterior, result):
    """In the guide's order: weights, prior_scale, intercept."""
    terms, model_args = posterior.terms, posterior.model_args
    is_read = read_latents(terms, result.params, model_args)
    assert is_read.tolist() == [True, True, False, True]
    assert posterior.fit.is_read.tolist() == is_read.tolist()


@pytest.fixture(scope="module")
def samples(posterior):
    return posterior.posterior_samples(jax.random.key(1), 4_000)


@pytest.mark.slow
def test_draws_have_the_moments_of_the_exact_posterior(samples):
    """Noise adds little here, and the scale of the intercept keeps its prior almost."""
    design = np.column_stack([X, np.ones(NUM)])
    precision = design.T @ design + np.diag([1.0, 1.0, 0.0])
    mean = np.linalg.solve(precision, design.T @ (Y + 3))
    covariance = np.linalg.inv(precision)
    draws = np.concatenate(
        [samples["weights"].reshape(-1, 2), samples["intercept"].reshape(-1, 1)], axis=1
    )
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(0) - mean) < 0.6 * std).all()
    ratios = draws.std(0) / std
    assert (ratios > 0.9).all()
    assert (ratios < 1.35).all()
    found, exact = np.corrcoef(draws.T)[0, 1], covariance[0, 1] / (std[0] * std[1])
    assert abs(found - exact) < 0.12
    assert exact < -0.7
    scale = np.log(samples["prior_scale"])
    # An intercept at its prior's mean has the density 1 / scale there.
    assert abs(np.mean(scale) + 0.25) < 0.05
    assert abs(np.std(scale) - 0.5) < 0.05


@pytest.mark.slow
def test_draws_are_those_of_the_closed_form_where_curvatures_are_known(posterior):
    """Normal prior, known curvature and noise: mean and covariance within five standard errors."""
    each = posterior.fit.each
    variance = each.slope * 0.7  # of the mean gradient: more than half of that of the records
    known = each._replace(
        slope_std=1e-4 * each.slope,
        variance=variance * each.num_steps,
        dispersion=np.ones_like(variance),
    )
    fixed = replace(posterior, fit=posterior.fit._replace(each=known))
    # The prior of the intercept is normal where its scale is not: compare the weights given both.
    draws = fixed.posterior_samples(jax.random.key(2), 8_000)
    others = np.stack([np.ravel(draws["intercept"]) - 3, np.log(np.ravel(draws["prior_scale"]))])
    weights = draws["weights"].reshape(-1, 2)

    # Given the intercept the weights are normal, with this precision and mean.
    weight = known.slope**2 / (known.slope + variance)
    directions, center = posterior.fit.directions, posterior.fit.center
    precision = directions.T @ np.diag(weight) @ directions
    pull = directions.T @ (-known.mean_gradient * known.slope / (known.slope + variance))
    pull = pull + precision @ center
    of_weights = precision[:2, :2] + np.eye(2)
    residual = (
        weights
        - np.linalg.solve(of_weights, pull[:2, None] - precision[:2, 2:] @ (others[:1] + 3)).T
    )
    whitened = residual @ np.linalg.cholesky(of_weights)
    size = len(whitened) / 4  # allows for autocorrelation
    assert (np.abs(whitened.mean(0)) < 5 / np.sqrt(size)).all()
    moments = whitened.T @ whitened / len(whitened)
    assert (np.abs(moments - np.eye(2)) < 5 * np.sqrt(2 / size)).all()
    # Power: without the noise of the steps they would be narrower than that.
    narrow = residual @ np.linalg.cholesky(directions.T @ np.diag(known.slope) @ directions)[:2, :2]
    assert not (np.abs(narrow.T @ narrow / len(narrow) - np.eye(2)) < 5 * np.sqrt(2 / size)).all()


@pytest.mark.slow
def test_draws_have_chains_and_predict(posterior, samples):
    assert {name: each.shape for name, each in samples.items()} == {
        "weights": (4, 1_000, 2),
        "prior_scale": (4, 1_000),
        "intercept": (4, 1_000),
    }
    assert (samples["prior_scale"] > 0).all()
    predicted = posterior.predict(jax.random.key(1), 4_000, X[:7])
    assert predicted["y"].shape == (4_000, 7)
    np.testing.assert_allclose(predicted["y"].mean(0), X[:7] @ [1, -1] + 3, atol=0.4)
    tree = to_arviz(samples)
    assert tree.posterior["weights"].dims == ("chain", "draw", "weights_dim_0")
    assert "draws" not in tree.posterior.attrs
    few = posterior.posterior_samples(jax.random.key(1), 10)  # of the chains of 250 draws
    assert few["weights"].shape == (4, 3, 2)
    assert posterior.predict(jax.random.key(1), 10, X[:7])["y"].shape == (10, 7)
    with pytest.raises(ValueError, match="num_samples must be"):
        posterior.posterior_samples(jax.random.key(1), 0)


@pytest.mark.slow
def test_prior_limits_draws_where_the_curvature_is_not_identified(posterior):
    """Draws of the weights are about as wide as their prior, N(0, 1), and not wider."""
    each = posterior.fit.each
    unknown = each._replace(
        slope=0 * each.slope,
        slope_std=np.full(3, 1e-3),
        variance=np.full(3, float(each.num_steps)),
        mean_gradient=np.zeros(3),
    )
    normals = np.random.default_rng(0).normal([0, 0, 0, 3], 1, (1_000, 4))
    weak = replace(posterior, fit=posterior.fit._replace(each=unknown), prior_draws=normals)
    weights = weak.posterior_samples(jax.random.key(2), 4_000)["weights"].reshape(-1, 2)
    assert (np.abs(weights.mean(0)) < 0.15).all()
    np.testing.assert_allclose(weights.std(0), 1.0, atol=0.1)


@pytest.mark.slow
def test_curvatures_are_drawn_as_their_regression_has_them():
    """One weight with a normal prior, whose estimate at 2.4 is unlikely a priori: closed form.

    A curvature 2.3 standard deviations above zero: drawn jointly with the weight, values near zero,
    for which the weight has its prior, would have nearly all of the weight of evidence.
    """

    def model(x):
        weight = numpyro.sample("weight", dist.Normal(0, 1))
        with numpyro.plate("records", len(x)):
            numpyro.sample("x", dist.Normal(weight, 1), obs=x)

    x = jnp.asarray(X[:, 0]) + 2.4
    svi = DPSVI(model, AutoMultivariateNormal(model), optax.adam(0.02), mechanism=MECHANISM)
    found = posterior_of(svi.run(jax.random.key(0), x, num_steps=300, progress_bar=False))
    slope, slope_std, std = 400.0, 400 / 2.3, 15.0
    each = found.fit.each._replace(
        slope=np.array([slope]),
        slope_std=np.array([slope_std]),
        variance=np.array([std**2 * found.fit.each.num_steps]),
        dispersion=np.ones(1),
        mean_gradient=np.zeros(1),
    )
    curvature = found.fit._replace(each=each, center=np.array([2.4]), directions=np.eye(1))
    normals = np.random.default_rng(0).normal(size=(1_000, 1))
    weak = replace(found, fit=curvature, prior_draws=normals)
    draws = np.ravel(weak.posterior_samples(jax.random.key(1), 8_000)["weight"])

    # The curvature, and the weight given it.
    rng = np.random.default_rng(1)
    slopes = stats.truncnorm.rvs(-2.3, np.inf, slope, slope_std, 100_000, random_state=rng)
    precision = slopes**2 / (slopes + std**2)
    variance = 1 / (1 + precision)
    exact = variance * precision * 2.4 + np.sqrt(variance) * rng.normal(size=100_000)
    assert stats.ks_2samp(draws[::4], exact).pvalue > 1e-4
    # Power: curvatures of half the size.
    wide = 2.4 + 2 * (exact - 2.4)
    assert stats.ks_2samp(draws[::4], wide).pvalue < 1e-6


@pytest.mark.slow
def test_draws_of_a_model_with_constant_entries_mix():
    """The first row of a Cholesky factor does not vary: chains are judged by what NUTS samples."""

    def model(y):
        factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(2), scale_tril=factor), obs=y)

    y = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], NUM)
    svi = DPSVI(model, AutoMultivariateNormal(model), optax.adam(0.02), mechanism=MECHANISM)
    result = svi.run(jax.random.key(0), np.float32(y), progress_bar=False)
    found = posterior_of(result)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = found.posterior_samples(jax.random.key(1), 2_000)["factor"]
    assert (draws[..., 0, 0] == 1).all()
    np.testing.assert_allclose(draws[..., 1, 0].mean(), 0.5, atol=0.15)


@pytest.mark.slow
def test_chains_that_do_not_mix_are_warned_of(posterior, monkeypatch):
    module = "dpjax.bayes.variational.full_curvature.split_gelman_rubin"
    monkeypatch.setattr(module, lambda draws: np.array(1.2))
    with pytest.warns(UserWarning, match="mixed poorly: largest split R-hat 1.2"):
        posterior.posterior_samples(jax.random.key(1), 4_000)


@pytest.mark.slow
def test_the_trace_has_the_draws_of_the_guide_and_the_released_gradients(result):
    """With SGD the mean moves by the released gradient and that of the data-free term."""
    svi = result.svi
    state = svi.init(jax.random.key(0), X, Y + 3)
    start = svi.optim.get_params(state.optim_state)
    for _ in range(3):
        state, _ = svi.update(state, X, Y + 3)
    run = svi.run(jax.random.key(0), X, Y + 3, num_steps=3, progress_bar=False)
    chex.assert_trees_all_close(state.trace, run.state.trace, rtol=1e-5)
    assert set(state.trace.sums) == {LATENTS}

    # The first draw is the guide's: of the step's key, at the first parameters.
    first = svi.init(jax.random.key(0), X, Y + 3)
    _, key = jax.random.split(first.rng_key)
    _, guide_key = jax.random.split(key)
    seeded = numpyro.handlers.seed(svi.guide, guide_key)
    values = svi.get_params(first)
    sites = numpyro.handlers.trace(numpyro.handlers.substitute(seeded, values)).get_trace(X, Y)
    expected = sites["_auto_latent"]["value"]
    np.testing.assert_allclose(state.trace.centers[LATENTS][0], expected, rtol=1e-5)
    assert not np.allclose(expected, start["auto_loc"], atol=1e-3)


@pytest.mark.slow
def test_posterior_of_a_low_rank_guide_and_plain_gradients():
    svi = inference(AutoLowRankMultivariateNormal, "plain")
    result = svi.run(jax.random.key(3), X, Y + 3, progress_bar=False)
    draws = posterior_of(result).posterior_samples(jax.random.key(1), 4_000)
    np.testing.assert_allclose(draws["weights"].mean((0, 1)), [1, -1], atol=0.25)
    np.testing.assert_allclose(draws["intercept"].mean(), 3, atol=0.15)
    assert (draws["weights"].std((0, 1)) < 0.2).all()
    assert np.corrcoef(draws["weights"].reshape(-1, 2).T)[0, 1] < -0.6


@pytest.mark.slow
def test_intervals_cover_the_parameters_of_simulated_traces(posterior):
    """Fifty traces at noise that widens intervals; nominal 90 %, and a power check."""
    traces = simulated(noise=10 * NOISE)
    rng = np.random.default_rng(5)
    covered, narrow, widths = [], [], []
    for repeat in range(50):
        trace = jax.tree.map(lambda leaf, i=repeat: leaf[i], traces)
        found = fit(trace, noise=10 * NOISE)
        mean = np.insert(found.mean, 2, 0.0)
        is_read = np.array([True, True, False, True])
        one = replace(posterior, fit=found._replace(mean=mean, is_read=is_read))
        draws = one.posterior_samples(jax.random.key(repeat), 800)
        values = np.concatenate(
            [draws["weights"].reshape(-1, 2), draws["intercept"].reshape(-1, 1)], axis=1
        )
        truth = OPTIMUM + np.linalg.cholesky(COVARIANCE) @ rng.normal(size=SIZE)
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        covered.append((low < truth) & (truth < high))
        widths.append((high - low) / (2 * 1.645 * np.sqrt(np.diag(COVARIANCE))))
        middle = (low + high) / 2
        narrow.append(np.abs(truth - middle) < 1.645 * np.sqrt(np.diag(COVARIANCE)))
    # Standard error of the share if all three entries of a row are covered or none: 0.042.
    assert np.mean(covered) > 0.9 - 3 * 0.042
    assert not np.mean(narrow) > 0.9 - 3 * 0.042
    # With a known curvature H they would be (1 + 9e6 / 1600 / H)^0.5 times as long: 2.6 for 1,000.
    assert 1.2 < np.median(widths) < 6


# Refusals.


@pytest.mark.parametrize(("size", "is_kept"), [(MAX_LATENTS, True), (MAX_LATENTS + 1, False)])
def test_large_guides_have_no_trace(size, is_kept):
    guide = AutoMultivariateNormal(lambda: None)
    params = {"auto_loc": jnp.zeros(size), "auto_scale_tril": jnp.zeros(1)}
    assert (vector_mean(guide, params) == "auto_loc") == is_kept
    assert vector_mean(guide, {**params, "other": jnp.zeros(1)}) is None


def test_several_particles_have_no_trace():
    svi = inference(gradient="plain", loss=Trace_ELBO(num_particles=2), share=True)
    with pytest.raises(ValueError, match="of at most 100 latent variables and with one particle"):
        svi.init(jax.random.key(0), X, Y)


def test_posterior_is_of_the_full_curvature(posterior):
    assert isinstance(posterior, FullCurvaturePosterior)
    assert set(posterior.fits) == {IN_DIRECTIONS}
    assert "bias of clipping" in str(posterior)
