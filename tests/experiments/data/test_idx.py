"""IDX: whatever is written is read back, and nothing else is read."""

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tiny_mnist import IDX_CODES, idx_bytes

from experiments.data import CorruptedFileError, read_idx

dtypes = st.sampled_from(sorted(IDX_CODES)).map(np.dtype)
shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@given(arrays)
def test_every_type_and_number_of_axes_is_read_back(array: np.ndarray) -> None:
    read = read_idx(idx_bytes(array))
    np.testing.assert_array_equal(read, array, strict=True)
    assert read.dtype.isnative


@given(arrays, st.booleans())
def test_a_path_is_read_like_its_bytes(array: np.ndarray, zipped: bool) -> None:
    data = idx_bytes(array)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "array.idx"
        path.write_bytes(gzip.compress(data) if zipped else data)
        np.testing.assert_array_equal(read_idx(path), array, strict=True)
        np.testing.assert_array_equal(read_idx(str(path)), array, strict=True)


@given(arrays.filter(lambda array: array.size > 0), st.data(), st.booleans())
def test_no_truncated_array_is_read(array: np.ndarray, data: st.DataObject, zipped: bool) -> None:
    whole = gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptedFileError, match="IDX"):
        read_idx(whole[:length])


@given(arrays, st.binary(min_size=1, max_size=9))
def test_nothing_may_follow_the_numbers(array: np.ndarray, rest: bytes) -> None:
    with pytest.raises(CorruptedFileError, match="expected for shape"):
        read_idx(idx_bytes(array) + rest)


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_is_what_would_be_written(garbage: bytes) -> None:
    try:
        array = read_idx(garbage)
    except CorruptedFileError:
        return
    assert idx_bytes(array) == garbage


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number missing found"),
        (b"\1\0\x08\1\0\0\0\0", "magic number 01000801 found"),
        (b"\0\1\x08\1\0\0\0\0", "magic number 00010801 found"),
        (b"\0\0\x0a\1\0\0\0\0", "type code 0x0a found, one of 0x08"),
        (b"\0\0\x08\3\0\0\0\1", "header of 8 bytes found, 16 expected"),
        (b"\0\0\x0c\1\0\0\0\2\0\0\0\0", r"4 bytes of numbers found, 8 expected for shape \(2,\)"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"\0", "dimension"),
        (b"\0\0\x08\3" + b"\xff" * 8 + b"\0" * 4, "cannot be read as IDX"),
        (b"\x1f\x8bnot gzip at all", "cannot be read as IDX"),
    ],
)
def test_the_error_names_what_was_found(data: bytes, message: str) -> None:
    with pytest.raises(CorruptedFileError, match=message):
        read_idx(data)


def test_flipping_a_bit_of_a_gzip_is_noticed() -> None:
    zipped = bytearray(gzip.compress(idx_bytes(np.arange(100, dtype="i4"))))
    zipped[len(zipped) // 2] ^= 1
    with pytest.raises(CorruptedFileError):
        read_idx(bytes(zipped))


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(b"hello")
    with pytest.raises(CorruptedFileError, match="train-images cannot be read as IDX"):
        read_idx(path)
