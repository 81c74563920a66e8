"""Private bounds: their sensitivity, their distribution and their certificate."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.bayes.regression import (
    HistogramBounds,
    PerturbedStatistics,
    PrivateBounds,
    RegressionBounds,
)
from dpjax.mechanisms import Composition

CANDIDATES = (0.5, 1.0, 2.0, 4.0)


def mechanism(epsilon=1.0, adjacency="add_remove", quantile=0.8):
    return PrivateBounds(
        x_norm_bounds=CANDIDATES,
        y_bounds=CANDIDATES,
        quantile=quantile,
        epsilon=epsilon,
        adjacency=adjacency,
    )


sizes = st.floats(0, 5)


@given(st.lists(sizes, min_size=1, max_size=6), sizes, st.sampled_from([0.2, 0.5, 0.8]))
def test_sensitivity_of_utilities_is_not_exceeded(data, new, quantile):
    for adjacency, neighbour in (
        ("add_remove", [*data, new]),
        ("replace_one", [new, *data[1:]]),
        ("zero_out", [0.0, *data[1:]]),
    ):
        made = mechanism(adjacency=adjacency, quantile=quantile)
        both = [made._utilities(np.array(part), CANDIDATES) for part in (data, neighbour)]
        assert np.abs(both[0] - both[1]).max() <= made.choices[0].sensitivity.value + 1e-12


@pytest.mark.parametrize(
    ("adjacency", "quantile", "data", "neighbour"),
    [
        ("add_remove", 0.5, [0.1] * 4, [0.1] * 5),
        ("replace_one", 0.2, [0.1] * 5, [0.1] * 4 + [9.0]),
        ("zero_out", 0.2, [9.0] * 5, [9.0] * 4 + [0.0]),
    ],
)
def test_sensitivity_of_utilities_is_attained(adjacency, quantile, data, neighbour):
    made = mechanism(adjacency=adjacency, quantile=quantile)
    both = [made._utilities(np.array(sizes), CANDIDATES) for sizes in (data, neighbour)]
    assert np.abs(both[0] - both[1]).max() >= 0.99 * made.choices[0].sensitivity.value


def test_utilities_are_exact_fractions():
    """A sum in floating point would be rounded, by more than the sensitivity allows."""
    sizes = np.random.default_rng(1).uniform(0, 5, 9_973)
    target = Fraction(0.1) * len(sizes)
    utilities = mechanism(quantile=0.1)._utilities(sizes, CANDIDATES)
    for utility, candidate in zip(utilities, CANDIDATES, strict=True):
        assert Fraction(utility) == -abs(target - int(np.sum(sizes <= candidate)))


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_sensitivity_of_both_histograms_is_that_of_the_worst_neighbours(adjacency):
    made = HistogramBounds(
        x_norm_bounds=CANDIDATES, y_bounds=CANDIDATES, quantile=0.8, scale=3.0, adjacency=adjacency
    )
    ends = np.array([0.0, 0.7, 9.0, np.nan])
    x, y = (np.ravel(each) for each in np.meshgrid(ends, ends))
    counts = [made.sum_records(x[i : i + 1, None], y[i : i + 1]) for i in range(len(x))]
    nothing = [np.zeros_like(counts[0])]
    others = {"add_remove": nothing, "zero_out": nothing, "replace_one": counts}
    distances = [np.linalg.norm(a - b) for a in counts for b in others[adjacency]]
    assert max(distances) == pytest.approx(made.sensitivity.value)


def records(n=2_000):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 2.4, size=(n, 1))  # 83 % of the norms are below 2
    return jnp.asarray(x, float), jnp.asarray(rng.uniform(-1.2, 1.2, size=n), float)


def test_release_is_near_the_quantile():
    assert mechanism().release(jax.random.key(0), *records()) == RegressionBounds(
        x_norm_bound=2.0, y_bound=1.0
    )


def test_release_positions_at_a_small_epsilon_are_random_under_jit_and_vmap():
    made, keys = mechanism(epsilon=1e-4), jax.random.split(jax.random.key(0), 400)
    at_x, at_y = jax.jit(jax.vmap(lambda key: made.release_positions(key, *records())))(keys)
    for positions in (at_x, at_y):
        assert np.bincount(positions, minlength=4).min() > 50


def test_release_counts_nan_above_every_candidate():
    made = mechanism(epsilon=1e6, quantile=0.5)
    x = jnp.array([[0.1], [jnp.nan], [jnp.inf], [jnp.nan], [3.0]])
    y = jnp.array([0.1, 0.2, 0.3, jnp.nan, jnp.inf])
    assert made.release(jax.random.key(0), x, y) == RegressionBounds(x_norm_bound=4.0, y_bound=0.5)
    assert made.release(jax.random.key(0), x[:0], y[:0]).x_norm_bound in CANDIDATES


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_certificate_of_bounds_and_statistics_together(adjacency):
    private = mechanism(0.2, adjacency)
    assert private.with_privacy_factor(2.0).choices == mechanism(0.1, adjacency).choices
    assert private.certificate(1e-9).epsilon == pytest.approx(0.2, rel=1e-2)
    whole = [
        Composition(
            (
                private,
                PerturbedStatistics.from_epsilon(
                    bounds, epsilon=0.8, delta=1e-4, adjacency=adjacency, num_features=2
                ),
            )
        )
        for bounds in (
            RegressionBounds(x_norm_bound=1.0, y_bound=1.0),
            RegressionBounds(x_norm_bound=4.0, y_bound=0.5),
        )
    ]
    epsilons = [made.certificate(1e-4).epsilon for made in whole]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)
    assert 0.8 < epsilons[0] <= 1.001
    assert whole[0].num_releases == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_norm_bounds": ()}, "x_norm_bounds must be at least one candidate"),
        ({"y_bounds": (2.0, 1.0)}, "y_bounds must be increasing"),
        ({"y_bounds": (1.0, 1e200)}, "y_bounds must be between 1e-37"),
        ({"quantile": 1.0}, "quantile must be in"),
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
    ],
)
def test_private_bounds_refuses(change, message):
    arguments = {"x_norm_bounds": CANDIDATES, "y_bounds": CANDIDATES, "quantile": 0.5}
    with pytest.raises(ValueError, match=message):
        PrivateBounds(**{**arguments, "epsilon": 1.0, "adjacency": "add_remove", **change})
