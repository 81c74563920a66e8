"""Random keys for releases, from the operating system's entropy."""

import os

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import PRNGKey


def release_key() -> PRNGKey:
    """Returns a JAX key of 64 bits from the operating system's entropy, for a real release.

    ``jax.random.key(seed)`` holds 32 bits and can be guessed; noise from a known key can be
    removed. JAX's generator (Threefry) is counter-based and of good quality, but is
    not claimed to be cryptographically secure, nor is floating-point noise.

    >>> is_seeded(release_key())
    False
    """
    while True:
        words = np.frombuffer(os.urandom(8), np.uint32)
        if words[0]:  # keys from seeds have a first word of zero
            return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def is_seeded(key: PRNGKey) -> bool:
    """Whether the key looks like ``jax.random.key(seed)``, whose noise anyone can reproduce.

    Keys split off a seeded one are not recognised.

    >>> is_seeded(jax.random.key(7))
    True
    """
    return bool(seeded_flag(key))


def seeded_flag(key: PRNGKey) -> jax.Array:
    """Returns `is_seeded` as a boolean array, for a traced key too."""
    return jax.random.key_data(key).ravel()[0] == 0
