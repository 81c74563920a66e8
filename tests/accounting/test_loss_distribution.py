"""Loss distributions of single releases: exact, and on a grid against dp-accounting's own."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from helpers.accounting_cases import hockey_stick, normal_mixture

from dpjax.accounting import gdp
from dpjax.accounting.events import atomic_event
from dpjax.accounting.kinds import laplace as laplace_release
from dpjax.accounting.kinds.gaussian import (
    gaussian_loss_distribution,
    replacement_loss_distribution,
)
from dpjax.accounting.loss_distribution import (
    GridLosses,
    GridMasses,
    compose_grids,
    connect_dots,
    subsampled_loss,
    unsampled_loss,
)

TAIL = 1e-14


def poisson(mu, rate, direction):
    return gaussian_loss_distribution(mu, rate, TAIL, direction)


def replacement(mu, rate):
    return replacement_loss_distribution(mu, rate, TAIL)


def fixed_size(mu, rate):
    inner = dp_event.GaussianDpEvent(2 / mu)
    event = dp_event.SampledWithoutReplacementDpEvent(1_000, round(1_000 * rate), inner)
    return atomic_event(event, "replace_one").loss_distribution("remove", TAIL)


def laplace(bound, rate, direction):
    return laplace_release._loss_distribution(bound, rate, direction)


def discrete(event, adjacency):
    return atomic_event(event, adjacency).loss_distribution("remove", TAIL)


X, W = np.polynomial.legendre.leggauss(200)
DISTRIBUTIONS = {
    "gaussian": poisson(2.0, 1.0, "remove"),
    "remove": poisson(2.0, 0.01, "remove"),
    "remove nearly all": poisson(0.5, 1 - 1e-12, "remove"),
    "add": poisson(2.0, 0.01, "add"),
    "replace": replacement(0.7, 0.2),
    "replace little": replacement(3.0, 1e-4),
    "fixed size": fixed_size(1.5, 0.1),
    "fixed size, hardly any noise": fixed_size(20.0, 0.1),
    "laplace": laplace(1.5, 1.0, "remove"),
    "laplace remove": laplace(1.5, 0.2, "remove"),
    "laplace add": laplace(1.5, 0.2, "add"),
    "laplace, hardly any noise": laplace(30.0, 0.2, "remove"),
    "discrete laplace": discrete(dp_event.DiscreteLaplaceDpEvent(0.5, 3), "add_remove"),
    "response": discrete(dp_event.RandomizedResponseDpEvent(0.3, 5), "replace_one"),
}


def _delta(distribution, epsilon, interval=1e-4):
    first, masses, _ = distribution.merged(interval)
    losses = (first + np.arange(masses.size)) * interval
    return float(masses @ np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - losses))))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_nodes_integrate_to_one(name):
    """E[1] and E[e^-Y], the mass of Q, are one but for what P hardly reaches."""
    losses, weights = DISTRIBUTIONS[name].nodes
    assert np.sum(weights) == pytest.approx(1, abs=1e-12)
    dropped = {"replace little": 1e-6, "fixed size, hardly any noise": 0.1}.get(name, 1e-9)
    assert 1 - dropped <= weights @ np.exp(-losses) + 1e-12 <= 1 + 2e-12


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_masses_and_nodes_agree(name):
    distribution, interval = DISTRIBUTIONS[name], 1e-3
    losses, weights = distribution.nodes
    first, masses, _ = distribution.merged(interval)
    lattice = (first + np.arange(masses.size)) * interval
    assert np.all(masses >= -1e-16)
    assert np.sum(masses) == pytest.approx(np.sum(weights), abs=1e-12)
    assert masses @ lattice == pytest.approx(weights @ losses, abs=interval / 2)
    assert masses @ lattice**2 == pytest.approx(weights @ losses**2, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("interval", [1e-3, 0.05, 0.7])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_merged_outcomes_keep_both_masses(name, interval):
    """E[e^-Y], the mass of Q, is kept: that of every outcome is its mass under P times e^-loss."""
    losses, weights = DISTRIBUTIONS[name].nodes
    first, masses, left = DISTRIBUTIONS[name].merged(interval)
    merged = (first + np.arange(masses.size)) * interval + left
    assert np.all(np.abs(left) <= interval / 2 * (1 + 1e-12))
    assert masses @ np.exp(-merged) == pytest.approx(weights @ np.exp(-losses), abs=1e-11)


@pytest.mark.parametrize("interval", [0.02, 0.3])
@pytest.mark.parametrize(
    "name", ["gaussian", "remove", "add", "replace", "fixed size", "laplace remove", "response"]
)
def test_merged_outcomes_are_more_private(name, interval):
    """Delta of the merged outcomes is nowhere above delta."""
    first, masses, left = DISTRIBUTIONS[name].merged(interval)
    _check_more_private(name, interval, masses, first + np.arange(masses.size), left)


def test_power_multiples_themselves_are_not_more_private():
    """The multiples in place of the merged losses: Gaussian outcomes are rounded up on the left."""
    first, masses, left = DISTRIBUTIONS["gaussian"].merged(0.3)
    with pytest.raises(AssertionError):
        _check_more_private("gaussian", 0.3, masses, first + np.arange(masses.size), 0 * left)


def _check_more_private(name, interval, masses, multiples, left):
    losses = multiples * interval + left
    for epsilon in np.linspace(-2, 6, 41):
        exact = _exact_delta(name, epsilon)
        lower = masses @ np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - losses)))
        assert exact - interval <= lower <= exact + 1e-12


def _exact_delta(name, epsilon):
    """Delta by Gauss-Legendre quadrature of the density, from the coordinate of ``epsilon`` on."""
    distribution = DISTRIBUTIONS[name]
    total = sum(
        mass * max(0.0, -math.expm1(min(0.0, epsilon - y))) for y, mass in distribution.atoms
    )
    for one in distribution.segments:
        low = float(np.clip(one.inverse(np.array(epsilon)), one.low, one.high))
        half = (one.high - low) / 2
        z = low + half * (1 + X)
        values = one.coordinate.density(z) * np.maximum(0.0, -np.expm1(epsilon - one.loss(z)))
        total += half * (W @ values)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [-0.7, 0.01, 0.3, 2.0])
def test_masses_of_sampled_gaussians_against_integration(epsilon):
    mu, rate = 1.2, 0.3
    centre, up, down = (normal_mixture(rate, 1.0, shift) for shift in (0, mu, -mu))
    cases = (
        (poisson(mu, rate, "remove"), up, centre),
        (poisson(mu, rate, "add"), centre, up),
        (replacement(mu, rate), up, down),
    )
    for distribution, first, second in cases:
        exact = hockey_stick(epsilon, first, second, reach=14)
        assert _delta(distribution, epsilon) == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.4])
def test_masses_of_sampled_laplace_noise_against_integration(epsilon):
    bound, rate = 1.5, 0.2

    def at(centre):
        return lambda x: bound / 2 * np.exp(-bound * np.abs(x - centre))

    def mixed(x):
        return (1 - rate) * at(0)(x) + rate * at(1)(x)

    for removed, pair in ((True, (mixed, at(0))), (False, (at(0), mixed))):
        distribution = laplace(bound, rate, "remove" if removed else "add")
        exact = hockey_stick(epsilon, *pair, reach=14)
        assert _delta(distribution, epsilon) == pytest.approx(exact, abs=1e-4)
    whole = laplace(bound, 1.0, "remove")
    assert _delta(whole, epsilon) == pytest.approx(
        max(0, -math.expm1((epsilon - bound) / 2)), abs=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 2.5])
def test_loss_distribution_of_fixed_size_samples(epsilon):
    mu, rate = 1.5, 0.1
    distribution = fixed_size(mu, rate)
    above = rate * gdp.delta(mu, math.log1p(math.expm1(epsilon) / rate))
    assert _delta(distribution, epsilon) == pytest.approx(above, abs=1e-8)
    below = 1 - math.exp(-epsilon) * (1 - above)
    assert _delta(distribution, -epsilon) == pytest.approx(below, abs=1e-8)
    # It covers both directions of the mixture, and at epsilon != 0 one of the two is smaller.
    for removed in (True, False):
        one = poisson(mu, rate, "remove" if removed else "add")
        assert _delta(distribution, epsilon) >= _delta(one, epsilon) - 1e-9


def test_loss_distribution_of_discrete_noise():
    parameter, sensitivity = 0.5, 3
    outcomes = np.arange(-80, 81)
    noise = np.exp(-parameter * np.abs(outcomes)) / np.sum(np.exp(-parameter * np.abs(outcomes)))
    ratio = parameter * (np.abs(outcomes - sensitivity) - np.abs(outcomes))
    for loss, mass in DISTRIBUTIONS["discrete laplace"].atoms:
        assert mass == pytest.approx(np.sum(noise[np.isclose(ratio, loss)]), abs=1e-12)
    assert DISTRIBUTIONS["response"].atoms[0] == pytest.approx((math.log(0.76 / 0.06), 0.76))
    assert DISTRIBUTIONS["response"].atoms[1] == pytest.approx((0.0, 0.18))


@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.9, 1 - 1e-9, 1.0])
def test_unsampled_loss_inverts_subsampled_loss(rate):
    x = np.concatenate([np.linspace(-8, 8, 101), [50.0, 99.0, 150.0, 1e4]])
    y = subsampled_loss(x, rate)
    np.testing.assert_allclose(unsampled_loss(y, rate), x, rtol=1e-6, atol=2e-16 / rate**2 * 3e3)
    assert (
        np.all(np.isneginf(unsampled_loss(np.array([math.log(1 - rate) - 1e-3]), rate)))
        if (rate < 1)
        else True
    )


def subsampled(noise, rate, interval):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return atomic_event(event, "add_remove").grid_builder()(interval)


EPSILONS = np.array([-0.7, -0.1, 0.0, 0.05, 0.4, 2.0])


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate"), [(1.1, 256 / 60_000), (0.5, 0.2), (20.0, 1e-3)])
@pytest.mark.parametrize("count", [1, 300])
def test_loss_distribution_of_sampled_gaussians(noise, rate, count):
    interval = 0.05 * rate / noise
    theirs = pld.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    ).self_compose(count)
    ours = compose_grids([(subsampled(noise, rate, interval), count)], interval)
    for direction, pmf in (("add", theirs._pmf_add), ("remove", theirs._pmf_remove)):
        np.testing.assert_allclose(
            ours.delta(EPSILONS, direction),
            pmf.get_delta_for_epsilon(EPSILONS),
            rtol=1e-6,
            atol=1e-12,
        )


@pytest.mark.parametrize("direction", [None, "add", "remove"])
def test_hockey_stick_agrees_with_dp_accounting(direction):
    theirs = pld.from_gaussian_mechanism(0.8, sampling_prob=0.1, value_discretization_interval=0.01)
    ours = subsampled(0.8, 0.1, 0.01)
    each = [
        [pmf.get_delta_for_epsilon(float(e)) for e in EPSILONS]
        for pmf in (theirs._pmf_add, theirs._pmf_remove)
    ]
    exact = {None: np.max(each, axis=0), "add": each[0], "remove": each[1]}[direction]
    found = ours.delta(EPSILONS.reshape(2, 3), direction)
    np.testing.assert_allclose(found, np.reshape(exact, (2, 3)), rtol=1e-9, atol=1e-14)


THEIRS = {
    "gaussian": pld.from_gaussian_mechanism(0.7, value_discretization_interval=0.02),
    "laplace": pld.from_laplace_mechanism(0.5, value_discretization_interval=0.02),
    "sampled laplace": pld.from_laplace_mechanism(
        0.5, value_discretization_interval=0.02, sampling_prob=0.3
    ),
    "discrete laplace": pld.from_discrete_laplace_mechanism(
        0.4, 3, use_connect_dots=True, value_discretization_interval=0.02
    ),
    "replaced": pld.from_gaussian_mechanism(
        0.7,
        value_discretization_interval=0.02,
        sampling_prob=0.2,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    ),
}
OURS = {
    "gaussian": (dp_event.GaussianDpEvent(0.7), "add_remove"),
    "laplace": (dp_event.LaplaceDpEvent(0.5), "add_remove"),
    "sampled laplace": (
        dp_event.PoissonSampledDpEvent(0.3, dp_event.LaplaceDpEvent(0.5)),
        "add_remove",
    ),
    "discrete laplace": (dp_event.DiscreteLaplaceDpEvent(0.4, 3), "add_remove"),
    "replaced": (
        dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(0.7)),
        "replace_one",
    ),
}


@pytest.mark.parametrize("kind", OURS)
def test_grid_builder_has_profiles_of_dp_accounting(kind):
    ours = atomic_event(*OURS[kind]).grid_builder()(0.02)
    epsilons = np.linspace(0.0, 2.5, 101)
    np.testing.assert_allclose(
        ours.delta(epsilons, None),
        THEIRS[kind].get_delta_for_epsilon(epsilons),
        rtol=1e-9,
        atol=1e-13,
    )


def test_grid_epsilon_of_largest_losses():
    grid = atomic_event(dp_event.GaussianDpEvent(0.02), "add_remove").grid_builder()(1.0)
    found = grid.delta([-2_000.0, 0.0, 1_250.0, 2_000.0], None)
    assert np.all(np.isfinite(found))
    assert found[1] == pytest.approx(1.0)
    assert found[2] == pytest.approx(0.5, abs=0.01)
    assert found[3] == pytest.approx(0.0, abs=1e-9)


def test_connect_dots_refuses_rising_deltas():
    with pytest.raises(ValueError, match="deltas must fall"):
        connect_dots(0.1, 0, np.array([0.1, 0.2]))


@pytest.mark.parametrize("infinite", [0.0, 1e-6])
def test_compose_grids_counts_what_it_leaves_out_as_infinite(infinite):
    """A mass of 1e-15, beside that of any one release with an infinite loss."""
    masses = np.array([0.5, 0.5]) * (1 - infinite)
    one = GridLosses(GridMasses(0.1, 0, masses, infinite))
    composed = compose_grids([(one, 3)], 0.1).remove.infinite
    some_infinite = -math.expm1(3 * math.log1p(-infinite))
    assert composed - some_infinite == pytest.approx(1e-15, rel=0.2)
