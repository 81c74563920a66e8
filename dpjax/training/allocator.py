"""Settings of glibc's malloc that avoid page faults in every training step on a CPU."""

import ctypes
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax

# Parameters and values of mallopt(3), as in malloc.h: large blocks are not mapped one by one, the
# heap is never trimmed and grows by 256 MiB, and threads share one arena (others map large blocks).
_MALLOPT = {
    "M_MMAP_MAX": (-4, 0),
    "M_TRIM_THRESHOLD": (-1, -1),
    "M_TOP_PAD": (-2, 2**28),
    "M_ARENA_MAX": (-8, 1),
}
_SECONDS_PER_FAULT = 1e-6  # measured: 0.7 to 1.5 microseconds, most of it for zeroing the page
_SHARE, _LEAST_SECONDS = 0.1, 10.0


def keep_freed_memory() -> bool:
    """Lets the process keep the memory it frees, for faster steps on a CPU.

    XLA allocates a step's buffers anew in every step. By default glibc returns large ones to the
    kernel, and the next step faults in their pages again, which can take as long as the step
    itself. Call this before the first computation; memory then stays at its peak until the process
    ends. The environment variables ``MALLOC_MMAP_MAX_=0``, ``MALLOC_TRIM_THRESHOLD_=68719476736``,
    ``MALLOC_TOP_PAD_=268435456`` and ``MALLOC_ARENA_MAX=1`` do the same.

    Returns:
      Whether the allocator took the settings: False without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    taken = [mallopt(*setting) == 1 for setting in _MALLOPT.values()]
    return all(taken)


@contextmanager
def warn_of_page_faults() -> Iterator[None]:
    """Warns at the end of a long computation if page faults took much of its time on a CPU."""
    start, before = time.monotonic(), _page_faults()
    yield
    seconds, faults = time.monotonic() - start, _page_faults() - before
    share = faults * _SECONDS_PER_FAULT / max(seconds, _LEAST_SECONDS)
    if share > _SHARE and jax.default_backend() == "cpu":
        warnings.warn(
            f"about {share:.0%} of the time went into {faults} page faults, because freed memory is"
            " returned to the system after each step: call"
            " dpjax.training.keep_freed_memory() at the start of the program",
            stacklevel=2,
        )


def _page_faults() -> int:
    """Page faults of the process so far that needed no disk; zero where they are not counted."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
