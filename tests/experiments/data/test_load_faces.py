"""The Olivetti faces from each of their sources, and the real file where it is at hand."""

import io
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from raw_files import load_real, published, write
from scipy.io import savemat

from experiments.data import CorruptedFileError, Dataset, faces, load_digits, load_olivetti_faces

NAME = faces._FILE.name
PICTURES = np.random.default_rng(0).integers(0, 243, (400, 64, 64), dtype=np.uint8)
# scikit-learn scales from the smallest to the largest pixel.
PICTURES[0, 0, :2] = (0, 242)
# Every column is one picture, itself column after column.
COLUMNS = PICTURES.transpose(0, 2, 1).reshape(400, -1).T


def mat() -> bytes:
    file = io.BytesIO()
    savemat(file, {"faces": COLUMNS})
    return file.getvalue()


CONTENTS = {NAME: mat()}


@pytest.fixture(autouse=True)
def _made_up(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Publishes made-up pictures, but where the real ones are asked for."""
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit_learn"))
    if "real" not in request.fixturenames:
        monkeypatch.setattr(faces, "_FILE", published(CONTENTS)[0])


def assert_held_as_published(found: Dataset) -> None:
    by_person = PICTURES.reshape(40, 10, 64, 64)
    for part, rows in ((found.train, slice(7)), (found.test, slice(7, None))):
        expected = by_person[:, rows].reshape(-1, 64, 64, 1) / np.float32(255)
        np.testing.assert_array_equal(part.x, expected, strict=True)
        people = np.arange(len(part.y)) // (len(part.y) // 40)
        np.testing.assert_array_equal(part.y, people.astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in, found.num_classes) == ("olivetti_faces", False, 40)


@pytest.mark.parametrize("below", ["faces", "."])
def test_the_raw_file_comes_first(places: Any, below: str) -> None:
    write(places.data / below, CONTENTS)
    found = load_olivetti_faces()
    assert_held_as_published(found)
    assert "the first 7 pictures of each for training" in found.note


def test_other_bytes_are_an_error(places: Any) -> None:
    write(places.data, {NAME: CONTENTS[NAME][:-1] + b"?"})
    with pytest.raises(CorruptedFileError, match=f"{NAME} is corrupted"):
        load_olivetti_faces()


def test_scikit_learn_s_copy_comes_second(places: Any, tmp_path: Path) -> None:
    (tmp_path / "scikit_learn").mkdir()
    joblib.dump(COLUMNS.T, tmp_path / "scikit_learn" / "olivetti_py3.pkz", compress=6)
    found = load_olivetti_faces()
    assert_held_as_published(found)
    assert found.source == "scikit-learn"


def test_offline_the_stand_in_says_what_it_is(places: Any, caplog: Any) -> None:
    found = load_olivetti_faces()
    assert (found.name, found.is_stand_in, found.num_classes) == ("digits", True, 10)
    assert found.note.startswith("This is not Olivetti faces")
    assert "scikit-learn could not fetch" in found.note
    assert caplog.messages == [found.note]
    assert np.bincount(found.train.y).tolist() == [7] * 10
    assert np.bincount(found.test.y).tolist() == [3] * 10
    digits = {image.tobytes() for image in load_digits().train.x}
    assert {image.tobytes() for image in found.train.x} <= digits


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real faces, from a raw file already on this machine."""
    return load_real(load_olivetti_faces, "faces", NAME)


def test_the_real_faces_are_upright_and_of_one_person_each(real: Dataset) -> None:
    assert (real.train.x.shape, real.test.x.shape) == ((280, 64, 64, 1), (120, 64, 64, 1))
    mean = real.train.x.mean(axis=0)[..., 0]
    # Upright: the left and right halves are alike, the upper and lower ones are not.
    halves = (mean, mean[:, ::-1]), (mean, mean[::-1])
    sides, ends = (np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in halves)
    assert sides > 0.8
    assert ends < 0.3
    # Most held-out pictures are most like a training picture of the same person.
    train, test = (part.x.reshape(len(part.y), -1) for part in (real.train, real.test))
    nearest = ((test[:, None] - train[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (real.train.y[nearest] == real.test.y).mean() > 0.8
