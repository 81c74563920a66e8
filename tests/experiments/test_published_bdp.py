"""Released statistics of the estimator, and sums without clipping."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import dpjax
from dpjax import bdp
from experiments.published.bdp import UnclippedGaussian, worst_case_log_moments

ORDERS = (1, 2, 4)


def log_moments(count, shift, std, other_std):
    """Log moments of mean and variance of two samples, integrated over their densities."""
    means, squares = np.linspace(-3, 3, 40_001), np.linspace(1e-6, 40, 400_001)
    densities = [
        (
            stats.norm.logpdf(means, center, scale / math.sqrt(count)),
            # The variance, times N / scale^2, is a chi-square of N - 1 degrees of freedom.
            stats.gamma.logpdf(squares, (count - 1) / 2, scale=2 * scale**2 / count),
        )
        for center, scale in ((0.0, std), (shift / count, other_std))
    ]
    return [
        sum(
            logsumexp(first + order * (first - second)) + math.log(x[1] - x[0])
            for x, first, second in zip((means, squares), *densities, strict=True)
        )
        for order in ORDERS
    ]


@pytest.mark.slow
def test_worst_case_log_moments_is_the_largest_integral_of_any_change_of_one_draw():
    std, count, width = 1.0, 50, 2.0
    change = width**2 * (count - 1) / count**2
    others = np.sqrt(np.linspace(std**2 - change, std**2 + change, 5))
    cases = [
        log_moments(count, width, *pair)
        for other in others
        for pair in ((std, other), (other, std))
    ]
    worst = worst_case_log_moments(ORDERS, count, width, std)
    np.testing.assert_allclose(worst, np.max(cases, axis=0), rtol=1e-6)
    # A smaller change of the mean costs less.
    assert np.all(log_moments(count, 0.9 * width, std, others[-1]) < worst)


def test_worst_case_log_moments_falls_as_one_over_the_number_of_draws():
    counts = (100, 1_000, 10_000, 100_000, 1_000_000)
    values = np.array([worst_case_log_moments(ORDERS, count, 4.0, 1.0) for count in counts])
    assert np.all(np.diff(values, axis=0) < 0)
    orders = np.array(ORDERS)
    limit = orders * (orders + 1) * (4.0**2 / 2 + 4.0**4 / 4)
    np.testing.assert_allclose(values[-1] * counts[-1], limit, rtol=1e-2)

    # One draw that can be all of the variance costs everything; units cancel.
    found = worst_case_log_moments((1,), 50, [1.0, 7.1], 1.0)[:, 0]
    assert np.isfinite(found).tolist() == [True, False]
    small = worst_case_log_moments(ORDERS, 100, [1e-200, 3e-200], [1e-200, 3e-200])
    expected = worst_case_log_moments(ORDERS, 100, 5.0, 5.0)
    np.testing.assert_allclose(small, [expected, expected], rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1,), 1, 1.0, 1.0), r"^num_draws must be a whole number >= 2, got 1"),
        (((1,), 2, 0, 1.0), r"^width must be finite numbers > 0, got 0"),
        (((1,), 2, 1.0, -1), r"^std must be finite numbers > 0, got -1"),
        (((0,), 2, 1.0, 1.0), r"^orders must be whole numbers >= 1"),
    ],
)
def test_worst_case_log_moments_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        worst_case_log_moments(*arguments)


def test_unclipped_gaussian_has_a_finite_bdp_epsilon_and_an_infinite_dp_one():
    sampling = dpjax.PoissonSampling(1_000, 0.01)
    mechanism = UnclippedGaussian(sampling, noise_std=2.0, num_steps=10)
    assert mechanism.guarantee.size_constants == sampling.size_constants
    moments = bdp.subsampled_gaussian_log_moments(
        bdp.ORDERS, np.full((10, 100), 0.5), sampling_rate=0.01, noise_std=2.0
    )
    account = bdp.update_from_log_moments(bdp.init(mechanism), moments)
    both = bdp.epsilon(account, 1e-5)
    assert both.bdp < 2
    assert both.dp == math.inf
    assert bdp.delta(account, 1.0).dp == 1.0
    text = str(bdp.certificate(account, 1e-5))
    assert "DP epsilon inf for every record" in text
    assert "none: one record can move a sum by any amount" in text
    with pytest.raises(ValueError, match="use update_from_log_moments"):
        bdp.update(bdp.init(mechanism), np.array([[1.0, np.inf]]))
