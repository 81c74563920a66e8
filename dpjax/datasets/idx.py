"""The IDX format of the MNIST files: a type, the lengths of the axes, and the numbers."""

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np

from dpjax.datasets.raw import CorruptedFileError

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"  # An IDX file begins with two zero bytes, so the two are never confused.


def read_idx(source: bytes | str | os.PathLike[str]) -> np.ndarray:
    """Returns the array held by an IDX file or by its bytes, gzipped or not.

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
        return _parse(_unzipped(data))
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise CorruptedFileError(f"{where} cannot be read as IDX: {error}") from error


def _unzipped(data: bytes) -> bytes:
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
