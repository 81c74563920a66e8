"""Files that are written whole or not at all, and folders that one run uses at a time."""

import contextlib
import errno
import io
import os
from io import TextIOWrapper
from pathlib import Path

import numpy as np
import numpy.typing as npt

LOCK_NAME = "lock"


def write_atomically(
    path: Path, data: bytes, *, unfinished: Path | None = None, mode: int = 0o666
) -> None:
    """Writes a file to disk by replacing it: a reader sees the old content or the new one.

    ``unfinished`` is the file that is written first, by default one of this process; a process that
    is killed leaves it behind. Missing folders are made. If writing fails, the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = unfinished or path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # The content, then its name, then the folder's list of names.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Writes the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_npz(**arrays: npt.ArrayLike) -> bytes:
    """Returns the content of numpy's ``.npz`` file of ``arrays``."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def lock_folder(folder: Path, name: str = "checkpoint_dir") -> TextIOWrapper:
    """Locks ``folder`` until the file returned is closed, or its process ends.

    The lock is the operating system's (``flock``) on a file ``lock`` in the folder, which also
    holds the process id. It ends with its process, so a file left by a killed run does not lock the
    folder. It excludes other processes and other threads on any file system with ``flock``; on NFS
    other machines too where the server supports locks. A process forked during a run holds it too.

    It raises a ValueError about the argument ``name`` where another run has locked the folder, or
    locks are not available.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lock_folder(Path(folder)):
    ...     lock_folder(Path(folder))
    Traceback (most recent call last):
    ValueError: checkpoint_dir ... is in use by another run of this process: two ...
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise ValueError(
            f"{name} {str(folder)!r} cannot be locked on a system without fcntl.flock: two"
            " runs on one folder could not be detected"
        ) from error
    path = folder / LOCK_NAME
    path.touch(mode=0o600)
    file = path.open("r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
    except OSError as error:
        with file:
            holder = file.read().strip()
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise ValueError(
                f"{name} {str(folder)!r} cannot be locked ({error}): give another folder"
            ) from error
        who = f"process {holder}" if holder else "another run"
        who = "another run of this process" if holder == str(os.getpid()) else who
        raise ValueError(
            f"{name} {str(folder)!r} is in use by {who}: two runs on one folder would make two"
            " releases under one certificate. Wait until that run has ended, or give another folder"
        ) from error
    return file
