"""The certified epsilon against closed forms and integrals: never below, at most 1 % above."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from helpers.accounting_cases import (
    certified_of,
    fixed_size,
    gaussian,
    hockey_stick,
    laplace,
    normal_mixture,
    poisson,
    response,
    truncated,
)
from scipy.optimize import brentq
from scipy.stats import binom

from dpjax.accounting import (
    ApproximateDpEvent,
    UnsupportedEventError,
    accountants,
    epsilon,
    epsilon_bounds,
    gdp,
)
from dpjax.accounting.accountants import METHODS, certified_epsilon, pld_profile
from dpjax.accounting.events import TooLittleNoiseError, decompose

DELTA = 1e-5


def _check_tight(value: float, exact: float) -> None:
    """Never below the truth, up to what the oracle itself rounds, and at most 1 % above."""
    assert exact * (1 - 1e-9) <= value <= exact * 1.01


def _exact_delta(epsilon, first, second, reach):
    """The delta between two densities, in whichever direction it is larger."""
    return max(hockey_stick(epsilon, *pair, reach) for pair in ((first, second), (second, first)))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.01), (1.0, 0.1), (2.0, 0.5)])
def test_pld_epsilon_of_one_sampled_step(noise, rate):
    centre, up, down = (normal_mixture(rate, noise, shift) for shift in (0, 1, -1))
    event, reach = poisson(noise, rate, 1), 14 * noise + 1
    for adjacency, pair in (("add_remove", (centre, up)), ("replace_one", (up, down))):
        value = epsilon(event, DELTA, adjacency=adjacency)
        assert _exact_delta(value, *pair, reach) <= DELTA
        assert _exact_delta(value / 1.01, *pair, reach) >= DELTA


@pytest.mark.parametrize(("noise", "count"), [(0.05, 1)])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_pld_epsilon_of_gaussians_with_hardly_any_noise(noise, count, delta):
    for adjacency, clips in (("add_remove", 1), ("replace_one", 2)):
        value = epsilon(gaussian(noise, count), delta, adjacency=adjacency)
        _check_tight(value, gdp.epsilon(clips * math.sqrt(count) / noise, delta))


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-10, 1e-11])
@pytest.mark.parametrize(("noise", "count"), [(10.0, 100), (100.0, 10_000)])
def test_pld_epsilon_covers_rounding_of_compositions(noise, count, delta):
    # Sampling nearly everything is composed by Fourier transform, and no less private than this.
    value = epsilon(poisson(noise, 1 - 1e-12, count), delta, adjacency="add_remove")
    exact = gdp.epsilon(math.sqrt(count) / noise, delta)
    assert exact * (1 - 1e-9) <= value
    assert value <= exact * (1.01 if delta >= 1e-10 else 1.1)


def test_pld_epsilon_lowers_delta_by_rounding():
    # How far an unguarded composition rounds, and to which side, differs between FFT libraries.
    event, delta, margin = poisson(100.0, 0.5, 10_000), 1e-11, 10_000 * 2.0**-50
    value = epsilon(event, delta, adjacency="add_remove")
    unguarded = PLDAccountant(value_discretization_interval=1e-4).compose(event)
    assert value >= unguarded.get_epsilon(delta - margin / 2) > unguarded.get_epsilon(delta)


def test_pld_epsilon_refuses_delta_below_rounding():
    with pytest.raises(UnsupportedEventError, match=r"no finite epsilon at delta = 1e-13.*'rdp'"):
        epsilon(poisson(100.0, 0.5, 10_000), 1e-13, adjacency="add_remove")


def test_infinite_losses_beyond_delta_are_too_little_noise():
    """So that a calibration goes on to more noise."""
    spent = "no finite epsilon at delta = 1e-06: of that the events spend 0.001 by themselves"
    with pytest.raises(TooLittleNoiseError, match=spent):
        certified_epsilon(decompose(ApproximateDpEvent(1.0, delta=1e-3), "add_remove"), 1e-6)


def test_pld_epsilon_grid_follows_the_step():
    # A fixed interval of 1e-3 gives 0.0164 for the first; epsilon / 3,000 gives 2 % too much for
    # the second. The references were computed once on grids four times as fine as was needed.
    few = epsilon(poisson(20.0, 1e-3, 1_000), DELTA, adjacency="add_remove")
    assert few == pytest.approx(0.003343, rel=2e-3)
    many = epsilon(poisson(2.0, 1e-4, 200_000), DELTA, adjacency="add_remove")
    assert many == pytest.approx(0.07126, rel=2e-3)


def _binary_response_epsilon(noise, count, delta):
    """Exact: the loss of a binary response is plus or minus one value."""
    kept = 1 - noise / 2
    one = math.log(kept / (1 - kept))
    loss = one * (2 * np.arange(count + 1) - count)
    mass = binom.pmf(np.arange(count + 1), count, kept)

    def excess(value):
        return np.sum(mass * np.maximum(0, -np.expm1(np.minimum(value - loss, 0)))) - delta

    return brentq(excess, 0, loss[-1])


@pytest.mark.parametrize(("noise", "count"), [(0.5, 1), (0.9, 10), (0.9, 100), (0.8756469, 400)])
def test_pld_epsilon_of_responses_against_binomial(noise, count):
    value = epsilon(response(noise, 2, count), DELTA, adjacency="replace_one")
    _check_tight(value, _binary_response_epsilon(noise, count, DELTA))


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_pld_epsilon_of_one_laplace_release(adjacency):
    clips = {"add_remove": 1, "replace_one": 2}[adjacency]
    exact = clips / 2.0 + 2 * math.log1p(-DELTA)
    _check_tight(epsilon(laplace(2.0), DELTA, adjacency=adjacency), exact)
    discrete = dp_event.DiscreteLaplaceDpEvent(0.5, 3)
    value = epsilon(discrete, 1e-12, adjacency=adjacency)
    assert value == pytest.approx(0.5 * 3 * clips, rel=1e-9)


def test_pld_epsilon_of_one_fixed_size_sample():
    """Its delta is rate * delta of G_mu at log(1 + (e^epsilon - 1) / rate), the noise halved."""
    for noise, size in ((1.3, 10), (0.5, 1), (4.0, 500)):
        value = epsilon(fixed_size(noise, size, 1_000, 1), DELTA, adjacency="replace_one")
        inner = gdp.epsilon(2 / noise, DELTA * 1_000 / size)
        _check_tight(value, math.log1p(math.expm1(inner) * size / 1_000))


def test_pld_epsilon_of_sample_of_everything():
    value = epsilon(fixed_size(3.0, 50, 50, 20), DELTA, adjacency="replace_one")
    _check_tight(value, gdp.epsilon(2 * math.sqrt(20) / 3.0, DELTA))


def test_pld_profile_of_gaussians():
    epsilons = np.array([[2.0, 0.0], [-1.0, 5.0]])
    atoms = decompose(gaussian(2.0, 4), "add_remove")
    upper, exact = pld_profile(atoms, epsilons, None), gdp.delta(1.0, epsilons)
    assert np.all(exact <= upper)
    assert np.all(upper <= exact * 1.001 + 1e-12)


def _profile_of_many(count, margin=True):
    """Exact and upper profiles of ``count`` releases, near delta = 1e-12 and down to 1e-15."""
    atoms = decompose(poisson(math.sqrt(count), 1 - 1e-12, count), "add_remove")
    epsilons = np.linspace(7.0, 8.0, 23)
    upper = pld_profile(atoms, epsilons, None)
    return gdp.delta(1.0, epsilons), upper if margin else upper - count * 2.0**-50


# The sign of the rounding depends on the count and on the version of the transform.
COUNTS = (3_000, 5_000, 7_000, 9_000, 12_000, 30_000)


@pytest.mark.parametrize("count", COUNTS)
def test_pld_profile_covers_rounding(count):
    """Sampling nearly everything is composed by Fourier transform."""
    exact, upper = _profile_of_many(count)
    assert 1e-15 < exact[-1] < 1e-12 < exact[0] < 2e-11
    assert np.all(exact <= upper)
    assert np.all(upper - exact <= 2 * count * 2.0**-50)


def test_power_pld_profile_without_margin():
    profiles = [_profile_of_many(count, margin=False) for count in COUNTS]
    assert any(np.any(upper < exact) for exact, upper in profiles)


@pytest.mark.parametrize("noise", [0.9, 1.0, 1.02, 1.2])
def test_pld_epsilon_near_zero(noise):
    """One step whose delta at zero is near 0.2: refining for epsilon's sake would never end."""
    centre, moved = (normal_mixture(0.3, noise, shift) for shift in (-1, 1))
    value = epsilon(poisson(noise, 0.3, 1), 0.2, adjacency="replace_one")
    assert _exact_delta(value, centre, moved, 14 * noise + 1) <= 0.2
    if value:
        assert _exact_delta(max(value - 4e-4, 0), centre, moved, 14 * noise + 1) >= 0.2 - 1e-6


def test_pld_epsilon_of_truncation_that_never_happens():
    for adjacency in ("add_remove", "replace_one"):
        sampled = epsilon(poisson(1.0, 0.02, 50), DELTA, adjacency=adjacency)
        cut = epsilon(truncated(1.0, 1_000), DELTA, adjacency=adjacency)
        assert cut == pytest.approx(sampled, rel=1e-6)
        assert epsilon(truncated(1.0, 25), DELTA, adjacency=adjacency) > sampled


def test_pld_epsilon_of_nothing():
    assert epsilon(dp_event.NoOpDpEvent(), DELTA, adjacency="add_remove") == 0
    assert epsilon(gaussian(1e6), 0.1, adjacency="replace_one") == 0


def test_pld_epsilon_of_cached_step():
    def values():
        return [
            epsilon(poisson(2.0, 0.1, count), DELTA, adjacency=adjacency)
            for count in (3, 30)
            for adjacency in ("add_remove", "replace_one")
        ]

    accountants._build.cache_clear()
    first = values()
    assert values() == first
    assert len(set(first)) == 4


def test_certified_epsilon_of_hardly_any_noise_is_renyi():
    with pytest.raises(
        UnsupportedEventError, match=r"must be at least 0.01 for .* got 0.0001.*'rdp'"
    ):
        epsilon(gaussian(1e-4), DELTA, adjacency="add_remove")
    with pytest.raises(
        UnsupportedEventError, match=r"must be at most 10000 for .* got 1e\+08.*'rdp'"
    ):
        epsilon(laplace(1e-8), DELTA, adjacency="add_remove")
    sampled = dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1e-3))
    with pytest.raises(UnsupportedEventError, match=r"must be at most 700 for .* got 1000"):
        epsilon(sampled, DELTA, adjacency="add_remove")


@pytest.mark.parametrize("noise", [9e-3, 1e-3, 1e-50, 1e-99])
@pytest.mark.parametrize("event", [gaussian, lambda noise: gaussian(noise, 100)])
def test_epsilon_of_hardly_any_noise(event, noise):
    """Grids of these took minutes and gigabytes, and their squares were divided by."""
    for adjacency, clips in (("add_remove", 1), ("replace_one", 2)):
        method, value = certified_of(event(noise), DELTA, adjacency)
        mu = clips * math.sqrt(event(noise).count) / noise
        assert method == "rdp"
        assert gdp.epsilon(mu, DELTA) * (1 - 1e-12) <= value <= 1.2 * gdp.epsilon(mu, DELTA)
        with pytest.raises(UnsupportedEventError, match=r"must be at least 0.01"):
            epsilon_bounds(event(noise), DELTA, adjacency=adjacency)


@pytest.mark.parametrize("noise", [1e-101, 1e-300, 5e-324])
@pytest.mark.parametrize("event", [gaussian, laplace, lambda noise: poisson(noise, 0.01, 100)])
def test_epsilon_of_noise_whose_square_vanishes(event, noise):
    for count in (event(noise), dp_event.ComposedDpEvent([event(noise), gaussian(1.0, 3)])):
        for method in METHODS:
            assert epsilon(count, DELTA, adjacency="add_remove", method=method) == math.inf
        # Some epsilon may be finite, though no float certifies it: nothing is claimed from below.
        assert epsilon_bounds(count, DELTA, adjacency="add_remove") == (0.0, math.inf)
    assert epsilon_bounds(gaussian(0.0), DELTA, adjacency="add_remove") == (math.inf, math.inf)


def test_epsilon_of_noise_whose_square_overflows():
    for adjacency in ("add_remove", "replace_one"):
        value = epsilon(gaussian(1e200, 4), DELTA, adjacency=adjacency)
        assert value == pytest.approx(0.0, abs=1e-9)
