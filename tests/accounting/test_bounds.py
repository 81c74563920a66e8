"""Both ends of an epsilon: with the truth between them, and close together."""

import functools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import (
    fixed_size,
    gaussian,
    laplace,
    poisson,
    response,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.accounting import (
    UnsupportedEventError,
    accountants,
    epsilon,
    epsilon_bounds,
    gdp,
    profile_bounds,
)
from dpjax.accounting.events import decompose
from dpjax.accounting.lower_bounds import epsilon_lower_bound

DELTA = 1e-5
MIXED = dp_event.ComposedDpEvent([poisson(1.3, 0.01, 200), gaussian(4.0), laplace(9.0)])

# Noise, rate, steps, delta, and what prv-accountant 0.2.0 estimates, give or take its own bracket's
# half width: the six rows of the MNIST table, Adult, IMDb and MovieLens.
ROWS = [
    (1.3, 256 / 60_000, 3_515, 1e-5, 0.86442, 0.0101),
    (1.1, 256 / 60_000, 14_062, 1e-5, 2.38160, 0.0102),
    (0.7, 256 / 60_000, 10_546, 1e-5, 5.63941, 0.0104),
    (0.6, 256 / 60_000, 14_531, 1e-5, 10.94948, 0.0207),
    (0.55, 256 / 60_000, 15_937, 1e-5, 15.71577, 0.0209),
    (0.5, 256 / 60_000, 23_437, 1e-5, 28.04530, 0.0514),
    (0.55, 256 / 29_305, 2_060, 1e-5, 11.80477, 0.0208),
    (0.56, 512 / 25_000, 439, 1e-5, 12.14074, 0.0209),
    (0.6, 1 / 80, 1_600, 1e-6, 12.74943, 0.0207),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "estimate", "half_width"), ROWS)
def test_epsilon_bounds_of_published_rows(noise, rate, steps, delta, estimate, half_width):
    lower, upper = epsilon_bounds(poisson(noise, rate, steps), delta, adjacency="add_remove")
    assert lower < estimate < upper
    assert estimate - half_width < lower
    assert upper < estimate + half_width
    assert upper < 1.003 * lower


CASES = {
    "gaussian": (gaussian(2.0), "add_remove"),
    "replaced gaussian": (gaussian(20.0, 30), "replace_one"),
    "poisson": (poisson(1.0, 0.1, 30), "add_remove"),
    "one poisson": (poisson(0.7, 0.01, 1), "add_remove"),
    "replaced poisson": (poisson(1.3, 0.01, 200), "replace_one"),
    "fixed size": (fixed_size(1.3, 10, 1_000, 200), "replace_one"),
    "one fixed size": (fixed_size(1.3, 10, 1_000, 1), "replace_one"),
    "laplace": (laplace(5.0, 3), "add_remove"),
    "replaced laplace": (laplace(5.0, 1), "replace_one"),
    "poisson laplace": (
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)), 50
        ),
        "add_remove",
    ),
    "discrete laplace": (dp_event.DiscreteLaplaceDpEvent(0.5, 3), "replace_one"),
    "response": (response(0.9, 3, 100), "replace_one"),
    "mixed": (MIXED, "add_remove"),
    "replaced mixed": (
        dp_event.ComposedDpEvent([MIXED, response(0.9, 3, 2), fixed_size(2.0, 1, 50, 9)]),
        "replace_one",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_epsilon_bounds_are_narrow(name):
    event, adjacency = CASES[name]
    lower, upper = epsilon_bounds(event, DELTA, adjacency=adjacency)
    assert 0.99 * upper < lower <= upper
    assert upper == epsilon(event, DELTA, adjacency=adjacency)


@pytest.fixture(params=["in closed form", "on a grid"])
def route(request, monkeypatch):
    """How the upper bound of Gaussian releases is computed."""
    if request.param == "on a grid":
        monkeypatch.setattr(accountants, "_gaussian_mu", lambda atoms: None)
    return request.param


@pytest.mark.parametrize(("noise", "count"), [(0.1, 1), (2.0, 1), (30.0, 1_000), (200.0, 3)])
@pytest.mark.parametrize("delta", [0.1, 1e-2, 1e-5, 1e-9])
def test_epsilon_bounds_of_gaussians(route, noise, count, delta):
    for adjacency, clips in (("add_remove", 1), ("replace_one", 2)):
        exact = gdp.epsilon(clips * math.sqrt(count) / noise, delta)
        lower, upper = epsilon_bounds(gaussian(noise, count), delta, adjacency=adjacency)
        assert lower <= exact <= upper * (1 + 1e-12)
        assert upper - lower <= 0.003 * max(upper, delta)
        if route == "in closed form":
            assert upper - exact <= 1e-8 * max(upper, delta)


@pytest.mark.parametrize("mu", [2e-5, 1e-3, 0.3, 5.0, 60.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.2])
def test_closed_form_of_gaussians_against_high_precision(mu, delta):
    """Never below the exact value, whatever the rounding; two different noises compose."""
    event = dp_event.ComposedDpEvent([gaussian(1.25 / mu, 1), gaussian(5 / (3 * mu), 1)])
    upper = epsilon(event, delta, adjacency="add_remove")
    with mpmath.workdps(60):
        sigmas = [mpmath.mpf(1.25 / mu), mpmath.mpf(5 / (3 * mu))]
        exact_mu = mpmath.sqrt(sum(1 / sigma**2 for sigma in sigmas))
    assert _exact_delta(exact_mu, upper) <= mpmath.mpf(delta)


@functools.cache
def _profiles(name, direction=None):
    event, adjacency = CASES[name]
    return profile_bounds(event, np.linspace(-2, 3, 26), adjacency=adjacency, direction=direction)


@pytest.mark.parametrize("name", CASES)
def test_profile_bounds_are_narrow(name):
    lower, upper = _profiles(name)
    assert np.all(lower <= upper)
    assert np.all(upper - lower <= 4e-3)
    assert np.all(np.diff(lower) <= 1e-12)
    assert np.all(lower >= -np.expm1(np.linspace(-2, 3, 26)))


@pytest.mark.parametrize("name", ["poisson", "poisson laplace"])
def test_profile_bounds_of_directions_are_dual(name):
    """delta of one at epsilon is 1 - e^epsilon (1 - delta of the other at -epsilon)."""
    epsilons = np.linspace(-2, 2, 21)
    event, adjacency = CASES[name]
    add, remove = (
        profile_bounds(event, epsilons, adjacency=adjacency, direction=direction)
        for direction in ("add", "remove")
    )
    for ours, theirs in zip(add, remove, strict=True):
        np.testing.assert_allclose(ours, 1 - np.exp(epsilons) * (1 - theirs[::-1]), atol=4e-3)
    both = profile_bounds(event, epsilons, adjacency=adjacency)
    for end, one, other in zip(both, add, remove, strict=True):
        np.testing.assert_allclose(end, np.maximum(one, other), atol=1e-12)
    assert np.max(np.abs(add.upper - remove.upper)) > 5e-3


def test_closed_form_is_never_below_the_exact_delta():
    """At random small mu, where rounding matters most, and random epsilon and delta."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        mu = 2.0 ** rng.uniform(-16, -12)
        event = gaussian(1 / mu, 1)
        mu = 1 / mpmath.mpf(1 / mu)
        delta = 10.0 ** rng.uniform(-250, -5)
        upper = epsilon(event, delta, adjacency="add_remove")
        assert _exact_delta(mu, upper) <= mpmath.mpf(delta)
        epsilons = float(mu) * rng.uniform(-3, 12, 5)
        deltas = profile_bounds(event, epsilons, adjacency="add_remove").upper
        for one, value in zip(epsilons.tolist(), deltas.tolist(), strict=True):
            assert _exact_delta(mu, one) <= mpmath.mpf(value)


def _exact_delta(mu, epsilon):
    with mpmath.workdps(300):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        above = mpmath.ncdf(-epsilon / mu + mu / 2)
        return above - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("noise", [0.02, 1.0, 100.0, 5e4])
def test_profile_of_gaussians_far_from_zero(noise):
    """Bounds at any epsilon: no NaN, and never zero, which would be pure privacy."""
    epsilons = np.array([-1e4, -40.0, -0.5, 0.0, 0.5, 40.0, 1e4])
    upper = profile_bounds(gaussian(noise, 1), epsilons, adjacency="add_remove").upper
    assert np.all(upper > 0)
    assert np.all(upper <= 1)
    for one, value in zip(epsilons.tolist(), upper.tolist(), strict=True):
        assert _exact_delta(1 / mpmath.mpf(noise), one) <= mpmath.mpf(value)


@pytest.mark.usefixtures("route")
def test_profile_bounds_of_gaussians():
    epsilons = np.linspace(-3, 6, 31).reshape(1, 31)
    lower, upper = profile_bounds(gaussian(3.0, 9), epsilons, adjacency="add_remove")
    exact = gdp.delta(1.0, epsilons)
    assert lower.shape == upper.shape == (1, 31)
    assert np.all(lower <= exact + 1e-15)
    assert np.all(exact <= upper)


def _outcomes(rng, noise, rate, steps, runs, *, present):
    """What ``runs`` attackers see who know everything but one record: sums of its terms."""
    chosen = rng.random((runs, steps)) < rate if present else np.zeros((runs, steps))
    return chosen + noise * rng.standard_normal((runs, steps))


def _attacked_delta(simulated_noise, epsilons):
    """The delta that the best test attains on samples, at a noise of 1 and rate 0.2 in 8 steps."""
    rng, (rate, steps, runs) = np.random.default_rng(7), (0.2, 8, 100_000)

    def losses(present):
        seen = _outcomes(rng, simulated_noise, rate, steps, runs, present=present)
        density = np.exp((seen - 0.5) / simulated_noise**2)
        return np.sum(np.log1p(rate * (density - 1)), axis=1)

    with_record, without = losses(True), losses(False)
    return np.array(
        [np.mean(with_record > e) - math.exp(e) * np.mean(without > e) for e in epsilons]
    )


def test_profile_bounds_against_likelihood_ratio_attack():
    """Fails falsely with probability 1e-6 at most (Hoeffding, over five epsilons and two sides)."""
    epsilons = np.array([-0.5, 0.0, 0.5, 1.0, 2.0])
    lower, upper = profile_bounds(
        poisson(1.0, 0.2, 8), epsilons, adjacency="add_remove", direction="remove"
    )
    error = (1 + np.exp(epsilons)) * math.sqrt(math.log(20 / 1e-6) / (2 * 100_000))
    attained = _attacked_delta(1.0, epsilons)
    assert np.all(attained <= upper + error)
    assert np.all(attained >= lower - error)
    assert np.all(_attacked_delta(0.5, epsilons)[1:] > (upper + error)[1:])


@settings(deadline=None, max_examples=8, derandomize=True)
@given(
    noise=st.floats(0.4, 8.0),
    rate=st.floats(1e-3, 0.9),
    steps=st.integers(1, 500),
    log_delta=st.floats(-9, -1),
    adjacency=st.sampled_from(["add_remove", "replace_one"]),
)
def test_epsilon_bounds_of_any_sampled_gaussian(noise, rate, steps, log_delta, adjacency):
    delta = 10**log_delta
    lower, upper = epsilon_bounds(poisson(noise, rate, steps), delta, adjacency=adjacency)
    assert lower <= upper
    assert upper - lower <= 0.005 * max(upper, delta)
    more = epsilon_bounds(poisson(noise, rate, 2 * steps), delta, adjacency=adjacency).lower
    assert more >= lower
    assert (
        epsilon_bounds(poisson(1.5 * noise, rate, steps), delta, adjacency=adjacency).lower <= lower
    )


def test_epsilon_bounds_of_nothing_and_everything():
    assert epsilon_bounds(dp_event.NoOpDpEvent(), DELTA, adjacency="add_remove") == (0, 0)
    assert epsilon_bounds(gaussian(0.0), DELTA, adjacency="add_remove") == (math.inf, math.inf)
    # Noiseless on a sample: at a delta above the rate epsilon is finite, so no lower end is.
    sampled = dp_event.PoissonSampledDpEvent(0.01, gaussian(0.0))
    assert epsilon_bounds(sampled, DELTA, adjacency="add_remove") == (0, math.inf)
    lower, upper = profile_bounds(dp_event.NoOpDpEvent(), [-1.0, 0.0, 1.0], adjacency="add_remove")
    for end in (lower, upper):
        np.testing.assert_allclose(end, [-math.expm1(-1), 0, 0], atol=1e-9)


def test_epsilon_bounds_refuse_unknown_losses():
    with pytest.raises(UnsupportedEventError, match="no guarantee"):
        epsilon_bounds(fixed_size(1.0, 10, 1_000, 3), DELTA, adjacency="add_remove")
    with pytest.raises(UnsupportedEventError, match="without noise"):
        profile_bounds(gaussian(0.0), [1.0], adjacency="add_remove")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"epsilons": [math.nan]}, "epsilons must be finite numbers"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
        ({"direction": "up"}, "direction must be one of 'add', 'remove', got 'up'"),
    ],
)
def test_profile_bounds_refuse(changed, text):
    arguments = {"event": gaussian(1.0), "epsilons": [1.0], "adjacency": "add_remove", **changed}
    with pytest.raises(ValueError, match=text):
        profile_bounds(**arguments)


@pytest.mark.slow
def test_epsilon_lower_bound_of_rare_large_loss():
    step = dp_event.PoissonSampledDpEvent(1e-7, dp_event.GaussianDpEvent(0.2))
    event = dp_event.SelfComposedDpEvent(step, 1_000)
    assert epsilon_lower_bound(decompose(event, "add_remove"), 1e-5, 2.0447798) > 2.04


def test_epsilon_bounds_of_almost_certain_loss():
    """Rarely a bucket is drawn at random; the loss is log(1 + 4 (1 - p) / p) else."""
    lower, upper = epsilon_bounds(response(1e-30, 4, 1), DELTA, adjacency="replace_one")
    truth = math.log(4) + 30 * math.log(10) + math.log1p(-DELTA)
    # The response is so nearly deterministic that the upper end is the truth, to the last digit.
    assert lower <= truth <= upper * (1 + 1e-15)
    assert upper - lower <= 0.001 * truth
