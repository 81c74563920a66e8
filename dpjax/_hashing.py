"""Hashes: of arrays, of records in any order of processes, of dataclasses, texts and bytes.

Privacy: all are functions of their argument without noise, and confirm a correct guess of it. Keep
those of private data with the checkpoint or journal they belong to; do not publish them.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import check, check_unmasked
from dpjax._typing import ArrayTree

_RECORD_HASH_BITS = 256
_MESSAGE_BYTES = 16
_DESCRIBED_CHARACTERS = 80
_HASHED_DTYPES = (np.number, np.bool_, np.character)


def hash_bytes(*parts: bytes | memoryview) -> bytes:
    """Returns the blake2b of ``parts`` one after the other, of 16 bytes."""
    digest = hashlib.blake2b(digest_size=_MESSAGE_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def hash_text(text: str) -> str:
    """Returns the sha256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_arrays(tree: ArrayTree) -> str:
    """Returns the sha256, in hexadecimal, of the arrays in ``tree`` and of their places in it.

    It changes with any value (down to the sign of a zero), dtype, shape, key or position, and so
    with the order of the records; it does not depend on the process, on the byte order, or on
    whether an array is numpy's or JAX's. A NaN equals itself. A JAX key has its data's hash. Of an
    array that is split over processes only shape and dtype count: it is one array already.

    Args:
      tree: a tree of arrays of numbers, truth values or text, or of keys.

    Raises:
      ValueError: if a leaf is something else.

    >>> x = np.arange(3, dtype=np.float32)
    >>> hash_arrays((x, x)) == hash_arrays((jnp.asarray(x), x))
    True
    >>> hash_arrays((x, x)) == hash_arrays((x[::-1], x))
    False
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        check_unmasked("tree", leaf)
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)

        # The error shows the dtype alone, never the leaf, which may hold private records.
        dtype = jnp.result_type(leaf) if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
        hashable = any(jnp.issubdtype(dtype, kind) for kind in _HASHED_DTYPES)
        check(hashable, f"dtype of tree{name}", dtype, "that of numbers, truth values or text")

        # A header of path, dtype and shape, so that no two trees have the same bytes.
        is_local = getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated
        array = np.asarray(leaf) if is_local else np.empty(0, leaf.dtype)
        header = repr((name, array.dtype.name, np.shape(leaf))).encode()
        digest.update(len(header).to_bytes(8, "little") + header)
        digest.update(_row_bytes(array, 1).data)
    return digest.hexdigest()


def hash_records(arrays: ArrayTree, positions: np.ndarray) -> str:
    """Returns a hash of records that does not depend on how they are split, in hexadecimal.

    It is the sum modulo 2^256 of one sha256 for each record and its position; sums over parts of
    the data can be added (`add_hashes`). About two microseconds a record, and those of sha256.

    Args:
      arrays: numpy arrays with a leading axis of records.
      positions: of the records, ``(size,)``.

    >>> x, where = np.arange(6.0), np.arange(6)
    >>> parts = [hash_records(x[:2], where[:2]), hash_records(x[2:], where[2:])]
    >>> add_hashes(parts) == hash_records(x, where), parts[0] == hash_records(x[:2], where[2:4])
    (True, False)
    """
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    header = [(jax.tree_util.keystr(p), leaf.dtype.name, leaf.shape[1:]) for p, leaf in leaves]
    start = hashlib.sha256(repr(header).encode())
    columns = [_row_bytes(leaf, len(leaf)) for _, leaf in leaves]

    total = 0
    for row, position in enumerate(positions.tolist()):
        digest = start.copy()
        digest.update(position.to_bytes(8, "little"))
        for column in columns:
            digest.update(column[row].data)
        total += int.from_bytes(digest.digest(), "little")
    return _hexadecimal(total)


def add_hashes(hashes: Iterable[str]) -> str:
    """Returns the hash of all records, from those of parts of them; see `hash_records`."""
    return _hexadecimal(sum(int(each, 16) for each in hashes))


def hash_dataclass(value: object) -> str:
    """Returns a sha256 of the types and values of all fields of a (nested) frozen dataclass.

    Of arrays dtype, shape and every entry count, down to the sign of a zero; a NaN equals itself.

    >>> from dpjax.mechanisms import SubsampledGaussian
    >>> from dpjax.sampling import PoissonSampling
    >>> one = SubsampledGaussian(
    ...     PoissonSampling(100, 0.1), l2_clip=1.0, noise_multiplier=1.1, num_steps=10,
    ...     adjacency="add_remove"
    ... )
    >>> hash_dataclass(one) == hash_dataclass(one.with_privacy_factor(1.01))
    False
    """
    return hash_text(json.dumps(_to_json(value), sort_keys=True))


def describe_dataclass(value: object) -> dict[str, str]:
    """Returns the values that `hash_dataclass` hashes as texts, by the paths of their fields.

    Texts of more than 80 characters are shortened, with a hash of the whole.

    >>> from dpjax.sampling import FixedSizeSampling
    >>> describe_dataclass(FixedSizeSampling(100, 10))
    {'type': 'FixedSizeSampling', 'num_examples': '100', 'batch_size': '10'...}
    """
    return dict(_leaf_texts("", _to_json(value)))


def _leaf_texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaf_texts(f"{path}.{key}" if path else key, item)
        return
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) > _DESCRIBED_CHARACTERS:
        text = f"{text[:30]} ... {text[-30:]} (sha256 {hash_text(text)[:8]})"
    yield path, text


def _row_bytes(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns the bytes of each row, ``(num_rows, bytes)``, in little-endian order."""
    if not array.size:
        return np.empty((num_rows, 0), np.uint8)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(num_rows, -1).view(np.uint8)


def _hexadecimal(number: int) -> str:
    return f"{number % 2**_RECORD_HASH_BITS:0{_RECORD_HASH_BITS // 4}x}"


def _to_json(value: object) -> object:
    """Converts nested dataclasses to JSON values, with the names of their types."""
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    if isinstance(value, np.ndarray | jax.Array):
        return {"array": hash_arrays(value)}
    return value if isinstance(value, str | int | float | None) else repr(value)
