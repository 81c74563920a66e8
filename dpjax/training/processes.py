"""Agreement of several processes of one run (`jax.distributed`), by comparing hashes."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from dpjax._typing import PRNGKey
from dpjax.keys import release_key


def all_gather(values: np.ndarray) -> np.ndarray:
    """Returns the values of all processes, ``(num_processes, ...)``; every process must call it.

    >>> all_gather(np.arange(2)).tolist()
    [[0, 1]]
    """
    if jax.process_count() == 1:
        return values[None]
    # As bytes: JAX would make 32-bit numbers of 64-bit ones.
    words = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    gathered = np.asarray(multihost_utils.process_allgather(words))
    return gathered.view(values.dtype).reshape(-1, *values.shape)


def check_equal(hashes: Mapping[str, str]) -> None:
    """Raises ValueError on every process if a hash differs between processes, naming them.

    Only hashes are exchanged, never keys or data.

    Args:
      hashes: sha256 in hexadecimal by the name of what is hashed.
    """
    if jax.process_count() == 1:
        return
    for name, found in hashes.items():
        gathered = _gather_hash(found)
        other = [index for index, hash_ in enumerate(gathered) if hash_ != gathered[0]]
        if other:
            raise ValueError(
                f"{name} must be the same on every process, but differs from that of process 0 on"
                f" process {', '.join(map(str, other))}"
            )


def check_different(name: str, found: str | None) -> None:
    """Raises ValueError on every process if two have the same hash, naming them.

    Args:
      name: of what is hashed.
      found: sha256 in hexadecimal; ``None`` is compared with nothing.
    """
    gathered = _gather_hash(found or "0" * 64)
    for index, each in enumerate(gathered):
        first = gathered.index(each)
        if first != index and int(each, 16):
            raise ValueError(
                f"{name} must be this process's own part, but processes {first} and {index} have"
                " the same records: each of these would count twice"
            )


def check_all(check: Callable[[], Any], name: str) -> Any:
    """Returns ``check()``, after it succeeded on every process; if it fails on one, all fail.

    Args:
      check: may raise ValueError.
      name: of what is checked, for the error of the other processes.
    """
    error, result = None, None
    try:
        result = check()
    except ValueError as found:
        error = found
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
    words = multihost_utils.broadcast_one_to_all(jax.random.key_data(key))
    return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(key))


def hash_arrays(tree: Any) -> str:
    """Returns the sha256 of all arrays of a tree, keys included: compare it, never publish it.

    Of an array that is split over processes only shape and dtype count: it is one array already.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        is_local = getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated
        array = np.asarray(leaf) if is_local else np.empty(0, leaf.dtype)
        header = repr((jax.tree_util.keystr(path), array.dtype.name, np.shape(leaf))).encode()
        digest.update(len(header).to_bytes(8, "little") + header)
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _gather_hash(found: str) -> list[str]:
    rows = all_gather(np.frombuffer(bytes.fromhex(found), np.uint8))
    return [row.tobytes().hex() for row in rows]
