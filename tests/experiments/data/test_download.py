"""Downloads: from a host on this machine that is good, bad, cut short, silent or absent."""

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

from experiments.data import CorruptedFileError, sources
from experiments.data.sources import RawFile, UnavailableError, cache_folder, fetch_raw

CONTENTS = {"a.gz": b"alpha" * 50_000, "b.gz": b"beta"}
FILES = [RawFile(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in CONTENTS.items()]


@pytest.fixture
def greek(host: Any, places: Any) -> Any:
    """The host, serving the two files."""
    for name, data in CONTENTS.items():
        (host.folder / name).write_bytes(data)
    return host


def kept() -> dict[str, bytes]:
    """Everything in the cache folder, temporary files included."""
    return {p.name: p.read_bytes() for p in cache_folder("greek").rglob("*") if p.is_file()}


def test_the_files_come_into_the_cache(greek: Any) -> None:
    folder = fetch_raw("greek", FILES, greek.address)
    assert folder == cache_folder("greek")
    assert kept() == CONTENTS
    assert sorted(path.name for path in folder.iterdir()) == ["a.gz", "b.gz"]


def test_what_is_in_the_cache_is_not_asked_for_again(greek: Any) -> None:
    fetch_raw("greek", FILES, greek.address)
    fetch_raw("greek", FILES, "http://absent.invalid/")


def test_only_what_is_missing_is_asked_for(greek: Any) -> None:
    fetch_raw("greek", FILES[:1], greek.address)
    (greek.folder / "a.gz").unlink()
    fetch_raw("greek", FILES, greek.address)
    assert kept() == CONTENTS


def test_altered_files_are_refused_and_not_kept(greek: Any) -> None:
    (greek.folder / "a.gz").write_bytes(b"omega" * 50_000)
    with pytest.raises(CorruptedFileError, match=r"http://127.0.0.1:\d+/a\.gz is corrupted"):
        fetch_raw("greek", FILES, greek.address)
    assert kept() == {}


def test_an_answer_cut_short_is_refused_and_not_kept(greek: Any) -> None:
    greek.cut.add("b.gz")
    with pytest.raises(CorruptedFileError, match=r"b\.gz is truncated: 2 bytes found, 4 expected"):
        fetch_raw("greek", FILES, greek.address)
    assert kept() == {"a.gz": CONTENTS["a.gz"]}


def test_a_host_without_the_file_is_a_reason_to_look_elsewhere(greek: Any) -> None:
    (greek.folder / "a.gz").unlink()
    with pytest.raises(UnavailableError, match=r"a\.gz could not be downloaded: .*404"):
        fetch_raw("greek", FILES, greek.address)


def test_so_is_no_network(places: Any) -> None:
    with pytest.raises(UnavailableError, match=r"could not be downloaded: <urlopen error offline>"):
        fetch_raw("greek", FILES, "http://absent.invalid/")


def test_so_is_a_host_that_never_answers(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SECONDS_TO_CONNECT", 0.1)
    monkeypatch.setattr(sources, "_SECONDS_OF_SILENCE", 0.3)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(
            UnavailableError, match=r"could not be downloaded: no answer within 0\.1 s"
        ):
            fetch_raw("greek", FILES, address)


def test_so_is_a_cache_folder_that_cannot_be_written(greek: Any, tmp_path: Path) -> None:
    cache_folder("greek").parent.mkdir(parents=True)
    cache_folder("greek").write_text("a file where the folder should be")
    with pytest.raises(UnavailableError, match=r"could not be downloaded"):
        fetch_raw("greek", FILES, greek.address)


def test_a_crash_while_writing_leaves_no_file(greek: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        fetch_raw("greek", FILES, greek.address)
    assert kept() == {}


def test_the_cache_folder_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder("greek") == Path("/elsewhere/dpjax/greek")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder("greek") == Path("/home/ada/.cache/dpjax/greek")
