"""Keys: where the secret randomness of a release comes from."""

import os

import jax
import jax.numpy as jnp
import numpy as np


def release_key() -> jax.Array:
    """Returns a JAX key of 64 bits from the operating system's entropy, for a real release.

    ``jax.random.key(seed)`` holds 32 bits and can be guessed; noise from a key that is known can be
    taken away again. JAX's generator (Threefry) is counter-based and of good quality, but no claim
    of cryptographic strength is made for it, nor for floating-point noise.

    >>> is_seeded(release_key())
    False
    """
    while True:
        words = np.frombuffer(os.urandom(8), np.uint32)
        if words[0]:  # a first word of zero is what a seed looks like
            return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def is_seeded(key: jax.Array) -> bool:
    """Whether the key looks like ``jax.random.key(seed)``, whose noise anyone can draw again.

    Keys split off a seeded one are not recognised.

    >>> is_seeded(jax.random.key(7))
    True
    """
    return not np.asarray(jax.random.key_data(key)).ravel()[0]
