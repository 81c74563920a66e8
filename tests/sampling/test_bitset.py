"""Sets of records as bits: the same as positions found one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.sampling.poisson import pack


@pytest.mark.slow
@pytest.mark.parametrize("num_records", [1, 31, 32, 33, 64, 1_000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_ranks_are_those_of_positions(num_records, share):
    chosen = jax.random.uniform(jax.random.key(num_records), (num_records,)) < share
    packed, expected = pack(chosen), np.flatnonzero(chosen)
    assert int(packed.size) == len(expected)
    found = packed.records_at(jnp.arange(num_records, dtype=jnp.int32))
    assert found[: len(expected)].tolist() == expected.tolist()
    assert found.dtype == jnp.int32
    assert (found >= 0).all()


def test_the_last_bit_of_a_word_counts():
    chosen = jnp.zeros(96, bool).at[jnp.array([31, 63, 95])].set(True)
    assert pack(chosen).records_at(jnp.arange(3)).tolist() == [31, 63, 95]


def test_many_sets_at_once():
    chosen = jax.random.bernoulli(jax.random.key(0), 0.3, (5, 70))
    found = jax.vmap(lambda row: pack(row).records_at(jnp.arange(10)))(chosen)
    for row, records in zip(chosen, found, strict=True):
        assert records.tolist() == np.flatnonzero(row)[:10].tolist()
