"""A sha256 fingerprint of a tree of arrays, with which checkpoints identify their data."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._validation import check


def fingerprint(tree: Any) -> str:
    """Returns the sha256, in hexadecimal, of the arrays in ``tree`` and of their places in it.

    It changes with any value (down to the sign of a zero), dtype, shape, key or position, and so
    with the order of the records; it does not depend on the process, on the byte order, or on
    whether an array is numpy's or JAX's. A NaN equals itself.

    Privacy: a function of the data without noise, which confirms a correct guess of the data. Keep
    it with the checkpoint; do not publish it.

    Args:
      tree: a tree of arrays of numbers, truth values or text, such as ``dataset.train``.

    Raises:
      ValueError: if there is no leaf, or a leaf is something else (keys of randomness included).

    >>> x = np.arange(3, dtype=np.float32)
    >>> fingerprint((x, x)) == fingerprint((jax.numpy.asarray(x), x))
    True
    >>> fingerprint((x, x)) == fingerprint((x[::-1], x))
    False
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    check(bool(leaves), "tree", tree, "a tree with at least one array")
    digest = hashlib.sha256()
    for path, leaf in leaves:
        _update(digest, jax.tree_util.keystr(path), leaf)
    return digest.hexdigest()


def _update(digest: Any, path: str, leaf: Any) -> None:
    """Adds one leaf, with a header of path, dtype and shape so that trees do not collide."""
    array = _as_array(path, leaf)
    header = repr((path, array.dtype.name, array.shape)).encode()
    digest.update(len(header).to_bytes(8, "little") + header)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _as_array(path: str, leaf: Any) -> np.ndarray:
    dtype = jnp.result_type(leaf) if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
    kinds = (np.number, np.bool_, np.character)
    # The error shows the dtype alone, never the leaf, which may hold private records or a key.
    allowed = "that of numbers, truth values or text"
    check(any(jnp.issubdtype(dtype, k) for k in kinds), f"dtype of tree{path}", dtype, allowed)
    array = np.asarray(leaf)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
