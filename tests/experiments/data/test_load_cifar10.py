"""CIFAR-10 from each of its sources, and the real file where it is at hand."""

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from raw_files import real_folder

from experiments.data import CorruptedFileError, Dataset, cifar10, load_digits, tfds
from experiments.data.cifar10 import load_cifar10
from experiments.data.sources import RawFile

RNG = np.random.default_rng(0)
# One colour an image, half of it in the upper right quarter, black below: JPEG, whose blocks these
# are, keeps it to a few of 255, and no other order of rows and columns gives the same image. Two
# images for each of ten labels.
TRAIN = RNG.integers(0, 256, (20, 1, 1, 3), dtype=np.uint8).repeat(32, axis=1).repeat(32, axis=2)
TRAIN[:, :16, 16:] //= 2
TRAIN[:, 16:] = 0
TEST = TRAIN[::-2]
LABELS, TEST_LABELS = np.arange(20) // 2, np.arange(20)[::-2] // 2


def jpegs(images: np.ndarray) -> list[bytes]:
    files = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=95)
        files.append(file.getvalue())
    return files


def jpeg_npz() -> bytes:
    arrays: dict[str, Any] = {}
    for part, images, labels in (("train", TRAIN, LABELS), ("test", TEST, TEST_LABELS)):
        files = jpegs(images)
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{part}_labels"] = labels.astype(np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The original binary: label, then the channels one after the other."""
    channels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels.astype(np.uint8), channels]).tobytes()


def binary_tar() -> bytes:
    contents = {
        f"data_batch_{number + 1}.bin": records(TRAIN[4 * number :][:4], LABELS[4 * number :][:4])
        for number in range(5)
    }
    contents["test_batch.bin"] = records(TEST, TEST_LABELS)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


JPEG, BINARY = jpeg_npz(), binary_tar()


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny CIFAR-10, but where the real one is asked for."""
    if "real" in request.fixturenames or "registered" in request.node.name:
        return
    for constant, data in (("_JPEG", JPEG), ("_BINARY", BINARY)):
        name = getattr(cifar10, constant).name
        file = RawFile(name, len(data), hashlib.sha256(data).hexdigest())
        monkeypatch.setattr(cifar10, constant, file)
    monkeypatch.setattr(cifar10, "_NUM_TRAIN", 20)
    monkeypatch.setattr(cifar10, "_NUM_TEST", 10)


def write(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (cifar10._JPEG.name if data[:2] == b"PK" else cifar10._BINARY.name)
    path.write_bytes(data)
    return path


def assert_held_as_published(found: Dataset) -> None:
    np.testing.assert_array_equal(found.train.x, TRAIN / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.x, TEST / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.train.y, LABELS.astype(np.int32), strict=True)
    np.testing.assert_array_equal(found.test.y, TEST_LABELS.astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in, found.num_classes) == ("cifar10", False, 10)


@pytest.mark.parametrize("below", ["cifar10", "."])
def test_jpeg_files_are_read_shuffled_and_called_a_re_encoding(places: Any, below: str) -> None:
    write(places.data / below, JPEG)
    found = load_cifar10()
    assert found.note.startswith("CIFAR-10 (JPEG re-encoding): 20 training and 10 test images")
    assert "Tried" not in found.note
    assert found.name == "cifar10 (JPEG re-encoding)"
    assert found.train.x.dtype == np.float32
    assert (np.diff(found.train.y) < 0).any()
    colours = 255 * found.train.x[:, 0, 0]
    closest = np.abs(colours[:, None] - TRAIN[None, :, 0, 0]).max(axis=2).argmin(axis=1)
    assert sorted(closest) == list(range(20))
    np.testing.assert_array_equal(found.train.y, LABELS[closest])
    inside = np.ix_(range(20), *[[*range(3, 13), *range(19, 29)]] * 2)  # JPEG blurs the borders
    assert np.abs(255 * found.train.x - TRAIN[closest])[inside].max() < 6


def test_the_shuffle_is_fixed(places: Any) -> None:
    write(places.data, JPEG)
    np.testing.assert_array_equal(load_cifar10().train.y, load_cifar10().train.y)


def test_original_pixels_come_before_re_encoded_ones(places: Any) -> None:
    write(places.data, JPEG)
    write(places.data, BINARY)
    assert_held_as_published(load_cifar10())


@pytest.mark.parametrize("data", [JPEG, BINARY], ids=["jpeg", "binary"])
def test_other_bytes_are_an_error(places: Any, data: bytes) -> None:
    path = write(places.data, data)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptedFileError, match=rf"{path.name} is corrupted"):
        load_cifar10()


def test_the_prepared_copy_comes_second(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = tuple(
        [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
        for images, labels in ((TRAIN, LABELS), (TEST, TEST_LABELS))
    )
    copy = tfds.Prepared("cifar10 3.0.2", splits)
    monkeypatch.setattr(tfds, "is_prepared", lambda name: name == "cifar10")
    monkeypatch.setattr(tfds, "read_prepared", lambda name, parts: copy)
    found = load_cifar10()
    assert_held_as_published(found)
    assert found.source == "TFDS cifar10 3.0.2"
    monkeypatch.setattr(cifar10, "_NUM_TRAIN", 21)
    with pytest.raises(CorruptedFileError, match=r"holds 20 \+ 10 images, 21 \+ 10 expected"):
        load_cifar10()


def test_the_host_comes_third(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "_HOST", host.address)
    write(host.folder, BINARY)
    found = load_cifar10()
    assert_held_as_published(found)
    assert found.source == "original host"
    assert "holds no raw file of cifar10" in found.note
    monkeypatch.setattr(cifar10, "_HOST", "http://absent.invalid/")
    assert_held_as_published(load_cifar10())  # from the cache


def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any) -> None:
    found = load_cifar10()
    assert (found.name, found.is_stand_in) == ("digits", True)
    assert found.note.startswith("This is not CIFAR-10")
    assert caplog.messages == [found.note]
    assert found.train.x.shape == (1437, 32, 32, 3)
    for channel in range(3):
        inner = found.test.x[:, 2:-2, 2:-2, channel]
        np.testing.assert_array_equal(inner, load_digits().test.x[..., 0])


def test_the_checksum_is_registered_with_tfds() -> None:
    import tensorflow_datasets as tfds

    listing = Path(tfds.__file__).parent / "url_checksums" / "cifar10.txt"
    registered = tuple(listing.read_text().split()[:3])
    file = cifar10._BINARY
    assert registered == (cifar10._HOST + file.name, str(file.size), file.sha256)


@pytest.fixture(scope="module")
def real() -> Any:
    """The real JPEG files already on this machine."""
    root, file = real_folder("cifar10", cifar10._JPEG.name), cifar10._JPEG
    folder = next(f for f in (root / "cifar10", root) if (f / file.name).exists())
    return np.load(io.BytesIO(cifar10.read_raw(folder, file)))


def test_the_real_test_images(real: Any) -> None:
    test = cifar10._split_of_jpegs(real, "test")
    assert test.x.shape == (10_000, 32, 32, 3)
    assert (test.x.min(), test.x.max()) == (0, 1)
    assert np.bincount(test.y).tolist() == [1000] * 10
    means = test.x.mean(axis=(0, 1, 2), dtype=float)
    # The original's, by common knowledge; re-encoding moves each pixel by 2 % on average.
    np.testing.assert_allclose(means, [0.4942, 0.4851, 0.4504], atol=2e-3)
    assert len(real["train_offsets"]) == 50_001
