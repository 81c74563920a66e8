"""Random bits, noise and subsets beside those of JAX and of their distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.drawn_batches import FALSE_ALARM, uniform_p

from dpjax._random import bits, normal, random_subset

SHAPES = [(), (1,), (7,), (3, 4, 5), (2, 0, 3), (1, 257), (1000, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_bits_equal_jax(shape, seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    np.testing.assert_array_equal(bits(key, shape), jax.random.bits(key, shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_normal_equals_jax(shape):
    key = jax.random.key(5)
    np.testing.assert_allclose(normal(key, shape), jax.random.normal(key, shape), rtol=1e-6)


@pytest.mark.slow
def test_bits_under_jit_and_vmap():
    keys = jax.random.split(jax.random.key(1), 4)
    batched = jax.jit(jax.vmap(lambda key: bits(key, (3, 5))))(keys)
    np.testing.assert_array_equal(batched, jax.vmap(lambda key: jax.random.bits(key, (3, 5)))(keys))


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_normal_of_other_generators_and_dtypes(impl, dtype):
    key = jax.random.key(2, impl=impl)
    drawn = normal(key, (9,), dtype)
    assert drawn.dtype == dtype
    np.testing.assert_allclose(
        drawn.astype(jnp.float32),
        jax.random.normal(key, (9,), dtype).astype(jnp.float32),
        rtol=1e-6,
    )


def test_bits_of_the_other_counter_layout():
    key = jax.random.key(2)
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(bits(key, (9,)), jax.random.bits(key, (9,)))


@pytest.mark.slow
def test_normal_tails():
    drawn = normal(jax.random.key(0), (2_000_000,))
    assert bool(jnp.isfinite(drawn).all())
    assert 4.5 < float(jnp.abs(drawn).max()) < 6.0


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


def test_random_subset_uniform():
    assert uniform_over_all_p(random_subset, jnp.int32(5)) > FALSE_ALARM


def test_power_random_subset_of_neighbours():
    assert uniform_over_all_p(a_run_of_neighbours, jnp.int32(5)) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("population", "size"), [(1, 1), (9, 9), (9, 1), (1000, 400)])
def test_random_subset_distinct_and_in_range(population, size):
    choose = jax.jit(random_subset, static_argnums=(2, 3))
    chosen = choose(jax.random.key(1), population, size, 1000)
    assert chosen.dtype == jnp.int32
    assert len(set(chosen.tolist())) == size
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < population
