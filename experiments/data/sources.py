"""Sources of a data set: raw files in ``DPJAX_DATA_DIR``, downloads from the original host.

Raw files are verified by size and sha256. `first_available` tries the sources of a data set in
order.
"""

import hashlib
import logging
import os
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.error import HTTPError

from tqdm import tqdm

from experiments.data.base import Dataset

DATA_DIR = "DPJAX_DATA_DIR"
"""The environment variable that names a folder of raw files already downloaded."""

D = TypeVar("D", bound=Dataset)
T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
_SECONDS_TO_CONNECT = 5.0
_SECONDS_OF_SILENCE = 15.0
_CHUNK = 1 << 16


class UnavailableError(Exception):
    """A source does not have the data, so the next one is tried.

    Damaged data raise ``CorruptedFileError`` instead, and no other source is tried.
    """


class CorruptedFileError(ValueError):
    """Data differ from those published: truncated, altered or unreadable."""


class RawFile(NamedTuple):
    """A published file with its size and checksum.

    Attributes:
      name: its name at the original host.
      size: its length in bytes.
      sha256: the checksum of its bytes, in hexadecimal.
    """

    name: str
    size: int
    sha256: str


def first_available(sources: Sequence[Callable[[], D]]) -> D:
    """Returns the data set from the first source that has it.

    Its note ends with the reasons why earlier sources were not available. For a stand-in the note
    is also logged as a warning.

    Raises:
      UnavailableError: if no source has the data, with every reason.

    >>> def offline():
    ...     raise UnavailableError("no network")
    >>> first_available([offline])
    Traceback (most recent call last):
      ...
    experiments.data.sources.UnavailableError: no source of the data is available: no network
    """
    reasons: list[str] = []
    for source in sources:
        try:
            dataset = source()
        except UnavailableError as error:
            reasons.append(str(error))
            continue
        if reasons:
            note = f"{dataset.note} Sources not available: {'; '.join(reasons)}."
            dataset = replace(dataset, note=note)
        if dataset.is_stand_in:
            _LOGGER.warning(dataset.note)
        return dataset
    raise UnavailableError("no source of the data is available: " + "; ".join(reasons))


def first_raw(
    name: str,
    files: Sequence[RawFile],
    host: str,
    read: Callable[[Path, str], D],
    stand_in: Callable[[], D],
    *,
    prepared: Callable[[], D] | None = None,
    host_name: str = "original host",
) -> D:
    """Returns data set ``name`` from raw files on this machine, its host, or its stand-in.

    Args:
      name: the data set's name, as of `find_raw`.
      files: its raw files.
      host: the address that the files' names are appended to.
      read: from a folder that holds the files and a description of the source to the data set.
      stand_in: returns other data, for when no source is available.
      prepared: returns a copy prepared by TFDS, which comes before the host.
      host_name: the description of ``host``.

    Raises:
      FileNotFoundError: as of `find_raw`.
      CorruptedFileError: if a source has damaged data; no other source is tried then.
    """
    return first_available(
        [
            lambda: read(find_raw(name, files), f"raw files in {DATA_DIR}"),
            *([prepared] if prepared else []),
            lambda: read(fetch_raw(name, files, host), host_name),
            stand_in,
        ]
    )


def find_raw(name: str, files: Sequence[RawFile], *, own_folder: bool = False) -> Path:
    """Returns the folder of ``DPJAX_DATA_DIR`` that holds the raw files of data set ``name``.

    That is the folder's subfolder ``name``, or the folder itself.

    Args:
      name: the data set's name.
      files: its raw files.
      own_folder: whether to look into the subfolder only, for files whose names another data set
        has too.

    Raises:
      UnavailableError: if the variable is not set, or none of the files is there.
      FileNotFoundError: if some of the files are there and others are not.
    """
    root = os.environ.get(DATA_DIR)
    if not root:
        raise UnavailableError(f"{DATA_DIR} is not set")
    folders = [Path(root).expanduser() / name]
    if not own_folder:
        folders.append(Path(root).expanduser())
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
    """Returns the bytes of ``file`` in ``folder``, verified against the published checksum.

    Raises:
      FileNotFoundError: if it is not there.
      CorruptedFileError: if its length or checksum is not the published one.
    """
    path = folder / file.name
    remedy = f"delete it and download it again, or point {DATA_DIR} at a folder with a good copy"
    return verify_file(path.read_bytes(), file, where=str(path), remedy=remedy)


def verify_file(data: bytes, file: RawFile, where: str, remedy: str) -> bytes:
    """Returns ``data`` after verifying size and sha256 of ``file``.

    Args:
      data: the bytes found.
      file: the published file.
      where: the path or address that the bytes came from, for the error.
      remedy: advice for the error message.

    Raises:
      CorruptedFileError: if their length or checksum is not the published one.

    >>> verify_file(b"ab", RawFile("f", 3, ""), where="f", remedy="download it again")
    Traceback (most recent call last):
      ...
    experiments.data.sources.CorruptedFileError: f is truncated: 2 bytes found, 3 expected; ...
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


def fetch_raw(name: str, files: Sequence[RawFile], host: str) -> Path:
    """Downloads the missing files of data set ``name`` and returns their cache folder.

    The folder is ``$XDG_CACHE_HOME/dpjax/NAME``, or ``~/.cache/dpjax/NAME``. A file is stored
    there only after its checksum is verified.

    Args:
      name: the data set's name.
      files: its raw files.
      host: the address that the files' names are appended to.

    Raises:
      UnavailableError: if the host does not answer within seconds or returns an error, or if the
        folder cannot be written.
      CorruptedFileError: if the bytes are not those published.
    """
    folder = cache_folder(name)
    for file in files:
        if not (folder / file.name).exists():
            _download(host + file.name, folder, file)
    return folder


def cache_folder(name: str) -> Path:
    """Returns the folder that downloads of data set ``name`` are kept in; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "dpjax" / name


def _download(url: str, folder: Path, file: RawFile) -> None:
    try:
        chunks: list[bytes] = []
        bar = tqdm(total=file.size, desc=file.name, unit="B", unit_scale=True, disable=None)
        # A truncated response is reported by the check of the length.
        with _open(url) as response, bar, suppress(IncompleteRead):
            while chunk := response.read(_CHUNK):
                chunks.append(chunk)
                bar.update(len(chunk))
        data = verify_file(
            b"".join(chunks), file, where=url, remedy="try again, or from another network"
        )
        _write_atomically(folder / file.name, data)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise UnavailableError(f"{url} could not be downloaded: {error}") from error


def _open(url: str) -> HTTPResponse:
    """Opens ``url`` within one deadline."""
    return call_within(
        _SECONDS_TO_CONNECT, lambda: urllib.request.urlopen(url, timeout=_SECONDS_OF_SILENCE)
    )


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """Returns what ``call`` returns, or raises ``TimeoutError`` after ``seconds``.

    A socket's timeout restarts for each of the host's addresses and does not cover name lookup, so
    a machine behind a firewall that drops packets would wait for minutes.

    >>> call_within(60.0, lambda: 1)
    1
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError as error:
        message = str(error) or f"no answer within {seconds:g} s"
        raise TimeoutError(message) from error


def _write_atomically(path: Path, data: bytes) -> None:
    """Writes ``path`` atomically: a crash leaves no partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        temporary.write_bytes(data)
        temporary.replace(path)
