import numpy as np
import pytest
from helpers.tradeoff_cases import LEVELS, LOSSES, assert_is_trade_off, pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Identity,
    Laplace,
    compose,
    distance,
    is_at_least,
    mixture,
    power,
)
from dpjax.accounting.tradeoff import composition as module


def test_compose_gaussians():
    exact = compose(Gaussian(3.0), Identity(), Gaussian(4.0))
    assert exact.is_exact
    assert exact.lower == Gaussian(5.0)
    assert power(Gaussian(0.5), 16).upper == Gaussian(2.0)
    assert compose(Identity(), Identity()).lower == Identity()
    alone = mixture(Gaussian(1.0), 0.1)
    assert compose(Gaussian(0.0), alone).lower is alone


@given(pairs(), pairs())
def test_compose_small_pairs_is_exact(first, second):
    found = compose(first, second)
    p, q = (np.multiply.outer(a, b).ravel() for a, b in ((first.p, second.p), (first.q, second.q)))
    product = Discrete(p, q)
    assert found.is_exact
    np.testing.assert_allclose(found.lower(LEVELS), product(LEVELS), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.lower.delta(LOSSES), product.delta(LOSSES), atol=1e-12)


def test_power_of_responses_against_binomial():
    count, budget = 20, 0.4
    kept = 1 / (1 + np.exp(-budget))
    successes = np.arange(count + 1)
    exact = Discrete(binom.pmf(successes, count, 1 - kept), binom.pmf(successes, count, kept))
    found = power(ApproximateDP(budget), count)
    assert found.is_exact
    assert found.lower.p.size == count + 1
    np.testing.assert_allclose(found.lower(LEVELS), exact(LEVELS), rtol=1e-9, atol=1e-13)


def _on_grids(curve, count, grid_size=1024):
    """Composes as if there were no closed form."""
    spacing = sum(module._reach(curve)) / grid_size
    return tuple(
        module._curve(module._repeated(grid, count)) for grid in module._grids(curve, spacing)
    )


@pytest.mark.parametrize(("mu", "count"), [(0.3, 1), (0.3, 20), (3.0, 4), (1e-3, 7)])
def test_power_encloses_gaussian(mu, count):
    exact = Gaussian(mu * np.sqrt(count))
    lower, upper = _on_grids(Gaussian(mu), count)
    for curve in (lower, upper):
        assert_is_trade_off(curve)
        assert distance(curve, exact) < 2e-4
    levels = np.concatenate([LEVELS, upper.alphas, lower.alphas])
    assert np.all(lower(levels) <= exact(levels) + 1e-12)
    assert np.all(upper(levels) >= exact(levels) - 1e-12)
    losses = mu * np.linspace(-6, 6, 49) * np.sqrt(count)
    assert np.all(lower.delta(losses) >= exact.delta(losses) - 1e-12)
    assert np.all(upper.delta(losses) <= exact.delta(losses) + 1e-12)


def test_power_narrows_with_square_of_spacing():
    exact = Gaussian(1.0)
    gaps = [[distance(c, exact) for c in _on_grids(Gaussian(0.5), 4, size)] for size in (128, 512)]
    for coarse, fine in zip(*gaps, strict=True):
        assert fine < coarse / 10


def test_power_check_rounding_the_wrong_way():
    # The power of the checks above: curves shifted by one step of the grid are caught.
    mu, count = 0.3, 20
    exact = Gaussian(mu * np.sqrt(count))
    lower, upper = _on_grids(Gaussian(mu), count)
    step = sum(module._reach(Gaussian(mu))) / 1024
    shifted = lower.delta(LOSSES + step), upper.delta(LOSSES - step)
    assert np.any(shifted[0] < exact.delta(LOSSES) - 1e-12)
    assert np.any(shifted[1] > exact.delta(LOSSES) + 1e-12)


@pytest.mark.parametrize("rate", [256 / 60_000, 0.2])
def test_power_of_asymmetric_step(rate):
    step = mixture(Gaussian(1.0), rate)
    lower, upper = compose(step, step)
    assert is_at_least(upper, lower, 1e-9)
    assert distance(lower, upper) < 3e-4
    # Two steps, integrated over the outcome of the first at every slope.
    noise = np.linspace(-9, 10, 4_001)
    width = noise[1] - noise[0]
    absent = np.exp(-(noise**2) / 2) / np.sqrt(2 * np.pi) * width
    loss = np.log1p(rate * np.expm1(noise - 0.5))
    for losses in (np.array([0.01, 0.3, 2.0]), np.array([-0.2])):
        rest = step.delta(losses[:, None] - loss)
        exact = rest @ (absent * np.exp(loss))
        assert np.all(upper.delta(losses) <= exact + 1e-10)
        assert np.all(exact <= lower.delta(losses) + 1e-10)
    np.testing.assert_allclose(power(step, 2).lower(LEVELS), lower(LEVELS), atol=1e-12)


def test_compose_curves_of_several_kinds():
    parts = (
        Laplace(1.0),
        Gaussian(0.7),
        ApproximateDP(0.5, slack=1e-3),
        mixture(Gaussian(2.0), 0.1),
    )
    lower, upper = compose(*parts)
    assert not compose(*parts).is_exact
    assert is_at_least(upper, lower)
    assert distance(lower, upper) < 3e-4
    again = compose(*reversed(parts))
    np.testing.assert_allclose(again.lower(LEVELS), lower(LEVELS), atol=1e-11)
    # Leaving one out is more private.
    assert np.all(compose(*parts[1:]).lower(LEVELS) >= upper(LEVELS) - 1e-9)
    back = compose(*(part.inverse() for part in parts))
    np.testing.assert_allclose(lower.inverse()(LEVELS), back.lower(LEVELS), atol=1e-9)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(
        st.sampled_from([Laplace(0.3), Gaussian(9.0), ApproximateDP(0.0, slack=0.2)]), min_size=2
    )
)
def test_power_of_degenerate_curves(parts):
    for curve in compose(*parts[:3], mixture(Identity(), 0.5), grid_size=64):
        assert_is_trade_off(curve)


def test_compose_and_power_refuse():
    with pytest.raises(ValueError, match=r"curves must be at least one, got \(\)"):
        compose()
    with pytest.raises(ValueError, match="count must be a whole number >= 1, got 0"):
        power(Laplace(1.0), 0)
    with pytest.raises(ValueError, match="grid_size must be a whole number >= 2, got 1"):
        power(Laplace(1.0), 2, grid_size=1)
