"""What tests run under: several devices, repeatable examples, strict arithmetic on request.

Compilation, most of the tests' time, is without LLVM's optimisations and with XLA's older code
generator unless ``JAX_DISABLE_MOST_OPTIMIZATIONS=0``: XLA's own passes are the same. Compiled
programs are kept between runs in ``.cache/jax``, or in JAX_COMPILATION_CACHE_DIR.
"""

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import jaxlib.version
import pytest

# For all workers and, by the environment, for child processes.
_JAX_CONFIG = {
    "jax_disable_most_optimizations": True,
    "jax_compilation_cache_dir": str(Path(__file__).resolve().parents[1] / ".cache" / "jax"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # No line numbers in compiled programs: there is less to lower, and nothing here reads them.
    "jax_traceback_in_locations_limit": 0,
}
for _name, _value in _JAX_CONFIG.items():
    if _name.upper() not in os.environ:
        os.environ[_name.upper()] = str(_value)
        jax.config.update(_name, _value)

# The programs are small: compiling one in several parts side by side costs more than it saves.
_FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
# XLA's newer code generator for fused operations takes half of the time to compile. jaxlib 0.12 has
# no other, and the flag would end the process there. The older one gathers wrongly by indices of 8
# bits: what does so asks for the newer one (`compiler_options` in tests/helpers/zoo.py).
if jax.config.read("jax_disable_most_optimizations") and jaxlib.version.__version_info__ < (0, 11):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()

# Tracing and compiling make many objects that live on: looking for garbage less often saves time.
gc.set_threshold(100_000, 20, 20)

# Before the first array is made: meshes of several (fake) devices for the tests that want them.
jax.config.update("jax_num_cpu_devices", 8)

# The same examples on every run, and no clock: compiling takes as long as it takes.
hypothesis.settings.register_profile("dpjax", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dpjax")


# Of the examples in docstrings those that take longest, by the name of what they are an example of.
_LONG_EXAMPLES = {
    "DPSVI",
    "TrainingAccountant",
    "TruncatedPoissonSampling",
    "gibbs_kernel",
    "noise_aware_posterior",
    "rehearse",
    "released_regression",
    "train_teachers",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.split(".")[-1] in _LONG_EXAMPLES:
            item.add_marker(pytest.mark.slow)


# Seconds since the epoch after which tests are skipped, so that `.ci/run` has an end on a slow
# machine: nothing else sets it. Its closing lines count such tests, of which nothing is known.
_UNTIL = float(os.environ.get("DPJAX_TESTS_UNTIL", "inf"))


def pytest_runtest_setup() -> None:
    if time.time() > _UNTIL:
        pytest.skip("no time is left (DPJAX_TESTS_UNTIL)")


class _Failures:
    """Prints a failure when it occurs: a run that is stopped does not print its summary."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{report.nodeid} failed\n{report.longreprtext}", flush=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of several processes the one that prints
        config.pluginmanager.register(_Failures())


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Closes what a test has plotted: matplotlib warns of many open figures."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


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
