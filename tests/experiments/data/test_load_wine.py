"""Wine Quality from each of its sources, and the real file where it is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published

from experiments.data import CorruptedFileError, load_wine, uci
from experiments.data.base import RegressionDataset

NAME = "winequality-white.csv"
ROWS = [[*(number + column / 10 for column in range(11)), 3 + number] for number in range(5)]
HEADER = ";".join(f'"{column}"' for column in range(12))
CONTENT = "\n".join([HEADER, *(";".join(map(str, row)) for row in ROWS)]).encode()


def publish(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(uci, "_WINE_FILES", published({NAME: data}))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny Wine Quality, but where the real one is asked for."""
    if "real" not in request.fixturenames:
        publish(monkeypatch, CONTENT)


def write(folder: Path, data: bytes = CONTENT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(data)


def assert_tiny(found: RegressionDataset) -> None:
    x = np.concatenate([found.train.x, found.test.x])
    y = np.concatenate([found.train.y, found.test.y])
    assert (x.dtype, y.dtype, len(found.test.y)) == (np.float32, np.float32, 1)
    table = np.column_stack([x, y])[np.argsort(y)]
    np.testing.assert_array_equal(table, np.array(ROWS, np.float32))
    assert (found.name, found.is_stand_in, found.num_classes) == ("wine_quality_white", False, 0)


@pytest.mark.parametrize("below", ["wine_quality", "."])
def test_raw_files_come_first(places: Any, below: str) -> None:
    write(places.data / below)
    found = load_wine()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"


@pytest.mark.parametrize(("cut", "fault"), [(1, "truncated"), (0, "corrupted")])
def test_other_bytes_are_an_error(places: Any, cut: int, fault: str) -> None:
    data = CONTENT.replace(b"0.1", b"0.2")
    write(places.data / "wine_quality", data[: len(data) - cut])
    with pytest.raises(CorruptedFileError, match=rf"{NAME} is {fault}"):
        load_wine()


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [(CONTENT.replace(b"0.1", b"0,1"), "cannot be read"), (b"a;b\n1;2", "has 2 columns")],
)
def test_a_file_that_is_no_such_table_is_named(
    places: Any, monkeypatch: pytest.MonkeyPatch, damaged: bytes, fault: str
) -> None:
    publish(monkeypatch, damaged)
    write(places.data / "wine_quality", damaged)
    with pytest.raises(CorruptedFileError, match=rf"{NAME} {fault}"):
        load_wine()


def test_the_host_comes_second(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uci, "_WINE_HOST", host.address)
    write(host.folder)
    found = load_wine()
    assert_tiny(found)
    assert found.source == "original host"
    assert "holds no raw file of wine_quality" in found.note
    monkeypatch.setattr(uci, "_WINE_HOST", "http://absent.invalid/")
    assert_tiny(load_wine())  # from the cache


def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any) -> None:
    found = load_wine()
    assert (found.name, found.is_stand_in) == ("diabetes", True)
    assert found.note.startswith("This is not Wine Quality")
    assert caplog.messages == [found.note]
    assert (found.train.x.shape, found.test.x.shape) == ((354, 10), (88, 10))
    assert found.train.y.dtype == np.float32


def common_share(found: RegressionDataset) -> np.ndarray:
    low, high = np.array(found.feature_ranges).T
    return ((found.train.x >= low) & (found.train.x <= high)).mean(axis=0)


def test_the_stand_in_is_commonly_in_its_ranges(places: Any) -> None:
    found = load_wine()
    assert len(found.feature_names) == len(found.feature_ranges) == 10
    assert common_share(found).min() > 0.8


@pytest.fixture(scope="module")
def real() -> RegressionDataset:
    """The real Wine Quality, from a raw file already on this machine."""
    return load_real(load_wine, "wine_quality", NAME)


def test_the_real_records(real: RegressionDataset) -> None:
    assert (real.train.x.shape, real.test.x.shape) == ((3_918, 11), (980, 11))
    grades = np.concatenate([real.train.y, real.test.y])
    assert np.bincount(grades.astype(int)).tolist() == [0, 0, 0, 20, 163, 1457, 2198, 880, 175, 5]
    assert len(real.feature_names) == len(real.feature_ranges) == 11
    assert common_share(real).min() > 0.8
