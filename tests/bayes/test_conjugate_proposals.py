"""Proposals of importance sampling: draws follow the density they state, within the bounds."""

import numpy as np
import pytest

from dpjax.bayes.conjugate.noise_aware import Proposal, normalize_weights

UNIFORMS = (np.arange(40_000) + 0.5)[:, None] / 40_000


def proposal(centre, scale, integer_valued, low=0.0, high=9.0):
    ends = np.array([low]), np.array([high])
    return Proposal(np.array([centre]), np.array([scale]), *ends, integer_valued)


@pytest.mark.parametrize(("centre", "scale"), [(4.0, 2.0), (0.0, 30.0), (9.0, 0.3)])
def test_whole_draws_follow_the_stated_density(centre, scale):
    distribution = proposal(centre, scale, integer_valued=True)
    numbers = np.arange(10.0)
    drawn = distribution.draw(UNIFORMS)[:, 0]
    assert set(drawn) <= set(numbers)
    shares = np.array([np.mean(drawn == number) for number in numbers])
    stated = normalize_weights(distribution.log_density(numbers[:, None]))
    np.testing.assert_allclose(shares, stated, atol=2e-4)
    # Power: the density at the numbers themselves is not that of rounded draws.
    unrounded = normalize_weights(-np.abs(numbers - centre) / scale)
    assert scale > 9 or np.abs(shares - unrounded).max() > 2e-3


@pytest.mark.parametrize(("low", "high"), [(0.0, 9.0), (-np.inf, np.inf), (0.0, np.inf)])
def test_continuous_draws_follow_the_stated_density(low, high):
    distribution = proposal(3.0, 2.0, integer_valued=False, low=low, high=high)
    drawn = np.sort(distribution.draw(UNIFORMS)[:, 0])
    assert drawn[0] >= low
    assert drawn[-1] <= high
    grid = np.linspace(max(low, -60), min(high, 60), 200_001)
    stated = np.cumsum(normalize_weights(distribution.log_density(grid[:, None])))
    ranks = np.interp(drawn, grid, stated)
    np.testing.assert_allclose(ranks, UNIFORMS[:, 0], atol=1e-3)


def test_fits_follow_the_weights_and_one_large_weight_does_not_decide():
    drawn = np.linspace(0, 9, 1000)[:, None]
    weights = -np.abs(drawn[:, 0] - 6.0) / 0.5
    fitted = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=1e-3)
    assert fitted.centre == pytest.approx([6.0], abs=0.02)
    assert fitted.scale == pytest.approx([1.3 * 0.5], rel=0.1)
    weights[0] = 500.0
    clipped = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=1e-3)
    assert clipped.centre == pytest.approx([6.0], abs=0.3)
    narrow = proposal(1.0, 5.0, integer_valued=False).fit(drawn, weights, least_scale=7.0)
    assert narrow.scale == [7.0]


def test_impossible_draws_do_not_count():
    drawn = np.array([[1.0], [2.0], [8.0]])
    log_weights = np.array([-np.inf, 0.0, -np.inf])
    fitted = proposal(1.0, 5.0, integer_valued=True).fit(drawn, log_weights, least_scale=0.5)
    assert fitted.centre == [2.0]
    assert normalize_weights(log_weights).tolist() == [0.0, 1.0, 0.0]
