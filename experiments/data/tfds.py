"""Copies of data sets prepared by TensorFlow Datasets (TFDS) as array_record files.

Reading one needs no TensorFlow; preparing one does, which is what the extra ``prepare`` installs.
TFDS is imported where it is used: most runs do not need it.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax._extras import requires_extra
from experiments.data.base import Split, split_of_images
from experiments.data.sources import CorruptedFileError, UnavailableError


class Prepared(NamedTuple):
    """A data set read from a prepared copy.

    Attributes:
      version: its name and version at TFDS, for example ``"mnist 3.0.1"``.
      splits: the records of each split asked for, each a dictionary of features, in the
        (shuffled) order in which TFDS wrote them.
    """

    version: str
    splits: tuple[list[dict[str, Any]], ...]


def data_dir() -> Path:
    """Returns TFDS's data folder: ``$TFDS_DATA_DIR``, or ``~/tensorflow_datasets``."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def is_prepared(name: str) -> bool:
    """Returns whether TFDS's data folder holds a prepared copy of data set ``name``."""
    if not (data_dir() / name).is_dir():
        return False
    with requires_extra("data"):
        import tensorflow_datasets as tfds

    return tfds.builder(name, data_dir=str(data_dir())).is_prepared()


def can_prepare() -> bool:
    """Returns whether TensorFlow, which TFDS prepares data sets with, is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def prepare(name: str, raw_folder: Path) -> None:
    """Prepares data set ``name`` from its raw files; TFDS checks them against its own checksums.

    The files are passed in rather than downloaded by TFDS, which retries for minutes on a machine
    without a network.
    """
    with requires_extra("data"):
        import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=str(data_dir()), file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=raw_folder, try_download_gcs=False)
    builder.download_and_prepare(download_config=config)


def read_train_and_test(name: str, sizes: tuple[int, int], records: str = "images") -> Prepared:
    """Returns the training and test records of the prepared copy of data set ``name``.

    Args:
      name: the data set's name at TFDS.
      sizes: published numbers of training and test records.
      records: what the records are, for the error.

    Raises:
      UnavailableError: if there is no copy, or in a format that only TensorFlow reads.
      CorruptedFileError: if its files are missing or damaged, or hold other numbers of records.
    """
    if not is_prepared(name):
        raise UnavailableError(f"{data_dir()} holds no copy of {name} prepared by TFDS")
    prepared = read_prepared(name, ("train", "test"))
    found = tuple(map(len, prepared.splits))
    if found != sizes:
        raise CorruptedFileError(
            f"the prepared copy of {name} in {data_dir()} holds {found[0]} + {found[1]} {records},"
            f" {sizes[0]} + {sizes[1]} expected; delete it and prepare it again"
        )
    return prepared


def split_of_records(records: list[dict[str, Any]]) -> Split:
    """Returns prepared records of an image classification data set as images and labels."""
    images = np.stack([record["image"] for record in records])
    return split_of_images(images, [record["label"] for record in records])


def read_prepared(name: str, splits: tuple[str, ...]) -> Prepared:
    """Returns the records of ``splits`` from the prepared copy of data set ``name``.

    Raises:
      UnavailableError: if the copy is in a format that only TensorFlow reads.
      CorruptedFileError: if its files are missing or damaged.
    """
    with requires_extra("data"):
        import tensorflow_datasets as tfds

    folder = str(data_dir())
    try:
        sources = tfds.data_source(name, split=list(splits), data_dir=folder, download=False)
        version = sources[0].dataset_info.full_name.replace("/", " ")
        return Prepared(version, tuple(list(source) for source in sources))
    except NotImplementedError as error:  # the format has no random access
        reason = f"the copy of {name} in {folder} is not in array_record format"
        raise UnavailableError(reason) from error
    except Exception as error:  # of TFDS, array_record, protobuf or Pillow
        raise CorruptedFileError(
            f"the prepared copy of {name} in {folder} cannot be read: {error}; delete"
            f" {data_dir() / name} and prepare it again, or point TFDS_DATA_DIR elsewhere"
        ) from error
