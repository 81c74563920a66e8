"""Default priors, from public bounds: intervals cover parameters that no prior was fitted to."""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from helpers.conjugate_cases import laplace_release
from scipy import stats

from dpjax.bayes.conjugate import (
    ConjugateFamily,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    noise_aware_posterior,
)

LEVEL = 0.9


class Case(NamedTuple):
    """A family, the distribution of its true parameters, and that of records given these."""

    family: ConjugateFamily
    parameters: Any  # from a generator
    records: Any  # from a generator, parameters and the number of records


def _means_and_variances(rng):
    """Means whose records stay within (20, 120) up to three standard deviations."""
    deviation = 100 * np.exp(rng.uniform(np.log(1 / 20), np.log(1 / 6)))
    return np.array([rng.uniform(20 + 3 * deviation, 120 - 3 * deviation), deviation**2])


CASES = {
    "unknown variance": Case(
        NormalUnknownVariance((20.0, 120.0)),
        _means_and_variances,
        lambda rng, parameters, n: rng.normal(parameters[0], parameters[1] ** 0.5, n),
    ),
    "known variance": Case(
        NormalKnownVariance((20.0, 120.0), variance=25.0),
        lambda rng: rng.uniform(40, 100),
        lambda rng, mean, n: rng.normal(mean, 5.0, n),
    ),
    "Poisson": Case(
        GammaPoisson(largest_count=20),
        lambda rng: np.exp(rng.uniform(0.0, np.log(7.0))),
        lambda rng, rate, n: rng.poisson(rate, n),
    ),
}


def coverage(case, num_examples, epsilon, repeats, family=None):
    """Share of intervals that cover their parameter, for each parameter."""
    rng = np.random.default_rng(num_examples)
    release = laplace_release(family or case.family, "replace_one", epsilon)
    parameters = np.array([case.parameters(rng) for _ in range(repeats)])
    records = [case.records(rng, each, num_examples) for each in parameters]
    sums = np.array([release.sum_records(each) for each in records], np.float64)
    released = sums + rng.laplace(scale=float(release.mechanism.scale), size=sums.shape)
    posterior = noise_aware_posterior(
        jax.random.key(0), release, released, num_examples=num_examples, num_particles=300
    )
    # The central interval has those whose distribution function is near a half.
    return (np.abs(posterior.cdf(parameters) - 0.5) <= LEVEL / 2).mean(axis=0)


def assert_covers(found, repeats):
    """Within 3.5 points, the figure asked for with half a point, and four standard errors."""
    slack = 0.035 + 4 * (LEVEL * (1 - LEVEL) / repeats) ** 0.5
    assert np.abs(found - LEVEL).max() <= slack, found


@pytest.mark.parametrize("name", CASES)
def test_intervals_under_default_priors_cover(name):
    assert_covers(coverage(CASES[name], 100, 1.0, 300), 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize("num_examples", [100, 1_000, 10_000])
def test_intervals_under_default_priors_cover_from_100_to_10_000_records(
    name, epsilon, num_examples
):
    repeats = 600 if num_examples < 10_000 else 400
    assert_covers(coverage(CASES[name], num_examples, epsilon, repeats), repeats)


def test_power_a_prior_of_too_small_a_variance_does_not_cover():
    family = NormalUnknownVariance((20.0, 120.0), prior_scale=1.0)
    with pytest.raises(AssertionError):
        assert_covers(coverage(CASES["unknown variance"], 100, 1.0, 300, family), 300)


def test_default_priors_follow_the_bounds():
    """90 % of the prior's standard deviations and rates; equal up to the bounds' units."""
    low, high = NormalUnknownVariance((0.0, 1.0)).prior.interval(0.9)
    np.testing.assert_allclose(np.sqrt([low[1], high[1]]), [0.0506, 0.239], rtol=0.01)
    moved = NormalUnknownVariance((20.0, 120.0)).prior.interval(0.9)
    np.testing.assert_allclose(moved.low, [20 + 100 * low[0], 1e4 * low[1]])
    np.testing.assert_allclose(moved.high, [20 + 100 * high[0], 1e4 * high[1]])
    mean = NormalKnownVariance((-10.0, 30.0), variance=1.0).prior
    assert (float(mean.mean), float(mean.variance)) == (10.0, 100.0)
    rate = GammaPoisson(largest_count=8).prior
    np.testing.assert_allclose(rate.interval(0.9), stats.gamma(1, scale=2).interval(0.9))


def test_priors_that_are_given_are_taken():
    given = NormalUnknownVariance(
        (0.0, 1.0), prior_mean=0.3, prior_strength=2.0, prior_shape=3.0, prior_scale=4.0
    )
    assert [float(x) for x in vars(given.prior).values()] == [0.3, 2.0, 3.0, 4.0]
    rate = GammaPoisson(largest_count=8, shape=2.0, rate=3.0).prior
    assert (float(rate.shape), float(rate.rate)) == (2.0, 3.0)
