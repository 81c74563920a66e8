"""Random subsets are uniform over all subsets, for a traced population too."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.drawn_batches import FALSE_ALARM, uniform_p

from dpjax._random import random_subset

DRAWS = 20_000
NUMBER = {s: i for i, s in enumerate(itertools.combinations(range(5), 3))}


def a_run_of_neighbours(key, population, size, limit):
    """Broken: everyone equally often, but only with their neighbours."""
    start = jax.random.randint(key, (), 0, population)
    return (start + jnp.arange(size)) % population


def uniform_over_all_p(choose, population) -> float:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    chosen = jax.jit(jax.vmap(lambda k, p: choose(k, p, 3, 8), (0, None)))(keys, population)
    return uniform_p(np.array([NUMBER[tuple(s)] for s in np.sort(chosen, axis=1).tolist()]), 10)


def test_every_subset_is_equally_likely():
    assert uniform_over_all_p(random_subset, jnp.int32(5)) > FALSE_ALARM


def test_power_subsets_that_are_not_uniform_are_seen():
    assert uniform_over_all_p(a_run_of_neighbours, jnp.int32(5)) < FALSE_ALARM


@pytest.mark.parametrize(("population", "size"), [(1, 1), (9, 9), (9, 1), (1000, 400)])
def test_the_chosen_are_different_and_in_range(population, size):
    choose = jax.jit(random_subset, static_argnums=(2, 3))
    chosen = choose(jax.random.key(1), population, size, 1000)
    assert chosen.dtype == jnp.int32
    assert len(set(chosen.tolist())) == size
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < population
