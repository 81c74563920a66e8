"""Sources of data in temporary folders and on 127.0.0.1, so that every route runs offline."""

import hashlib
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.error import URLError

import pytest
from tiny_mnist import TinyMnist, make_tiny_mnist, write_prepared

from experiments.data import mnist, tfds
from experiments.data.sources import RawFile


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> TinyMnist:
    """Publishes a tiny MNIST: its checksums and sizes take the place of the real ones."""
    tiny = make_tiny_mnist()
    files = tuple(
        RawFile(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in tiny.contents.items()
    )
    monkeypatch.setattr(mnist, "_FILES", files)
    monkeypatch.setattr(mnist, "_NUM_TRAIN", 7)
    monkeypatch.setattr(mnist, "_NUM_TEST", 3)
    return tiny


class Places(NamedTuple):
    """The folders that the sources look into, none of which exists yet."""

    data: Path
    tfds: Path
    cache: Path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Points every source at a folder of its own, and leaves of the network this machine alone."""
    places = Places(tmp_path / "data", tmp_path / "tfds", tmp_path / "cache" / "dpjax" / "mnist")
    monkeypatch.setenv("DPJAX_DATA_DIR", str(places.data))
    monkeypatch.setenv("TFDS_DATA_DIR", str(places.tfds))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # TFDS leaves empty folders there.
    monkeypatch.setattr(tfds, "can_prepare", lambda: False)
    monkeypatch.setattr(urllib.request, "urlopen", partial(_open_local, urllib.request.urlopen))
    return places


def _open_local(urlopen: Callable[..., Any], url: str, timeout: float) -> Any:
    if not url.startswith("http://127.0.0.1:"):
        raise URLError("offline")
    return urlopen(url, timeout=timeout)


@pytest.fixture
def prepared_copy(tiny: TinyMnist, places: Places) -> Path:
    """The folder of a copy of the tiny MNIST as TFDS prepares it."""
    write_prepared(places.tfds, tiny)
    return places.tfds / "mnist" / "3.0.1"


class Host(NamedTuple):
    """A host on this machine.

    Attributes:
      address: what file names are appended to.
      folder: the files that it serves.
      cut: the names of files that it stops sending halfway.
    """

    address: str
    folder: Path
    cut: set[str]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Serves a folder as the original host of MNIST."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "host").mkdir()
    handler = partial(_Handler, directory=str(tmp_path / "host"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        host = Host(f"http://127.0.0.1:{server.server_port}/", tmp_path / "host", set())
        monkeypatch.setattr(mnist, "_HOST", host.address)
        monkeypatch.setattr(_Handler, "cut", host.cut)
        yield host
        server.shutdown()
        thread.join()


class _Handler(SimpleHTTPRequestHandler):
    cut: ClassVar[set[str]] = set()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        stop = len(data) // 2 if self.path.lstrip("/") in self.cut else len(data)
        outputfile.write(data[:stop])

    def log_message(self, *args: Any) -> None:
        """Keeps the requests out of the test's output."""
