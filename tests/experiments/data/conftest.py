"""Sources of data in temporary folders and on 127.0.0.1, so that every route runs offline."""

import gc
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import requests
from helpers.raw_files import FORMS, Tiny, write

from experiments.data import DATA_SETS, Dataset, images, load_data, ratings, sources

BESIDE = Path(__file__).parents[4] / "shared" / "data"


class Places(NamedTuple):
    """The folders that the sources look into, none of which exists yet, and the host.

    Attributes:
      data: ``DPJAX_DATA_DIR``.
      tfds: ``TFDS_DATA_DIR``.
      cache: of downloads.
      host: the files that the host serves, in a folder for each data set.
      cut: the names of files that the host stops sending halfway.
      publish: ``publish(folder, tiny)`` registers files as the published ones.
    """

    data: Path
    tfds: Path
    cache: Path
    host: Path
    cut: set[str]
    publish: Callable[[str, Tiny], None]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Points every source at a folder of its own and publishes tiny data sets in all of them."""
    folders = [tmp_path / name for name in ("data", "tfds", "cache", "host")]
    monkeypatch.setenv("DPJAX_DATA_DIR", str(folders[0]))
    monkeypatch.setenv("TFDS_DATA_DIR", str(folders[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders[2]))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # TFDS leaves empty folders there
    monkeypatch.setattr(sources, "can_prepare", lambda: False)
    monkeypatch.setattr(images, "_SVHN_SUBSET_TRAIN", 8)
    for name, size in {"_NUM_RATINGS": 20, "_NUM_USERS": 4, "_NUM_MOVIES": 9}.items():
        monkeypatch.setattr(ratings, name, size)

    folders[3].mkdir()
    cut: set[str] = set()
    monkeypatch.setattr(_Handler, "cut", cut)
    handler = partial(_Handler, directory=str(folders[3]))
    gc.freeze()  # so that the collection below looks at what this test has made
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        registry = tmp_path / "registry.txt"
        monkeypatch.setattr(sources, "REGISTRY", registry)
        published: dict[str, str] = {}

        def publish(folder: str, tiny: Tiny) -> None:
            for name, data in tiny.contents.items():
                url = f" {address}/{folder}/{name}" if tiny.downloaded else ""
                published[f"{folder}/{name}"] = hashlib.sha256(data).hexdigest() + url
            registry.write_text("".join(f"{key} {rest}\n" for key, rest in published.items()))

        for name, forms in FORMS.items():
            for tiny in forms:
                publish(DATA_SETS[name].folder, tiny)
        yield Places(*folders[:2], folders[2] / "dpjax", folders[3], cut, publish)
        server.shutdown()
        thread.join()
    gc.collect()  # answers that pooch has left open: in this test, not in the next
    gc.unfreeze()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves nothing of the network."""

    def get(url: str, **kwargs: Any) -> Any:
        raise requests.ConnectionError("offline")

    monkeypatch.setattr(requests, "get", get)


class _Handler(SimpleHTTPRequestHandler):
    cut: ClassVar[set[str]] = set()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        stop = len(data) // 2 if self.path.rpartition("/")[2] in self.cut else len(data)
        outputfile.write(data[:stop])

    def log_message(self, *args: Any) -> None:
        """Keeps the requests out of the test's output."""


@pytest.fixture
def put(places: Places) -> Callable[..., Path]:
    """Writes the files of a data set's form below a root: ``put(places.data, name, form=0)``."""

    def write_form(root: Path, name: str, form: int = 0, below: str | None = None) -> Path:
        folder = DATA_SETS[name].folder if below is None else below
        return write(root / folder, FORMS[name][form].contents)

    return write_form


@pytest.fixture(scope="module")
def real_file() -> Callable[[str, str], Path]:
    """Finds a real raw file, or skips where there is none, as in a clone without a network."""

    def find(name: str, file: str) -> Path:
        root = Path(os.environ.get("DPJAX_DATA_DIR") or BESIDE)
        path = root / DATA_SETS[name].folder / file
        if not path.exists():
            pytest.skip(f"{root} holds no {file}: set DPJAX_DATA_DIR to a folder that does")
        return path

    return find


@pytest.fixture
def real(real_file: Callable[[str, str], Path]) -> Callable[..., Dataset]:
    """Loads a data set from its real raw files, or skips where there are none."""

    def load(name: str, file: str) -> Dataset:
        root = real_file(name, file).parents[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DPJAX_DATA_DIR", str(root))
            return load_data(name)

    return load
