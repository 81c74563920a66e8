"""The written-out Threefry is JAX's, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._random import bits, normal

SHAPES = [(), (1,), (7,), (3, 4, 5), (2, 0, 3), (1, 257), (1000, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_the_bits_are_those_of_jax(shape, seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    np.testing.assert_array_equal(bits(key, shape), jax.random.bits(key, shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_noise_is_that_of_jax(shape):
    key = jax.random.key(5)
    np.testing.assert_allclose(normal(key, shape), jax.random.normal(key, shape), rtol=1e-6)


def test_under_jit_and_vmap():
    keys = jax.random.split(jax.random.key(1), 4)
    batched = jax.jit(jax.vmap(lambda key: bits(key, (3, 5))))(keys)
    np.testing.assert_array_equal(batched, jax.vmap(lambda key: jax.random.bits(key, (3, 5)))(keys))


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_other_generators_and_dtypes_are_passed_on(impl, dtype):
    key = jax.random.key(2, impl=impl)
    drawn = normal(key, (9,), dtype)
    assert drawn.dtype == dtype
    np.testing.assert_allclose(
        drawn.astype(jnp.float32),
        jax.random.normal(key, (9,), dtype).astype(jnp.float32),
        rtol=1e-6,
    )


def test_the_other_counter_layout_is_passed_on():
    key = jax.random.key(2)
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(bits(key, (9,)), jax.random.bits(key, (9,)))


def test_the_tails_are_reached_and_finite():
    drawn = normal(jax.random.key(0), (2_000_000,))
    assert bool(jnp.isfinite(drawn).all())
    assert 4.5 < float(jnp.abs(drawn).max()) < 6.0
