import numpy as np
import pytest

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Identity,
    Laplace,
    distance,
    is_at_least,
    mixture,
    subsample,
)


def test_curves_of_one_family_are_ordered():
    families = [
        [Identity(), Gaussian(0.1), Gaussian(0.1001), Gaussian(5.0)],
        [Identity(), Laplace(2.0), Laplace(1.99), Laplace(0.1)],
        [ApproximateDP(0.0), ApproximateDP(0.0, slack=0.1), ApproximateDP(1.0, slack=0.1)],
        [subsample(Gaussian(1.0), 0.1), subsample(Gaussian(1.0), 0.11), Gaussian(1.0)],
    ]
    for family in families:
        for i, f in enumerate(family):
            for j, g in enumerate(family):
                assert is_at_least(f, g) == (i <= j)


@pytest.mark.parametrize("budget", [20.0, 25.0])
def test_a_difference_in_the_far_tail_alone_is_seen(budget):
    # Both are the same curve to within 1e-8, but at the least levels.
    rare = Discrete([np.exp(-budget) * 1e-9, 1 - np.exp(-budget) * 1e-9], [1e-9, 1 - 1e-9])
    assert distance(rare, Identity()) < 1e-8
    assert not is_at_least(rare, Identity())
    assert not is_at_least(rare.inverse(), Identity())
    assert is_at_least(Identity(), rare)


def test_curves_that_cross_are_not_ordered():
    f, g = Gaussian(1.0), ApproximateDP(1.0)
    assert not is_at_least(f, g)
    assert not is_at_least(g, f)
    h = mixture(Gaussian(2.0), 0.3)
    assert not is_at_least(h, h.inverse())
    assert not is_at_least(h.inverse(), h)


def test_the_distance_of_gaussians():
    mu = 0.8
    # The slopes agree where the quantile is half of mu, as for the total variation distance.
    assert distance(Gaussian(mu), Identity()) == pytest.approx(Gaussian(mu).delta(0.0), rel=1e-5)
    assert distance(Gaussian(mu), Gaussian(mu)) == 0
