"""The accountants' bounds of every sampler against exact divergences of explicit neighbours."""

import itertools

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as loss
from helpers.explicit_neighbours import (
    enumerated,
    fixed_pairs,
    hockey_stick,
    largest,
    poisson_pairs,
    truncated,
)
from scipy.special import ndtr

from dpjax.accounting import epsilon, profile_bounds
from dpjax.adjacency import ADJACENCIES
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)

SIZES, RATES, NOISES = (1, 2, 3, 5, 20), (0.4, 0.9, 1.0), (2.0, 0.8)
EPSILONS = np.array([-1.0, -0.2, 0.0, 0.3, 1.0, 2.5, 5.0])
# Of the oracle's roots and of the rounding in a profile, which is counted into it.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-13}


def assert_bounded(event, truth, adjacency, *, lower=True):
    """Upper bounds are not below the truth in either direction, nor the lower bound above it."""
    for direction, deltas in truth.items():
        upper = profile_bounds(event, EPSILONS, adjacency=adjacency, direction=direction).upper
        assert_at_most(deltas, upper)
    if lower:
        below = profile_bounds(event, EPSILONS, adjacency=adjacency).lower
        assert_at_most(below, np.maximum(*truth.values()))


def assert_at_most(small, large):
    assert (small <= large * (1 + TOLERANCE["rtol"]) + TOLERANCE["atol"]).all(), (small, large)


@pytest.mark.parametrize(("size", "rate", "most"), [(3, 0.4, 2), (5, 0.9, 3), (4, 1.0, 1)])
def test_truncated_sums_by_enumeration(size, rate, most):
    for x, y in itertools.product((1.0, -1.0, 0.0), (-1.0, 0.0, 1.0)):
        every = enumerated([x] + [y] * (size - 1), rate, most)
        counted = truncated(x, y, size, rate, most)
        for value in every.keys() | counted.keys():
            assert counted.get(value, 0) == pytest.approx(every.get(value, 0), abs=1e-14)
    without = enumerated([1.0] * size, rate, most)
    assert truncated(None, 1.0, size, rate, most) == pytest.approx(without, abs=1e-14)


def test_hockey_stick_of_gaussians():
    # Dong, Roth, Su 2022, Corollary 2.13, at mu = 2.
    for eps in (1.0, 4.0, 12.0):
        known = ndtr(1 - eps / 2) - np.exp(eps) * ndtr(-1 - eps / 2)
        assert hockey_stick({2.0: 1.0}, {0.0: 1.0}, eps, 1.0) == pytest.approx(known, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("size", SIZES)
def test_profile_bounds_of_truncated_poisson(size, adjacency):
    for rate, most in itertools.product(RATES, {1, (size + 1) // 2, size}):
        noise = NOISES[most % 2]
        event = TruncatedPoissonSampling(size, rate, truncated_batch_size=most).step_event(noise)
        truth = largest(poisson_pairs(adjacency, size, rate, most), EPSILONS, noise)
        assert_bounded(event, truth, adjacency)


@pytest.mark.parametrize("larger", [20, 21])
@pytest.mark.parametrize(("rate", "most"), [(1.0, 20), (0.9, 20), (1.0, 5)])
def test_profile_bounds_of_both_pairs_under_add_remove(rate, most, larger):
    """Of n = 20 records against 19 and against 21; where all is cut either attains the bound."""
    event = TruncatedPoissonSampling(20, rate, truncated_batch_size=most).step_event(2.0)
    pairs = [
        (truncated(1.0, y, larger, rate, most), truncated(None, y, larger - 1, rate, most))
        for y in (-1.0, 0.0, 1.0)
    ]
    assert_bounded(event, largest(pairs, EPSILONS, 2.0), "add_remove", lower=False)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_profile_bounds_of_poisson(adjacency):
    for rate in RATES:
        event = PoissonSampling(5, rate).step_event(0.8)
        assert_bounded(
            event, largest(poisson_pairs(adjacency, 5, rate, None), EPSILONS, 0.8), adjacency
        )


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_profile_bounds_without_replacement(adjacency):
    for size, batch_size in ((1, 1), (5, 2), (20, 19), (20, 20)):
        event = FixedSizeSampling(size, batch_size).step_event(0.8)
        truth = largest(fixed_pairs(adjacency, size, batch_size), EPSILONS, 0.8)
        assert_bounded(event, truth, adjacency)


@pytest.mark.parametrize(("adjacency", "z"), [("replace_one", -1.0), ("zero_out", 0.0)])
def test_profile_bounds_of_shuffled_epochs(adjacency, z):
    """Both batch sums are released: their density is integrated over the plane."""
    noise, line = 1.5, np.linspace(-14, 14, 561)
    normal = {m: np.exp(-((line - m) ** 2) / (2 * noise**2)) for m in (-1.0, 0.0, 1.0)}
    cell = (line[1] - line[0]) ** 2 / (2 * np.pi * noise**2)

    def density(x, y):
        first = np.outer(normal[x], normal[y])
        return cell * (first + first.T) / 2

    upper = profile_bounds(
        ShuffledEpochs(2, 1).event([(noise, 2)]), EPSILONS, adjacency=adjacency
    ).upper
    for y, eps in itertools.product((-1.0, 0.0, 1.0), EPSILONS):
        with_record, without = density(1.0, y), density(z, y)
        for p, q in ((with_record, without), (without, with_record)):
            truth = np.maximum(p - np.exp(eps) * q, 0).sum()
            assert truth <= upper[eps == EPSILONS][0] + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "delta"), [(1.0, 2.0, 1e-5), (0.9, 2.0, 1e-2)])
def test_power_without_the_larger_neighbour(rate, noise, delta):
    """Accounting for n records alone, as for n and n - 1, is too little under add/remove."""
    size = 20
    event = TruncatedPoissonSampling(size, rate, truncated_batch_size=size).step_event(noise)
    pairs = poisson_pairs("add_remove", size, rate, size)
    certified = np.array([epsilon(event, delta, adjacency="add_remove")])
    assert_at_most(np.maximum(*largest(pairs, certified, noise).values()), np.array([delta]))
    smaller = loss.from_truncated_subsampled_gaussian_mechanism(size, rate, size, noise)
    too_small = np.array([smaller.get_epsilon_for_delta(delta)])
    with pytest.raises(AssertionError):
        assert_at_most(np.maximum(*largest(pairs, too_small, noise).values()), np.array([delta]))


def test_power_zero_out_at_the_poisson_bound():
    """The bound of Poisson sampling at rate b / n does not hold where another takes the place."""
    truth = largest(fixed_pairs("zero_out", 20, 19), EPSILONS, 0.8)
    sampled = PoissonSampling(20, 19 / 20).step_event(0.8)
    upper = profile_bounds(sampled, EPSILONS, adjacency="zero_out").upper
    with pytest.raises(AssertionError):
        assert_at_most(truth["remove"], upper)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_truncated_epsilon_tight_at_both_ends(adjacency):
    """Without truncation it is Poisson sampling's; where all is truncated the truth attains it."""
    never = TruncatedPoissonSampling(100, 0.1, truncated_batch_size=90).step_event(1.0)
    poisson = PoissonSampling(100, 0.1).step_event(1.0)
    of_poisson = epsilon(poisson, 1e-3, adjacency=adjacency)
    assert epsilon(never, 1e-3, adjacency=adjacency) == pytest.approx(of_poisson, rel=2e-3)
    size = 20 if adjacency == "replace_one" else 21
    always = TruncatedPoissonSampling(size, 1.0, truncated_batch_size=5).step_event(2.0)
    pairs = poisson_pairs(adjacency, size, 1.0, 5)
    if adjacency != "zero_out":
        upper = profile_bounds(always, EPSILONS, adjacency=adjacency).upper
        truth = np.maximum(*largest(pairs, EPSILONS, 2.0).values())
        np.testing.assert_allclose(upper[2:], truth[2:], rtol=5e-3, atol=1e-9)
