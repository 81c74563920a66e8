"""IMDb from each of its sources, and the real texts where they are at hand."""

import hashlib
import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_files import load_real, write

from experiments.data import CorruptedFileError, Dataset, imdb, load_digits, load_imdb, tfds
from experiments.data.sources import RawFile
from experiments.data.tfds import Prepared

# label, number, rating, text; by label and number, as the files hold them.
TRAIN = [
    ["neg", 0, 1, "Bad, bad film.\x85<br />Don't!"],
    ["neg", 10, 2, "A bad film"],
    ["pos", 2, 9, "Good " * 300 + "film"],
]
TEST = [["neg", 1, 4, "unheard bad"], ["pos", 0, 10, "Très good"]]
SPLITS = {"train": TRAIN, "test": TEST}


def json_file(reviews: list[list[Any]]) -> bytes:
    lines = "".join(json.dumps(review, ensure_ascii=False) + "\n" for review in reviews)
    return lzma.compress(lines.encode("utf-8"))


def archive() -> bytes:
    """The reviews as the original archive holds them, in an order of its own, and other files."""
    members = {"aclImdb/README": "read me", "aclImdb/train/unsup/0_0.txt": "not labelled"}
    for split, reviews in SPLITS.items():
        for label, number, rating, review in reviews[::-1]:
            members[f"aclImdb/{split}/{label}/{number}_{rating}.txt"] = review
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode("utf-8"))
            tar.addfile(info, io.BytesIO(content.encode("utf-8")))
    return file.getvalue()


JSON_FILES = {f"imdb_{split}.jsonl.xz": json_file(reviews) for split, reviews in SPLITS.items()}
ARCHIVE = {"aclImdb_v1.tar.gz": archive()}


def raw_files(contents: dict[str, bytes]) -> tuple[RawFile, ...]:
    return tuple(
        RawFile(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in contents.items()
    )


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Publishes a tiny IMDb, but where the real one is asked for."""
    if "real" not in request.fixturenames:
        monkeypatch.setattr(imdb, "_JSON_FILES", raw_files(JSON_FILES))
        monkeypatch.setattr(imdb, "_ARCHIVE", raw_files(ARCHIVE)[0])


def assert_tiny(found: Dataset) -> None:
    """By frequency: good (300 times), bad and film (3), then the words that are there once."""
    good, bad, film, a, br, dont, next_line = range(4, 11)
    train = [[1, bad, bad, film, next_line, br, dont], [1, a, bad, film], [good] * 255 + [film]]
    padded = [[0] * (256 - len(tokens)) + tokens for tokens in train]
    np.testing.assert_array_equal(found.train.x, np.array(padded, np.int32), strict=True)
    np.testing.assert_array_equal(found.train.y, np.array([0, 0, 1], np.int32), strict=True)
    assert found.test.x[:, -4:].tolist() == [[0, 1, 2, bad], [0, 1, 2, good]]
    assert found.test.y.tolist() == [0, 1]
    assert (found.name, found.is_stand_in, found.num_classes) == ("imdb", False, 2)
    assert "computed from the private training reviews" in found.note


@pytest.mark.parametrize("below", ["imdb_reviews", "."])
def test_raw_files_come_first(places: Any, below: str) -> None:
    write(places.data / below, JSON_FILES)
    found = load_imdb()
    assert_tiny(found)
    assert found.source == "raw files in DPJAX_DATA_DIR"


def test_the_original_archive_does_as_well(places: Any) -> None:
    write(places.data / "imdb_reviews", ARCHIVE)
    found = load_imdb()
    assert_tiny(found)
    assert found.source == "original archive in DPJAX_DATA_DIR"


def test_both_hold_the_same_arrays(places: Any) -> None:
    write(places.data, JSON_FILES)
    write(places.cache.parent / "imdb_reviews", ARCHIVE)
    one = load_imdb()
    for name in JSON_FILES:
        (places.data / name).unlink()
    other = load_imdb()
    assert other.source == "original host"
    np.testing.assert_array_equal(one.train.x, other.train.x, strict=True)
    np.testing.assert_array_equal(one.test.x, other.test.x, strict=True)


def test_a_missing_raw_file_is_an_error(places: Any) -> None:
    write(places.data, dict(list(JSON_FILES.items())[:1]))
    with pytest.raises(FileNotFoundError, match=r"imdb_test\.jsonl\.xz missing"):
        load_imdb()


@pytest.mark.parametrize("name", [*JSON_FILES, *ARCHIVE])
def test_a_corrupted_raw_file_is_an_error(places: Any, name: str) -> None:
    path = write(places.data, ARCHIVE if name in ARCHIVE else JSON_FILES) / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptedFileError, match=rf"{name} is corrupted"):
        load_imdb()


@pytest.fixture
def prepared_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What TFDS gives of a prepared copy: texts as bytes, labels as numbers."""
    splits = tuple(
        [{"text": text.encode("utf-8"), "label": np.int64(label == "pos")} for label, *_, text in s]
        for s in SPLITS.values()
    )
    monkeypatch.setattr(tfds, "is_prepared", lambda name: name == "imdb_reviews")
    monkeypatch.setattr(
        tfds, "read_prepared", lambda name, names: Prepared("imdb_reviews 1.0.0", splits)
    )


def test_the_prepared_copy_comes_second(
    places: Any, prepared_copy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imdb, "_NUM_REVIEWS", (3, 2))
    found = load_imdb()
    assert_tiny(found)
    assert found.source == "TFDS imdb_reviews 1.0.0"
    assert "holds no raw file of imdb_reviews" in found.note


def test_a_prepared_copy_of_part_of_imdb_is_an_error(places: Any, prepared_copy: None) -> None:
    with pytest.raises(CorruptedFileError, match=r"holds 3 \+ 2 reviews, 25000 \+ 25000 expected"):
        load_imdb()


def test_the_host_comes_third(places: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imdb, "_HOST", host.address)
    write(host.folder, ARCHIVE)
    found = load_imdb()
    assert_tiny(found)
    assert found.source == "original host"
    assert "holds no copy of imdb_reviews prepared by TFDS" in found.note


def test_offline_the_stand_in_is_named_as_one(places: Any, caplog: Any) -> None:
    found, digits = load_imdb(), load_digits()
    assert (found.name, found.is_stand_in) == ("digits as tokens", True)
    assert found.note.startswith("This is not IMDb, which was not available, and not even text")
    assert caplog.messages == [found.note]
    assert found.train.x.shape == (1437, 256)
    assert not found.train.x[:, :192].any()
    places_, counts = np.divmod(found.train.x[:, 192:] - 4, 17)
    np.testing.assert_array_equal(places_, np.broadcast_to(np.arange(64), places_.shape))
    pixels = counts.reshape(-1, 8, 8).repeat(3, 1).repeat(3, 2) / 16
    np.testing.assert_array_equal(pixels, digits.train.x[:, 2:26, 2:26, 0])
    np.testing.assert_array_equal(found.train.y, digits.train.y >= 5)


def test_the_archive_is_the_one_registered_with_tfds() -> None:
    import tensorflow_datasets as tfds

    folder = Path(tfds.__file__).parent / "datasets" / "imdb_reviews"
    _, size, sha256, name = (folder / "checksums.tsv").read_text().split()
    # The module's own constant, before the tests publish a tiny one in its place.
    source = Path(imdb.__file__).read_text()
    assert f'"{name}",\n    {int(size):_},\n    "{sha256}"' in source


@pytest.fixture(scope="module")
def real() -> Dataset:
    """The real IMDb, from raw files already on this machine."""
    return load_real(load_imdb, "imdb_reviews", next(iter(JSON_FILES)))


@pytest.mark.slow
def test_the_real_reviews(real: Dataset) -> None:
    for part in (real.train, real.test):
        assert part.x.shape == (25_000, 256)
        assert np.bincount(part.y).tolist() == [12_500, 12_500]
        assert (part.x.min(), part.x.max()) == (0, 9_999)
        assert not (part.x == 3).any()
    # "the and a of to", the most frequent words in this order.
    counts = np.bincount(real.train.x.ravel())[4:9]
    assert (np.diff(counts[[0, 1, 3, 4]]) < 0).all()
