"""Hashes: equal for equal data anywhere, different for any change."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpjax._hashing import add_hashes, hash_arrays, hash_records
from dpjax.datasets import Split

TREE = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": (np.array([0.5, np.nan]),)}
HEX = "b0b9198304a810484718cd961c266975237a9c6192914683c2e517d9c5bf9499"

dtypes = st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64)))
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=4), fill=st.nothing())
)


def test_hash_arrays_of_earlier_versions() -> None:
    """Old checkpoints hold this value for this tree; a change would make them unusable."""
    assert hash_arrays(TREE) == HEX


@pytest.mark.slow
def test_hash_arrays_in_another_process() -> None:
    code = (
        "import numpy as np; from dpjax._hashing import hash_arrays;"
        "tree = {'b': (np.array([0.5, np.nan]),), 'a': np.arange(6, dtype='i4').reshape(2, 3)};"
        "print(hash_arrays(tree))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == HEX


@given(arrays)
def test_hash_arrays_of_copies(array: np.ndarray) -> None:
    expected = hash_arrays((array, {"k": array}))
    assert hash_arrays((array.copy(), {"k": array.copy(order="F")})) == expected
    swapped = array.astype(array.dtype.newbyteorder("S"))
    assert hash_arrays((swapped, {"k": array})) == expected


@pytest.mark.slow
@given(arrays, st.data())
def test_hash_arrays_changes_with_one_bit(array: np.ndarray, data: st.DataObject) -> None:
    changed = np.ascontiguousarray(array).copy()
    position = data.draw(st.integers(0, changed.nbytes - 1))
    changed.reshape(-1).view(np.uint8)[position] ^= 1
    assert hash_arrays({"x": changed}) != hash_arrays({"x": array})


x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
y = np.array([0, 1, 2], np.int32)
CHANGES: dict[str, Callable[[], Any]] = {
    "dtype": lambda: Split(x, y.astype(np.int64)),
    "same bytes, other dtype": lambda: Split(x, y.view(np.uint32)),
    "same bytes, other shape": lambda: Split(x.reshape(2, 3), y),
    "order of the records": lambda: Split(x[[1, 0, 2]], y[[1, 0, 2]]),
    "order of the labels": lambda: Split(x, y[::-1]),
    "one record less": lambda: Split(x[:-1], y[:-1]),
    "one record twice": lambda: Split(x[[0, 1, 2, 2]], y[[0, 1, 2, 2]]),
    "sign of a zero": lambda: Split(np.where(x == 0, np.float32(-0.0), x), y),
    "a value becomes NaN": lambda: Split(np.where(x == 3, np.nan, x).astype(np.float32), y),
    "parts exchanged": lambda: Split(y, x),
    "other keys": lambda: {"x": x, "z": y},
    "one leaf more": lambda: (Split(x, y), np.zeros(0)),
    "deeper": lambda: {"x": {"x": x}, "y": y},
}


@pytest.mark.parametrize("change", CHANGES)
def test_hash_arrays_changes(change: str) -> None:
    assert hash_arrays(CHANGES[change]()) != hash_arrays(Split(x, y))


def test_hash_arrays_separates_leaves() -> None:
    a, b = np.array([1, 2], np.int32), np.array([3], np.int32)
    trees = [(a, b), (b, a), (np.array([1], np.int32), np.array([2, 3], np.int32))]
    empty = [np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(0), np.zeros(())]
    odd = [{"a']['b": a}, {"a": {"b": a}}, {1: a}, {"1": a}]
    everything = [*trees, *empty, *odd]
    assert len({hash_arrays(tree) for tree in everything}) == len(everything)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "float16", "uint32"])
def test_hash_arrays_of_jax_and_numpy(dtype: str) -> None:
    array = jnp.arange(4).astype(dtype)
    assert hash_arrays(array) == hash_arrays(np.asarray(array))
    assert hash_arrays(array) != hash_arrays(array[::-1])


def test_hash_arrays_of_equal_bits() -> None:
    bits = np.arange(4, dtype=np.uint16)
    kinds = [bits, bits.view(np.int16), bits.view(np.float16), bits.view(jnp.bfloat16)]
    assert len({hash_arrays(kind) for kind in kinds}) == 4


def test_hash_arrays_of_nan() -> None:
    assert hash_arrays(np.array([np.nan, 1])) == hash_arrays(np.array([np.nan, 1]))


def test_hash_arrays_of_text() -> None:
    assert hash_arrays(np.array(["ab", "c"])) != hash_arrays(np.array(["ab", "d"]))


def test_hash_arrays_of_a_key_is_that_of_its_data() -> None:
    key = jax.random.key(0)
    assert hash_arrays(key) == hash_arrays(jax.random.key_data(key))
    assert hash_arrays(key) != hash_arrays(jax.random.key(1))


def test_hash_records_adds_up() -> None:
    records, where = {"x": x, "empty": np.zeros((3, 0)), "y": y}, np.arange(3)
    whole = hash_records(records, where)
    parts = [
        hash_records({k: v[i:j] for k, v in records.items()}, where[i:j])
        for i, j in ((0, 0), (0, 1), (1, 3))
    ]
    assert add_hashes(parts[::-1]) == whole
    others = [
        hash_records({**records, "y": y[::-1]}, where),
        hash_records(records, where[::-1]),
        hash_records({**records, "y": y.astype(np.int64)}, where),
        hash_records({**records, "empty": np.zeros((3, 0, 1))}, where),
        add_hashes(parts[:2]),
    ]
    assert len({whole, *others}) == 6


def test_hash_arrays_refuses_without_showing() -> None:
    with pytest.raises(ValueError, match=r"dtype of tree\['x'\] must be .*got dtype\('O'\)$"):
        hash_arrays({"x": np.array([{"name": "Ada"}], dtype=object)})
