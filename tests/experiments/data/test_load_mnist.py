"""MNIST from each of its sources, and the real files where they are at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real
from tiny_mnist import NAMES, TinyMnist, write_prepared

from experiments.data import CorruptedFileError, Dataset, load_digits, load_mnist, mnist, tfds


def test_raw_files_come_first(tiny: TinyMnist, places: Any, prepared_copy: Path) -> None:
    tiny.write(places.data / "mnist")
    found = load_mnist()
    tiny.assert_held_by(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"
    assert "Tried" not in found.note


def test_raw_files_may_lie_in_the_folder_itself(tiny: TinyMnist, places: Any) -> None:
    tiny.write(places.data)
    tiny.assert_held_by(load_mnist())


def test_a_missing_raw_file_is_an_error(tiny: TinyMnist, places: Any, prepared_copy: Path) -> None:
    tiny.write(places.data / "mnist", NAMES[:3])
    with pytest.raises(FileNotFoundError, match=NAMES[3]):
        load_mnist()


@pytest.mark.parametrize("name", NAMES)
def test_a_corrupted_raw_file_is_an_error(
    tiny: TinyMnist, places: Any, prepared_copy: Path, name: str
) -> None:
    path = tiny.write(places.data / "mnist") / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptedFileError, match=rf"{name} is corrupted"):
        load_mnist()


def test_a_truncated_raw_file_is_an_error(tiny: TinyMnist, places: Any) -> None:
    path = tiny.write(places.data / "mnist") / NAMES[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptedFileError, match=rf"{NAMES[0]} is truncated"):
        load_mnist()


def test_the_prepared_copy_comes_second(tiny: TinyMnist, prepared_copy: Path, host: Any) -> None:
    tiny.write(host.folder)
    found = load_mnist()
    tiny.assert_held_by(found)
    assert found.source == "TFDS mnist 3.0.1"
    assert "holds no raw file of mnist" in found.note


def test_a_prepared_copy_of_part_of_mnist_is_an_error(
    prepared_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "_NUM_TRAIN", 60_000)
    with pytest.raises(CorruptedFileError, match=r"holds 7 \+ 3 images, 60000 \+ 3 expected"):
        load_mnist()


def test_with_tensorflow_a_copy_is_prepared_from_the_host_s_files(
    tiny: TinyMnist, places: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow is not here: what TFDS writes with it is written by hand."""

    def prepare(name: str, raw_folder: Path) -> None:
        assert name == "mnist"
        assert {p.name: p.read_bytes() for p in raw_folder.iterdir()} == tiny.contents
        write_prepared(places.tfds, tiny)

    monkeypatch.setattr(tfds, "can_prepare", lambda: True)
    monkeypatch.setattr(tfds, "prepare", prepare)
    tiny.write(host.folder)
    found = load_mnist()
    tiny.assert_held_by(found)
    assert found.source == "TFDS mnist 3.0.1"


def test_the_host_comes_third(tiny: TinyMnist, places: Any, host: Any) -> None:
    tiny.write(host.folder)
    found = load_mnist()
    tiny.assert_held_by(found)
    assert found.source == "original host"
    assert "TensorFlow, which would prepare one, is not installed" in found.note


def test_what_was_downloaded_serves_offline(
    tiny: TinyMnist, places: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(host.folder)
    load_mnist()
    monkeypatch.setattr(mnist, "_HOST", "http://absent.invalid/")
    tiny.assert_held_by(load_mnist())


def test_a_cached_file_is_checked_each_time(tiny: TinyMnist, places: Any) -> None:
    (tiny.write(places.cache) / NAMES[2]).write_bytes(b"rotten")
    with pytest.raises(CorruptedFileError, match=rf"mnist/{NAMES[2]} is truncated.*delete it"):
        load_mnist()


@pytest.mark.parametrize("fault", ["corrupted", "truncated"])
def test_a_host_with_other_bytes_is_an_error(
    tiny: TinyMnist, places: Any, host: Any, fault: str
) -> None:
    tiny.write(host.folder)
    if fault == "truncated":
        host.cut.add(NAMES[0])
    else:
        size = len(tiny.contents[NAMES[0]])
        (host.folder / NAMES[0]).write_bytes(bytes(size))
    with pytest.raises(CorruptedFileError, match=rf"{NAMES[0]} is {fault}"):
        load_mnist()


@pytest.mark.parametrize("tensorflow", [False, True])
def test_offline_the_stand_in_is_named_as_one(
    places: Any, tensorflow: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(tfds, "can_prepare", lambda: tensorflow)
    found, digits = load_mnist(), load_digits()
    assert found.is_stand_in
    assert (found.name, found.source) == ("digits", "scikit-learn digits (stand-in)")
    np.testing.assert_array_equal(found.train.x, digits.train.x, strict=True)
    np.testing.assert_array_equal(found.test.y, digits.test.y, strict=True)
    assert found.note.startswith("This is not MNIST")
    for reason in ("holds no raw file of mnist", "<urlopen error offline>"):
        assert reason in found.note
    assert ("TensorFlow" in found.note) is not tensorflow
    assert caplog.messages == [found.note]


def test_an_unset_variable_is_among_the_reasons(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPJAX_DATA_DIR")
    assert "DPJAX_DATA_DIR is not set" in load_mnist().note


def test_the_checksums_are_those_registered_with_tfds() -> None:
    import tensorflow_datasets as tfds

    listing = Path(tfds.__file__).parent / "url_checksums" / "mnist.txt"
    registered = {tuple(line.split()[:3]) for line in listing.read_text().splitlines()}
    assert registered == {(mnist._HOST + f.name, str(f.size), f.sha256) for f in mnist._FILES}


REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real MNIST, from raw files already on this machine."""
    return load_real(load_mnist, "mnist", NAMES[0])


def test_the_real_images(real: Dataset) -> None:
    assert real.source == "raw files in DPJAX_DATA_DIR"
    assert real.train.x.shape == (60_000, 28, 28, 1)
    assert real.test.x.shape == (10_000, 28, 28, 1)
    assert real.train.x.dtype == real.test.x.dtype == np.float32
    assert (real.train.x.min(), real.train.x.max()) == (0, 1)
    assert 255 * real.train.x.mean(dtype=float) == pytest.approx(33.3184, abs=5e-5)


def test_the_real_labels(real: Dataset) -> None:
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(real.train.y).tolist() == train
    assert np.bincount(real.test.y).tolist() == test
    assert real.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert real.test.y[:5].tolist() == [7, 2, 1, 0, 4]
    assert real.train.y.dtype == real.test.y.dtype == np.int32
