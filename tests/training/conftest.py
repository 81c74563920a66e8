"""Programs that several runs of a test module share are compiled once."""

from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(autouse=True, scope="module")
def compiled_once(tmp_path_factory) -> Iterator[None]:
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    _configure(options)
    yield
    _configure(before)


def _configure(options: dict) -> None:
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
