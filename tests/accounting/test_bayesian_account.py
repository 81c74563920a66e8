"""The Bayesian account: composition, its agreement with the moments accountant, its refusals."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.accounting import bayesian, moments

RATE, NOISE, CLIP, STEPS = 0.02, 1.3, 0.7, 40
ORDERS = (1, 2, 3, 5, 8, 13, 21, 32)


def mechanism(num_steps=STEPS, noise=NOISE, rate=RATE, clip=CLIP, adjacency="add_remove"):
    sampling = dpjax.PoissonSampling(1_000, rate)
    return dpjax.SubsampledGaussian(sampling, clip, noise, num_steps, adjacency, "one row")


def exact_costs(norms, num_steps=STEPS):
    """Costs of one step whose draws are the whole population: no estimate, only the mean."""
    population = np.asarray(norms, float)
    moment = bayesian.sampled_gaussian(
        ORDERS, population, sampling_rate=RATE, noise_std=NOISE * CLIP
    )
    return np.log(np.mean(np.exp(num_steps * moment), axis=0)) / num_steps


@pytest.mark.parametrize("rate", [1e-3, 0.02, 1.0])
@pytest.mark.parametrize("noise", [0.6, 1.0, 4.0])
def test_norms_at_the_clip_bound_cost_what_the_moments_accountant_says(rate, noise):
    account = bayesian.init(mechanism(noise=noise, rate=rate), orders=ORDERS)
    account = bayesian.update(account, np.full((STEPS, 50), 3.0))  # clipped to the bound
    for order, cost in zip(ORDERS, account.costs, strict=True):
        expected = STEPS * moments.log_moment(order + 1, noise, rate)
        assert cost == pytest.approx(expected, rel=1e-10)


def test_epsilon_is_corollary_one_with_the_failure_counted_into_delta():
    account = bayesian.init(mechanism(), orders=ORDERS, failure_probability=1e-8)
    account = bayesian.update(account, np.full((STEPS, 50), CLIP))
    failure = 1 - (1 - 1e-8) ** (STEPS * len(ORDERS))  # the best order is chosen afterwards
    assert account.failure == pytest.approx(failure, rel=1e-6)
    costs = [STEPS * moments.log_moment(order + 1, NOISE, RATE) for order in ORDERS]
    wanted = min(
        (cost - math.log(1e-5 - failure)) / order for order, cost in zip(ORDERS, costs, strict=True)
    )
    assert bayesian.epsilon(account, 1e-5).bayesian == pytest.approx(wanted, rel=1e-9)


def test_epsilon_and_delta_are_each_others_inverse_on_both_sides():
    account = bayesian.update(bayesian.init(mechanism()), np.full((STEPS, 64), 0.5))
    both = bayesian.epsilon(account, 1e-5)
    assert bayesian.delta(account, both.bayesian).bayesian == pytest.approx(1e-5, rel=1e-6)
    assert bayesian.delta(account, both.differential).differential == pytest.approx(1e-5, rel=0.05)


def test_the_weak_definition_has_the_sharper_conversion():
    """Against the privacy loss itself: one Gaussian release of a record of known norm."""
    released = dpjax.SubsampledGaussian(dpjax.PoissonSampling(10, 1.0), 1.0, 0.8, 1, "add_remove")
    account = bayesian.init(released, orders=range(1, 200))
    account = bayesian.update(account, np.full(30, 1.0))
    exact = dpjax.accounting.tradeoff.Gaussian(1 / 0.8).epsilon(1e-5)
    strong, weak = (
        bayesian.epsilon(account, 1e-5, definition=name).bayesian for name in ("strong", "weak")
    )
    assert exact < weak < strong
    assert weak < 1.1 * exact  # whole orders only
    back = bayesian.delta(account, weak, definition="weak").bayesian
    assert back == pytest.approx(1e-5, rel=1e-6)


def test_the_estimate_is_above_the_mean_and_nears_it_with_more_draws():
    rng = np.random.default_rng(0)
    population = rng.uniform(0.1, 0.4, 200)
    exact = exact_costs(population)
    gaps = []
    for repeats in (1, 10, 100):
        account = bayesian.init(mechanism(), orders=ORDERS, failure_probability=1e-6)
        account = bayesian.update(account, np.tile(population, repeats))
        gaps.append(account.costs - exact)
    assert (gaps[0] > gaps[1]).all()
    assert (gaps[1] > gaps[2]).all()
    assert (gaps[2] > 0).all()


def test_order_of_steps_their_blocks_and_padding_do_not_matter():
    rng = np.random.default_rng(1)
    norms = rng.exponential(0.5, (STEPS, 30))
    whole = bayesian.update(bayesian.init(mechanism()), norms)
    pieces = bayesian.init(mechanism())
    for start, stop in ((20, 40), (0, 1), (1, 20)):
        pieces = bayesian.update(pieces, norms[start:stop])
    single = bayesian.init(mechanism())
    for row in norms:
        padded = np.concatenate([row, np.full(7, 1e6)])
        single = bayesian.update(single, padded, np.arange(37) < 30)
    np.testing.assert_allclose(pieces.costs, whole.costs, rtol=1e-12)
    np.testing.assert_allclose(single.costs, whole.costs, rtol=1e-12)


def test_noise_of_each_step_is_its_own():
    noises = tuple(np.linspace(0.8, 2.0, STEPS).tolist())
    account = bayesian.update(
        bayesian.init(mechanism(noise=noises), orders=ORDERS), np.full((STEPS, 20), CLIP)
    )
    expected = sum(moments.log_moment(3, noise, RATE) for noise in noises)
    assert account.costs[1] == pytest.approx(expected, rel=1e-10)


def test_composition_bounds_brute_force_on_a_population_that_is_known():
    """Hölder's bound against the exact moment E_x[prod_t exp(lambda D_t(x))] and simulation."""
    # Three kinds of records, whose norms differ from step to step.
    shares = np.array([0.7, 0.25, 0.05])
    norms = np.array([[0.1, 0.4, 0.7], [0.3, 0.1, 0.6], [0.2, 0.5, 0.7], [0.2, 0.3, 0.7]])
    steps, order, rate, noise = len(norms), 2, 0.3, 0.7
    moment = bayesian.sampled_gaussian((order,), norms, sampling_rate=rate, noise_std=noise)[..., 0]
    exact = np.sum(shares * np.exp(moment.sum(axis=0)))
    bound = np.exp(np.sum(np.log(np.exp(steps * moment) @ shares)) / steps)
    assert exact < bound < 1.3 * exact
    # The privacy loss itself, by simulation of the releases: 4 standard errors (false alarm 6e-5).
    rng = np.random.default_rng(2)
    kinds = rng.choice(3, size=400_000, p=shares)
    distance = norms[:, kinds] / noise
    present = rng.random(distance.shape) < rate
    release = rng.standard_normal(distance.shape) + present * distance
    loss = np.log1p(rate * np.expm1(release * distance - distance**2 / 2)).sum(axis=0)
    values = np.exp(order * loss)
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - exact) < 4 * error
    # Power: were x' drawn afresh in every step, the moment would be another.
    fresh = np.prod(np.exp(moment) @ shares)
    assert abs(values.mean() - fresh) > 4 * error


def test_a_composition_with_the_expectation_inside_the_product_would_be_too_small():
    """Why Theorem 1 has the exponent T: the same record is in every step."""
    shares, steps = np.array([0.99, 0.01]), 100
    moment = bayesian.sampled_gaussian(
        (4,), np.array([0.05, 0.7]), sampling_rate=0.1, noise_std=NOISE * CLIP
    )[:, 0]
    exact = np.log(shares @ np.exp(steps * moment))
    as_if_fresh = steps * np.log(shares @ np.exp(moment))
    holder = steps * (np.log(shares @ np.exp(steps * moment)) / steps)
    assert as_if_fresh < exact
    assert holder == pytest.approx(exact)


def test_more_steps_than_planned_are_an_error():
    account = bayesian.update(bayesian.init(mechanism()), np.zeros((STEPS - 1, 5)))
    with pytest.raises(ValueError, match=r"at most the planned 40 steps .* got 2 more after 39"):
        bayesian.update(account, np.zeros((2, 5)))
    with pytest.raises(ValueError, match="planned"):
        bayesian.update_at_bound(account, 2)
    with pytest.raises(ValueError, match="planned"):
        bayesian.update_with(account, np.zeros((2, 5, 32)))


def test_planning_more_steps_costs_more_for_the_same_steps():
    norms = np.random.default_rng(3).uniform(0, 0.7, (10, 64))
    exactly = bayesian.update(bayesian.init(mechanism(10)), norms)
    planned = bayesian.update(bayesian.init(mechanism(200)), norms)
    assert (planned.costs > exactly.costs).all()


def test_draws_that_are_too_few_cost_the_bound():
    empty = bayesian.update(bayesian.init(mechanism()), np.zeros((1, 0)))
    one = bayesian.update(bayesian.init(mechanism()), np.full((1, 1), 0.1))
    bound = bayesian.update_at_bound(bayesian.init(mechanism()), 1)
    np.testing.assert_allclose(empty.costs, bound.costs, rtol=1e-14)
    np.testing.assert_allclose(one.costs, bound.costs, rtol=1e-14)


def test_never_above_the_account_at_the_bound():
    norms = np.random.default_rng(4).pareto(0.7, (STEPS, 12))
    account = bayesian.update(bayesian.init(mechanism()), norms)
    bound = bayesian.update_at_bound(bayesian.init(mechanism()), STEPS)
    assert (account.costs <= bound.costs * (1 + 1e-12)).all()


def test_examples_that_contribute_nothing_are_free():
    account = bayesian.update(
        bayesian.init(mechanism()), np.array([[np.nan, np.inf] * 8, [0.0] * 16])
    )
    np.testing.assert_array_equal(account.costs, 0)


def test_bounds_by_layers_are_clipped_layer_by_layer():
    clip = {"a": 0.3, "b": 0.4}
    layered = dataclasses.replace(mechanism(1), l2_clip=clip)
    norms = {"a": np.full(10, 0.1), "b": np.full(10, 9.0)}
    account = bayesian.update(bayesian.init(layered, orders=ORDERS), norms)
    norm = math.hypot(0.1, 0.4)
    expected = bayesian.sampled_gaussian(
        ORDERS, norm, sampling_rate=RATE, noise_std=NOISE * math.hypot(0.3, 0.4)
    )
    np.testing.assert_allclose(account.costs, expected, rtol=1e-10)
    with pytest.raises(ValueError, match="one array for each clip bound"):
        bayesian.update(bayesian.init(layered), np.zeros(10))


def test_the_distribution_free_estimator_is_looser_and_holds_where_students_fails():
    # One draw in a thousand is at the bound: most batches do not show it.
    norms = np.full((STEPS, 1_000), 0.05)
    student = bayesian.init(mechanism(noise=0.3))
    free = bayesian.init(mechanism(noise=0.3), estimator="empirical_bernstein")
    student, free = (bayesian.update(account, norms) for account in (student, free))
    population = np.concatenate([np.full(999, 0.05), [CLIP]])
    moment = bayesian.sampled_gaussian(
        bayesian.ORDERS, population, sampling_rate=RATE, noise_std=0.3 * CLIP
    )
    truth = np.log(np.mean(np.exp(np.minimum(STEPS * moment, 700)), axis=0))
    assert (student.costs < 1e-3 * truth).all()
    assert (free.costs >= truth * (1 - 1e-9)).all()


def test_any_divergence_can_be_counted():
    scale, sensitivity = 2.0, dpjax.Sensitivity(1.0, "l1", "replace_one")
    laplace = dpjax.Laplace(sensitivity, scale)
    distances = np.full(500, 1.0)
    account = bayesian.init(laplace, orders=ORDERS)
    account = bayesian.update_with(account, bayesian.laplace(ORDERS, distances, scale=scale))
    np.testing.assert_allclose(
        account.costs, bayesian.laplace(ORDERS, 1.0, scale=scale), rtol=1e-10
    )
    assert bayesian.epsilon(account, 1e-5).differential == pytest.approx(0.5, rel=1e-3)


def test_a_bound_given_with_a_divergence_is_not_exceeded():
    draws = np.array([[0.1], [0.2], [0.3]])
    sensitivity = dpjax.Sensitivity(1.0, "l1", "replace_one")
    account = bayesian.init(dpjax.Laplace(sensitivity, 2.0), orders=(1,))
    free = bayesian.update_with(account, draws)
    bounded = bayesian.update_with(account, draws, log_moment_bound=[0.35])
    assert free.costs[0] > 0.35
    assert bounded.costs[0] == 0.35
    for bound in (np.nan, -1.0, 0.2):
        with pytest.raises(ValueError, match="log_moment_bound must be at least the draws'"):
            bayesian.update_with(account, draws, log_moment_bound=[bound])


def test_unclipped_sums_have_a_bayesian_epsilon_and_no_differential_one():
    released = bayesian.UnclippedGaussian(dpjax.PoissonSampling(1_000, 0.01), 2.0, 10)
    account = bayesian.update(bayesian.init(released), np.full((10, 100), 0.5))
    both = bayesian.epsilon(account, 1e-5)
    assert both.bayesian < 2
    assert both.differential == math.inf
    assert bayesian.delta(account, 1.0).differential == 1.0
    with pytest.raises(ValueError, match="finite where nothing is clipped"):
        bayesian.update(bayesian.init(released), np.array([[1.0, np.inf]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": "replace_one"}, "update_with and replaced_sampled_gaussian"),
        ({"noise_multiplier": 0.0}, "noise must be above zero"),
        ({"sampling": dpjax.TruncatedPoissonSampling(1_000, 0.02, 40)}, "PoissonSampling"),
    ],
)
def test_mechanisms_that_norms_do_not_tell_are_refused(change, message):
    other = dataclasses.replace(mechanism(), **change)
    with pytest.raises(ValueError, match=message):
        bayesian.update(bayesian.init(other), np.zeros((1, 4)))


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match="orders must be whole numbers"):
        bayesian.init(mechanism(), orders=(1.5,))
    with pytest.raises(ValueError, match="failure_probability must be in"):
        bayesian.init(mechanism(), failure_probability=0.0)
    with pytest.raises(ValueError, match="estimator must be one of"):
        bayesian.init(mechanism(), estimator="mean")
    with pytest.raises(ValueError, match="mechanism must be"):
        bayesian.init(0.1)
    account = bayesian.init(mechanism())
    with pytest.raises(ValueError, match="mask must be bool of shape"):
        bayesian.update(account, np.zeros((1, 4)), np.ones((1, 4)))
    with pytest.raises(ValueError, match="log_moments must be numbers >= 0"):
        bayesian.update_with(account, np.full((3, 32), np.nan))
    with pytest.raises(ValueError, match="got 0"):
        bayesian.epsilon(account, 1e-5)
    spent = bayesian.update(account, np.zeros((STEPS, 4)))
    with pytest.raises(ValueError, match="delta must be above the estimators' failure"):
        bayesian.epsilon(spent, 1e-15)
    with pytest.raises(ValueError, match="epsilon must be"):
        bayesian.delta(spent, -1.0)


def training(num_steps, **options):
    """A short run on data of which some records are far from the others."""
    data = jnp.concatenate([jnp.zeros((60, 3)), 30 * jnp.ones((4, 3))])
    described = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(64, 0.25), 1.0, 2.0, num_steps, "add_remove"
    )
    run = dict(progress=False, steps_per_call=5, **options)
    loss = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)  # noqa: E731
    key = jax.random.key(0)
    return described, lambda ledger: dpjax.train(
        loss, jnp.zeros(3), data, described, optax.sgd(0.01), key, on_report=ledger, **run
    )


def test_a_ledger_counts_what_training_emits():
    described, run = training(20)
    blocks = []
    run(blocks.append)
    account = bayesian.init(described)
    for report in blocks:
        account = bayesian.update(account, report.infos.norms, report.infos.mask)
    ledger = bayesian.Ledger(bayesian.init(described))
    run(ledger)
    np.testing.assert_array_equal(ledger.account.costs, account.costs)
    assert ledger.account.num_done == 20


def test_a_ledger_survives_a_stop_and_pays_the_bound_for_what_was_lost(tmp_path):
    described, run = training(20)
    blocks = []
    run(blocks.append)
    path = tmp_path / "ledger.npz"
    first = bayesian.Ledger(bayesian.init(described), path)
    first(blocks[0])
    again = bayesian.Ledger(bayesian.init(described), path)
    np.testing.assert_array_equal(again.account.costs, first.account.costs)
    again(blocks[2])  # the second block was lost
    lost = bayesian.update_at_bound(first.account, 5)
    lost = bayesian.update(lost, blocks[2].infos.norms, blocks[2].infos.mask)
    np.testing.assert_allclose(again.account.costs, lost.costs, rtol=1e-14)
    with pytest.raises(ValueError, match="path must be a ledger of this account"):
        bayesian.Ledger(bayesian.init(described, failure_probability=1e-9), path)


def test_a_ledger_is_for_one_run_of_its_mechanism(tmp_path):
    described, run = training(20)
    ledger = bayesian.Ledger(bayesian.init(described), tmp_path / "ledger.npz")
    run(ledger)
    with pytest.raises(ValueError, match="first step must be at least 20"):
        run(ledger)
    with pytest.raises(ValueError, match="first step must be at least 20"):
        run(bayesian.Ledger(bayesian.init(described), tmp_path / "ledger.npz"))
    with pytest.raises(ValueError, match="report's mechanism must be"):
        run(bayesian.Ledger(bayesian.init(described.scale_noise(2.0))))


def test_the_best_order_chosen_afterwards_can_be_one_that_is_estimated_too_small():
    """A limit of Student's estimator, shown: norms without outliers, and epsilon is too small."""
    planned, rate, population = 1_000, 0.01, np.random.default_rng(5)
    sampling = dpjax.PoissonSampling(25_600, rate)
    released = dpjax.SubsampledGaussian(sampling, 1.0, 1.0, planned, "add_remove")
    grid = np.clip(np.linspace(-0.5, 1.1, 4_001), 0, 1)
    weights = np.exp(-0.5 * ((np.linspace(-0.5, 1.1, 4_001) - 0.3) / 0.1) ** 2)
    moments_ = bayesian.sampled_gaussian(bayesian.ORDERS, grid, sampling_rate=rate, noise_std=1.0)
    with np.errstate(over="ignore"):
        mean = np.average(np.exp(np.minimum(planned * moments_, 700)), axis=0, weights=weights)
    true = np.min((np.log(mean) - np.log(1e-5)) / np.array(bayesian.ORDERS))
    norms = np.clip(population.normal(0.3, 0.1, (planned, 256)), 0, 1)
    found = bayesian.epsilon(bayesian.update(bayesian.init(released), norms), 1e-5)
    assert true == pytest.approx(1.49, abs=0.01)
    assert found.bayesian < 0.75 * true
    # The best order is not where the walk over the orders ends; fixed in advance, it holds.
    fixed = bayesian.update(bayesian.init(released, orders=(8,)), norms)
    assert bayesian.epsilon(fixed, 1e-5).bayesian > true


def test_values_past_a_floats_range_cost_the_bound_and_never_nothing():
    account = bayesian.init(mechanism(), failure_probability=1e-300)
    account = bayesian.update(account, np.full((1, 6), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    bound = bayesian.update_at_bound(bayesian.init(mechanism()), 1)
    np.testing.assert_allclose(account.costs, bound.costs, rtol=1e-12)
