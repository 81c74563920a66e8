"""File formats: IDX (the MNIST files), LIBSVM's sparse text format, and MATLAB 5."""

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from experiments.data.sources import CorruptedFileError

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"  # An IDX file begins with two zero bytes, so the two are never confused.


def read_idx(source: bytes | str | os.PathLike[str]) -> np.ndarray:
    """Returns the array in an IDX file or in its bytes, gzipped or not.

    The header is two zero bytes, a type code, the number of axes and each axis' length as a
    big-endian uint32; the numbers follow in big-endian, row-major order. Source: Y. LeCun,
    C. Cortes, C. Burges, "The MNIST database of handwritten digits", "the IDX file format".

    Args:
      source: a path, or the bytes themselves.

    Returns:
      A new array in the machine's own byte order.

    Raises:
      CorruptedFileError: if the bytes are not a whole IDX file and nothing else.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
    array([5, 0, 4], dtype=uint8)
    """
    if isinstance(source, bytes):
        data, where = source, "IDX data"
    else:
        data, where = Path(source).read_bytes(), os.fspath(source)
    try:
        return _parse(_decompress(data))
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise CorruptedFileError(f"{where} cannot be read as IDX: {error}") from error


def _decompress(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data


def _parse(data: bytes) -> np.ndarray:
    dtype, start = _type_and_header_length(data)
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist())
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise ValueError(
            f"{len(data) - start} bytes of numbers found, {expected} expected for shape {shape}"
        )
    return np.frombuffer(data[start:], dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _type_and_header_length(data: bytes) -> tuple[np.dtype, int]:
    if len(data) < 4 or data[:2] != b"\0\0":
        raise ValueError(f"magic number {data[:4].hex() or 'missing'} found, 0000TTNN expected")
    if data[2] not in _DTYPES:
        known = ", ".join(f"0x{code:02x}" for code in _DTYPES)
        raise ValueError(f"type code 0x{data[2]:02x} found, one of {known} expected")
    header_length = 4 + 4 * data[3]
    if len(data) < header_length:
        raise ValueError(f"header of {len(data)} bytes found, {header_length} expected")
    return np.dtype(_DTYPES[data[2]]), header_length


def read_mat(data: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays in the bytes of a MATLAB 5 file, by name."""
    file: Any = io.BytesIO(data)  # which SciPy reads and its type stubs do not list
    return {name: value for name, value in loadmat(file).items() if not name.startswith("__")}


def read_libsvm(
    data: bytes, num_features: int, where: str = "LIBSVM data"
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features and labels of a file in LIBSVM's sparse text format.

    A line is ``label index:value index:value ...``; indices start at 1 and ascend, and missing
    features are zero. Source: C.-C. Chang and C.-J. Lin, "LIBSVM: a library for support vector
    machines", README.

    Args:
      data: the bytes of a file.
      num_features: number of features of a record, which the file does not contain.
      where: the file's path, for the error.

    Returns:
      Dense features, float32 ``(n, num_features)``, and labels as in the file, float32 ``(n,)``.

    Raises:
      CorruptedFileError: naming the file and the line, for a label or a value that is not a finite
        number, or an index that is missing, out of range or out of order.

    >>> read_libsvm(b"+1 1:1 3:0.5\\n-1 2:1\\n", num_features=3)
    (array([[1. , 0. , 0.5], [0. , 1. , 0. ]], dtype=float32), array([ 1., -1.], dtype=float32))
    """
    lines = data.decode("ascii", errors="replace").splitlines()
    features = np.zeros((len(lines), num_features), np.float32)
    labels = np.empty(len(lines), np.float32)
    for i, line in enumerate(lines):
        try:
            labels[i] = _fill(features[i], line)
        except ValueError as error:
            raise CorruptedFileError(f"{where}, line {i + 1}: {error}") from error
    return features, labels


def _fill(row: np.ndarray, line: str) -> float:
    """Writes the line's features into ``row`` and returns its label."""
    label, _, entries = line.strip().partition(" ")
    column = -1
    for entry in entries.split():
        index, _, value = entry.partition(":")
        if not (index.isdecimal() and column < int(index) - 1 < len(row)):
            allowed = f"an ascending index from 1 to {len(row)}"
            raise ValueError(f"{entry!r} found, {allowed} and a value expected")
        column = int(index) - 1
        row[column] = _number(value)
    return _number(label)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} found, a finite number expected")
    return number
