"""Abalone from each of its sources, both scalings, and the real file where it is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published

from experiments.data import CorruptedFileError, Dataset, load_abalone, uci

NAME = "abalone.data"
ROWS = [
    ("M", 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15, 15),
    ("I", 0.33, 0.255, 0.08, 0.205, 0.0895, 0.0395, 0.055, 7),
    ("F", 0.53, 0.42, 0.135, 0.677, 0.2565, 0.1415, 0.21, 10),
    ("M", 0.44, 0.365, 0.125, 0.516, 0.2155, 0.114, 0.155, 9),
    ("I", 0.425, 0.3, 0.095, 0.3515, 0.141, 0.0775, 0.12, 8),
]
CONTENT = "".join(",".join(map(str, row)) + "\n" for row in ROWS).encode()


def publish(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(uci, "_ABALONE_FILES", published({NAME: data}))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny Abalone, but where the real one is asked for."""
    if "real" not in request.fixturenames:
        publish(monkeypatch, CONTENT)


def write(folder: Path, data: bytes = CONTENT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(data)


def together(found: Dataset) -> np.ndarray:
    return np.concatenate([found.train.x, found.test.x])


def assert_tiny(found: Dataset) -> None:
    x = together(found)
    assert (x.shape, x.dtype, found.train.y.dtype) == ((5, 8), np.float32, np.int32)
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([1, 0, 1, 0], [0])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean(axis=0), 1.0, rtol=1e-5)
    length = np.array([row[1] for row in ROWS])
    np.testing.assert_allclose(x[:, 1], (length - length.mean()) / length.std(), rtol=1e-5)
    assert (found.name, found.is_stand_in, found.num_classes) == ("abalone", False, 2)


@pytest.mark.parametrize("below", ["abalone", "."])
def test_raw_files_come_first(places: Any, below: str) -> None:
    write(places.data / below)
    found = load_abalone()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"
    assert "a leak that ε does not include" in found.note


def test_public_ranges_look_at_no_other_record(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(places.data)
    whole = together(load_abalone("public"))
    sexes = [-np.sqrt(3), 0.0, np.sqrt(3)]
    np.testing.assert_allclose(whole[:, 0], [sexes[code] for code in (2, 0, 1, 2, 0)], rtol=1e-6)
    changed = CONTENT.replace(b"0.455", b"9.999")
    publish(monkeypatch, changed)
    write(places.data, changed)
    np.testing.assert_array_equal(together(load_abalone("public"))[1:], whole[1:])
    # The power check: the published standardisation does.
    assert not np.allclose(together(load_abalone())[1:, 1], 0.0)
    assert np.ptp(together(load_abalone())[1:, 1]) < 0.2


@pytest.mark.parametrize(("cut", "fault"), [(1, "truncated"), (0, "corrupted")])
def test_other_bytes_are_an_error(places: Any, cut: int, fault: str) -> None:
    data = CONTENT.replace(b"0.1", b"0.2")
    write(places.data / "abalone", data[: len(data) - cut])
    with pytest.raises(CorruptedFileError, match=rf"{NAME} is {fault}"):
        load_abalone()


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        (CONTENT.replace(b"M", b"X"), "cannot be read: 'X'"),
        (CONTENT.replace(b"0.455", b"?"), "cannot be read"),
        (b"M,1,2\nF,3,4\n", "is no table of 9 columns"),
    ],
)
def test_a_file_that_is_no_such_table_is_named(
    places: Any, monkeypatch: pytest.MonkeyPatch, damaged: bytes, fault: str
) -> None:
    publish(monkeypatch, damaged)
    write(places.data / "abalone", damaged)
    with pytest.raises(CorruptedFileError, match=rf"{NAME} {fault}"):
        load_abalone()


def test_an_unknown_scaling_is_refused(places: Any) -> None:
    with pytest.raises(ValueError, match="scaling"):
        load_abalone("robust")  # type: ignore[arg-type]


def test_the_host_comes_second(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uci, "_ABALONE_HOST", host.address)
    write(host.folder)
    found = load_abalone()
    assert_tiny(found)
    assert found.source == "original host"
    assert "holds no raw file of abalone" in found.note
    monkeypatch.setattr(uci, "_ABALONE_HOST", "http://absent.invalid/")
    assert_tiny(load_abalone())  # from the cache


@pytest.mark.parametrize("scaling", ["published", "public"])
def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any, scaling: Any) -> None:
    found = load_abalone(scaling)
    assert (found.name, found.is_stand_in) == ("diabetes_above_median", True)
    assert found.note.startswith("This is not Abalone")
    assert caplog.messages == [found.note]
    assert (found.train.x.shape, found.test.x.shape) == ((353, 10), (89, 10))
    assert found.train.y.sum() + found.test.y.sum() == 221
    if scaling == "public":
        assert (np.abs(together(found)) <= 1.74).mean(axis=0).min() > 0.8


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real Abalone, from a raw file already on this machine."""
    return load_real(load_abalone, "abalone", NAME)


def test_the_real_records(real: Dataset) -> None:
    assert (real.train.x.shape, real.test.x.shape) == ((3_341, 8), (836, 8))
    assert (real.train.y.sum(), real.test.y.sum()) == (1_689, 392)
    codes, counts = np.unique(together(real)[:, 0], return_counts=True)
    assert counts.tolist() == [1_342, 1_307, 1_528]
    sex = np.repeat([0, 1, 2], counts)
    np.testing.assert_allclose(np.diff(codes), 1 / sex.std(), rtol=1e-5)
