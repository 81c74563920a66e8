"""Raw files: found where the reader put them, and read only if they are whole."""

import hashlib
from pathlib import Path

import pytest

from experiments.data import CorruptedFileError
from experiments.data.sources import RawFile, UnavailableError, find_raw, read_raw

CONTENTS = {"a.gz": b"alpha", "b.gz": b"beta"}
FILES = [RawFile(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in CONTENTS.items()]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPJAX_DATA_DIR", str(tmp_path))
    return tmp_path


def put(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENTS[name])


def test_the_set_s_own_folder_comes_first(root: Path) -> None:
    put(root, *CONTENTS)
    assert find_raw("greek", FILES) == root
    put(root / "greek", *CONTENTS)
    assert find_raw("greek", FILES) == root / "greek"


def test_a_whole_set_is_taken_before_a_part_of_one(root: Path) -> None:
    put(root, *CONTENTS)
    put(root / "greek", "a.gz")
    assert find_raw("greek", FILES) == root


@pytest.mark.parametrize("subfolder", ["greek", "."])
def test_a_part_of_a_set_is_an_error_that_names_the_rest(root: Path, subfolder: str) -> None:
    put(root / subfolder, "a.gz")
    with pytest.raises(FileNotFoundError, match=r"holds only a part of greek: b\.gz missing"):
        find_raw("greek", FILES)


def test_no_file_at_all_is_a_reason_to_look_elsewhere(root: Path) -> None:
    with pytest.raises(UnavailableError, match="holds no raw file of greek"):
        find_raw("greek", FILES)


@pytest.mark.parametrize("value", [None, ""])
def test_so_is_an_unset_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("DPJAX_DATA_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("DPJAX_DATA_DIR", value)
    with pytest.raises(UnavailableError, match="DPJAX_DATA_DIR is not set"):
        find_raw("greek", FILES)


def test_the_home_folder_may_be_written_as_a_tilde(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("DPJAX_DATA_DIR", "~/sets")
    put(root / "sets", *CONTENTS)
    assert find_raw("greek", FILES) == root / "sets"


def test_whole_files_are_read(root: Path) -> None:
    put(root, *CONTENTS)
    assert [read_raw(root, file) for file in FILES] == list(CONTENTS.values())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (b"", "is truncated: 0 bytes found, 5 expected"),
        (b"alph", "is truncated: 4 bytes found, 5 expected"),
        (b"alphas", "is too long: 6 bytes found, 5 expected"),
        (b"Alpha", f"is corrupted: sha256 [0-9a-f]{{64}} found, {FILES[0].sha256} expected"),
    ],
)
def test_other_bytes_are_refused(root: Path, found: bytes, message: str) -> None:
    (root / "a.gz").write_bytes(found)
    with pytest.raises(CorruptedFileError, match=rf"a\.gz {message}; delete it and download"):
        read_raw(root, FILES[0])


def test_a_missing_file_is_named(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.gz"):
        read_raw(root, FILES[0])
