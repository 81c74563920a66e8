"""The limits of Bayesian estimates: where they hold, where they fail, what composition costs.

Counts are judged by Clopper-Pearson bounds that are wrong with probability 1e-6 each.
"""

import functools
import math

import numpy as np
import pytest
from scipy import integrate

from dpjax.bdp import subsampled_gaussian_log_moments
from experiments.bdp import limits
from experiments.bdp.costs import epsilons
from experiments.bdp.limits import num_too_small, share_bounds

KNOWN = limits.populations()
GAMMAS = (0.05, 0.001)
TRIALS = 2_000


def bounds(name, num_draws, estimator="student", place=0):
    """On the probability that the estimate is too small."""
    count = counts(name, num_draws)[estimator][place]
    low, high = share_bounds([count], TRIALS, error=1e-6)
    return float(low[0]), float(high[0])


@functools.cache
def counts(name, num_draws):
    return num_too_small(KNOWN[name], TRIALS, num_draws, GAMMAS, seed=7)


@pytest.mark.parametrize("num_draws", [16, 256])
@pytest.mark.parametrize("place", [0, 1])
def test_num_too_small_of_normal_costs_is_gamma(num_draws, place):
    low, high = bounds("normal", num_draws, place=place)
    assert low <= GAMMAS[place] <= high


@pytest.mark.parametrize("name", ["log-normal", "Pareto", "one in 1,000", "clipped norms"])
def test_num_too_small_of_other_costs_exceeds_gamma(name):
    for place, gamma in enumerate(GAMMAS):
        assert bounds(name, 256, place=place)[0] > 2 * gamma


def test_num_too_small_with_a_rare_value_is_that_of_samples_without_it():
    """Whatever gamma is: 0.999^N."""
    for place in (0, 1):
        low, high = bounds("one in 1,000", 256, place=place)
        assert low < 0.999**256 < high
    assert not low < 0.998**256 < high


def test_num_too_small_of_all_pairs_exceeds_that_of_independent_pairs():
    assert bounds("all pairs", 253)[0] > 4 * GAMMAS[0]
    assert bounds("independent pairs", 253)[1] < 2 * GAMMAS[0]


@pytest.mark.parametrize("name", ["one in 1,000", "clipped norms"])
def test_num_too_small_by_empirical_bernstein_is_at_most_gamma(name):
    for num_draws in (16, 256):
        assert bounds(name, num_draws, "bernstein")[0] <= GAMMAS[0]


def test_populations_have_the_stated_means():
    generator = np.random.default_rng(3)
    for name in ("normal", "independent pairs", "all pairs"):
        values = np.exp(KNOWN[name].draw(generator, (2_000, 253)).mean(axis=1))
        log_values = KNOWN[name].draw(generator, (2_000, 253))
        means = np.exp(log_values).mean(axis=1)
        error = means.std() / math.sqrt(len(means))
        assert abs(means.mean() - math.exp(KNOWN[name].log_mean)) < 5 * error
        # The mean of z, not the exponential of the mean.
        assert abs(values.mean() - math.exp(KNOWN[name].log_mean)) > 5 * error


def test_clipped_mean_is_the_integral_over_the_distribution():
    shape, spread = 2.0, limits.MEDIAN_NORM / math.sqrt(math.log(2))

    def density(norm):
        return 2 * norm / spread**2 * math.exp(-((norm / spread) ** 2))

    def moment(norm):
        found = subsampled_gaussian_log_moments((1, 3), norm, **limits.RUN)
        return np.exp(limits.NUM_STEPS * found)

    exact = integrate.quad_vec(lambda r: density(r) * moment(r), 0, 1, epsrel=1e-10)[0]
    found = np.exp(limits.clipped_mean(limits.weibull_norm_at(shape))[[0, 2]])
    np.testing.assert_allclose(found, exact, rtol=1e-4)


@pytest.mark.parametrize("kept", [1.0, 0.5, 0.0])
def test_exact_moments_are_those_of_simulated_losses(kept):
    norms = limits.norms_by_step(kept)
    losses = limits.simulated_losses(norms, 100_000, seed=2)
    for order in (1, 2):
        simulated = limits.simulated_moment(losses, order)
        exact = math.exp(limits.exact_moments(norms, (order,))[0])
        assert abs(simulated.mean - exact) < 5 * simulated.error
    other = limits.exact_moments(limits.norms_by_step(1.0), (2,))[0]
    if kept == 0.0:
        assert abs(simulated.mean - math.exp(other)) > 5 * simulated.error


def test_theorem_moments_are_exact_for_constant_norms_and_else_upper_bounds():
    for kept in (1.0, 0.5, 0.0):
        norms = limits.norms_by_step(kept)
        exact, bound = limits.exact_moments(norms), limits.theorem_moments(norms)
        assert np.all(bound >= exact * (1 - 1e-12))
        assert np.allclose(bound, exact, rtol=1e-12) == (kept == 1.0)
    losses = limits.simulated_losses(norms, 100_000, seed=3)
    epsilon = float(epsilons(exact, limits.MODEL_DELTA))
    assert (losses >= epsilon).mean() < limits.MODEL_DELTA < (losses >= 0.4 * epsilon).mean()


def test_unseen_share_and_the_distribution_free_epsilon_fall_with_the_sample_size():
    assert limits.unseen_share(1_024) == pytest.approx(0.033, abs=5e-4)
    assert (1 - limits.unseen_share(100, 0.01)) ** 100 == pytest.approx(0.01)
    least = [limits.least_distribution_free_epsilon(n) for n in (16, 1_024, 10**6)]
    assert np.all(np.diff(least) < 0)
    assert limits.exact_epsilon() < least[-1]
    assert least[0] < limits.moments_epsilon()


@pytest.fixture(scope="module")
def records(run_rows):
    names = [row.name for row in limits.rows("quick") if row.name[:4] in ("tail", "comp")]
    few = {"trials": 200, "repeats": 3, "losses": 20_000, "draws": (16, 2_048)}
    return run_rows(limits, "normal", "one in 1,000", limits.NUMBER, *names, **few)


@pytest.mark.slow
def test_run_number_is_too_small_for_few_samples(records):
    record = records[limits.NUMBER]
    exact, student = record.measured[limits.KNOWN], record.measured["Bayesian ε, Student"]
    free = record.measured["Bayesian ε, Bernstein"]
    assert student[0] < exact / 2
    assert np.all(np.array(free) >= record.measured["Bayesian ε, least without assumption"])
    assert exact < min(free) <= record.measured["MA ε"] + 1e-6


def test_run_tails_without_clipping_grows_with_the_sample_size(records):
    heavy = records["tails: Weibull, shape 0.5"]
    few, many = heavy.measured["Bayesian ε, Student, unclipped"]
    assert many > few > 1_000 * heavy.certified["DP ε"]
    assert heavy.measured[f"{limits.KNOWN}, unclipped"] == math.inf
    light = records["tails: Weibull, shape 2"].measured
    assert light["Bayesian ε, Student"][-1] < light[limits.KNOWN] / 2
    assert light[limits.MOST] < light[limits.KNOWN] / 2
