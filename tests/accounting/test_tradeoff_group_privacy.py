import numpy as np
import pytest
from tradeoff_cases import LEVELS, LOSSES

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Group,
    Identity,
    Laplace,
    group,
    is_at_least,
    mixture,
)


@pytest.mark.parametrize(("mu", "size"), [(0.5, 2), (1.0, 3), (2.0, 5)])
def test_groups_of_gaussians_by_the_general_rule(mu, size):
    found, exact = Group(Gaussian(mu), size), group(Gaussian(mu), size)
    assert exact == Gaussian(mu * size)
    np.testing.assert_allclose(found(LEVELS), exact(LEVELS), rtol=1e-8, atol=1e-14)
    losses = np.append(LOSSES, 25.0)
    np.testing.assert_allclose(found.delta(losses), exact.delta(losses), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("budget", [0.3, 1.0, 3.0])
def test_groups_of_pure_budgets_have_the_multiple(budget):
    curve = group(ApproximateDP(budget), 3)
    assert is_at_least(curve, ApproximateDP(3 * budget))
    # The bound is attained at the least levels.
    assert curve.true_positive_rate(1e-9) == pytest.approx(1e-9 * np.exp(3 * budget), rel=1e-9)
    assert curve.delta(3 * budget) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_groups_of_laplace_are_the_shift_of_the_whole_group(scale):
    found, exact = group(Laplace(scale), 2), Laplace(scale / 2)
    np.testing.assert_allclose(found(LEVELS), exact(LEVELS), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found.delta(LOSSES), exact.delta(LOSSES), rtol=1e-9, atol=1e-14)


def test_an_asymmetric_group_against_its_definition():
    curve = mixture(Gaussian(2.0), 0.3)
    twice = group(curve, 2)
    np.testing.assert_allclose(twice(LEVELS), curve(1 - curve(LEVELS)), rtol=1e-9, atol=1e-14)
    back = twice.inverse()
    np.testing.assert_allclose(back(twice(LEVELS)), LEVELS, rtol=0, atol=1e-9)
    assert not twice.is_symmetric


def test_a_group_with_detection_for_free():
    pair = Discrete([0.0, 2 / 3, 1 / 3], [0.5, 0.5, 0.0])
    assert group(pair, 2)(0.0) == pair(0.5)
    assert group(pair, 2).delta(100.0) == pytest.approx(1 - pair(0.5))
    assert group(pair, 1) is pair
    assert group(Identity(), 7) == Identity()


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_size_that_is_no_count_is_refused(size):
    with pytest.raises(ValueError, match="size must be a whole number >= 1, got"):
        group(Gaussian(1.0), size)
