"""Mechanisms that release several arrays: independent noise, each of the certificate's scale.

One test over all of them. A key used for two of the arrays makes their noise equal up to a factor;
noise of another scale than the event's is seen in the deviations. Both are planted as broken twins.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM, chi_square_p
from scipy import stats

from dpjax.bayes.conjugate import (
    DirichletMultinomial,
    NormalUnknownVariance,
    SufficientStatisticsMechanism,
)
from dpjax.bayes.regression import (
    AdaSSP,
    PerturbedStatistics,
    PrivateBounds,
    RegressionBounds,
    RegressionStatistics,
    WishartNoise,
    mechanisms,
    private_bounds,
)
from dpjax.mechanisms import DiscreteGaussian, Gaussian, Laplace, _exact_noise, additive
from dpjax.sensitivity import Sensitivity

MANY = 4_000
BOUNDS = RegressionBounds(x_norm_bound=1.5, y_bound=2.0)
SHAPES = RegressionStatistics(jnp.zeros((2, 2)), jnp.zeros(2), jnp.zeros(()))
UPPER = np.triu_indices(2)


def std_of(part):
    """The noise's deviation as the part's event has it: noise over a clip bound."""
    kind = type(part.event).__name__
    scale = part.event.noise_multiplier * part.sensitivity.clip_bound
    return scale * (np.sqrt(2) if kind == "LaplaceDpEvent" else 1.0)


def perturbed(law):
    scales = RegressionStatistics(3.0, 5.0, 7.0)
    used = PerturbedStatistics(BOUNDS, 2, scales, law, "add_remove")
    xtx, xty, yty = map(std_of, used.composition.mechanisms)
    off = xtx / np.sqrt(2) if law == "gaussian" else xtx

    def release(key):
        xtx, xty, yty = used.release(key, SHAPES)
        return jnp.concatenate([xtx[UPPER], xty, yty[None]])

    return release, [xtx, off, xtx, xty, xty, yty]


def ridge_regression():
    used = AdaSSP(BOUNDS, 2, mu=0.7, delta=1e-5, adjacency="replace_one")
    xtx, xty, eigenvalue = map(std_of, used.composition.mechanisms)
    large = RegressionStatistics(1e4 * jnp.eye(2), jnp.zeros(2), None)

    def release(key):
        released = used.release(key, large)
        xtx, xty, _ = released.statistics
        return jnp.concatenate([xtx[UPPER], xty, released.smallest_eigenvalue[None]])

    return release, [xtx, xtx, xtx, xty, xty, eigenvalue]


def tree(cls):
    shapes = (2,), (), (1, 2)
    used = cls(Sensitivity(1.0, cls.norm, "replace_one", shape=shapes), 8.0)
    zeros = {"a": jnp.zeros(2, int), "b": (jnp.zeros((), int), jnp.zeros((1, 2), int))}

    def release(key):
        return jnp.concatenate(
            [jnp.ravel(leaf) for leaf in jax.tree.leaves(used.release(key, zeros))]
        )

    return release, [std_of(used)] * 5


def symmetric(cls):
    used = cls(Sensitivity(1.0, cls.norm, "add_remove", shape=((3,), (3,))), 8.0)

    def release(key):
        both = used.release_symmetric(key, [jnp.zeros((2, 2), int)] * 2)
        return jnp.concatenate([matrix[UPPER] for matrix in both])

    return release, [std_of(used)] * 6


def conjugate(family, cls):
    moves = family.sensitivity(norm=cls.norm, adjacency="add_remove")
    used = SufficientStatisticsMechanism(family, cls(moves, 4.0))
    size = len(family.encoding("add_remove").offset)
    return lambda key: used.release(key, jnp.zeros(0)), [std_of(used.mechanism)] * size


def wishart():
    used = WishartNoise(BOUNDS, 2, degrees_of_freedom=400, scale=2.0, adjacency="add_remove")
    scale = used.event.scale_over_square * (1.5**2 + 2.0**2)
    diagonal, off = scale * np.sqrt(2 * 400), scale * np.sqrt(400)

    def release(key):
        xtx, xty, yty = used.release(key, SHAPES)
        return jnp.concatenate([xtx[UPPER], xty, yty[None]])

    return release, [diagonal, off, diagonal, off, off, diagonal]


NORMAL = NormalUnknownVariance(
    (0.0, 1.0), prior_mean=0.5, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
)
CATEGORIES = DirichletMultinomial((1.0, 1.0, 1.0))
CASES = {
    "perturbed, gaussian": lambda: perturbed("gaussian"),
    "perturbed, laplace": lambda: perturbed("laplace"),
    "adassp": ridge_regression,
    "wishart": wishart,
    "tree, laplace": lambda: tree(Laplace),
    "tree, gaussian": lambda: tree(Gaussian),
    "tree, discrete": lambda: tree(DiscreteGaussian),
    "symmetric, laplace": lambda: symmetric(Laplace),
    "symmetric, discrete": lambda: symmetric(DiscreteGaussian),
    "conjugate, laplace": lambda: conjugate(NORMAL, Laplace),
    "conjugate, discrete": lambda: conjugate(
        DirichletMultinomial((1.0, 1.0, 1.0)), DiscreteGaussian
    ),
}


def noises(release):
    keys = jax.random.split(jax.random.key(11), MANY)
    return np.asarray(jax.vmap(release)(keys), np.float64)


def are_independent(noise):
    """Six standard errors for each of at most 15 pairs: false alarm 3e-8."""
    correlations = np.corrcoef(noise.T) - np.eye(noise.shape[1])
    return np.abs(correlations).max() < 6 / np.sqrt(MANY)


def have_deviations(noise, expected):
    """Six standard errors of a deviation of Laplace noise, which has the heaviest tails."""
    ratios = noise.std(axis=0) / np.asarray(expected)
    return np.abs(ratios - 1).max() < 6 * np.sqrt(5 / 4 / MANY)


@pytest.mark.parametrize("name", CASES)
def test_release_noise_is_independent_and_of_event_scale(name):
    release, expected = CASES[name]()
    noise = noises(release)
    assert noise.shape == (MANY, len(expected))
    assert are_independent(noise)
    assert have_deviations(noise, expected)
    # power: half of the noise, or the noise of one entry given to another
    assert not have_deviations(noise / 2, expected)
    copied = noise.copy()
    copied[:, -1] = noise[:, 0] * expected[-1] / expected[0]
    assert not are_independent(copied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("perturbed, gaussian", mechanisms),
        ("perturbed, laplace", mechanisms),
        ("adassp", mechanisms),
        ("tree, laplace", additive),
        ("tree, discrete", additive),
        ("symmetric, laplace", additive),
    ],
)
def test_power_one_key_for_all_arrays(name, module, monkeypatch):
    monkeypatch.setattr(module, "derive", lambda words, count: [words] * count)
    release, _ = CASES[name]()
    assert not are_independent(noises(release))


@pytest.mark.slow
@pytest.mark.parametrize("swap", [(0, 2), (1, 2), (2, 1), (2, 0), (1, 0)])
def test_power_swapped_scales_of_adassp(swap, monkeypatch):
    to, source = swap
    used = AdaSSP.parts.fget

    def swapped(self):
        parts = list(used(self))
        parts[to] = parts[source]
        return tuple(parts)

    _, expected = CASES["adassp"]()
    monkeypatch.setattr(AdaSSP, "parts", property(swapped))
    # The release reads the swapped parts, the expectation the true ones.
    assert not have_deviations(noises(CASES["adassp"]()[0]), expected)


SIZES = np.linspace(0.05, 1.0, 20)
CANDIDATES = (0.25, 0.5, 0.75, 1.0)


@cache
def positions():
    """Both choices for equal sizes of x and y, so that equal noise would mean equal choices."""
    bounds = PrivateBounds(
        x_norm_bounds=CANDIDATES,
        y_bounds=CANDIDATES,
        quantile=0.5,
        epsilon=0.5,
        adjacency="add_remove",
    )
    keys = jax.random.split(jax.random.key(12), MANY)
    release = jax.vmap(lambda key: bounds.release_positions(key, SIZES[:, None], -SIZES))
    return bounds, [np.asarray(at) for at in release(keys)]


def choice_probabilities(bounds, factor=1.0):
    """From the event: the scale is twice the sensitivity over the choice's epsilon."""
    below = np.array([5, 10, 15, 20])
    utilities = -np.abs(0.5 * (20 - below) - 0.5 * below)
    epsilon = bounds.epsilon / 2
    weights = np.exp(utilities * epsilon / (2 * 0.5 * factor))
    return weights / weights.sum()


def test_private_bounds_choices_are_independent():
    bounds, (at_x, at_y) = positions()
    for at in (at_x, at_y):
        exact = choice_probabilities(bounds)
        assert chi_square_p(at, exact.__getitem__, range(3)) > FALSE_ALARM
        # power: half of the noise
        half = choice_probabilities(bounds, 0.5)
        assert chi_square_p(at, half.__getitem__, range(3)) < FALSE_ALARM
    table = np.histogram2d(at_x, at_y, bins=4)[0]
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    assert stats.chi2_contingency(np.histogram2d(at_x, at_x, bins=4)[0]).pvalue < FALSE_ALARM
    assert bounds.composition.event == bounds.event
    for choice in bounds.choices:
        assert choice.pure_epsilon == pytest.approx(bounds.epsilon / 2)


def test_power_one_key_for_both_choices(monkeypatch):
    monkeypatch.setattr(private_bounds, "derive", lambda words, count: [words] * count)
    _, (at_x, at_y) = positions.__wrapped__()
    np.testing.assert_array_equal(at_x, at_y)


def test_wishart_clips_features_and_target():
    used = WishartNoise(BOUNDS, 2, degrees_of_freedom=12, scale=2.0, adjacency="add_remove")
    key = jax.random.key(0)
    x, y = np.array([[100.0, 0.0]]), np.array([50.0])
    far, near = used.release_records(key, x, y), used.release_records(key, x / 50, y / 20)
    for got, expected in zip(far, near, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-3)
    moved = used.release_records(key, x, 0 * y)
    assert abs(float(far.yty - moved.yty) - 4.0) < 1e-3  # the target's bound, squared


def test_lanes_of_one_key_are_different():
    words = _exact_noise.RandomWords(np.array([5, 6], np.uint32), 1000)
    assert np.unique(words.draw(np.arange(1000))).size == 1000
