"""Random allocation: reference values, Monte Carlo, the exact Gaussian, composition, refusals."""

import math

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
from scipy.stats import norm

from dpjax.accounting import UnsupportedEventError, epsilon, epsilon_bounds, profile_bounds
from dpjax.accounting.kinds import random_allocation
from dpjax.accounting.kinds.random_allocation import lower_losses, upper_losses
from dpjax.accounting.loss_distribution import TRANSFORM_ROUNDING
from dpjax.sampling import AllocatedSampling
from dpjax.sampling.allocation_event import RandomAllocationDpEvent

slow = pytest.mark.slow


# t, noise multiplier, epochs, delta; epsilon of removal and of addition by one lattice, computed
# independently with numpy (upper ends, of ten epochs and addition 0.03 % too large).
# Poisson's are .718, .3408 and 2.8545 in the first three.
REFERENCES = [
    (100, 1.0, 1, 1e-5, 0.620940, 0.421955),
    pytest.param(100, 1.0, 1, 1e-3, 0.298051, 0.256081, marks=slow),
    pytest.param(10, 1.0, 1, 1e-5, 2.188848, 1.36488, marks=slow),
    pytest.param(1000, 1.0, 1, 1e-5, 0.138847, 0.126294, marks=slow),
    pytest.param(1000, 0.8, 1, 1e-6, 0.450044, 0.216202, marks=slow),
    pytest.param(100, 0.6, 1, 1e-3, 1.60850, 0.6527, marks=slow),
    pytest.param(1000, 0.6, 1, 1e-3, 0.369914, 0.20176, marks=slow),
    pytest.param(10_000, 0.7, 1, 1e-6, 0.15638, 0.0875, marks=slow),
    pytest.param(100, 1.0, 10, 1e-5, 1.7015, 1.5477, marks=slow),
    pytest.param(100, 0.8, 10, 1e-5, 2.9079, 2.2570, marks=slow),
    pytest.param(50, 1.0, 40, 1e-5, 5.3470, 5.0194, marks=slow),
    pytest.param(200, 1.0, 5, 1e-8, 1.3353, 1.0121, marks=slow),
]


def repeated(num_steps, noise, count=1):
    event = RandomAllocationDpEvent(num_steps, noise)
    return event if count == 1 else SelfComposedDpEvent(event, count)


@pytest.mark.parametrize(("num_steps", "noise", "epochs", "delta", "remove", "add"), REFERENCES)
def test_bounds_hold_the_reference_values(num_steps, noise, epochs, delta, remove, add):
    event = repeated(num_steps, noise, epochs)
    lower, upper = epsilon_bounds(event, delta, adjacency="zero_out")
    assert lower <= remove * (1 + 3e-5)
    assert remove * (1 - 5e-5) <= upper <= remove * (1 + 6e-4)
    assert upper - lower <= 2e-3 * upper

    # Of each order, by delta there; not of an event with twice the steps.
    for direction, value in (("remove", remove), ("add", add)):
        below, above = profile_bounds(event, [value], adjacency="zero_out", direction=direction)
        assert below[0] <= delta * 1.005
        assert delta * 0.99 <= above[0] <= delta * 1.02
        # Lower profiles may leave out 5e-10 whatever delta is.
        assert below[0] >= delta * 0.95 - 5e-10
    assert (
        epsilon(repeated(2 * num_steps, noise, epochs), delta, adjacency="zero_out") < 0.9 * lower
    )


def sampled_deltas(num_steps, noise, epsilon, size):
    """Means and standard errors of delta at ``epsilon``, of removal and addition, by sampling."""
    draws = np.random.default_rng(0).standard_normal((size, num_steps)) / noise
    terms = np.exp(draws - 1 / (2 * noise**2))
    without = terms.mean(axis=1)
    # With the record, one term is drawn at its own step.
    terms[:, 0] = np.exp(draws[:, 0] + 1 / (2 * noise**2))
    present = terms.mean(axis=1)
    removal = np.maximum(1 - math.exp(epsilon) / present, 0)
    addition = np.maximum(1 - math.exp(epsilon) * without, 0)
    return [(x.mean(), x.std() / math.sqrt(size)) for x in (removal, addition)]


@pytest.mark.parametrize(
    ("num_steps", "noise", "eps"), [(2, 1.0, 1.0), (3, 2.0, 0.3), (10, 0.5, 1.0)]
)
def test_monte_carlo(num_steps, noise, eps):
    """Each of twelve comparisons is off by five standard errors with probability below 3e-7."""
    samples = sampled_deltas(num_steps, noise, eps, 200_000)
    for direction, (mean, error) in zip(("remove", "add"), samples, strict=True):
        below, above = profile_bounds(
            repeated(num_steps, noise), [eps], adjacency="add_remove", direction=direction
        )
        assert below[0] - 5 * error <= mean <= above[0] + 5 * error
        assert above[0] - below[0] <= 0.01 * above[0]
        # An event of one step more is off by more than that.
        other = profile_bounds(
            repeated(num_steps + 1, noise), [eps], adjacency="add_remove", direction=direction
        )
        assert not other.lower[0] - 5 * error <= mean <= other.upper[0] + 5 * error


def test_lattices_of_one_step_are_gaussian():
    """The event has two steps at least; the lattices of one are the lognormal itself."""
    at, mu = np.linspace(0.0, 4.5, 10), 1.0
    exact = norm.cdf(mu / 2 - at / mu) - np.exp(at) * norm.cdf(-mu / 2 - at / mu)
    losses = upper_losses(1, mu, 0.02)
    for direction in ("remove", "add"):
        above = losses.delta(at, direction)
        assert np.all((exact <= above) & (above <= exact * 1.01))
        ys, masses = np.array(lower_losses(1, mu, direction).atoms).T
        below = np.maximum(1 - np.exp(at[:, None] - ys), 0) @ masses
        assert np.all((below <= exact) & (exact * 0.99 <= below))
    event = AllocatedSampling(10, steps_per_epoch=1).event([(1.0, 1)])
    assert event == GaussianDpEvent(1.0)
    assert epsilon(event, 1e-5, adjacency="zero_out") == pytest.approx(4.377178, abs=1e-6)


@pytest.mark.parametrize("num_steps", [2, 100])
def test_what_rounding_may_hide_counts_as_infinite(num_steps):
    """The margin of two Fourier transforms of so many terms each, in every range of the sums."""
    sums = random_allocation._sums(num_steps, 1.0, "upper")
    assert all(one.left_out >= 2 * TRANSFORM_ROUNDING * num_steps for one in sums)
    far = upper_losses(num_steps, 1.0, 0.02).delta(np.array([100.0]), "remove")
    assert far[0] >= 2 * TRANSFORM_ROUNDING * num_steps


@pytest.mark.parametrize("num_steps", [1, 2, 30])
@pytest.mark.parametrize("mu", [0.3, 1.0, 1.8])
def test_terms_are_ordered(num_steps, mu):
    """E(w - x)_+ of a spread is above that of w, and of a contraction below; E(x - w)_+ too."""
    step = 0.25 / num_steps
    values = step * np.arange(401)
    points = np.linspace(0, values[-1], 3001)[1:]
    z = np.log(points) / mu
    end = np.log(values[-1]) / mu
    call = (norm.cdf(end - mu / 2) - norm.cdf(z - mu / 2)) - points * (
        norm.cdf(end + mu / 2) - norm.cdf(z + mu / 2)
    )
    put = points * norm.cdf(z + mu / 2) - norm.cdf(z - mu / 2)
    for side, sign in (("upper", 1), ("remove", -1), ("add", -1)):
        small, large = random_allocation._terms(mu, step, 400, 100, side)
        masses = small + large
        calls = np.maximum(values - points[:, None], 0) @ masses
        puts = np.maximum(points[:, None] - values, 0) @ masses
        if side != "add":
            assert np.all(sign * (calls - call) >= -1e-13)
        if side != "remove":
            assert np.all(sign * (puts - put) >= -1e-12)
        if side == "upper":
            assert np.max(calls - call) > 1e-9


def test_composition_with_other_events():
    event = ComposedDpEvent([repeated(20, 1.0, 2), GaussianDpEvent(2.0)])
    lower, upper = epsilon_bounds(event, 1e-5, adjacency="add_remove")
    assert upper - lower <= 3e-3 * upper
    assert upper > epsilon(GaussianDpEvent(2.0), 1e-5, adjacency="add_remove")


def test_replace_one_is_refused():
    with pytest.raises(UnsupportedEventError, match="no theorem bounds random allocation"):
        epsilon(repeated(10, 1.0), 1e-5, adjacency="replace_one")


@pytest.mark.parametrize("num_steps", [1, 0, 2.5])
def test_number_of_steps_is_refused(num_steps):
    with pytest.raises(ValueError, match="num_steps must be"):
        RandomAllocationDpEvent(num_steps, 1.0)
