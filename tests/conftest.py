"""What tests run under: several devices, repeatable examples, strict arithmetic on request."""

from collections.abc import Iterator

import hypothesis
import jax
import pytest

# Before the first array is made: meshes of several (fake) devices for the tests that want them.
jax.config.update("jax_num_cpu_devices", 8)

# The same examples on every run, and no clock: compiling takes as long as it takes.
hypothesis.settings.register_profile("dpjax", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dpjax")


@pytest.fixture(scope="module")
def strict_numerics() -> Iterator[None]:
    """No silent promotion of dtypes, no silent broadcasting of ranks.

    For the tests of what dpjax computes itself: optax's Adam and some layers of flax promote.
    """
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision, where the rounding of floats would blur what is tested."""
    with jax.enable_x64(True):
        yield
