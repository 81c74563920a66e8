"""Raw files as their authors published them: where they lie, and whether they are whole."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpjax.datasets.sources import UnavailableError

DATA_DIR = "DPJAX_DATA_DIR"
"""The environment variable that names a folder of raw files already downloaded."""


class CorruptedFileError(ValueError):
    """Data that are there but are not those published: cut short, altered or unreadable."""


class RawFile(NamedTuple):
    """A published file and how to tell it from any other.

    Attributes:
      name: its name at the original host.
      size: its length in bytes.
      sha256: the checksum of its bytes, in hexadecimal.
    """

    name: str
    size: int
    sha256: str


def find_raw(name: str, files: Sequence[RawFile]) -> Path:
    """Returns the folder of ``DPJAX_DATA_DIR`` that holds the raw files of data set ``name``.

    That is the folder's subfolder ``name``, or the folder itself.

    Raises:
      UnavailableError: if the variable is not set, or none of the files is there.
      FileNotFoundError: if some of the files are there and others are not.
    """
    root = os.environ.get(DATA_DIR)
    if not root:
        raise UnavailableError(f"{DATA_DIR} is not set")
    folders = [Path(root).expanduser() / name, Path(root).expanduser()]
    missing = {f: [file.name for file in files if not (f / file.name).exists()] for f in folders}
    best = min(folders, key=lambda folder: len(missing[folder]))
    if len(missing[best]) == len(files):
        raise UnavailableError(f"{DATA_DIR}={root} holds no raw file of {name}")
    if missing[best]:
        raise FileNotFoundError(
            f"{best} holds only a part of {name}: {', '.join(missing[best])} missing; download the"
            f" rest, or point {DATA_DIR} at a folder that holds all {len(files)} files"
        )
    return best


def read_raw(folder: Path, file: RawFile) -> bytes:
    """Returns the bytes of ``file`` in ``folder``, once they are known to be the published ones.

    Raises:
      FileNotFoundError: if it is not there.
      CorruptedFileError: if its length or checksum is not the published one.
    """
    path = folder / file.name
    remedy = f"delete it and download it again, or point {DATA_DIR} at a folder with a good copy"
    return verified(path.read_bytes(), file, where=str(path), remedy=remedy)


def verified(data: bytes, file: RawFile, where: str, remedy: str) -> bytes:
    """Returns ``data`` if they are the published bytes of ``file``.

    Args:
      data: the bytes found.
      file: what was published.
      where: the path or address that the bytes came from, for the error.
      remedy: what the reader of the error can do.

    Raises:
      CorruptedFileError: if their length or checksum is not the published one.

    >>> verified(b"ab", RawFile("f", 3, ""), where="f", remedy="download it again")
    Traceback (most recent call last):
      ...
    dpjax.datasets.raw.CorruptedFileError: f is truncated: 2 bytes found, 3 expected; ...
    """
    if len(data) != file.size:
        fault = "truncated" if len(data) < file.size else "too long"
        found, expected = f"{len(data)} bytes", f"{file.size}"
    else:
        fault = "corrupted"
        found, expected = f"sha256 {hashlib.sha256(data).hexdigest()}", file.sha256
        if found == f"sha256 {expected}":
            return data
    raise CorruptedFileError(f"{where} is {fault}: {found} found, {expected} expected; {remedy}")
