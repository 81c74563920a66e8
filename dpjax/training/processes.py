"""Several processes of one run (`jax.distributed`): comparison of hashes, loss of a process."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from dpjax._typing import PRNGKey
from dpjax.keys import release_key

# A status of JAX's runtime, from gloo, NCCL or the service that coordinates the processes.
_STATUS = "UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION"
_COMMUNICATION = re.compile(
    rf"\b({_STATUS}): .*(gloo|nccl|coordination|barrier|heartbeat|failed to connect)", re.I | re.S
)

T = TypeVar("T")


class LostProcessError(RuntimeError):
    """Another process of a run (`jax.distributed`) has ended, or cannot be reached."""


@contextmanager
def explain_lost_process(moment: Callable[[], str]) -> Iterator[None]:
    """Raises `LostProcessError` from JAX's error, if communication between processes failed.

    ``moment()`` is when it failed, such as "after release 3".
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not _COMMUNICATION.search(str(error)):
            raise
        raise LostProcessError(
            f"process {jax.process_index()} of {jax.process_count()} lost another process of the"
            f" run {moment()}: it has ended, or cannot be reached. Its own output says why. End"
            " the remaining processes and start all again with the same arguments: with a"
            " checkpoint_dir the run resumes from the newest checkpoint, to the same result;"
            " without one, what was reported of it is a release that counts, and the next run needs"
            " a new key"
        ) from error


def all_gather(values: np.ndarray) -> np.ndarray:
    """Returns the values of all processes, ``(num_processes, ...)``; every process must call it.

    >>> all_gather(np.arange(2)).tolist()
    [[0, 1]]
    """
    if jax.process_count() == 1:
        return values[None]
    # As bytes: JAX would make 32-bit numbers of 64-bit ones.
    in_bytes = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    with explain_lost_process(lambda: "before the first step, while comparing arguments"):
        gathered = np.asarray(multihost_utils.process_allgather(in_bytes))
    return gathered.view(values.dtype).reshape(-1, *values.shape)


def to_host(array: jax.Array) -> np.ndarray:
    """Returns all of an array that may be split over processes; every process must call it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def check_equal(hashes: Mapping[str, str]) -> None:
    """Raises ValueError on every process if a hash, by its name, differs between processes.

    Only hashes are exchanged, never keys or data.
    """
    if jax.process_count() == 1:
        return
    for name, own_hash in hashes.items():
        gathered = _gather_hash(own_hash)
        other = [index for index, hash_ in enumerate(gathered) if hash_ != gathered[0]]
        if other:
            raise ValueError(
                f"{name} must be the same on every process, but differs from that of process 0 on"
                f" process {', '.join(map(str, other))}"
            )


def check_different(name: str, own_hash: str | None) -> None:
    """Raises ValueError on every process if two have the same hash; ``None`` equals no other."""
    gathered = _gather_hash(own_hash or "0" * 64)
    for index, each in enumerate(gathered):
        first = gathered.index(each)
        if first != index and int(each, 16):
            raise ValueError(
                f"{name} must be this process's own part, but processes {first} and {index} have"
                " the same records: each of these would count twice"
            )


def check_all(check: Callable[[], T], name: str) -> T:
    """Returns ``check()``, after it succeeded on every process; if it fails on one, all fail."""
    error: Exception | None = None
    try:
        result = check()
    except (ValueError, OSError) as raised:
        error = raised
    failed = np.flatnonzero(all_gather(np.array([error is not None])))
    if error is not None:
        raise error
    if len(failed):
        raise ValueError(f"{name} was rejected on process {failed[0]}, whose error says why")
    return result


def shared_release_key() -> PRNGKey:
    """Returns one release key for all processes: `dpjax.release_key` of process 0.

    Every process must call it. The key's words are sent over the network of the processes.
    """
    key = release_key()
    if jax.process_count() == 1:
        return key
    with explain_lost_process(lambda: "before the first step, while sharing the key"):
        key_data = multihost_utils.broadcast_one_to_all(jax.random.key_data(key))
    return jax.random.wrap_key_data(jnp.asarray(key_data), impl=jax.random.key_impl(key))


def _gather_hash(own_hash: str) -> list[str]:
    rows = all_gather(np.frombuffer(bytes.fromhex(own_hash), np.uint8))
    return [row.tobytes().hex() for row in rows]
