"""Private bounds: their sensitivity, their distribution and their certificate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.bayes.regression import PerturbedStatistics, PrivateBounds, RegressionBounds
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
def test_no_record_moves_a_utility_by_more_than_stated(data, new, quantile):
    for adjacency, neighbour in (
        ("add_remove", [*data, new]),
        ("replace_one", [new, *data[1:]]),
    ):
        made = mechanism(adjacency=adjacency, quantile=quantile)
        both = [made._utilities(np.array(part), CANDIDATES) for part in (data, neighbour)]
        assert np.abs(both[0] - both[1]).max() <= made.choices[0].sensitivity.value + 1e-12


@pytest.mark.parametrize(
    ("adjacency", "neighbour"), [("add_remove", [0.1] * 5), ("replace_one", [0.1] * 4 + [9.0])]
)
def test_some_record_moves_a_utility_by_as_much(adjacency, neighbour):
    made = mechanism(adjacency=adjacency, quantile=0.5 if adjacency == "add_remove" else 0.2)
    data = [0.1] * 4 if adjacency == "add_remove" else [0.1] * 5
    both = [made._utilities(np.array(part), CANDIDATES) for part in (data, neighbour)]
    assert np.abs(both[0] - both[1]).max() >= 0.99 * made.choices[0].sensitivity.value


def records(n=2_000):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 2.4, size=(n, 1))  # 83 % of the norms are below 2
    return jnp.asarray(x, float), jnp.asarray(rng.uniform(-1.2, 1.2, size=n), float)


def test_the_released_bounds_are_near_the_quantile():
    assert mechanism().release(jax.random.key(0), *records()) == RegressionBounds(
        x_norm_bound=2.0, y_bound=1.0
    )


def test_it_works_under_jit_and_vmap_and_a_small_epsilon_chooses_at_random():
    made, keys = mechanism(epsilon=1e-4), jax.random.split(jax.random.key(0), 400)
    at_x, at_y = jax.jit(jax.vmap(lambda key: made.release_positions(key, *records())))(keys)
    for positions in (at_x, at_y):
        assert np.bincount(positions, minlength=4).min() > 50


def test_records_that_are_no_numbers_are_above_every_candidate():
    made = mechanism(epsilon=1e6, quantile=0.5)
    x = jnp.array([[0.1], [jnp.nan], [jnp.inf], [jnp.nan], [3.0]])
    y = jnp.array([0.1, 0.2, 0.3, jnp.nan, jnp.inf])
    assert made.release(jax.random.key(0), x, y) == RegressionBounds(x_norm_bound=4.0, y_bound=0.5)
    assert made.release(jax.random.key(0), x[:0], y[:0]).x_norm_bound in CANDIDATES


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_certificate_holds_bounds_and_statistics_together(adjacency):
    private = mechanism(0.2, adjacency)
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


def test_twice_the_noise_is_half_of_epsilon():
    assert mechanism(1.0).with_privacy_factor(2.0).choices == mechanism(0.5).choices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_norm_bounds": ()}, "x_norm_bounds must be at least one candidate"),
        ({"y_bounds": (2.0, 1.0)}, "y_bounds must be increasing"),
        ({"x_norm_bounds": (0.0, 1.0)}, "x_norm_bounds must be a finite number > 0"),
        ({"y_bounds": (1.0, 1e200)}, "y_bounds must be between 1e-37"),
        ({"quantile": 1.0}, "quantile must be in"),
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
        ({"adjacency": "both"}, "adjacency must be"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {"x_norm_bounds": CANDIDATES, "y_bounds": CANDIDATES, "quantile": 0.5}
    with pytest.raises(ValueError, match=message):
        PrivateBounds(**{**arguments, "epsilon": 1.0, "adjacency": "add_remove", **change})
