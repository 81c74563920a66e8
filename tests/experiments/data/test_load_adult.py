"""Adult from each of its sources, and the real files where they are at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published

from experiments.data import CorruptedFileError, Dataset, adult, load_adult

CONTENTS = {
    "a9a": b"-1 3:1 123:1 \n+1 1:1 \n-1 2:1 4:1 \n",
    "a9a.t": b"+1 122:1 \n-1 1:1 \n",
}


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENTS[name])
    return folder


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny Adult, but where the real one is asked for."""
    if "real" not in request.fixturenames:
        monkeypatch.setattr(adult, "_FILES", published(CONTENTS))


def assert_tiny(found: Dataset) -> None:
    expected = np.zeros((3, 123), np.float32)
    expected[[0, 0, 1, 2, 2], [2, 122, 0, 1, 3]] = 1
    np.testing.assert_array_equal(found.train.x, expected, strict=True)
    np.testing.assert_array_equal(found.train.y, np.array([0, 1, 0], np.int32), strict=True)
    assert np.argwhere(found.test.x).tolist() == [[0, 121], [1, 0]]
    assert found.test.y.tolist() == [1, 0]
    assert (found.name, found.is_stand_in, found.num_classes) == ("adult", False, 2)


@pytest.mark.parametrize("below", ["a9a", "."])
def test_raw_files_come_first(places: Any, below: str) -> None:
    write(places.data / below, "a9a", "a9a.t")
    found = load_adult()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"


def test_a_missing_raw_file_is_an_error(places: Any) -> None:
    write(places.data / "a9a", "a9a")
    with pytest.raises(FileNotFoundError, match=r"a9a\.t missing"):
        load_adult()


@pytest.mark.parametrize(("cut", "fault"), [(1, "truncated"), (0, "corrupted")])
def test_other_bytes_are_an_error(places: Any, cut: int, fault: str) -> None:
    path = write(places.data / "a9a", "a9a", "a9a.t") / "a9a.t"
    data = path.read_bytes().replace(b"122", b"121")
    path.write_bytes(data[: len(data) - cut])
    with pytest.raises(CorruptedFileError, match=rf"a9a\.t is {fault}"):
        load_adult()


def test_a_line_that_cannot_be_read_is_named(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = {**CONTENTS, "a9a": b"-1 3:1\n+1 124:1\n"}
    monkeypatch.setattr(adult, "_FILES", published(damaged))
    monkeypatch.setitem(CONTENTS, "a9a", damaged["a9a"])
    write(places.data / "a9a", "a9a", "a9a.t")
    with pytest.raises(CorruptedFileError, match=r"a9a/a9a, line 2: '124:1' found"):
        load_adult()


def test_the_host_comes_second(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adult, "_HOST", host.address)
    write(host.folder, "a9a", "a9a.t")
    found = load_adult()
    assert_tiny(found)
    assert found.source == "original host"
    assert "holds no raw file of a9a" in found.note
    monkeypatch.setattr(adult, "_HOST", "http://absent.invalid/")
    assert_tiny(load_adult())  # from the cache


def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any) -> None:
    found = load_adult()
    assert (found.name, found.is_stand_in) == ("breast_cancer", True)
    assert found.note.startswith("This is not Adult")
    assert "<urlopen error offline>" in found.note
    assert caplog.messages == [found.note]
    assert [len(part.y) for part in (found.train, found.test)] == [455, 114]
    assert found.train.x.dtype == np.float32
    assert found.train.y.dtype == np.int32
    for part in (found.train, found.test):
        assert set(np.unique(part.x)) == {0, 1}
        assert (part.x.sum(axis=1) == 30).all()


def test_octaves_are_the_powers_of_two_below() -> None:
    values = np.array([[0.0, 0.003, 0.3, 1.0, 1.99, 2.0, 5000.0, 1e9]])
    octaves = adult._encode_exponents(values).reshape(8, 21).argmax(axis=1) - 8
    assert octaves.tolist() == [-8, -8, -2, 0, 0, 1, 12, 12]


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real Adult, from raw files already on this machine."""
    return load_real(load_adult, "a9a", "a9a.t")


def test_the_real_records(real: Dataset) -> None:
    assert real.train.x.shape == (32_561, 123)
    assert real.test.x.shape == (16_281, 123)
    assert real.train.x.sum(dtype=float) == 451_592
    assert set(np.unique(real.train.x)) == {0, 1}
    assert (real.train.y.sum(), real.test.y.sum()) == (7_841, 3_846)
