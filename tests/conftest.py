"""What tests run under: several devices, repeatable examples, strict arithmetic on request.

Compiled programs are kept between runs in ``.cache/jax``, or where JAX_COMPILATION_CACHE_DIR says.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

# Most of the tests' time is compiling: what was compiled is kept for the next run, for all workers
# and, by the environment, for child processes.
_KEPT = {
    "jax_compilation_cache_dir": str(Path(__file__).resolve().parents[1] / ".cache" / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for _name, _value in _KEPT.items():
    if _name.upper() not in os.environ:
        os.environ[_name.upper()] = str(_value)
        jax.config.update(_name, _value)

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
