"""Adult's 14 attributes from each source, and the real file where it is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published

from experiments.data import CorruptedFileError, Dataset, adult, load_adult_attributes

LINES = [
    "39, Private, 77516, Bachelors, 13, Divorced, Sales, Wife, White, Female, 2174, 0, 40, Cuba, ",
    "50, ?, 83311, Masters, 14, Divorced, ?, Husband, Black, Male, 0, 0, 13, ?, ",
    "38, Private, 21564, HS-grad, 9, Widowed, Sales, Wife, White, Female, 0, 9, 45, Peru, ",
    "53, Local-gov, 2347, 11th, 7, Divorced, Craft, Husband, Black, Male, 0, 0, 41, Peru, ",
    "28, Private, 3384, Masters, 14, Widowed, Craft, Wife, White, Female, 0, 0, 42, Cuba, ",
]
INCOMES = ["<=50K", ">50K", "<=50K", ">50K", "<=50K"]
FILE = "adult.data"
CONTENT = "\n".join([*map("".join, zip(LINES, INCOMES, strict=True)), ""]).encode()


def write(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(content)
    return folder


def publish(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (file,) = published({FILE: content})
    monkeypatch.setattr(adult, "_ATTRIBUTES_FILE", file)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny Adult, but where the real one is asked for."""
    if "real" not in request.fixturenames:
        publish(monkeypatch, CONTENT)


def together(found: Dataset) -> np.ndarray:
    return np.concatenate([found.train.x, found.test.x])


def assert_tiny(found: Dataset) -> None:
    x = together(found)
    assert (x.shape, x.dtype) == ((5, 14), np.float32)
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1, 0, 1], [0])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean(axis=0), 1.0, rtol=1e-5)
    workclass = np.array([2, 0, 2, 1, 2])  # "?", "Local-gov", "Private"
    np.testing.assert_allclose(x[:, 1], (workclass - 1.4) / workclass.std(), rtol=1e-5)
    assert (found.name, found.is_stand_in, found.num_classes) == ("adult_attributes", False, 2)


@pytest.mark.parametrize("below", ["adult", "."])
def test_raw_files_come_first(places: Any, below: str) -> None:
    write(places.data / below)
    found = load_adult_attributes()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"
    assert "a leak that ε does not include" in found.note


def test_public_ranges_are_typed(places: Any) -> None:
    write(places.data)
    x = together(load_adult_attributes("public"))
    np.testing.assert_allclose(x[:, 9], [-np.sqrt(3), np.sqrt(3)] * 2 + [-np.sqrt(3)], rtol=1e-6)
    np.testing.assert_allclose(x[0, 0], (39 - 41.5) / (47 / np.sqrt(12)), rtol=1e-5)


def test_other_bytes_are_an_error(places: Any) -> None:
    write(places.data / "adult", CONTENT.replace(b"53", b"54"))
    with pytest.raises(CorruptedFileError, match=r"adult\.data is corrupted"):
        load_adult_attributes()


def test_a_file_that_is_no_such_table_is_named(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = b"39, Private\n50, Private\n"
    publish(monkeypatch, damaged)
    write(places.data, damaged)
    with pytest.raises(CorruptedFileError, match=r"adult\.data is no table of 15 columns"):
        load_adult_attributes()


def test_an_unknown_scaling_is_refused(places: Any) -> None:
    with pytest.raises(ValueError, match="scaling"):
        load_adult_attributes("robust")  # type: ignore[arg-type]


def test_the_host_comes_second(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adult, "_ATTRIBUTES_HOST", host.address)
    write(host.folder)
    found = load_adult_attributes()
    assert_tiny(found)
    assert found.source == "original host"
    assert "holds no raw file of adult" in found.note


@pytest.mark.parametrize("scaling", ["published", "public"])
def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any, scaling: Any) -> None:
    found = load_adult_attributes(scaling)
    assert (found.name, found.is_stand_in) == ("breast_cancer_logarithms", True)
    assert found.note.startswith("This is not Adult")
    assert caplog.messages == [found.note]
    assert (found.train.x.shape, found.test.x.shape) == ((455, 30), (114, 30))
    assert found.train.x.dtype == np.float32
    assert np.isfinite(together(found)).all()


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real Adult, from a raw file already on this machine."""
    return load_real(load_adult_attributes, "adult", FILE)


def test_the_real_records(real: Dataset) -> None:
    assert (real.train.x.shape, real.test.x.shape) == ((26_048, 14), (6_513, 14))
    assert real.train.y.sum() + real.test.y.sum() == 7_841
    x = together(real)
    categories = [len(np.unique(x[:, column])) for column in (1, 3, 5, 6, 7, 8, 9, 13)]
    assert categories == list(adult._CATEGORIES.values())
