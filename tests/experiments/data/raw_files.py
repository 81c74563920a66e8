"""Raw files for tests: made-up ones with checksums of their own, and real ones where there are."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from experiments.data.sources import RawFile

T = TypeVar("T")
BESIDE = Path(__file__).parents[4] / "shared" / "data"


def published(contents: dict[str, bytes]) -> tuple[RawFile, ...]:
    """What a loader knows of files with these names and contents."""
    return tuple(
        RawFile(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in contents.items()
    )


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


def real_folder(below: str, name: str) -> Path:
    """The folder of real raw files that holds ``name``, in ``below`` or itself.

    Tests of the real data are skipped where there are none: a clone and nothing else, without a
    network, has to pass. Where DPJAX_DATA_DIR names the folder, as in CI, they run.
    """
    root = Path(os.environ.get("DPJAX_DATA_DIR") or BESIDE)
    if not any((root / folder / name).exists() for folder in (below, ".")):
        pytest.skip(f"{root} holds no {name}: set DPJAX_DATA_DIR to a folder that does")
    return root


def load_real(load: Callable[[], T], below: str, name: str) -> T:
    """What ``load`` returns of the real raw files."""
    root = real_folder(below, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPJAX_DATA_DIR", str(root))
        return load()
