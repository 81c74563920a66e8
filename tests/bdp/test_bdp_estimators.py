import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax.bdp.estimators import empirical_bernstein_upper_bound, student_upper_bound

GAMMA = 0.05
TRIALS = 4_000
DRAWS = 100


def plain_student(values, gamma):
    """Theorem 4 word for word."""
    quantile = stats.t.ppf(1 - gamma, len(values) - 1)
    return np.mean(values) + quantile * np.std(values) / math.sqrt(len(values) - 1)


def plain_bernstein(values, gamma, bound):
    count, level = len(values), math.log(2 / gamma)
    near = math.sqrt(2 * np.var(values, ddof=1) * level / count)
    return np.mean(values) + near + 7 * bound * level / (3 * (count - 1))


def coverage(estimates, mean):
    """How often log estimates of a mean are above it."""
    return float(np.mean(estimates[..., 0] >= math.log(mean)))


def covers(share):
    """Whether 4,000 trials are in line with 1 - gamma: 5 standard errors, wrong once in 3e6."""
    return share >= 1 - GAMMA - 5 * math.sqrt(GAMMA * (1 - GAMMA) / TRIALS)


@pytest.mark.parametrize("gamma", [0.3, 1e-3, 1e-8])
def test_bounds_are_the_published_formulas(gamma):
    values = np.random.default_rng(0).exponential(2.0, (3, 400, 2))
    logs, bound = np.log(values), 30.0
    ours = np.exp(student_upper_bound(logs, gamma))
    bernstein = np.exp(empirical_bernstein_upper_bound(logs, gamma, math.log(bound)))
    for row, column in np.ndindex(3, 2):
        draws = values[row, :, column]
        assert ours[row, column] == pytest.approx(plain_student(draws, gamma), rel=1e-7)
        expected = min(bound, plain_bernstein(draws, gamma, bound))
        assert bernstein[row, column] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("gamma", [1e-12, 1e-15, 1e-16])
@pytest.mark.parametrize("count", [2, 5, 1_024])
def test_student_upper_bound_keeps_the_quantile_of_small_probabilities(gamma, count):
    """Of draws with M = 1 and S = 1 / (2 sqrt(N - 1)), the estimate less 1 is t / (2 (N - 1))."""
    mean_and_spread = np.full(count, 1.0)
    mean_and_spread[:2] += np.array([1, -1]) * math.sqrt(count / 8 / (count - 1))
    quantile = (
        np.expm1(student_upper_bound(np.log(mean_and_spread)[:, None], gamma)[0]) * 2 * (count - 1)
    )
    with mpmath.workdps(40):
        half, share = (
            mpmath.mpf(count - 1) / 2,
            (count - 1) / (count - 1 + mpmath.mpf(quantile) ** 2),
        )
        tail = mpmath.betainc(half, 0.5, 0, share, regularized=True) / 2
    assert float(tail) == pytest.approx(gamma, rel=1e-9, abs=0)


def test_bounds_are_equivariant_beyond_the_range_of_floats():
    logs = np.random.default_rng(3).normal(0, 2, (50, 4))
    shifts = np.array([0.0, 1e5, -1e5, 700.0])
    np.testing.assert_allclose(
        student_upper_bound(logs + shifts, GAMMA),
        student_upper_bound(logs, GAMMA) + shifts,
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        empirical_bernstein_upper_bound(logs + shifts, GAMMA, 9.0 + shifts),
        empirical_bernstein_upper_bound(logs, GAMMA, 9.0) + shifts,
        rtol=1e-12,
    )


def test_bounds_ignore_masked_draws():
    rng = np.random.default_rng(4)
    logs, mask = rng.normal(0, 1, (6, 40, 3)), rng.random((6, 40)) < 0.6
    spoilt = np.where(mask[..., None], logs, 1e9)
    masked = (
        student_upper_bound(spoilt, GAMMA, mask),
        empirical_bernstein_upper_bound(spoilt, GAMMA, 8.0, mask),
    )
    for row in range(6):
        left = logs[row][mask[row]]
        np.testing.assert_allclose(masked[0][row], student_upper_bound(left, GAMMA), rtol=1e-12)
        np.testing.assert_allclose(
            masked[1][row], empirical_bernstein_upper_bound(left, GAMMA, 8.0), rtol=1e-12
        )
    np.testing.assert_array_equal(
        student_upper_bound(logs, GAMMA, np.ones((6, 40), bool)), student_upper_bound(logs, GAMMA)
    )


def test_bounds_of_fewer_than_two_draws_are_infinite():
    logs, mask = np.ones((3, 5, 2)), np.zeros((3, 5), bool)
    mask[1, 0] = mask[2, 0] = mask[2, 3] = True
    np.testing.assert_array_equal(
        student_upper_bound(logs, GAMMA, mask)[:, 0], [np.inf, np.inf, 1.0]
    )
    bounds = empirical_bernstein_upper_bound(logs, GAMMA, [2.0, 3.0], mask)
    np.testing.assert_array_equal(bounds[:2], [[2.0, 3.0], [2.0, 3.0]])
    assert student_upper_bound(np.ones((1, 1)), GAMMA) == np.inf
    assert student_upper_bound(np.ones((0, 1)), GAMMA) == np.inf
    assert student_upper_bound(np.ones((4, 0, 7)), GAMMA).shape == (4, 7)
    assert student_upper_bound(np.ones((0, 5, 7)), GAMMA, np.ones((0, 5), bool)).shape == (0, 7)
    for equal in (-np.inf, 0.0, 3e4):  # their own estimate
        assert student_upper_bound(np.full((30, 1), equal), 1e-15) == equal


def test_bounds_of_infinite_draws_are_infinite():
    logs = np.array([[0.0], [1.0], [np.inf]])
    assert student_upper_bound(logs, GAMMA) == np.inf
    assert empirical_bernstein_upper_bound(logs, GAMMA, np.inf) == np.inf
    assert student_upper_bound(logs, GAMMA, np.array([True, True, False])) < np.inf


def test_empirical_bernstein_is_at_most_the_largest_value():
    logs = np.random.default_rng(5).uniform(-3, 2, (20, 50, 4))
    bounds = np.array([2.0, 2.5, 4.0, np.inf])
    values = empirical_bernstein_upper_bound(logs, 1e-15, bounds)
    assert np.all(values <= bounds)
    assert np.all(values[..., :3] == bounds[:3])  # 50 draws are too few for 1e-15
    many = empirical_bernstein_upper_bound(np.tile(logs, (1, 100, 1)), 1e-15, bounds)
    assert np.all(many[..., :2] < bounds[:2] - 0.2)


def test_student_upper_bound_covers_the_mean_of_normal_draws():
    draws = np.random.default_rng(1).normal(10.0, 1.0, (TRIALS, DRAWS, 1))
    share = coverage(student_upper_bound(np.log(draws), GAMMA), 10.0)
    assert covers(share)
    assert share <= 1 - GAMMA + 5 * math.sqrt(GAMMA * (1 - GAMMA) / TRIALS)  # nor is it loose
    # power: their mean does not
    assert not covers(coverage(np.log(draws.mean(axis=1)), 10.0))


def test_empirical_bernstein_covers_rare_large_draws_and_student_does_not():
    """One draw in 1,000 is 10^4, others are 1: the mean, 10.999, shows in one batch of ten."""
    rare = np.random.default_rng(2).random((TRIALS, DRAWS, 1)) < 1e-3
    logs, mean = np.log(np.where(rare, 1e4, 1.0)), 1e-3 * 1e4 + (1 - 1e-3)
    # 1 - 0.999^100 of the batches have one
    assert coverage(student_upper_bound(logs, GAMMA), mean) < 0.15
    assert covers(coverage(empirical_bernstein_upper_bound(logs, GAMMA, math.log(1e4)), mean))


def test_empirical_bernstein_is_near_the_mean_of_many_draws():
    draws = np.random.default_rng(6).beta(0.5, 8.0, (100, 20_000, 1))
    bounds = empirical_bernstein_upper_bound(np.log(draws), GAMMA, 0.0)
    assert coverage(bounds, 0.5 / 8.5) == 1.0
    assert np.all(np.exp(bounds) < 1.1 * 0.5 / 8.5)
    assert coverage(np.log(draws.mean(axis=1)), 0.5 / 8.5) < 0.7


LOGS = np.zeros((3, 1))


@pytest.mark.parametrize(
    ("bound", "arguments", "message"),
    [
        *[
            (student_upper_bound, (LOGS, gamma), r"failure_probability must be in \(0, 1")
            for gamma in (0.0, 0.6)
        ],
        (student_upper_bound, (np.zeros(3), 0.1), "log_values must be of shape"),
        (student_upper_bound, (LOGS * math.nan, 0.1), "log_values must be numbers"),
        (student_upper_bound, (LOGS, 0.1, np.ones(3)), "mask must be bool of shape"),
        (
            student_upper_bound,
            (LOGS, 0.1, np.ones(2, bool)),
            r"mask must be bool of shape \(3,\), .* got bool of shape \(2,\)",
        ),
        *[
            (
                empirical_bernstein_upper_bound,
                (LOGS, 0.1, bound),
                f"log_bound must be at least every sample's log, got {bound}",
            )
            for bound in (-0.1, math.nan)
        ],
    ],
)
def test_arguments_of_bounds_are_refused(bound, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        bound(*arguments)
