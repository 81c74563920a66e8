"""Private selection: what is selected how often, and each noise's own guarantee."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM, chi_square_p

from dpjax import sensitivity
from dpjax.accounting import calibrate
from dpjax.mechanisms import ExponentialMechanism, NoisyMax, PermuteAndFlip
from dpjax.sensitivity import Sensitivity

MANY = 100_000
UTILITIES = (3.0, 1.0, 2.5, -4.0)
CLASSES = {
    "gumbel": ExponentialMechanism,
    "laplace": NoisyMax,
    "permute and flip": PermuteAndFlip,
}


def mechanism(cls, scale=2.0, value=1.0, adjacency="replace_one", monotone=False, candidates=4):
    return cls(Sensitivity(value, "linf", adjacency, monotone, (candidates,)), scale)


def softmax(utilities, scale):
    weights = np.exp(np.asarray(utilities) / scale)
    return weights / weights.sum()


NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def laplace_winners(utilities, scale):
    """The probability of each winner, by Gauss and Legendre between the kinks."""
    kinks = sorted({u / scale for u in utilities})
    ends = [kinks[0] - 60, *kinks, kinks[-1] + 60]
    cuts = np.unique(np.concatenate([np.linspace(a, b, 60) for a, b in itertools.pairwise(ends)]))
    half = np.diff(cuts)[:, None] / 2
    x = cuts[:-1, None] + half * (1 + NODES) - np.array(utilities)[:, None, None] / scale
    below = np.where(x < 0, np.exp(-np.abs(x)) / 2, 1 - np.exp(-np.abs(x)) / 2)
    density = np.exp(-np.abs(x)) / 2 / below * below.prod(axis=0)
    return (density * half * WEIGHTS).sum(axis=(1, 2))


def flip_winners(utilities, scale):
    """The probability of each winner: it passes, and so does each set of the others, or not."""
    passes = np.exp((np.array(utilities) - max(utilities)) / scale)
    found = np.zeros(len(passes))
    for flips in itertools.product((False, True), repeat=len(passes)):
        passed = np.array(flips)
        if passed.any():
            found += passed / passed.sum() * np.where(passed, passes, 1 - passes).prod()
    return found


WINNERS = {
    ExponentialMechanism: softmax,
    NoisyMax: laplace_winners,
    PermuteAndFlip: flip_winners,
}


def winners(used, utilities=UTILITIES, seed=0):
    keys = jax.random.split(jax.random.key(seed), MANY)
    return np.asarray(jax.jit(jax.vmap(used.release, (0, None)))(keys, jnp.asarray(utilities)))


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_release_probabilities(cls):
    drawn = winners(mechanism(cls))
    exact = WINNERS[cls](UTILITIES, 2.0)
    assert drawn.dtype == np.int32
    assert exact.sum() == pytest.approx(1, rel=1e-8)
    cells = range(len(UTILITIES) - 1)
    assert chi_square_p(drawn, exact.__getitem__, cells) > FALSE_ALARM
    # power: five per cent less noise, or the other noise of the same scale
    louder = WINNERS[cls](UTILITIES, 0.95 * 2.0)
    assert chi_square_p(drawn, louder.__getitem__, cells) < FALSE_ALARM
    for kind, winners_of in WINNERS.items():
        if kind is not cls:
            other = winners_of(UTILITIES, 2.0)
            assert chi_square_p(drawn, other.__getitem__, cells) < FALSE_ALARM


def test_log_probabilities_are_softmax():
    used = mechanism(ExponentialMechanism)
    np.testing.assert_allclose(
        np.exp(used.log_probabilities(UTILITIES)), softmax(UTILITIES, 2.0), rtol=1e-5
    )


# Between neighbours one candidate gains what another loses, or all gain but one.
OPPOSITE = [(g, -g) for g in (0.0, 3.0, 30.0)]


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_pure_epsilon_is_tight(cls):
    used, probabilities = mechanism(cls), WINNERS[cls]
    ratios = []
    for better, worse in OPPOSITE:
        before = probabilities((better, worse), 2.0)
        after = probabilities((better - 1.0, worse + 1.0), 2.0)
        ratios += [abs(math.log(a / b)) for a, b in zip(before, after, strict=True)]
    assert max(ratios) <= used.pure_epsilon * (1 + 1e-12) == pytest.approx(1.0)
    assert max(ratios) >= 0.96


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_pure_epsilon_of_monotone_utilities(cls):
    used, probabilities = mechanism(cls, monotone=True), WINNERS[cls]
    ratios = []
    for gap in (0.0, 3.0, 30.0):
        for moves in itertools.product((0.0, 1.0), repeat=3):
            before = probabilities((gap, 0.0, -gap), 2.0)
            after = probabilities((gap + moves[0], moves[1], -gap + moves[2]), 2.0)
            ratios += [abs(math.log(a / b)) for a, b in zip(before, after, strict=True)]
    assert max(ratios) <= used.pure_epsilon * (1 + 1e-6) == pytest.approx(0.5)
    assert max(ratios) >= 0.48
    # power: moves in opposite directions exceed it
    before, after = probabilities((30.0, -30.0), 2.0), probabilities((29.0, -29.0), 2.0)
    assert abs(math.log(before[1] / after[1])) > used.pure_epsilon


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_certificate_is_pure_epsilon(cls, adjacency):
    for monotone, times in ((False, 2), (True, 1)):
        used = mechanism(cls, adjacency=adjacency, monotone=monotone)
        assert used.pure_epsilon == times * 0.5
        certified = used.certificate(1e-9).epsilon
        assert times * 0.5 * (1 - 1e-8) <= certified <= times * 0.5 * 1.005
        assert used.certificate(1e-9).guarantee.adjacency == adjacency


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_from_epsilon_and_calibrate(cls):
    votes = sensitivity.of_histogram(3, norm="linf", adjacency="replace_one")
    used = cls.from_epsilon(votes, epsilon=0.1, unit="one teacher")
    assert (used.scale, used.unit) == (20.0, "one teacher")
    counts = sensitivity.of_histogram(3, norm="linf", adjacency="add_remove")
    assert cls.from_epsilon(counts, epsilon=0.1).scale == 10.0
    found = calibrate(mechanism(cls), epsilon=0.1, delta=1e-6)
    assert 20.0 * (1 - 1e-4) <= found.scale <= 20.0 * 1.01


def test_release_tail_probabilities():
    used = mechanism(ExponentialMechanism)
    drawn = winners(used, (0.0, -12.0, -12.0, -16.0), seed=3)
    exact = softmax((0.0, -12.0, -12.0, -16.0), 2.0)  # 250, 250 and 33 expected in 100,000
    assert chi_square_p(drawn, exact.__getitem__, range(1, 4)) > FALSE_ALARM
    # power: probabilities below 1 / 500 cut off, or twice as large
    assert chi_square_p(np.where(drawn > 1, 0, drawn), exact.__getitem__, range(1, 4)) < FALSE_ALARM
    double = np.append(exact[:1] - exact[2], [exact[1], 2 * exact[2], exact[3]])
    assert chi_square_p(drawn, double.__getitem__, range(1, 4)) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [2.0**20, 2.0**29, 2.0**30, 2.0**60])
@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_release_at_large_scales(cls, ratio):
    """Utilities below 2^62 units of the grid, and a scale whose multiples int64 does not hold."""
    utilities = (1.9, 0.2, 1.0)
    used = cls(Sensitivity(1.0 / ratio, "linf", "replace_one", shape=(3,)), 2.0)
    keys = jax.random.split(jax.random.key(5), 20_000)
    drawn = np.asarray(jax.vmap(used.release, (0, None))(keys, jnp.asarray(utilities)))
    exact = WINNERS[cls](utilities, 2.0)
    assert chi_square_p(drawn, exact.__getitem__, range(2)) > FALSE_ALARM
    # power: a quarter less noise
    quieter = WINNERS[cls](utilities, 1.5)
    assert chi_square_p(drawn, quieter.__getitem__, range(2)) < FALSE_ALARM


@pytest.mark.slow
def test_release_of_thousands_of_candidates():
    # one of 10,000 has half of all probability
    utilities = np.zeros(10_000)
    utilities[77] = 2.0 * math.log(9_999)
    keys = jax.random.split(jax.random.key(4), 200)
    used = mechanism(ExponentialMechanism, candidates=10_000)
    drawn = np.asarray(jax.vmap(lambda key: used.release(key, utilities))(keys))
    # six standard errors of a share of one half
    assert abs(np.mean(drawn == 77) - 0.5) < 6 * 0.5 / math.sqrt(200)
    assert np.unique(drawn).size > 80


def test_permute_and_flip_is_never_worse():
    """Expected utilities of random problems at one scale; better by up to a half of what lacks."""
    rng = np.random.default_rng(6)
    shares = []
    for size in (2, 3, 5, 8):
        for spread in (0.1, 1.0, 10.0):
            utilities = tuple(rng.uniform(-spread, 0.0, size))
            lacks = [
                max(utilities) - law(utilities, 2.0) @ utilities for law in (softmax, flip_winners)
            ]
            shares.append(lacks[1] / lacks[0])
    assert 0.5 < min(shares) < 0.6
    assert max(shares) <= 1.0


def test_permute_and_flip_without_excluded_candidates():
    utilities = (np.inf, 1.0, -np.inf, np.nan, 1.0)
    drawn = winners(mechanism(PermuteAndFlip, candidates=5), utilities, seed=8)
    assert sorted(set(drawn.tolist())) == [1, 4]
    # six standard errors of a share of one half
    assert abs(np.mean(drawn == 1) - 0.5) < 3 / math.sqrt(MANY)
