"""Exact noise from random bytes: its distribution, that of its sums, refined comparisons."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax.federated import noise, simulated_entropy
from dpjax.federated.noise import SYSTEM, draw_noise

FALSE_ALARM = 1e-6
MANY = 60_000


def probabilities(scale, reach):
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * scale**2))
    return weights / weights.sum()


def sum_probabilities(scale, count, reach):
    """Of the sum of ``count`` draws, by discrete convolution."""
    one = probabilities(scale, reach)
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, one)
    return total


def chi_square_p(samples, expected):
    """Pearson's test on the values with at least 20 expected, the others together."""
    reach = (expected.size - 1) // 2
    counts = np.bincount(samples + reach, minlength=expected.size)
    often = expected * samples.size >= 20
    seen = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum()) * samples.size
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], wanted[:-1]
    return stats.chisquare(seen, wanted * (seen.sum() / wanted.sum())).pvalue


@pytest.mark.parametrize("scale", [1, 2, 3, 17])
def test_draw_noise_is_discrete_gaussian(scale):
    drawn = draw_noise(simulated_entropy(scale), np.full(MANY, scale))
    expected = probabilities(scale, 20 * scale)
    assert chi_square_p(drawn, expected) > FALSE_ALARM
    # Power: 5 % less noise, and zero of twice the probability.
    assert chi_square_p(drawn, probabilities(0.95 * scale, 20 * scale)) < FALSE_ALARM
    expected[20 * scale] *= 2
    assert chi_square_p(drawn, expected / expected.sum()) < FALSE_ALARM


@pytest.mark.parametrize(("count", "scale"), [(2, 2), (7, 3), (10, 2)])
def test_draw_noise_sum_has_the_convolved_distribution(count, scale):
    entropy = simulated_entropy(count)
    total = sum(draw_noise(entropy, np.full(MANY, scale)) for _ in range(count))
    expected = sum_probabilities(scale, count, 15 * scale)
    assert chi_square_p(total, expected) > FALSE_ALARM
    fewer = np.pad(sum_probabilities(scale, count - 1, 15 * scale), 15 * scale)
    assert chi_square_p(total, fewer) < FALSE_ALARM  # power: one share too few


@pytest.mark.parametrize(("scale", "accuracy"), [(2, 1e-15), (4, 1e-60)])
def test_sums_of_discrete_gaussians_are_almost_discrete_gaussian(scale, accuracy):
    """Log ratio of the convolution of three to one of three times the variance, in 100 digits."""
    with mpmath.workdps(100):

        def weights(variance, reach):
            found = [mpmath.exp(-mpmath.mpf(k * k) / (2 * variance)) for k in range(reach + 1)]
            total = 2 * mpmath.fsum(found) - found[0]
            return {k: found[abs(k)] / total for k in range(-reach, reach + 1)}

        one = weights(scale**2, 24 * scale)
        two = weights(2 * scale**2, 34 * scale)
        three = weights(3 * scale**2, 40 * scale)
        for k in range(0, 6 * scale, scale):
            convolved = mpmath.fsum(two[k - j] * mass for j, mass in one.items() if k - j in two)
            error = abs(mpmath.log(convolved / three[k]))
            assert error < 2 * accuracy
        assert error > 0


def test_draw_noise_entries_have_their_own_scales():
    scales = np.array([1, 1000, 2**50] * 3000)
    drawn = draw_noise(simulated_entropy(2), scales).reshape(-1, 3)
    np.testing.assert_allclose(drawn.std(axis=0) / scales[:3], 1.0, atol=6 / np.sqrt(2 * 3000))
    correlations = np.corrcoef(drawn.T) - np.eye(3)
    assert np.abs(correlations).max() < 6 / np.sqrt(3000)


def test_draw_noise_of_the_system_differs_in_each_draw():
    scales = np.full(50, 10**6)
    assert np.any(draw_noise(SYSTEM, scales) != draw_noise(SYSTEM, scales))


def test_draw_noise_refined_comparisons_equal_fast_ones(monkeypatch):
    scales = np.array([1, 3, 1000, 2**40] * 200)
    fast = draw_noise(simulated_entropy(9), scales)
    monkeypatch.setattr(noise, "_GUARD", 2.0)  # every comparison is refined
    np.testing.assert_array_equal(draw_noise(simulated_entropy(9), scales), fast)


@pytest.mark.parametrize("number", [0, 3, 5])
def test_half_normal_refines_digits_equal_to_the_table(number):
    """On either side of a cumulative probability, to 95 bits."""
    table = noise._cumulative_digits()
    with mpmath.workdps(60):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / 2) for k in range(40)]
        exact = mpmath.fsum(weights[: number + 1]) / mpmath.fsum(weights)
        first = int(exact * 2**31)
        second = int(exact * 2**95) - first * 2**64
    assert int(table[number]) == first
    for word, expected in ((second - 1, number), (second + 1, number + 1)):

        def entropy(size, word=word):
            return word.to_bytes(8, "little")

        found = noise._half_normal(entropy, np.array([first], np.uint64))
        assert found.tolist() == [expected]


def test_cumulative_digits_are_those_of_half_normal_weights():
    table = noise._cumulative_digits().astype(np.float64) / 2.0**31
    weights = np.exp(-(np.arange(30.0) ** 2) / 2)
    exact = (weights.cumsum() / weights.sum())[: table.size]
    assert np.all((exact - 2.0**-31 < table) & (table <= exact))
    assert int(noise._cumulative_digits()[-1]) == 2**31 - 1


def test_draw_noise_draws_words_of_an_incomplete_run_again():
    """A word above the last whole multiple of the scale would favour small remainders."""
    scale = 900_000_000_000_001
    words = iter([2**63 + 5, 2**64 - 1, 7])  # the candidate, its remainder, the remainder again
    taken = []

    def entropy(size):
        taken.append(size)
        return next(words).to_bytes(8, "little")

    # The sign is negative, the half-normal number zero, and the acceptance certain.
    assert draw_noise(entropy, np.array([scale])).tolist() == [-7]
    assert taken == [8, 8, 8]


def test_draw_noise_blocks_are_independent(monkeypatch):
    monkeypatch.setattr(noise, "_BLOCK", 1000)
    drawn = draw_noise(simulated_entropy(4), np.full(3000, 500)).reshape(3, 1000)
    correlations = np.corrcoef(drawn) - np.eye(3)
    # Five standard errors, of three correlations: a false alarm of 2e-6.
    assert np.abs(correlations).max() < 5 / np.sqrt(1000)
    again = np.concatenate([drawn[0], drawn[0]]).reshape(2, 1000)
    assert np.corrcoef(again)[0, 1] > 5 / np.sqrt(1000)  # power: one block twice
