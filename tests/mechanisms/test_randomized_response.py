"""Randomized response: probabilities, guarantee, debiased frequencies and their error bars."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM, attacked_epsilon, chi_square_p, coverage_is_at_least

from dpjax.accounting import calibrate
from dpjax.mechanisms import RandomizedResponse

pytestmark = pytest.mark.usefixtures("strict_numerics")

MANY = 100_000
COINS = RandomizedResponse(2, 0.5, "replace_one")
FIVE = RandomizedResponse(5, 0.3, "replace_one")


@cache
def release(used):
    return jax.jit(used.release)


@cache
def answers(used, truth, seed=0):
    return np.asarray(release(used)(jax.random.key(seed), jnp.full(MANY, truth)))


@pytest.mark.parametrize("used", [COINS, FIVE])
def test_release_probabilities(used):
    k, keep = used.num_categories, used.keep_probability
    for truth in (0, k - 1):
        drawn = answers(used, truth)
        assert drawn.dtype == np.int32
        chances = [(1 - keep) / k + keep * (j == truth) for j in range(k)]
        assert chi_square_p(drawn, chances.__getitem__, range(k - 1)) > FALSE_ALARM
        # power: other categories only when the truth is not told
        excluding = [keep if j == truth else (1 - keep) / (k - 1) for j in range(k)]
        assert chi_square_p(drawn, excluding.__getitem__, range(k - 1)) < FALSE_ALARM


@pytest.mark.parametrize("used", [COINS, FIVE])
def test_pure_epsilon_and_certificate(used):
    k, keep = used.num_categories, used.keep_probability
    other = (1 - keep) / k
    assert used.pure_epsilon == pytest.approx(math.log((keep + other) / other))
    if k == 2:
        assert used.pure_epsilon == pytest.approx(math.log((1 + keep) / (1 - keep)))
    certificate = used.certificate(1e-9)
    assert certificate.epsilon == pytest.approx(used.pure_epsilon, rel=2e-3)
    assert certificate.epsilon >= used.pure_epsilon * (1 - 1e-6)
    delta = 0.1
    exact = math.log((keep + other - delta) / other)
    assert used.certificate(delta).epsilon == pytest.approx(exact, rel=2e-2)


@pytest.mark.parametrize("used", [COINS, FIVE])
def test_release_attacked_epsilon(used):
    outcomes = [lambda x, j=j: x == j for j in range(used.num_categories)]
    ones, others = answers(used, 0, 1), answers(used, 1, 2)
    attacked = attacked_epsilon(ones, others, outcomes)
    assert 0.85 * used.pure_epsilon < attacked <= used.pure_epsilon
    # power: a tenth tells the truth after all
    ones, others = (np.where(np.arange(MANY) % 10, x, t) for x, t in ((ones, 0), (others, 1)))
    assert attacked_epsilon(ones, others, outcomes) > used.pure_epsilon


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 6.0, 30.0])
@pytest.mark.parametrize("k", [2, 10])
def test_from_epsilon_and_with_privacy_factor(epsilon, k):
    used = RandomizedResponse.from_epsilon(k, epsilon=epsilon, adjacency="replace_one")
    assert used.pure_epsilon == pytest.approx(epsilon, rel=1e-3 if epsilon > 20 else 1e-12)
    assert used.with_privacy_factor(2.0).pure_epsilon == pytest.approx(
        used.pure_epsilon / 2, rel=1e-12
    )


def test_calibrate_randomized_response():
    found = calibrate(FIVE, epsilon=0.5, delta=1e-6)
    assert 0.495 <= found.pure_epsilon <= 0.5 * (1 + 1e-4)
    assert found.num_categories == 5


def people(shares, size):
    return jnp.asarray(np.repeat(np.arange(len(shares)), np.multiply(shares, size).astype(int)))


def test_frequencies_of_two_coins():
    drawn = release(COINS)(jax.random.key(3), people((0.7, 0.3), MANY))
    estimate, error = jax.jit(COINS.frequencies)(drawn)
    assert float(estimate[1]) == pytest.approx(2 * float(drawn.mean()) - 0.5, abs=1e-6)
    assert float(estimate.sum()) == pytest.approx(1, abs=1e-6)
    # Each answer varies by 3/4 times 1/4, whatever the truth; the estimate doubles it.
    assert float(error[0]) == pytest.approx(2 * math.sqrt(3 / 16 / MANY), rel=1e-5)


SHARES = (0.6, 0.05, 0.05, 0.3, 0.0)


@pytest.fixture(scope="module")
def surveys():
    """Four thousand surveys of the same four hundred people."""
    keys = jax.random.split(jax.random.key(5), 4000)
    asked = people(SHARES, 400)
    return jax.jit(jax.vmap(lambda key: FIVE.release(key, asked)))(keys)


def test_frequencies_are_unbiased(surveys):
    estimates, errors = jax.jit(jax.vmap(FIVE.frequencies))(surveys)
    deviation = estimates.std(axis=0)
    # five standard errors of a mean for five categories: false alarm 3e-6
    off = np.abs(estimates.mean(axis=0) - np.array(SHARES)) / (deviation / np.sqrt(4000))
    assert off.max() < 5
    # The deviation of 4,000 is known to 1.1 %; the error is itself estimated.
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), deviation, rtol=0.06)
    # power: without debiasing the largest share is hundreds of errors off
    naive = np.mean(np.asarray(surveys) == 0)
    assert abs(naive - SHARES[0]) / (float(deviation[0]) / np.sqrt(4000)) > 100


def test_confidence_interval_coverage(surveys):
    interval = jax.jit(jax.vmap(lambda drawn: FIVE.confidence_interval(drawn, 0.95)))
    low, high = interval(surveys)
    truth = np.array(SHARES)
    covered = (np.asarray(low) <= truth) & (np.asarray(high) >= truth)
    # the normal approximation is a per cent or two off at four hundred answers
    assert coverage_is_at_least(0.93, covered)
    half = np.asarray(high - low) / 4
    narrow = np.abs(np.asarray(low + high) / 2 - truth) <= half
    assert not coverage_is_at_least(0.93, narrow)


def test_release_of_answers_out_of_range():
    key = jax.random.key(6)
    odd = release(FIVE)(key, jnp.full(MANY, 77))
    assert set(np.asarray(odd).tolist()) == set(range(5))
    np.testing.assert_array_equal(odd, release(FIVE)(key, jnp.full(MANY, 4)))
    below = release(FIVE)(key, jnp.full(MANY, -2))
    np.testing.assert_array_equal(below, release(FIVE)(key, jnp.full(MANY, 0)))


def test_release_of_booleans():
    key = jax.random.key(7)
    truth = jnp.arange(MANY) % 2
    np.testing.assert_array_equal(release(COINS)(key, truth == 1), release(COINS)(key, truth))


def test_release_is_independent():
    one, two = answers(COINS, 0).reshape(2, -1)
    assert abs(np.corrcoef(one, two)[0, 1]) < 6 / math.sqrt(MANY / 2)


def test_release_at_keep_probability_near_one():
    # In float32 it would be one: every answer the truth, under a finite epsilon. The probability
    # of no swap in 50,000 answers is exp(-50,000 * 0.0003), below 1e-6.
    keep = 1 - 3e-4
    used = RandomizedResponse(2, keep, "replace_one")
    drawn = np.asarray(used.release(jax.random.key(0), np.zeros(50_000, int)))
    assert 0 < drawn.mean() < 3e-4
    nearest = RandomizedResponse.from_epsilon(2, epsilon=36.0, adjacency="replace_one")
    assert nearest.keep_probability < 1
    assert nearest.release(jax.random.key(0), np.array([1, 0])).tolist() == [1, 0]
