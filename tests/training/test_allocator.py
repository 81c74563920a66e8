"""Settings of the allocator, and the warning where they would shorten a run."""

import subprocess
import sys
import warnings

import pytest

from dpjax.training import allocator

LARGE_BUFFERS = """
import resource, sys
import numpy as np
from dpjax.training import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

np.ones(2**23)
before = faults()
for _ in range(20):
    np.ones(2**23)  # 64 MiB: 16,384 pages
print(kept, (faults() - before) // 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings are for Linux")
def test_freed_memory_is_kept():
    def run(word):
        command = [sys.executable, "-c", LARGE_BUFFERS, word]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        kept, faults = output.split()
        return kept == "True", int(faults)

    kept, faults = run("keep")
    assert kept
    assert faults < 100
    assert run("default")[1] > 100  # transparent huge pages may make it far fewer than 16,384


@pytest.mark.parametrize(("seconds", "faults", "warned"), [(20, 5e6, True), (20, 1e6, False)])
def test_a_run_that_loses_time_by_page_faults_warns(monkeypatch, seconds, faults, warned):
    _assert_warns(monkeypatch, seconds, faults, warned)


def test_a_short_run_does_not_warn(monkeypatch):
    _assert_warns(monkeypatch, 1, 5e5, False)  # they may be those of the first step


def _assert_warns(monkeypatch, seconds, faults, warned):
    times, counts = iter([100.0, 100.0 + seconds]), iter([7, 7 + int(faults)])
    monkeypatch.setattr(allocator.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(allocator, "_page_faults", lambda: next(counts))
    with warnings.catch_warnings(record=True) as found, allocator.warn_of_page_faults():
        warnings.simplefilter("always")
    assert [str(w.message).startswith("about 25% of the time") for w in found] == [True] * warned
