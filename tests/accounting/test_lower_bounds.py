"""Lower profiles against closed forms and enumeration; each gate fails without what it is for."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.stats import binom

from dpjax.accounting import gdp, lower_bounds
from dpjax.accounting.events import atomic_event
from dpjax.accounting.kinds import laplace
from dpjax.accounting.kinds.gaussian import gaussian_loss_distribution
from dpjax.accounting.loss_distribution import chernoff_ends
from dpjax.accounting.lower_bounds import compose_lower_profile

DELTA, ETA = 1e-4, 1e-8


def response(noise, buckets):
    event = dp_event.RandomizedResponseDpEvent(noise, buckets)
    return atomic_event(event, "replace_one").loss_distribution("remove", 0.0)


def discrete_laplace(parameter, sensitivity):
    event = dp_event.DiscreteLaplaceDpEvent(parameter, sensitivity)
    return atomic_event(event, "add_remove").loss_distribution("remove", 0.0)


def _gaussians(mus, slack=1e-3):
    steps = [(gaussian_loss_distribution(mu, 1.0, 1e-14, "remove"), 1) for mu in mus]
    return compose_lower_profile(steps, slack, ETA)


def _check_below(profile, mu, share=0.0):
    """Never above the truth, and where asked no further below than a share of it."""
    exact = gdp.epsilon(mu, DELTA)
    assert (1 - share) * exact <= profile.epsilon(DELTA) if share else True
    assert profile.epsilon(DELTA) <= exact
    epsilons = np.linspace(-3, 2 * exact, 101)
    assert np.all(profile.delta(epsilons) <= gdp.delta(mu, epsilons) + 1e-15)


@pytest.mark.parametrize("mus", [(1.0,), (0.3, 0.5, 2.0), (0.1,) * 30, (5.0, 0.01)])
def test_lower_profile_of_gaussians(mus):
    mu = math.hypot(*mus)
    _check_below(_gaussians(mus), mu, share=0.005)
    _check_below(_gaussians(mus, slack=0.3), mu)


def _coarse(**changed):
    """Rounding that counts: 100 steps, the interval half of a step's deviation."""
    step = gaussian_loss_distribution(0.1, 1.0, 1e-14, "remove")
    return dataclasses.replace(compose_lower_profile([(step, 100)], 1.5, ETA), **changed)


def test_power_lower_profile_without_slack():
    _check_below(_coarse(), 1.0)
    for slack in (0.0, -_coarse().slack):
        with pytest.raises(AssertionError):
            _check_below(_coarse(slack=slack), 1.0)


def test_power_lower_profile_with_too_small_errors(monkeypatch):
    # A tenth of an interval at each step is more than the lower profile is below the truth.
    monkeypatch.setattr(lower_bounds, "_QUADRATURE", -0.1)
    with pytest.raises(AssertionError):
        _check_below(_gaussians((0.1,) * 30), math.sqrt(0.3))


def test_power_lower_profile_with_wrapped_mass(monkeypatch):
    monkeypatch.setattr(lower_bounds, "chernoff_ends", lambda *_: (-0.5, 2.5))
    with pytest.raises(AssertionError):
        _check_below(_gaussians((0.1,) * 100), 1.0)


def test_chernoff_ends_bound_the_tails():
    """The exact tails of N(1 / 2, 1) beyond the ends are below eta, and not by much."""
    step = gaussian_loss_distribution(0.1, 1.0, 1e-14, "remove")
    low, high = chernoff_ends([(*step.nodes, 100)], math.log(1 / ETA))
    assert low == pytest.approx(0.5 - math.sqrt(2 * math.log(1 / ETA)), rel=0.02)
    assert high == pytest.approx(0.5 + math.sqrt(2 * math.log(1 / ETA)), rel=0.02)


def _exact_delta(atoms, count, epsilon):
    """By enumeration of what ``count`` losses with finitely many values may be."""
    total = 0.0
    for chosen in itertools.product(atoms, repeat=count):
        losses, masses = zip(*chosen, strict=True)
        total += math.prod(masses) * max(0.0, -math.expm1(min(0.0, epsilon - sum(losses))))
    return total


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "distribution", [response(0.4, 4), discrete_laplace(0.37, 3)], ids=["rr", "laplace"]
)
def test_lower_profile_of_atoms_against_enumeration(distribution, count):
    for slack in (1e-4, 0.05, 1.0):
        profile = compose_lower_profile([(distribution, count)], slack, ETA)
        for epsilon in np.linspace(-1, count * distribution.atoms[0][0], 23):
            exact = _exact_delta(distribution.atoms, count, epsilon)
            lower = float(profile.delta(epsilon))
            assert lower <= exact + 1e-15
            assert slack > 1e-4 or lower >= exact - 3e-4


def test_lower_profile_of_binary_responses():
    distribution, count = response(0.9, 2), 300
    (one, kept), *_ = distribution.atoms
    losses = one * (2 * np.arange(count + 1) - count)
    masses = binom.pmf(np.arange(count + 1), count, kept)
    profile = compose_lower_profile([(distribution, count)], 1e-3, ETA)
    for epsilon in (0.0, 1.0, 3.0, 6.0):
        exact = masses @ np.maximum(0, -np.expm1(np.minimum(0, epsilon - losses)))
        assert exact * 0.99 - 1e-6 <= float(profile.delta(epsilon)) <= exact


def test_lower_profile_of_two_laplace_releases():
    """The atoms and the density of one loss, folded with the exact profile of the other."""
    bound = 0.8
    fine, masses = np.polynomial.legendre.leggauss(400)
    inner, mass = bound * fine, bound * masses * np.exp((bound * fine - bound) / 2) / 4
    profile = compose_lower_profile(
        [(laplace._loss_distribution(bound, 1.0, "remove"), 2)], 1e-3, ETA
    )

    def one(epsilon):
        inside = np.maximum(0.0, -np.expm1((np.minimum(epsilon, bound) - bound) / 2))
        return np.where(epsilon < -bound, -np.expm1(epsilon), inside)

    for epsilon in (0.0, 0.4, 1.1, 1.5):
        exact = one(epsilon - bound) / 2 + one(epsilon + bound) * math.exp(-bound) / 2
        exact = exact + mass @ one(epsilon - inner)
        assert exact - 2e-3 <= float(profile.delta(epsilon)) <= exact


def test_lower_profile_margin_covers_transform_rounding():
    """Many steps and a small delta: what is reported stays below the closed form."""
    count = 100_000
    step = gaussian_loss_distribution(1 / math.sqrt(count), 1.0, 1e-22, "remove")
    profile = compose_lower_profile([(step, count)], 0.01, 1e-16)
    epsilons = np.linspace(0, 8, 200)
    raw = dataclasses.replace(profile, margin=0.0).delta(epsilons)
    shifted = gdp.delta(1.0, epsilons + profile.slack)
    spread = 0.02 * shifted  # what merged outcomes take from the variance
    assert np.all(np.abs(raw - shifted) <= spread + profile.margin / 20)
    assert np.all(profile.delta(epsilons) <= gdp.delta(1.0, epsilons))


def _spread_by_rounding():
    """How far epsilon moves, relatively, with the ninth digit of the slack."""
    steps = [(laplace._loss_distribution(4.0, 1.0, "remove"), 1)]
    epsilons = [
        compose_lower_profile(steps, 3e-3 * (1 + change), ETA).epsilon(DELTA)
        for change in (0.0, 1e-9, -1e-9)
    ]
    return np.ptp(epsilons) / epsilons[0]


def test_lower_profile_does_not_follow_rounding():
    assert _spread_by_rounding() < 1e-8


def test_power_lower_profile_with_intervals_of_all_digits(monkeypatch):
    monkeypatch.setattr(lower_bounds, "_rounded_down", lambda interval: interval)
    assert _spread_by_rounding() > 1e-6


def test_lower_profile_of_too_many_cells(monkeypatch):
    monkeypatch.setattr(lower_bounds, "_MOST_CELLS", 500)
    profile = _gaussians((0.3,) * 9, slack=1e-6)
    assert profile.losses.size < 1_500
    assert profile.slack > 1e-3
    _check_below(profile, 0.9)


def test_lower_profile_of_losses_that_overflow():
    profile = _gaussians((50.0,), slack=0.1)
    assert profile.epsilon(DELTA) == pytest.approx(600, rel=1e-2)
    assert np.all(np.isfinite(profile.delta([-1e4, -700.0, 0.0, 700.0, 1e4])))
