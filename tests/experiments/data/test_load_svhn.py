"""SVHN from each of its sources, and the real 10,000 test images where they are at hand."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets
from raw_files import load_real, published, write
from scipy.io import savemat

from experiments.data import CorruptedFileError, Dataset, load_svhn, svhn, tfds

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (12, 5))
LABELS, TEST_LABELS = np.arange(12) % 10, np.array([0, 9, 0, 1, 2])
TRAIN_NAME, TEST_NAME = (file.name for file in svhn._FILES)
SUBSET_NAME = svhn._SUBSET.name


def mat(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The original format: the images along the last axis, the digit 0 labelled 10."""
    file = io.BytesIO()
    tens = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(file, {"X": np.moveaxis(images, 0, -1), "y": tens}, do_compression=True)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, X=TRAIN, y=LABELS.astype(np.uint8))
    return file.getvalue()


CONTENTS = {TRAIN_NAME: mat(TRAIN, LABELS), TEST_NAME: mat(TEST, TEST_LABELS)}
SUBSET = {SUBSET_NAME: npz()}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny SVHN, but where the real one is asked for."""
    if "real" in request.fixturenames or "registered" in request.node.name:
        return
    monkeypatch.setattr(svhn, "_FILES", published(CONTENTS))
    monkeypatch.setattr(svhn, "_SUBSET", published(SUBSET)[0])
    for name, size in (("_NUM_TRAIN", 12), ("_NUM_TEST", 5), ("_NUM_SUBSET_TRAIN", 8)):
        monkeypatch.setattr(svhn, name, size)


def assert_held_as_published(found: Dataset) -> None:
    for part, images, labels in (
        (found.train, TRAIN, LABELS),
        (found.test, TEST, TEST_LABELS),
    ):
        np.testing.assert_array_equal(part.x, images / np.float32(255), strict=True)
        np.testing.assert_array_equal(part.y, labels.astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in, found.num_classes) == ("svhn", False, 10)


@pytest.mark.parametrize("below", ["svhn", "."])
def test_original_files_come_first(places: Any, below: str) -> None:
    write(places.data / below, {**CONTENTS, **SUBSET})
    found = load_svhn()
    assert_held_as_published(found)
    assert found.note.startswith("SVHN, cropped digits: 12 training and 5 test images")


def test_the_subset_is_split_in_order_and_named(places: Any) -> None:
    write(places.data / "svhn", SUBSET)
    found = load_svhn()
    np.testing.assert_array_equal(found.train.x, TRAIN[:8] / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.x, TRAIN[8:] / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.y, LABELS[8:].astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in) == ("svhn (12 test images)", False)
    assert "the first 12 of its 5 test images" in found.note
    assert "8 for training and 4 for testing" in found.note


def test_one_of_the_two_files_is_an_error(places: Any) -> None:
    write(places.data, {TEST_NAME: CONTENTS[TEST_NAME]})
    with pytest.raises(FileNotFoundError, match=f"{TRAIN_NAME} missing"):
        load_svhn()


@pytest.mark.parametrize("contents", [CONTENTS, SUBSET], ids=["original", "subset"])
def test_other_bytes_are_an_error(places: Any, contents: dict[str, bytes]) -> None:
    name, data = next(iter(contents.items()))
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    write(places.data, {**contents, name: damaged})
    with pytest.raises(CorruptedFileError, match=f"{name} is corrupted"):
        load_svhn()


def test_the_prepared_copy_comes_second(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = tuple(
        [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
        for images, labels in ((TRAIN, LABELS), (TEST, TEST_LABELS))
    )
    copy = tfds.Prepared("svhn_cropped 3.1.0", splits)
    monkeypatch.setattr(tfds, "is_prepared", lambda name: name == "svhn_cropped")
    monkeypatch.setattr(tfds, "read_prepared", lambda name, parts: copy)
    found = load_svhn()
    assert_held_as_published(found)
    assert found.source == "TFDS svhn_cropped 3.1.0"
    monkeypatch.setattr(svhn, "_NUM_TEST", 6)
    with pytest.raises(CorruptedFileError, match=r"holds 12 \+ 5 images, 12 \+ 6 expected"):
        load_svhn()


def test_the_host_comes_third(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svhn, "_HOST", host.address)
    write(host.folder, CONTENTS)
    found = load_svhn()
    assert_held_as_published(found)
    assert found.source == "original host"
    assert "holds no raw file of svhn" in found.note


def test_offline_the_stand_in_says_what_it_is(places: Any, caplog: Any) -> None:
    found = load_svhn()
    assert (found.name, found.is_stand_in) == ("digits", True)
    assert found.note.startswith("This is not SVHN")
    assert caplog.messages == [found.note]
    assert found.train.x.shape == (1437, 32, 32, 3)


def test_the_checksums_are_registered_with_tfds() -> None:
    folder = Path(tensorflow_datasets.__file__).parent / "datasets" / "svhn_cropped"
    lines = (folder / "checksums.tsv").read_text().splitlines()
    registered = {url: (int(size), digest) for url, size, digest, _ in map(str.split, lines)}
    for file in svhn._FILES:
        assert registered[svhn._HOST + file.name] == (file.size, file.sha256)


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real 10,000 test images, from a raw file already on this machine."""
    return load_real(load_svhn, "svhn", SUBSET_NAME)


def test_the_real_images(real: Dataset) -> None:
    assert (real.train.x.shape, real.test.x.shape) == ((8_000, 32, 32, 3), (2_000, 32, 32, 3))
    assert real.name == "svhn (10,000 test images)"
    labels = np.concatenate([real.train.y, real.test.y])
    # test_32x32.mat begins with these labels, and 1 is the most frequent digit.
    assert labels[:8].tolist() == [5, 2, 1, 0, 6, 1, 9, 1]
    assert np.bincount(labels).tolist() == [684, 1968, 1590, 1104, 964, 909, 773, 767, 621, 620]


def test_real_neighbours_are_alike(real: Dataset) -> None:
    """Digits of one house number follow each other, so that the split keeps the order."""
    colours = real.train.x.mean(axis=(1, 2))
    apart = [np.abs(colours[gap:] - colours[:-gap]).mean() for gap in (1, 1000)]
    assert apart[0] < 0.7 * apart[1]
