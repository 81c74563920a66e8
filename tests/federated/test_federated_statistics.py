"""Federated forms of conjugate families, regression, bounds, sums and gradients."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.federated_cases import (
    ADJACENCIES,
    count_release,
    gradient_plan,
    moments_release,
    plan_of,
    regression_release,
)

from dpjax.bayes.conjugate import naive_posterior, noise_aware_posterior
from dpjax.bayes.regression import (
    HistogramBounds,
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
    adaptive_ridge,
    repair,
    unknown_noise_posterior,
)
from dpjax.bayes.regression import (
    noise_aware_posterior as noise_aware_regression,
)
from dpjax.bayes.sgmcmc import SGLD
from dpjax.federated import ClippedGradientSum, holder_gradient, run_round, simulated_entropy
from dpjax.mechanisms import ClippedSum, Composition
from dpjax.sampling import FixedSizeSampling, PoissonSampling

KEY = jax.random.key(3)


def split(records, num_holders):
    """The records of each holder, of different sizes and one without any."""
    cuts = np.sort(np.random.default_rng(0).integers(0, len(records[0]), num_holders - 2))
    cuts = np.append(cuts, len(records[0]))
    return list(zip(*(np.split(part, cuts) for part in records), strict=True))


def released(plan, records, seed=1):
    entropy = simulated_entropy(seed)
    held = split(records, plan.parties.num_holders)
    return run_round(plan, [plan.mechanism.sum_records(*one) for one in held], entropy=entropy)


def test_sum_records_over_holders_is_that_of_all_records():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=300)
    cases = [
        (moments_release(), (x[:, 0].astype(np.float32),)),
        (regression_release(), (x, y)),
        (ClippedSum(((-1.0, 0.0), (1.0, 0.5)), scale=2.0, adjacency="zero_out"), (x[:, :2],)),
        (histogram_bounds(scale=2.0), (x, y)),
    ]
    for mechanism, records in cases:
        parts = [mechanism.sum_records(*one) for one in split(records, 6)]
        whole = mechanism.sum_records(*records)
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-12)


@pytest.mark.slow
def test_noise_aware_posterior_takes_the_result():
    """A count of 10,000 with noise of deviation 4: the posteriors are near the exact one."""
    plan = plan_of(count_release(adjacency="replace_one"))
    ones = (np.random.default_rng(2).random(10_000) < 0.3).astype(np.float32)
    found = released(plan, (ones,))
    exact = plan.mechanism.family.exact_posterior(jnp.asarray(ones))
    naive = naive_posterior(found.mechanism, found.released, num_examples=10_000)
    aware = noise_aware_posterior(KEY, found.mechanism, found.released, num_examples=10_000)
    deviation = math.sqrt(0.3 * 0.7 / 10_000)
    for posterior in (naive, aware):
        assert abs(float(posterior.mean - exact.mean)) < deviation
    # The noise of all five holders, of which four counted for the guarantee.
    assert found.mechanism.mechanism.scale == pytest.approx(4.0 * math.sqrt(5 / 4))


@pytest.mark.slow
def test_noise_aware_regression_covers_the_coefficients():
    """80 % intervals over 24 data sets with coefficients from the prior, and noises.

    If the three coefficients of a data set were covered together, their share had a standard
    error of 0.082, and less than half were covered once in 4,000 times. Power: with a hundredth of
    the noise in the mechanism.
    """
    plan = plan_of(regression_release(epsilon=2.0))
    rng, quantiles = np.random.default_rng(3), jnp.array([0.1, 0.9])
    prior = {"prior_precision": 4.0, "noise_shape": 4.0, "noise_rate": 0.5}
    entropy, covered = simulated_entropy(1), {1.0: [], 0.01: []}
    for number in range(24):
        variance = prior["noise_rate"] / rng.gamma(prior["noise_shape"])
        true = rng.normal(size=3) * math.sqrt(variance / prior["prior_precision"])
        x = rng.normal(size=(4000, 3)) / 3
        y = x @ true + math.sqrt(variance) * rng.normal(size=4000)
        sums = [plan.mechanism.sum_records(*one) for one in split((x, y), 5)]
        found = run_round(plan, sums, entropy=entropy)
        key = jax.random.fold_in(KEY, number)
        for share in (1.0, 0.01) if number < 8 else (1.0,):
            mechanism = found.mechanism.with_privacy_factor(share)
            draws = noise_aware_regression(
                key, mechanism, found.released, num_examples=4000, num_draws=400, **prior
            )
            low, high = jnp.quantile(draws.beta, quantiles, axis=0)
            covered[share].append((low < true) & (true < high))
    assert np.mean(covered[1.0]) >= 0.5
    assert np.mean(covered[0.01]) < 0.5


def wine_like(rng, num_examples, num_features):
    x = rng.normal(size=(num_examples, num_features)) / math.sqrt(num_features)
    coefficients = rng.normal(size=num_features)
    coefficients /= np.linalg.norm(coefficients)
    return x, x @ coefficients + 0.7 * rng.normal(size=num_examples)


def mean_absolute_error(statistics, x, y):
    """Of predictions with the posterior mean, given statistics with noise."""
    posterior = unknown_noise_posterior(
        repair(statistics, floor=1.0),
        num_examples=2000,
        prior_precision=1.0,
        noise_shape=2.0,
        noise_rate=1.0,
    )
    return float(np.abs(y - x @ np.asarray(posterior.mean)).mean())


@pytest.mark.slow
def test_run_round_has_the_error_of_a_trusted_aggregator():
    """Within 2 % over 60 repetitions: their noise is larger by sqrt(10 / 9).

    Power: with the trusted aggregator's noise from each holder it is not.
    """
    trusted = PerturbedStatistics.from_epsilon(
        RegressionBounds(x_norm_bound=1.5, y_bound=2.5),
        epsilon=2.0,
        delta=1e-4,
        adjacency="replace_one",
        num_features=11,
    )
    plan = plan_of(trusted, num_holders=10)
    rng = np.random.default_rng(7)
    x, y = wine_like(rng, 3000, 11)
    train, test = (x[:2000], y[:2000]), (x[2000:], y[2000:])
    sums = [trusted.sum_records(*one) for one in split(train, 10)]
    entropy, errors = simulated_entropy(8), []
    for number in range(60):
        federated, perturbed = (
            run_round(one, sums, entropy=entropy).released
            for one in (plan, plan.with_privacy_factor(math.sqrt(9)))
        )
        alone = trusted.release_records(jax.random.fold_in(KEY, number), *train)
        errors.append([mean_absolute_error(one, *test) for one in (federated, alone, perturbed)])
    ours, theirs, input_perturbation = np.mean(errors, axis=0)
    assert input_perturbation > 1.1 * theirs
    assert ours == pytest.approx(theirs, rel=0.02)


def histogram_bounds(**options):
    defaults = {
        "x_norm_bounds": (0.5, 1.0, 2.0, 4.0),
        "y_bounds": (1.0, 2.0, 4.0),
        "quantile": 0.95,
        "scale": 5.0,
        "adjacency": "add_remove",
    }
    return HistogramBounds(**{**defaults, **options})


def test_histogram_bounds_compose_with_the_regression():
    """Bounds from histograms, then the regression within them; both on one certificate."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(5000, 3)), 0.3 * rng.normal(size=5000)
    bounds = released(plan_of(histogram_bounds()), (x, y)).released
    assert bounds == RegressionBounds(x_norm_bound=4.0, y_bound=1.0)
    second = PerturbedStatistics.from_epsilon(
        bounds, epsilon=0.7, delta=1e-5, adjacency="add_remove", num_features=3
    )
    plans = plan_of(histogram_bounds()), plan_of(second)
    both = Composition(plans)
    certified = both.certificate(1e-5).epsilon
    assert max(plan.certificate(1e-5).epsilon for plan in plans) < certified
    assert released(plans[1], (x, y)).released.xtx.shape == (3, 3)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_histogram_bounds_have_the_exact_sensitivity(adjacency):
    used = histogram_bounds(adjacency=adjacency)
    values = [0.0, 0.7, 3.0, 1e300, np.nan, np.inf, 0.5]
    rows = [(np.full((1, 2), a), np.full(1, b)) for a in values for b in values]
    counts = np.array([used.sum_records(*row) for row in rows])
    assert np.all(counts.sum(axis=1) == 2)
    others = counts if adjacency == "replace_one" else np.zeros((1, 9), int)
    largest = max(np.linalg.norm(one - other) for one in counts for other in others)
    assert largest == pytest.approx(used.sensitivity.value)
    assert used.sum_records(np.zeros((0, 2)), np.zeros(0)).tolist() == [0] * 9


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_clipped_sum_has_the_exact_sensitivity(adjacency):
    used = ClippedSum(((-1.0, 2.0), (0.5, 5.0)), scale=1.0, adjacency=adjacency)
    values = [-np.inf, np.nan, -1.0, 0.0, 0.5, 5.0, 1e30]
    sums = np.array([used.sum_records(np.array([[a, b]])) for a in values for b in values])
    others = sums if adjacency == "replace_one" else np.zeros((1, 2))
    largest = max(np.linalg.norm(one - other) for one in sums for other in others)
    assert largest == pytest.approx(used.sensitivity.value)
    assert used.sum_records(np.zeros((0, 2))).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"of shape \(n, 2\)"):
        used.sum_records(np.zeros(3))


@pytest.mark.slow
def test_adaptive_ridge_covers_the_exact_ridge():
    """The smallest eigenvalue is not overestimated, and the ridged matrix is positive definite."""
    used = PerturbedStatistics.from_epsilon(
        RegressionBounds(x_norm_bound=1.0, y_bound=1.0),
        epsilon=1.0,
        delta=1e-5,
        adjacency="add_remove",
        num_features=4,
        split=RegressionStatistics(0.5, 0.5, None),
    )
    plan = plan_of(used)
    x = np.random.default_rng(1).normal(size=(3000, 4)) * np.array([0.5, 0.5, 0.5, 0.01])
    exact = used.sum_records(x, np.zeros(3000))
    smallest = np.linalg.eigvalsh(used.from_sum(exact).xtx)[0]
    entropy, failures = simulated_entropy(3), 0
    for _ in range(100):
        found = run_round(plan, [exact / 5] * 5, entropy=entropy)
        chosen = adaptive_ridge(found.mechanism, found.released)
        definite = jnp.linalg.eigvalsh(chosen.ridged.xtx)[0] > 0
        failures += not (definite and chosen.smallest_eigenvalue <= smallest + 1e-3)
    assert failures <= 5
    assert float(chosen.ridge) > 0
    laplace = PerturbedStatistics.from_epsilon(
        used.bounds, epsilon=1.0, delta=0.0, adjacency="add_remove", num_features=4
    )
    with pytest.raises(ValueError, match="mechanism's noise"):
        adaptive_ridge(laplace, found.released)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_clipped_gradient_sum_has_the_noise_of_the_steps(adjacency):
    """A multiple of the clip bound under every adjacency, also where a step moves by two bounds."""
    plan = gradient_plan(3, noise_multiplier=1.4, l2_clip=0.5, adjacency=adjacency)
    steps = plan.mechanism.mechanism
    assert plan.num_releases == 30
    (part,) = plan.mechanism.sum_parts
    moves = 2 * 0.5 if adjacency == "replace_one" else 0.5
    assert float(steps.sensitivity) == part.mechanism.sensitivity.value == moves
    units = np.ldexp(1.0, plan.grid.exponents) * plan.grid.scales
    noise = units * math.sqrt(plan.parties.num_noise_shares)
    assert np.all(noise > 1.4 * 0.5)
    assert np.all(noise < 1.4 * 0.5 * (1 + 1e-3))
    assert plan.certificate(1e-5).epsilon == steps.certificate(1e-5).epsilon


@pytest.mark.slow
def test_holder_gradient_of_sgld_has_the_posteriors_moments():
    """A Gaussian mean under a flat prior: the draws have the posterior's mean and deviation."""
    num_examples, deviation = 400, 1 / math.sqrt(400)
    data = 0.3 + np.random.default_rng(8).normal(size=(4, 100, 1))
    chain = SGLD(
        PoissonSampling(num_examples, 1.0),
        l2_clip=20.0,
        step_size=0.2,
        num_steps=400,
        adjacency="zero_out",
        temperature=1.0,
    )
    plan = plan_of(ClippedGradientSum(chain.gaussian, 1), num_holders=4, observer_is_holder=False)
    assert plan.certificate(1e-5).epsilon == chain.certificate(1e-5).epsilon
    gradient = holder_gradient(
        lambda mean, x: 0.5 * jnp.sum((mean - x) ** 2), chain.gaussian, num_examples=100
    )
    optimizer, entropy = chain.optimizer(None, key=KEY), simulated_entropy(9)
    mean, update = jnp.full(1, 0.3), jax.jit(optimizer.update)
    state, draws = optimizer.init(mean), []
    for number in range(400):
        sums = [plan.mechanism.sum_records(gradient(KEY, mean, x)) for x in data]
        noisy = run_round(plan, sums, entropy=entropy, round_number=number).released
        updates, state = update(noisy / num_examples, state, mean)
        mean = optax.apply_updates(mean, updates)
        draws.append(float(mean[0]))
    kept = np.array(draws[20:])
    # An autoregression with coefficient 0.8: 42 independent draws' worth for the mean, 83 for the
    # variance, which the step size raises by 1 / 0.9.
    assert abs(kept.mean() - data.mean()) < 5 * deviation / math.sqrt(42)
    assert kept.var() / deviation**2 == pytest.approx(1 / 0.9, abs=5 * 1.1 * math.sqrt(2 / 83))


@pytest.mark.slow
def test_holder_gradient_draws_a_poisson_batch():
    """Sums of ones are numbers of records: binomial, and independent of another key's."""
    steps = gradient_plan(1).mechanism.mechanism
    gradient = holder_gradient(lambda w, x: w * x, steps, num_examples=50)
    keys = jax.random.split(KEY, 400)
    sizes = np.array([gradient(key, jnp.zeros(()), jnp.full(50, 0.5))[0] for key in keys]) / 0.5
    np.testing.assert_allclose(sizes, np.rint(sizes), atol=1e-3)
    assert abs(sizes.mean() - 10) < 6 * math.sqrt(8 / 400)
    assert sizes.var() == pytest.approx(8, rel=6 * math.sqrt(2 / 400))
    again = gradient(keys[0], jnp.zeros(()), jnp.full(50, 0.5))[0] / 0.5
    assert float(again) == pytest.approx(sizes[0])
    fixed = dataclasses.replace(steps, sampling=FixedSizeSampling(100, 10), adjacency="replace_one")
    with pytest.raises(ValueError, match="mechanism's sampling must be PoissonSampling"):
        holder_gradient(lambda w, x: w * x, fixed, num_examples=50)


def test_holder_gradient_is_within_the_bound_for_any_record():
    steps = gradient_plan(2).mechanism.mechanism
    certain = dataclasses.replace(steps, sampling=PoissonSampling(10, 1.0))
    gradient = holder_gradient(lambda w, x: w @ x, certain, num_examples=3)
    rest = np.array([[0.3, 0.2], [-0.5, 0.1]], np.float32)
    without = gradient(KEY, jnp.zeros(2), jnp.asarray(np.vstack([rest, np.zeros((1, 2))])))
    for row in ([1e30, 0.0], [np.nan, 1.0], [0.0, -5.0], [np.inf, 0.0], [0.6, 0.8]):
        data = jnp.asarray(np.vstack([rest, [row]]), jnp.float32)
        moved = np.asarray(gradient(KEY, jnp.zeros(2), data) - without, np.float64)
        assert np.linalg.norm(moved) <= 1.0


def test_clipped_gradient_sum_refuses_by_name():
    mechanism = gradient_plan(3).mechanism
    tree = {"a": np.zeros(2), "b": np.ones(1)}
    assert mechanism.sum_records(tree).tolist() == [0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="num_parameters = 3 numbers"):
        mechanism.sum_records(np.zeros(4))
    steps = mechanism.mechanism
    for noise, message in (((1.0,) * 30, "of one noise multiplier"), (0.0, "noise_multiplier")):
        with pytest.raises(ValueError, match=message):
            ClippedGradientSum(dataclasses.replace(steps, noise_multiplier=noise), 3)
