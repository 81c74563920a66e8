"""Fashion-MNIST from each of its sources, and the real file where it is at hand."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, published, write
from tiny_mnist import NAMES, make_tiny_mnist

from experiments.data import CorruptedFileError, Dataset, fashion_mnist, load_digits, mnist, tfds
from experiments.data.fashion_mnist import load_fashion_mnist

TINY = make_tiny_mnist()
TRAIN, LABELS, TEST, TEST_LABELS = TINY.arrays


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, X_train=TRAIN, y_train=LABELS, X_test=TEST, y_test=TEST_LABELS)
    return file.getvalue()


SORTED = {fashion_mnist._SORTED.name: npz()}


@pytest.fixture
def publish_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes a tiny Fashion-MNIST, in files of MNIST's names."""
    monkeypatch.setattr(fashion_mnist, "_FILES", published(TINY.contents))
    monkeypatch.setattr(fashion_mnist, "_SORTED", published(SORTED)[0])
    monkeypatch.setattr(fashion_mnist, "_NUM_TRAIN", 7)
    monkeypatch.setattr(fashion_mnist, "_NUM_TEST", 3)


def assert_tiny(found: Dataset) -> None:
    np.testing.assert_array_equal(found.train.x[..., 0], TRAIN / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.x[..., 0], TEST / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.train.y, LABELS.astype(np.int32), strict=True)
    np.testing.assert_array_equal(found.test.y, TEST_LABELS.astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in, found.num_classes) == ("fashion_mnist", False, 10)


def test_the_original_files_come_before_the_sorted_ones(publish_tiny: None, places: Any) -> None:
    write(places.data / "fashion_mnist", TINY.contents)
    write(places.data, SORTED)
    found = load_fashion_mnist()
    assert_tiny(found)
    assert found.note == (
        "Fashion-MNIST: 7 training and 3 test images, from raw files in DPJAX_DATA_DIR."
    )


def test_files_of_these_names_beside_the_folder_are_mnist_s(
    publish_tiny: None, places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: b"MNIST " + data for name, data in TINY.contents.items()}
    write(places.data, others)
    write(places.data, SORTED)
    assert load_fashion_mnist().source == "raw files in DPJAX_DATA_DIR"
    monkeypatch.setattr(mnist, "_FILES", published(others))
    (places.data / fashion_mnist._SORTED.name).unlink()
    assert load_fashion_mnist().is_stand_in


def test_a_missing_original_file_is_an_error(publish_tiny: None, places: Any) -> None:
    contents = dict(list(TINY.contents.items())[:3])
    write(places.data / "fashion_mnist", contents)
    with pytest.raises(FileNotFoundError, match=NAMES[3]):
        load_fashion_mnist()


@pytest.mark.parametrize("below", ["fashion_mnist", "."])
def test_sorted_images_are_shuffled_with_their_labels(
    publish_tiny: None, places: Any, below: str
) -> None:
    write(places.data / below, SORTED)
    found, again = load_fashion_mnist(), load_fashion_mnist()
    np.testing.assert_array_equal(found.train.x, again.train.x)
    pixels = np.rint(255 * found.train.x[..., 0]).astype(np.uint8)
    order = [int((image == TRAIN).all((1, 2)).argmax()) for image in pixels]
    assert sorted(order) == list(range(7)) != order
    np.testing.assert_array_equal(found.train.y, LABELS[order])


@pytest.mark.parametrize("contents", [TINY.contents, SORTED], ids=["original", "sorted"])
def test_other_bytes_are_an_error(
    publish_tiny: None, places: Any, contents: dict[str, bytes]
) -> None:
    name, data = next(iter(contents.items()))
    write(places.data / "fashion_mnist", {**contents, name: data[:-1] + bytes([data[-1] ^ 1])})
    with pytest.raises(CorruptedFileError, match=rf"{name} is corrupted"):
        load_fashion_mnist()


def test_the_prepared_copy_comes_second(
    publish_tiny: None, places: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = tuple(
        [{"image": image[..., None], "label": label} for image, label in zip(*part, strict=True)]
        for part in ((TRAIN, LABELS), (TEST, TEST_LABELS))
    )
    copy = tfds.Prepared("fashion_mnist 3.0.1", splits)
    monkeypatch.setattr(tfds, "is_prepared", lambda name: name == "fashion_mnist")
    monkeypatch.setattr(tfds, "read_prepared", lambda name, parts: copy)
    write(host.folder, TINY.contents)
    found = load_fashion_mnist()
    assert_tiny(found)
    assert found.source == "TFDS fashion_mnist 3.0.1"
    monkeypatch.setattr(fashion_mnist, "_NUM_TEST", 4)
    with pytest.raises(CorruptedFileError, match=r"holds 7 \+ 3 images, 7 \+ 4 expected"):
        load_fashion_mnist()


def test_the_host_comes_third_and_serves_offline(
    publish_tiny: None, places: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "_HOST", host.address)
    write(host.folder, TINY.contents)
    found = load_fashion_mnist()
    assert_tiny(found)
    assert found.source == "original host"
    monkeypatch.setattr(fashion_mnist, "_HOST", "http://absent.invalid/")
    assert_tiny(load_fashion_mnist())


def test_offline_the_stand_in_says_what_it_is(places: Any, caplog: Any) -> None:
    found = load_fashion_mnist()
    assert (found.name, found.is_stand_in) == ("digits", True)
    assert found.note.startswith("This is not Fashion-MNIST")
    assert caplog.messages == [found.note]
    np.testing.assert_array_equal(found.train.x, load_digits().train.x)


def test_the_checksums_are_those_registered_with_tfds() -> None:
    import tensorflow_datasets as tfds

    listing = Path(tfds.__file__).parent / "url_checksums" / "fashion_mnist.txt"
    registered = {tuple(line.split()[:3]) for line in listing.read_text().splitlines()}
    files = fashion_mnist._FILES
    assert registered == {(fashion_mnist._HOST + f.name, str(f.size), f.sha256) for f in files}


def test_the_real_images() -> None:
    real = load_real(load_fashion_mnist, "fashion_mnist", fashion_mnist._SORTED.name)
    assert real.train.x.shape == (60_000, 28, 28, 1)
    assert np.bincount(real.train.y).tolist() == [6000] * 10
    assert np.bincount(real.test.y).tolist() == [1000] * 10
    assert real.train.x.mean(dtype=float) == pytest.approx(0.28604, abs=5e-6)
    assert real.train.x.std(dtype=float) == pytest.approx(0.35302, abs=5e-6)
    assert len(np.unique(real.train.y[:100])) == 10
