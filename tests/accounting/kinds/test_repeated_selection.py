"""Repeated selection: published values, brute force over score orders, Monte Carlo, refusals."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import certified_of, gaussian, laplace, poisson, response
from scipy.stats import chi2, geom, logser, nbinom
from scipy.stats import poisson as poisson_distribution

from dpjax.accounting import UnsupportedEventError, epsilon, epsilon_bounds, gdp, profile_bounds
from dpjax.accounting.events import decompose
from dpjax.sampling.repetitions import (
    PoissonRepetitions,
    TruncatedNegativeBinomial,
    repetitions_of,
)

DELTA = 1e-5
# Of a 0.5-Gaussian run: shape, mean, epsilon by privacy profiles, by Rényi divergences, and of the
# worst score order that was tried, all computed independently.
REFERENCES = [
    (0.0, 10, 2.94, 3.64, 2.84),
    (0.0, 100, 3.63, 4.33, 3.48),
    (1.0, 10, 3.15, 4.32, 3.00),
    (1.0, 100, 4.19, 5.44, 3.95),
    (math.inf, 10, 4.23, 4.91, 3.78),
    (math.inf, 100, 22.2, 20.0, 11.7),
]


slow = pytest.mark.slow


def best_of(run, mean, shape):
    return dp_event.RepeatAndSelectDpEvent(run, mean, shape)


@pytest.mark.parametrize(("shape", "mean", "profiles", "renyi", "tried"), REFERENCES)
def test_bounds_are_the_reference_values(shape, mean, profiles, renyi, tried):
    event = best_of(gaussian(2.0), mean, shape)
    lower, upper = epsilon_bounds(event, DELTA, adjacency="add_remove")
    assert upper == pytest.approx(min(profiles, renyi), abs=0.006)
    by_renyi = epsilon(event, DELTA, adjacency="add_remove", method="rdp")
    assert by_renyi == pytest.approx(renyi, abs=0.006)
    # The lower bound is rounded down by up to 0.4 %, and more orders are tried here.
    assert 0.995 * tried <= lower < upper


@pytest.mark.parametrize("shape", [0.0, 1.0])
@pytest.mark.parametrize("mean", [10, 100])
def test_bound_without_the_mean_is_refuted(mean, shape):
    """Power: without the factor E[K] of delta the bound is below the lower one."""
    repetitions = repetitions_of(mean, shape)
    shift = repetitions.largest_log_ratio(lambda epsilons: gdp.delta(0.5, epsilons))
    right = shift + gdp.epsilon(0.5, DELTA / mean)
    wrong = shift + gdp.epsilon(0.5, DELTA)
    lower, upper = epsilon_bounds(best_of(gaussian(2.0), mean, shape), DELTA, adjacency="zero_out")
    assert upper == pytest.approx(right, rel=2e-4)
    assert wrong < lower


def test_a_fixed_number_of_runs_is_not_covered():
    """Power: the best of exactly ten runs exceeds the bound of a geometric number of mean ten."""
    x = np.linspace(-12, 12, 400_001)
    p, q = (np.exp(-((x - shift) ** 2) / 2) for shift in (0.5, 0.0))
    p, q = p / p.sum(), q / q.sum()
    above = np.roll(np.arange(x.size), -np.searchsorted(np.cumsum(p), 0.2))  # worst first
    ends = [np.append(0.0, np.cumsum(masses[above])) ** 10 for masses in (p, q)]
    selected, reference = (np.diff(end) for end in ends)
    upper = epsilon_bounds(best_of(gaussian(2.0), 10, 1.0), DELTA, adjacency="zero_out").upper
    excess = np.maximum(selected - math.exp(upper) * reference, 0.0).sum()
    assert excess > 2 * DELTA


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_pure_privacy_costs_two_and_shape_times(shape):
    """Papernot & Steinke (2022), Corollary 3, which the worst score order attains."""
    lower, upper = epsilon_bounds(best_of(laplace(2.0), 1e4, shape), 1e-9, adjacency="zero_out")
    assert upper <= (2 + shape) * 0.5 * 1.003
    assert lower >= (2 + shape) * 0.5 * 0.995


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_one_run_is_the_run(adjacency):
    run = poisson(1.3, 0.01, 200)
    lower, upper = epsilon_bounds(best_of(run, 1, 1.0), DELTA, adjacency=adjacency)
    base = epsilon_bounds(run, DELTA, adjacency=adjacency)
    assert upper == pytest.approx(base.upper, rel=2e-3)
    assert lower == pytest.approx(base.lower, rel=5e-3)


@pytest.mark.parametrize(
    ("run", "adjacency"),
    [
        (poisson(1.0, 0.01, 300), "zero_out"),
        pytest.param(poisson(1.0, 0.01, 300), "replace_one", marks=slow),
        (dp_event.ComposedDpEvent([poisson(2.0, 0.1, 20), gaussian(5.0)]), "add_remove"),
    ],
)
def test_bounds_of_sampled_runs_and_compositions(run, adjacency):
    once = epsilon(run, DELTA, adjacency=adjacency)
    lower, upper = epsilon_bounds(best_of(run, 10, 1.0), DELTA, adjacency=adjacency)
    assert once < lower < upper < 1.15 * lower

    # Composed with another release, and in either direction.
    other = dp_event.ComposedDpEvent([best_of(run, 10, 1.0), gaussian(3.0)])
    both = epsilon_bounds(other, DELTA, adjacency=adjacency)
    assert (
        upper
        < both.lower
        < both.upper
        < upper + epsilon(gaussian(3.0), DELTA / 2, adjacency=adjacency)
    )
    for direction in ("add", "remove"):
        below, above = profile_bounds(other, [0.0, 1.0], adjacency=adjacency, direction=direction)
        assert np.all(below <= above)
        assert np.all(below > 0)


def _delta(selected, reference, epsilons):
    excess = selected - np.multiply.outer(np.exp(epsilons), reference)
    return np.maximum(excess, 0.0).sum(-1)


def test_bounds_of_many_runs_on_average():
    """One order's bound at zero is above what the other's gives below zero."""
    event = best_of(poisson(0.9, 1024 / 60_000, 293), 620_000.0, 0.0)
    lower, upper = epsilon_bounds(event, DELTA, adjacency="zero_out")
    by_renyi = epsilon(event, DELTA, adjacency="zero_out", method="rdp")
    assert 4.5 < lower < upper < by_renyi


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_no_order_exceeds_the_bound(shape):
    """All orders of randomised response with three answers, each answer cut in two."""
    p = np.array([4, 4, 1, 1, 1, 1]) / 12
    q = np.array([1, 1, 4, 4, 1, 1]) / 12
    epsilons = np.linspace(0.0, 6.0, 25)
    repetitions = repetitions_of(5.0, shape)
    worst = np.zeros_like(epsilons)
    for order in itertools.permutations(range(6)):
        pair = (repetitions.select(each[list(order)]) for each in (p, q))
        worst = np.maximum(worst, _delta(*pair, epsilons))
    event = best_of(response(0.5, 3), 5.0, shape)
    below, above = profile_bounds(event, epsilons, adjacency="replace_one")
    assert np.all(worst <= above * (1 + 1e-9) + 1e-14)
    assert np.all(below <= above)
    # Power: one run's profile at a shifted epsilon, without E[K], is exceeded.
    assert np.any(worst > 1.01 * np.asarray(above) / 5)


@pytest.mark.parametrize(
    "repetitions",
    [
        TruncatedNegativeBinomial(4.0, shape=0.0),
        TruncatedNegativeBinomial(4.0, shape=1.0),
        TruncatedNegativeBinomial(4.0, shape=2.5),
        PoissonRepetitions(4.0),
    ],
)
def test_selection_probabilities_are_those_of_simulated_runs(repetitions):
    """A chi-square test of 30,000 simulated selections, false alarms below 1e-6."""
    rng = np.random.default_rng(5)
    masses = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
    numbers = np.array([repetitions.quantile(u) for u in rng.random(30_000)])
    expected = repetitions.select(masses)
    assert expected.sum() == pytest.approx(1 - repetitions.probability_of_zero, rel=1e-12)

    def counts(numbers):
        best = np.array([rng.choice(5, n, p=masses).max() for n in numbers if n])
        return np.bincount(best, minlength=5)

    observed = counts(numbers)
    statistic = np.sum((observed - expected * numbers.size) ** 2 / (expected * numbers.size))
    assert statistic < chi2.isf(1e-6, 5)
    # Power: as many runs each time, of the same mean.
    wrong = counts(np.full(10_000, 4))
    assert np.sum((wrong - expected * 10_000) ** 2 / (expected * 10_000)) > 10 * chi2.isf(1e-6, 5)


def test_numbers_of_runs_have_the_distribution():
    levels = (np.arange(100_000) + 0.5) / 100_000
    cases = [
        (TruncatedNegativeBinomial(10.0, shape=1.0), geom(0.1)),
        (PoissonRepetitions(10.0), poisson_distribution(10.0)),
    ]
    logarithmic = TruncatedNegativeBinomial(10.0, shape=0.0)
    cases.append((logarithmic, logser(1 - logarithmic.gamma)))
    for repetitions, reference in cases:
        numbers = np.array([repetitions.quantile(u) for u in levels[::100]])
        assert np.array_equal(numbers, reference.ppf(levels[::100]).astype(int))
    half = TruncatedNegativeBinomial(10.0, shape=2.5)
    numbers = np.array([half.quantile(u) for u in levels[::10]])
    untruncated = nbinom(2.5, half.gamma)
    share = (untruncated.cdf(10) - untruncated.pmf(0)) / untruncated.sf(0)
    assert np.mean(numbers <= 10) == pytest.approx(share, abs=1e-4)
    assert numbers.mean() == pytest.approx(10.0, rel=2e-3)
    assert TruncatedNegativeBinomial(1.0).quantile(0.999999) == 1
    assert TruncatedNegativeBinomial(10.0).quantile(1 - 2.0**-53) < 1_000


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TruncatedNegativeBinomial(0.5), "expected must be from 1 to 1e"),
        (lambda: TruncatedNegativeBinomial(math.nan), "expected must be"),
        (lambda: TruncatedNegativeBinomial(2.0, shape=-0.5), "shape must be"),
        (lambda: TruncatedNegativeBinomial(2.0, shape=101.0), "shape must be at most 100"),
        (lambda: PoissonRepetitions(1e4), "expected must be from 1 to 500"),
        (lambda: PoissonRepetitions(4.0).quantile(1.0), "level must be"),
    ],
)
def test_numbers_of_runs_refuse(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_unknown_numbers_of_runs_are_refused():
    for mean, shape in ((0.5, 1.0), (10.0, -0.5), (1e4, math.inf)):
        event = best_of(gaussian(2.0), mean, shape)
        with pytest.raises(UnsupportedEventError, match="no such number of repetitions"):
            epsilon(event, DELTA, adjacency="zero_out", method="pld")


def test_hardly_any_noise_and_none():
    """Bounds of large losses; beyond 690 those of Rényi divergences are left."""
    lower, upper = epsilon_bounds(best_of(gaussian(0.1), 10, 1.0), DELTA, adjacency="zero_out")
    assert upper == pytest.approx(101.33, rel=1e-3)
    assert 0.95 * upper < lower
    too_little = best_of(gaussian(0.02), 10, 1.0)
    with pytest.raises(UnsupportedEventError, match="losses are mostly above"):
        epsilon(too_little, DELTA, adjacency="zero_out", method="pld")
    assert certified_of(too_little, DELTA, "zero_out")[0] == "rdp"
    bounds = epsilon_bounds(best_of(gaussian(0.0), 10, 1.0), DELTA, adjacency="zero_out")
    assert bounds == (0.0, math.inf)
    nothing = best_of(gaussian(math.inf), 10, 1.0)
    assert epsilon_bounds(nothing, DELTA, adjacency="zero_out") == (0.0, 0.0)


def test_events_with_lists_have_a_hash():
    event = best_of(dp_event.ComposedDpEvent([laplace(2.0), gaussian(2.0)]), 10, 1.0)
    (first, _), (second, _) = (decompose(event, "zero_out")[0] for _ in range(2))
    assert hash(first) == hash(second)
    assert first == second
    assert dataclasses.replace(first, adjacency="add_remove") != second
