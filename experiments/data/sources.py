"""Sources of a data set: raw files, a copy prepared by TFDS, its host; other data on request.

`DataSet.load` tries them in this order. Downloads, their checksums and their cache are pooch's.
"""

import importlib.util
import logging
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pooch
from requests.exceptions import ChunkedEncodingError

from experiments.data.base import Dataset

DATA_DIR = "DPJAX_DATA_DIR"
"""The environment variable that names a folder of raw files already downloaded."""

REGISTRY = Path(__file__).with_name("registry.txt")

_LOGGER = logging.getLogger(__name__)
_TIMEOUT = (5.0, 15.0)  # seconds to connect, and of silence


class UnavailableError(Exception):
    """The data cannot be had from one source; the next one is tried.

    Damaged data raise `CorruptedFileError` instead, and no other source is tried.
    """


class CorruptedFileError(ValueError):
    """Data differ from those published: truncated, altered or unreadable."""


@dataclass(frozen=True)
class Form:
    """Files that a data set is published in.

    Attributes:
      files: their names, in the registry below the data set's folder; ``read`` has to check one
        that is not. They are downloaded if the registry has their addresses.
      read: ``read(paths, source)`` returns the data set; a ``ValueError`` names what is wrong.
      host_name: the description of the host.
      folders: where in ``DPJAX_DATA_DIR`` they are looked for; None for the data set's own folder,
        and ``DPJAX_DATA_DIR`` itself.
    """

    files: Sequence[str]
    read: Callable[..., Dataset]
    host_name: str = "original host"
    folders: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TFDS:
    """A copy that TensorFlow Datasets (TFDS) has prepared; reading it needs no TensorFlow.

    Attributes:
      name: the data set's name at TFDS.
      sizes: published numbers of training and test records.
      read: ``read(train, test, source)``, of lists of records, returns the data set.
      prepares: whether a copy is prepared from the host's files where TensorFlow is installed.
    """

    name: str
    sizes: tuple[int, int]
    read: Callable[..., Dataset]
    prepares: bool = False


@dataclass(frozen=True)
class DataSet:
    """A public data set: where it comes from, and what stands in for it.

    Attributes:
      title: its name in prose.
      about: what it is, its source and licence.
      folder: of its raw files below ``DPJAX_DATA_DIR``, and of its downloads.
      forms: that its files have; the first one that is there is read.
      stand_in: returns other data of the same kind, for when no source is available.
      tfds: the copy prepared by TFDS, if there is one.
    """

    title: str
    about: str
    folder: str
    forms: tuple[Form, ...]
    stand_in: Callable[..., Dataset]
    tfds: TFDS | None = None

    def load(self, *, stand_in: bool = False, **options: Any) -> Dataset:
        """Returns the data set from the first source that has it.

        Its note ends with the reasons why earlier sources were not available. For a stand-in the
        note is also logged as a warning.

        Args:
          stand_in: whether other data are returned, and say so, where no source is available.
          **options: of the reading function, for example ``scaling``.

        Raises:
          FileNotFoundError: if no source is available and ``stand_in`` is False, or if
            ``DPJAX_DATA_DIR`` holds some of the files and not the others.
          CorruptedFileError: if a source has damaged data; no other source is tried then.
        """
        sources = [self._from_data_dir, self._from_tfds, self._from_host]
        if stand_in:
            sources.append(self.load_stand_in)

        reasons = []
        for source in sources:
            try:
                dataset = source(**options)
                break
            except UnavailableError as error:
                if str(error):
                    reasons.append(str(error))
        else:
            files = ", or of ".join(", ".join(form.files) for form in self.forms)
            raise FileNotFoundError(
                f"{self.title} is not available: {'; '.join(reasons)}. Point {DATA_DIR} at a folder"
                f" with a folder {self.folder!r} of its files ({files}), or connect to the host; or"
                " pass stand_in=True to run on other data of the same kind, whose numbers are not"
                f" those of {self.title}"
            )

        if reasons:
            note = f"{dataset.note} Sources not available: {'; '.join(reasons)}."
            dataset = replace(dataset, note=note)
        if dataset.is_stand_in:
            _LOGGER.warning(dataset.note)
        return dataset

    def load_stand_in(self, **options: Any) -> Dataset:
        """Returns the data that stand in for the data set, and say so."""
        dataset = self.stand_in(**options)
        note = (
            f"This is not {self.title}, which was not available: other data stand in for it, so no"
            f" number here is one of {self.title}. {dataset.note}"
        )
        return replace(dataset, source=f"{dataset.source} (stand-in)", is_stand_in=True, note=note)

    def _from_data_dir(self, **options: Any) -> Dataset:
        root = os.environ.get(DATA_DIR)
        if not root:
            raise UnavailableError(f"{DATA_DIR} is not set")

        for form in self.forms:
            # The folder that lacks the fewest of the form's files.
            folders = [Path(root).expanduser() / name for name in form.folders or (self.folder, "")]
            missing = {
                folder: [name for name in form.files if not (folder / name).exists()]
                for folder in folders
            }
            best = min(folders, key=lambda folder: len(missing[folder]))
            if len(missing[best]) == len(form.files):
                continue
            if missing[best]:
                raise FileNotFoundError(
                    f"{best} holds only a part of {self.folder}: {', '.join(missing[best])}"
                    f" missing; download the rest, or point {DATA_DIR} at a folder that holds all"
                    f" {len(form.files)} files"
                )
            return self._read(form, best, f"raw files in {DATA_DIR}", options)

        raise UnavailableError(f"{DATA_DIR}={root} holds no raw file of {self.folder}")

    def _from_tfds(self, **options: Any) -> Dataset:
        if self.tfds is None:
            raise UnavailableError
        if self.tfds.prepares and not is_prepared(self.tfds.name):
            if not can_prepare():
                raise UnavailableError(
                    f"{tfds_dir()} holds no copy of {self.tfds.name} prepared by TFDS, and"
                    " TensorFlow, which would prepare one, is not installed"
                )
            prepare(self.tfds.name, self._download()[1])
        train, test, source = read_prepared(self.tfds.name, self.tfds.sizes)
        return self.tfds.read(train, test, source, **options)

    def _from_host(self, **options: Any) -> Dataset:
        form, folder = self._download()
        return self._read(form, folder, form.host_name, options)

    def _download(self) -> tuple[Form, Path]:
        """Returns the form that is downloaded, and the folder that its verified files are in."""
        urls = published_files().urls
        for form in self.forms:
            if all(f"{self.folder}/{name}" in urls for name in form.files):
                paths = [fetch_file(f"{self.folder}/{name}") for name in form.files]
                return form, paths[0].parent
        raise UnavailableError

    def _read(self, form: Form, folder: Path, source: str, options: dict[str, Any]) -> Dataset:
        paths = [folder / name for name in form.files]
        for path in paths:
            check_file(path, self.folder)

        try:
            return form.read(paths, source, **options)
        except (ValueError, KeyError, EOFError, OSError, zlib.error) as error:
            where = " or ".join(map(str, paths))
            raise CorruptedFileError(f"{where} cannot be read: {error}") from error


def published_files() -> pooch.Pooch:
    """Returns the registry of published files, and the cache that they are downloaded into.

    The cache is ``$XDG_CACHE_HOME/dpjax``, or ``~/.cache/dpjax``.
    """
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    files = pooch.create(path=Path(root).expanduser() / "dpjax", base_url="")
    files.load_registry(REGISTRY)
    return files


def check_file(path: Path, folder: str) -> None:
    """Raises `CorruptedFileError` if a file of the registry has another checksum."""
    expected = published_files().registry.get(f"{folder}/{path.name}")
    found = pooch.file_hash(str(path))
    if expected not in (None, found):
        raise CorruptedFileError(
            f"{path} is not the published file: {path.stat().st_size} bytes, sha256 {found} found,"
            f" sha256 {expected} expected; delete it and download it again, or point {DATA_DIR} at"
            " a folder with a good copy"
        )


def fetch_file(name: str) -> Path:
    """Returns a file of the registry in the cache, where it is downloaded to if it is missing.

    Only whole files are kept.

    Raises:
      UnavailableError: if the host does not answer within seconds or returns an error, or if the
        cache cannot be written.
      CorruptedFileError: if the bytes are not those published.
    """
    files = published_files()
    path, url = Path(files.path) / name, files.urls[name]
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=_TIMEOUT)
    pooch.get_logger().setLevel("WARNING")

    try:
        # pooch fails where another thread makes the file's folder at the same moment.
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(files.fetch(name, downloader=downloader))
    except ChunkedEncodingError as error:
        raise CorruptedFileError(
            f"{url} is truncated: {error}; sha256 {files.registry[name]} expected; try again"
        ) from error
    except OSError as error:
        if path.is_file():  # of other bytes, which pooch wanted to replace
            check_file(path, path.parent.name)
        reason: BaseException = error
        while reason.__context__ is not None:
            reason = reason.__context__
        raise UnavailableError(f"{url} could not be downloaded: {reason}") from error
    except ValueError as error:
        raise CorruptedFileError(f"{url} is not the published file: {error}") from error


def tfds_dir() -> Path:
    """Returns TFDS's data folder: ``$TFDS_DATA_DIR``, or ``~/tensorflow_datasets``."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def is_prepared(name: str) -> bool:
    """Returns whether TFDS's data folder holds a prepared copy of data set ``name``."""
    if not (tfds_dir() / name).is_dir():
        return False
    import tensorflow_datasets as tfds

    return tfds.builder(name, data_dir=str(tfds_dir())).is_prepared()


def can_prepare() -> bool:
    """Returns whether TensorFlow, which TFDS prepares data sets with, is installed."""
    return importlib.util.find_spec("tensorflow") is not None


def prepare(name: str, raw_folder: Path) -> None:
    """Prepares data set ``name`` from its raw files; TFDS checks them against its own checksums.

    The files are passed in rather than downloaded by TFDS, which retries for minutes on a machine
    without a network.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=str(tfds_dir()), file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=raw_folder, try_download_gcs=False)
    builder.download_and_prepare(download_config=config)


def read_prepared(
    name: str, sizes: Sequence[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Returns the training and test records of a prepared copy, as written, and its version.

    Raises:
      UnavailableError: if there is no copy, or in a format that only TensorFlow reads.
      CorruptedFileError: if its files are missing or damaged, or hold other numbers of records.
    """
    if not is_prepared(name):
        raise UnavailableError(f"{tfds_dir()} holds no copy of {name} prepared by TFDS")
    import tensorflow_datasets as tfds

    copy = f"the prepared copy of {name} in {tfds_dir()}"
    try:
        found = tfds.data_source(
            name, split=["train", "test"], data_dir=str(tfds_dir()), download=False
        )
        train, test = (list(records) for records in found)
    except NotImplementedError as error:  # the format has no random access
        raise UnavailableError(f"{copy} is not in array_record format") from error
    except Exception as error:  # of TFDS, array_record, protobuf or Pillow
        raise CorruptedFileError(
            f"{copy} cannot be read: {error}; delete {tfds_dir() / name} and prepare it again, or"
            " point TFDS_DATA_DIR elsewhere"
        ) from error

    if [len(train), len(test)] != list(sizes):
        raise CorruptedFileError(
            f"{copy} holds {len(train)} + {len(test)} records, {sizes[0]} + {sizes[1]} expected;"
            " delete it and prepare it again"
        )
    version = found[0].dataset_info.full_name.replace("/", " ")
    return train, test, f"TFDS {version}"
