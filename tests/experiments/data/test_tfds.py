"""Copies prepared by TFDS, read without TensorFlow: these are written by hand in TFDS's format."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_mnist import TinyMnist

from experiments.data import CorruptedFileError
from experiments.data.sources import UnavailableError
from experiments.data.tfds import can_prepare, data_dir, is_prepared, read_prepared


def test_records_are_read_in_their_order(prepared_copy: Path, tiny: TinyMnist) -> None:
    version, (test, train) = read_prepared("mnist", ("test", "train"))
    assert version == "mnist 3.0.1"
    images, labels = tiny.arrays[:2]
    np.testing.assert_array_equal([r["image"] for r in train], images[..., None], strict=True)
    assert [record["label"] for record in train] == labels.tolist()
    assert len(test) == 3
    assert "tensorflow" not in sys.modules


def test_a_prepared_copy_is_seen(prepared_copy: Path) -> None:
    assert is_prepared("mnist")
    assert not is_prepared("cifar10")


def test_an_empty_data_folder_holds_nothing(places: Any) -> None:
    assert not is_prepared("mnist")
    places.tfds.mkdir()
    assert not is_prepared("mnist")


def test_a_copy_left_unfinished_does_not_count(prepared_copy: Path) -> None:
    (prepared_copy / "dataset_info.json").unlink()
    assert not is_prepared("mnist")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[::-1]])
def test_damaged_records_are_an_error_with_a_remedy(prepared_copy: Path, damage: Any) -> None:
    (path,) = prepared_copy.glob("mnist-train*")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptedFileError, match=r"cannot be read: .*; delete .*mnist and prepare"):
        read_prepared("mnist", ("train",))


def test_missing_records_are_an_error(prepared_copy: Path) -> None:
    (path,) = prepared_copy.glob("mnist-test*")
    path.unlink()
    with pytest.raises(CorruptedFileError, match="cannot be read"):
        read_prepared("mnist", ("train", "test"))


def test_another_format_is_a_reason_to_look_elsewhere(prepared_copy: Path) -> None:
    path = prepared_copy / "dataset_info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
    with pytest.raises(UnavailableError, match="is not in array_record format"):
        read_prepared("mnist", ("train",))


def test_the_data_folder_is_tfds_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", "/elsewhere")
    assert data_dir() == Path("/elsewhere")
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", "/home/ada")
    assert data_dir() == Path("/home/ada/tensorflow_datasets")


def test_preparing_is_offered_only_with_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"tensorflow": object()}
    monkeypatch.setattr("importlib.util.find_spec", present.get)
    assert can_prepare()
    present.clear()
    assert not can_prepare()
