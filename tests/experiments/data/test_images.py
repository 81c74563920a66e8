"""What is peculiar to a data set of images: formats, shuffles, prepared copies, the real images."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from helpers.raw_files import (
    COLOUR,
    COLOUR_LABELS,
    FORMS,
    GREY,
    GREY_LABELS,
    GREY_TEST,
    GREY_TEST_LABELS,
    HOUSE_LABELS,
    HOUSES,
    IDX_CODES,
    MNIST,
    REVIEWS,
    SORTED_FASHION,
    Tiny,
    assert_read,
    idx_bytes,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import datasets

import dpjax.datasets
from experiments.data import DATA_SETS, CorruptedFileError, load_data, sources
from experiments.data.images import parse_idx, split_of_jpegs
from experiments.data.sources import UnavailableError, is_prepared, read_prepared

dtypes = st.sampled_from(sorted(IDX_CODES)).map(np.dtype)
shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@given(arrays)
def test_parse_idx_reads_every_type_and_number_of_axes(array: np.ndarray) -> None:
    read = parse_idx(idx_bytes(array))
    np.testing.assert_array_equal(read, array, strict=True)
    assert read.dtype.isnative


@given(arrays.filter(lambda array: array.size > 0), st.data())
def test_parse_idx_refuses_truncated_and_longer_arrays(array: np.ndarray, data: Any) -> None:
    whole = idx_bytes(array)
    length = data.draw(st.integers(0, len(whole) - 1))
    for other in (whole[:length], whole + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(ValueError, match="expected"):
            parse_idx(other)


@given(st.binary(max_size=64))
def test_parse_idx_refuses_garbage_or_reads_what_would_be_written(garbage: bytes) -> None:
    try:
        array = parse_idx(garbage)
    except ValueError:
        return
    assert idx_bytes(array) == garbage


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number missing found"),
        (b"\1\0\x08\1\0\0\0\0", "magic number 01000801 found"),
        (b"\0\1\x08\1\0\0\0\0", "magic number 00010801 found"),
        (b"\0\0\x0a\1\0\0\0\0", "type code 0x0a found, one of 0x08"),
        (b"\0\0\x08\3\0\0\0\1", "header of 8 bytes found, 16 expected"),
        (b"\0\0\x0c\1\0\0\0\2\0\0\0\0", r"4 bytes of numbers found, 8 expected for shape \(2,\)"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"\0", "dimension"),
    ],
)
def test_parse_idx_names_what_was_found(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_idx(data)


@pytest.mark.parametrize("damaged", [b"\x1f\x8bnot gzip at all", b"hello"])
def test_load_data_refuses_unreadable_images(places: Any, damaged: bytes) -> None:
    tiny = Tiny({**MNIST.contents, "t10k-images-idx3-ubyte.gz": damaged})
    places.publish("mnist", tiny)
    write(places.data / "mnist", tiny.contents)
    with pytest.raises(CorruptedFileError, match=r"t10k-images-idx3-ubyte\.gz .*cannot be read"):
        load_data("mnist")


def test_load_digits_are_scikit_learns_enlarged() -> None:
    """Reducing the images gives back the source's, so enlarging and splitting lost nothing."""
    digits = dpjax.datasets.load_digits()
    assert (digits.train.x.shape, digits.test.x.shape) == ((1437, 28, 28, 1), (360, 28, 28, 1))
    x, y = (np.concatenate(parts) for parts in zip(*digits, strict=True))
    assert (x.dtype, y.dtype, x.min(), x.max()) == (np.float32, np.int32, 0, 1)

    counts, labels = datasets.load_digits(return_X_y=True)
    pixels = x[:, 3:-2:3, 3:-2:3, 0]
    reduced = 16 * pixels.reshape(-1, 64)
    assert sorted(np.c_[reduced, y].tolist()) == sorted(np.c_[counts, labels].tolist())
    again = np.kron(pixels, np.ones((1, 3, 3)))
    np.testing.assert_array_equal(np.pad(again, ((0, 0), (2, 2), (2, 2))), x[..., 0])

    # Both parts have the same shares of the classes, and `load_data` has the same split.
    train, test = np.bincount(digits.train.y), np.bincount(digits.test.y)
    np.testing.assert_allclose(test, 0.2 * (train + test), atol=1)
    found = load_data("digits")
    assert (found.name, found.is_stand_in, found.num_classes) == ("digits", False, 10)
    chex.assert_trees_all_equal((found.train, found.test), tuple(digits))


def test_stand_ins_of_images_are_digits(places: Any, offline: None) -> None:
    digits = dpjax.datasets.load_digits()
    for name in ("mnist", "fashion_mnist"):
        np.testing.assert_array_equal(load_data(name, stand_in=True).train.x, digits.train.x)
    for name in ("cifar10", "svhn"):
        x = load_data(name, stand_in=True).test.x
        assert x.shape == (360, 32, 32, 3)
        for channel in range(3):
            np.testing.assert_array_equal(x[:, 2:-2, 2:-2, channel], digits.test.x[..., 0])
    faces = load_data("olivetti_faces", stand_in=True)
    assert np.bincount(faces.train.y).tolist() == [7] * 10
    assert np.bincount(faces.test.y).tolist() == [3] * 10
    assert {x.tobytes() for x in faces.train.x} <= {x.tobytes() for x in digits.train.x}


def test_jpegs_are_shuffled_and_called_a_re_encoding(places: Any, put: Any) -> None:
    put(places.data, "cifar10", 1)
    found = load_data("cifar10")
    assert found.note.startswith("CIFAR-10 (JPEG re-encoding): 20 training and 10 test images")
    assert found.name == "cifar10 (JPEG re-encoding)"
    assert (np.diff(found.train.y) < 0).any()
    np.testing.assert_array_equal(load_data("cifar10").train.y, found.train.y)

    colours = 255 * found.train.x[:, 0, 0]
    closest = np.abs(colours[:, None] - COLOUR[None, :, 0, 0]).max(axis=2).argmin(axis=1)
    assert sorted(closest) == list(range(20))
    np.testing.assert_array_equal(found.train.y, COLOUR_LABELS[closest])
    inside = np.ix_(range(20), *[[*range(3, 13), *range(19, 29)]] * 2)  # JPEG blurs the borders
    assert np.abs(255 * found.train.x - COLOUR[closest])[inside].max() < 6


def test_sorted_images_are_shuffled_with_their_labels(places: Any, put: Any) -> None:
    put(places.data, "fashion_mnist", 1)
    found = load_data("fashion_mnist")
    for part, images, labels in (
        (found.train, GREY, GREY_LABELS),
        (found.test, GREY_TEST, GREY_TEST_LABELS),
    ):
        pixels = images / np.float32(255)
        expected = {x.tobytes(): int(y) for x, y in zip(pixels, labels, strict=True)}
        assert {x.tobytes(): int(y) for x, y in zip(part.x, part.y, strict=True)} == expected
    assert not np.array_equal(found.train.x[..., 0], GREY / np.float32(255))
    np.testing.assert_array_equal(load_data("fashion_mnist").train.x, found.train.x)


def test_fashion_mnist_is_not_read_from_files_of_mnist(places: Any, put: Any) -> None:
    others = {name: b"MNIST " + data for name, data in MNIST.contents.items()}
    write(places.data, {**others, **SORTED_FASHION.contents})
    assert load_data("fashion_mnist").source == "raw files in DPJAX_DATA_DIR"
    with pytest.raises(CorruptedFileError, match="is not the published file"):
        load_data("mnist")


def test_svhn_subset_is_split_in_order_and_named(places: Any, put: Any) -> None:
    put(places.data, "svhn", 1)
    found = load_data("svhn")
    np.testing.assert_array_equal(found.train.x, HOUSES[:8] / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.x, HOUSES[8:] / np.float32(255), strict=True)
    np.testing.assert_array_equal(found.test.y, HOUSE_LABELS[8:].astype(np.int32), strict=True)
    assert (found.name, found.is_stand_in) == ("svhn (12 test images)", False)
    assert "the first 12 of its 26,032 test images" in found.note
    assert "8 for training and 4 for testing" in found.note


def _write_prepared(folder: Path, sizes: tuple[int, int] = (7, 3)) -> Path:
    """Writes what TFDS would prepare of the tiny MNIST in ``folder``, without TensorFlow."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter
    from PIL import Image
    from tensorflow_datasets.proto import tf_example_pb2

    builder = tfds.builder("mnist", data_dir=str(folder), file_format="array_record")
    builder.data_path.mkdir(parents=True)
    splits = []
    for name, images, labels, size in (
        ("train", GREY, GREY_LABELS, sizes[0]),
        ("test", GREY_TEST, GREY_TEST_LABELS, sizes[1]),
    ):
        template = tfds.core.ShardedFileTemplate(
            data_dir=builder.data_path,
            dataset_name="mnist",
            split=name,
            filetype_suffix="array_record",
        )
        path = template.sharded_filepath(shard_index=0, num_shards=1)
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for image, label in zip(images[:size], labels[:size], strict=True):
            png = io.BytesIO()
            Image.fromarray(image).save(png, "PNG")
            example = tf_example_pb2.Example()
            example.features.feature["image"].bytes_list.value.append(png.getvalue())
            example.features.feature["label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString())
        writer.close()
        splits.append(
            tfds.core.SplitInfo(
                name=name, shard_lengths=[size], num_bytes=0, filename_template=template
            )
        )
    builder.info.set_splits(tfds.core.splits.SplitDict(splits))
    builder.info.write_to_directory(builder.data_path)
    return Path(builder.data_path)


@pytest.fixture
def prepared(places: Any) -> Path:
    """A copy of the tiny MNIST as TFDS prepares it."""
    return _write_prepared(places.tfds)


def use_sizes(monkeypatch: pytest.MonkeyPatch, name: str, sizes: tuple[int, int]) -> None:
    data_set = DATA_SETS[name]
    assert data_set.tfds is not None
    tfds = replace(data_set.tfds, sizes=sizes)
    monkeypatch.setitem(DATA_SETS, name, replace(data_set, tfds=tfds))


@pytest.mark.slow
def test_load_data_prefers_a_prepared_copy_to_the_host(
    places: Any, put: Any, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places.host, "mnist")
    use_sizes(monkeypatch, "mnist", (7, 3))
    found = load_data("mnist")
    assert_read(found, MNIST)
    assert found.source == "TFDS mnist 3.0.1"
    assert "holds no raw file of mnist" in found.note
    assert "tensorflow" not in sys.modules
    put(places.data, "mnist")
    assert load_data("mnist").source == "raw files in DPJAX_DATA_DIR"


def test_read_prepared_refuses_other_sizes(prepared: Path) -> None:
    with pytest.raises(CorruptedFileError, match=r"holds 7 \+ 3 records, 60000 \+ 10000 expected"):
        load_data("mnist")


@pytest.mark.parametrize("damage", ["first half", "reversed", "missing"])
def test_read_prepared_refuses_a_damaged_copy(prepared: Path, damage: str) -> None:
    (path,) = prepared.glob("mnist-train*")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "first half" else data[::-1])
    if damage == "missing":
        path.unlink()
    with pytest.raises(CorruptedFileError, match=r"cannot be read: .*; delete .*mnist and prepare"):
        load_data("mnist")


def test_is_prepared_of_other_copies(places: Any) -> None:
    assert not is_prepared("mnist")
    places.tfds.mkdir()
    assert not is_prepared("mnist")
    info = _write_prepared(places.tfds) / "dataset_info.json"
    assert is_prepared("mnist")
    assert not is_prepared("cifar10")
    info.write_text(json.dumps({**json.loads(info.read_text()), "fileFormat": "tfrecord"}))
    with pytest.raises(UnavailableError, match="is not in array_record format"):
        read_prepared("mnist", (7, 3))
    info.unlink()
    assert not is_prepared("mnist")


def test_load_data_prepares_a_copy_with_tensorflow(
    places: Any, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow is not here: what TFDS writes with it is written by hand."""

    def prepare(name: str, raw_folder: Path) -> None:
        assert name == "mnist"
        assert {p.name: p.read_bytes() for p in raw_folder.iterdir()} == MNIST.contents
        _write_prepared(places.tfds)

    monkeypatch.setattr(sources, "can_prepare", lambda: True)
    monkeypatch.setattr(sources, "prepare", prepare)
    use_sizes(monkeypatch, "mnist", (7, 3))
    put(places.host, "mnist")
    found = load_data("mnist")
    assert_read(found, MNIST)
    assert found.source == "TFDS mnist 3.0.1"


@pytest.mark.parametrize("tensorflow", [False, True])
def test_load_data_prepares_nothing_offline(
    places: Any, offline: None, tensorflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "can_prepare", lambda: tensorflow)
    found = load_data("mnist", stand_in=True)
    assert found.is_stand_in
    assert ("TensorFlow, which would prepare one, is not" in found.note) is not tensorflow


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist", "imdb", "svhn"])
def test_prepared_records_are_those_of_the_raw_files(
    places: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = FORMS[name][0]
    assert tiny.arrays is not None
    if name == "imdb":
        parts = [
            [{"text": text.encode(), "label": np.int64(label == "pos")} for label, *_, text in part]
            for part in REVIEWS.values()
        ]
    else:
        pixels = [np.rint(255 * images).astype(np.uint8) for images in tiny.arrays[::2]]
        parts = [
            [{"image": x, "label": int(y)} for x, y in zip(images, labels, strict=True)]
            for images, labels in zip(pixels, tiny.arrays[1::2], strict=True)
        ]
    monkeypatch.setattr(sources, "read_prepared", lambda *_: (*parts, "TFDS copy 1.0.0"))
    found = load_data(name)
    assert_read(found, tiny)
    assert (found.name, found.source, found.is_stand_in) == (name, "TFDS copy 1.0.0", False)


@pytest.mark.slow
def test_real_mnist(real: Any) -> None:
    found = real("mnist", "train-images-idx3-ubyte.gz")
    assert (found.train.x.shape, found.test.x.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert (found.train.x.min(), found.train.x.max()) == (0, 1)
    assert 255 * found.train.x.mean(dtype=float) == pytest.approx(33.3184, abs=5e-5)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(found.train.y).tolist() == train
    assert np.bincount(found.test.y).tolist() == test
    assert found.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.test.y[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.slow
def test_real_fashion_mnist(real: Any) -> None:
    found = real("fashion_mnist", "fashion_mnist.npz")
    assert found.train.x.shape == (60_000, 28, 28, 1)
    assert np.bincount(found.train.y).tolist() == [6000] * 10
    assert np.bincount(found.test.y).tolist() == [1000] * 10
    assert found.train.x.mean(dtype=float) == pytest.approx(0.28604, abs=5e-6)
    assert found.train.x.std(dtype=float) == pytest.approx(0.35302, abs=5e-6)
    assert len(np.unique(found.train.y[:100])) == 10


@pytest.mark.slow
def test_real_cifar10(real_file: Any) -> None:
    arrays = np.load(real_file("cifar10", "cifar10_jpeg.npz"))
    test = split_of_jpegs(arrays, "test")
    assert test.x.shape == (10_000, 32, 32, 3)
    assert np.bincount(test.y).tolist() == [1000] * 10
    # The original's, by common knowledge; re-encoding moves each pixel by 2 % on average.
    means = test.x.mean(axis=(0, 1, 2), dtype=float)
    np.testing.assert_allclose(means, [0.4942, 0.4851, 0.4504], atol=2e-3)
    assert len(arrays["train_offsets"]) == 50_001


@pytest.mark.slow
def test_real_faces_are_upright_and_of_one_person_each(real: Any) -> None:
    found = real("olivetti_faces", "olivettifaces.mat")
    assert (found.train.x.shape, found.test.x.shape) == ((280, 64, 64, 1), (120, 64, 64, 1))
    mean = found.train.x.mean(axis=0)[..., 0]
    # Upright: the left and right halves are alike, the upper and lower ones are not.
    halves = (mean, mean[:, ::-1]), (mean, mean[::-1])
    sides, ends = (np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in halves)
    assert sides > 0.8
    assert ends < 0.3
    # Most held-out pictures are most like a training picture of the same person.
    train, test = (part.x.reshape(len(part.y), -1) for part in (found.train, found.test))
    nearest = ((test[:, None] - train[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (found.train.y[nearest] == found.test.y).mean() > 0.8


@pytest.mark.slow
def test_real_svhn(real: Any) -> None:
    found = real("svhn", "svhn_test_first10000_rgb.npz")
    assert (found.train.x.shape, found.test.x.shape) == ((8_000, 32, 32, 3), (2_000, 32, 32, 3))
    assert found.name == "svhn (10,000 test images)"
    # test_32x32.mat begins with these labels, and 1 is the most frequent digit.
    labels = np.concatenate([found.train.y, found.test.y])
    assert labels[:8].tolist() == [5, 2, 1, 0, 6, 1, 9, 1]
    assert np.bincount(labels).tolist() == [684, 1968, 1590, 1104, 964, 909, 773, 767, 621, 620]
    # Digits of one house number follow each other, so that the split keeps the order.
    colours = found.train.x.mean(axis=(1, 2))
    apart = [np.abs(colours[gap:] - colours[:-gap]).mean() for gap in (1, 1000)]
    assert apart[0] < 0.7 * apart[1]
