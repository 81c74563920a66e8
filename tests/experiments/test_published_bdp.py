import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import dpjax
from dpjax import bdp
from experiments.published.bdp import (
    UnclippedGaussian,
    mean_log_moments,
    variance_log_moments,
    worst_case_log_moments,
)

ORDERS = (1, 2, 4)


def integrated(order, x, log_first, log_second):
    """The log moment of two log densities on a grid."""
    ratio = order * (log_first - log_second)
    return logsumexp(log_first + ratio) + math.log(x[1] - x[0])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("std", "other_std"), [(1.0, 1.0), (1.0, 1.05), (1.05, 1.0)])
def test_means_against_their_densities(order, std, other_std):
    x = np.linspace(-3, 3, 40_001)
    first = stats.norm.logpdf(x, 0.0, std / math.sqrt(50))
    second = stats.norm.logpdf(x, 4.0 / 50, other_std / math.sqrt(50))
    value = mean_log_moments((order,), 50, 4.0, std, other_std)
    assert value == pytest.approx(integrated(order, x, first, second), rel=1e-8)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("std", "other_std"), [(1.0, 1.1), (1.05, 1.0), (2.0, 5.0)])
def test_variances_against_their_densities(order, std, other_std):
    """N S^2 / sigma^2 is a chi-square with N - 1 degrees of freedom."""
    x, count = np.linspace(1e-6, 40, 400_001), 21
    first, second = (
        stats.gamma.logpdf(x, (count - 1) / 2, scale=2 * scale**2 / count)
        for scale in (std, other_std)
    )
    value = variance_log_moments((order,), count, std, other_std)
    assert value == pytest.approx(integrated(order, x, first, second), rel=1e-7)


def test_statistics_of_normal_draws_are_what_is_assumed():
    """Simulated log likelihood ratios of M and S^2 of 12 draws; off by 5 errors once in 2e6."""
    count, std, other_std, shift = 12, 1.0, 1.1, 2.0
    draws = np.random.default_rng(0).normal(0.0, std, (200_000, count))
    mean, variance = draws.mean(axis=1), draws.var(axis=1)

    def log_densities(center, scale):
        of_mean = stats.norm.logpdf(mean, center, scale / math.sqrt(count))
        return of_mean + stats.gamma.logpdf(variance, (count - 1) / 2, scale=2 * scale**2 / count)

    ratios = np.exp(log_densities(0.0, std) - log_densities(shift / count, other_std))
    error = ratios.std() / math.sqrt(len(ratios))
    means = mean_log_moments((1,), count, shift, std, other_std)[0]
    variances = variance_log_moments((1,), count, std, other_std)[0]
    assert abs(ratios.mean() - math.exp(means + variances)) < 5 * error
    assert abs(ratios.mean() - math.exp(means)) > 5 * error  # the variance tells something too


def replaced(rng, count, width):
    """Draws in a range, and the same with one at either end of the range."""
    draws = rng.uniform(-width / 2, width / 2, count)
    first, second = draws.copy(), draws.copy()
    first[0], second[0] = rng.uniform(-width / 2, width / 2), width / 2
    return first, second


def test_no_replaced_draw_leaks_more_than_the_worst():
    rng = np.random.default_rng(1)
    for _ in range(50):
        count = int(rng.integers(30, 300))
        first, second = replaced(rng, count, 2.0)
        for one, other in ((first, second), (second, first)):
            shift = count * (other.mean() - one.mean())
            means = mean_log_moments(ORDERS, count, shift, one.std(), other.std())
            both = means + variance_log_moments(ORDERS, count, one.std(), other.std())
            assert np.all(both <= worst_case_log_moments(ORDERS, count, 2.0, one.std()))
            assert np.all(both >= 0)


def test_the_worst_case_is_at_an_end_of_the_variances():
    std, count, width = 1.0, 200, 3.0
    change = width**2 * (count - 1) / count**2
    others = np.sqrt(np.linspace(std**2 - change, std**2 + change, 101))
    cases = [
        mean_log_moments(ORDERS, count, width, *pair) + variance_log_moments(ORDERS, count, *pair)
        for pair in ((std, others), (others, std))
    ]
    np.testing.assert_allclose(
        np.max(cases, axis=(0, 1)), worst_case_log_moments(ORDERS, count, width, std), rtol=1e-9
    )


def test_more_draws_leak_less_and_in_the_end_as_one_over_their_number():
    counts = (100, 1_000, 10_000, 100_000, 1_000_000)
    values = np.array([worst_case_log_moments(ORDERS, count, 4.0, 1.0) for count in counts])
    assert np.all(np.diff(values, axis=0) < 0)
    np.testing.assert_allclose(values[-2] / values[-1], 10, rtol=1e-2)
    orders = np.array(ORDERS)
    limit = orders * (orders + 1) * (4.0**2 / 2 + 4.0**4 / 4)
    np.testing.assert_allclose(values[-1] * counts[-1], limit, rtol=1e-2)


def test_one_draw_that_can_be_all_of_the_variance_leaks_everything():
    values = worst_case_log_moments((1,), 50, [1.0, 7.1], 1.0)[:, 0]
    assert np.isfinite(values).tolist() == [True, False]


def test_equal_statistics_have_no_divergence():
    assert mean_log_moments((3,), 10, 0.0, 2.0, 2.0) == 0
    assert variance_log_moments((3,), 10, 2.0, 2.0) == 0


def test_arguments_broadcast_and_units_cancel():
    shifts, stds = np.array([0.5, 1.0, 2.0]), np.array([[1.0], [2.0]])
    values = mean_log_moments(ORDERS, 100, shifts, stds, stds * 1.01)
    assert values.shape == (2, 3, 3)
    np.testing.assert_allclose(values[0, 1], values[1, 2], rtol=1e-9)
    worst = worst_case_log_moments(ORDERS, 100, [1e-200, 3e-200], [1e-200, 3e-200])
    np.testing.assert_allclose(worst[0], worst[1], rtol=1e-9)
    np.testing.assert_allclose(worst[0], worst_case_log_moments(ORDERS, 100, 5.0, 5.0), rtol=1e-9)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^num_draws must be a whole number >= 2, got 1"):
        mean_log_moments((1,), 1, 0.1, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"^shift must be finite numbers, got nan"):
        mean_log_moments((1,), 2, math.nan, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"^std must be finite numbers > 0, got 0"):
        variance_log_moments((1,), 2, 0, 1.0)
    with pytest.raises(ValueError, match=r"^other_std must be finite numbers > 0, got -1"):
        variance_log_moments((1,), 2, 1, -1)
    with pytest.raises(ValueError, match=r"^width must be finite numbers > 0, got 0"):
        worst_case_log_moments((1,), 2, 0, 1.0)
    with pytest.raises(ValueError, match=r"^orders must be whole numbers >= 1"):
        worst_case_log_moments((0,), 2, 1.0, 1.0)


@pytest.fixture
def unclipped():
    return UnclippedGaussian(dpjax.PoissonSampling(1_000, 0.01), noise_std=2.0, num_steps=10)


def unclipped_account(mechanism, norms):
    moments = bdp.subsampled_gaussian_log_moments(
        bdp.ORDERS, norms, sampling_rate=0.01, noise_std=2.0
    )
    return bdp.update_from_log_moments(bdp.init(mechanism), moments)


def test_unclipped_sums_have_a_finite_bdp_epsilon_and_an_infinite_dp_one(unclipped):
    account = unclipped_account(unclipped, np.full((10, 100), 0.5))
    both = bdp.epsilon(account, 1e-5)
    assert both.bdp < 2
    assert both.dp == math.inf
    assert bdp.delta(account, 1.0).dp == 1.0
    text = str(bdp.certificate(account, 1e-5))
    assert "DP epsilon inf for every record" in text
    assert "none: one record can move a sum by any amount" in text


def test_norms_of_unclipped_sums_are_not_taken(unclipped):
    with pytest.raises(ValueError, match="use update_from_log_moments"):
        bdp.update(bdp.init(unclipped), np.array([[1.0, np.inf]]))


def test_the_size_in_the_divisor_of_unclipped_sums_is_a_caveat():
    sampling = dpjax.PoissonSampling(1_000, 0.01)
    mechanism = UnclippedGaussian(sampling, noise_std=2.0, num_steps=3)
    assert mechanism.guarantee.size_constants == sampling.size_constants
