"""Raw files from their original host, kept in the user's cache folder."""

import os
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError

from tqdm import tqdm

from dpjax.datasets.raw import RawFile, verified
from dpjax.datasets.sources import UnavailableError

_SECONDS_TO_CONNECT = 5.0
_SECONDS_OF_SILENCE = 15.0
_CHUNK = 1 << 16


def fetch_raw(name: str, files: Sequence[RawFile], host: str) -> Path:
    """Returns the cache folder of data set ``name`` after downloading the files it lacks.

    The folder is ``$XDG_CACHE_HOME/dpjax/NAME``, or ``~/.cache/dpjax/NAME``. A file gets its name
    there only once its bytes are known to be the published ones.

    Args:
      name: the data set's name.
      files: its raw files.
      host: the address that the files' names are appended to.

    Raises:
      UnavailableError: if the host does not answer within seconds or refuses, or if the folder
        cannot be written.
      CorruptedFileError: if the host sends other bytes than those published.
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
        data = _read(url, file)
        data = verified(data, file, where=url, remedy="try again, or from another network")
        _write_atomically(folder / file.name, data)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise UnavailableError(f"{url} could not be downloaded: {error}") from error


def _read(url: str, file: RawFile) -> bytes:
    chunks: list[bytes] = []
    # The check of the length, which comes next, is what names an answer that stops too early.
    with _open(url) as response, _progress(file) as bar, suppress(IncompleteRead):
        while chunk := response.read(_CHUNK):
            chunks.append(chunk)
            bar.update(len(chunk))
    return b"".join(chunks)


def _progress(file: RawFile) -> tqdm:
    """A bar on terminals, nothing elsewhere."""
    return tqdm(total=file.size, desc=file.name, unit="B", unit_scale=True, disable=None)


def _open(url: str) -> HTTPResponse:
    """Opens ``url`` within one deadline.

    A socket's own timeout would run anew for each of the host's addresses, and not at all while
    the name is looked up, so that a machine behind a silent firewall would wait for minutes.
    """
    answer: Future[HTTPResponse] = Future()

    def connect() -> None:
        try:
            answer.set_result(urllib.request.urlopen(url, timeout=_SECONDS_OF_SILENCE))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return answer.result(timeout=_SECONDS_TO_CONNECT)
    except TimeoutError as error:
        message = str(error) or f"no answer within {_SECONDS_TO_CONNECT:g} s"
        raise TimeoutError(message) from error


def _write_atomically(path: Path, data: bytes) -> None:
    """Writes ``path`` so that nobody, not even after a crash, sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        temporary.write_bytes(data)
        temporary.replace(path)
