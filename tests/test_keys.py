"""Release keys: 64 bits of the operating system, never what a seed makes, never twice."""

import os

import jax
import numpy as np
import pytest

from dpjax import release_key
from dpjax._checks import is_key
from dpjax.keys import is_seeded

pytestmark = pytest.mark.usefixtures("strict_numerics")


def words(key):
    return np.asarray(jax.random.key_data(key))


def test_release_key_is_a_typed_key_that_draws():
    key = release_key()
    assert is_key(key)
    assert jax.random.normal(key, (3,)).shape == (3,)


def test_release_key_is_different_each_time():
    # 500 keys of 64 bits: a false alarm has probability 500^2 / 2^65 < 1e-14.
    drawn = {words(release_key()).tobytes() for _ in range(500)}
    assert len(drawn) == 500


def test_release_key_bits_vary():
    # Each of 64 bits is constant over 100 keys with probability 2^-99.
    bits = np.unpackbits(
        np.stack([words(release_key()) for _ in range(100)]).view(np.uint8), axis=1
    )
    assert bits.shape == (100, 64)
    assert (bits.min(axis=0) == 0).all()
    assert (bits.max(axis=0) == 1).all()


def test_release_key_takes_system_entropy(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or bytes(range(1, 9)))
    np.testing.assert_array_equal(
        words(release_key()), np.frombuffer(bytes(range(1, 9)), np.uint32)
    )
    assert asked == [8]


def test_release_key_redraws_seed_like_words(monkeypatch):
    draws = [bytes(4) + b"seed", bytes(8), b"entropy!"]
    monkeypatch.setattr(os, "urandom", lambda count: draws.pop(0))
    assert words(release_key()).tobytes() == b"entropy!"
    assert not draws


def test_release_key_is_threefry_whatever_the_default_generator():
    with jax.default_prng_impl("rbg"):
        assert jax.random.key_impl(release_key()) == "threefry2x32"


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_is_seeded_of_seeded_keys(seed):
    assert is_seeded(jax.random.key(np.uint32(seed)))


def test_is_seeded_of_release_keys():
    assert not any(is_seeded(release_key()) for _ in range(100))
