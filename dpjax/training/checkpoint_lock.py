"""Exclusive use of a folder by one run at a time."""

import errno
import os
from io import TextIOWrapper
from pathlib import Path

_NAME = "lock"


def lock_checkpoint_dir(checkpoint_dir: Path, name: str = "checkpoint_dir") -> TextIOWrapper:
    """Locks ``checkpoint_dir`` until the file returned is closed, or its process ends.

    The lock is the operating system's (``flock``) on a file ``lock`` in the folder, which also
    holds the process id. It ends with its process, so a file left by a killed run does not lock the
    folder. It excludes other processes and other threads on any file system with ``flock``; on NFS
    other machines too where the server supports locks. A process forked during a run holds it too.

    Args:
      checkpoint_dir: an existing folder.
      name: of the argument, for the error.

    Raises:
      ValueError: another run has locked the folder, or locks are not available.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lock_checkpoint_dir(Path(folder)):
    ...     lock_checkpoint_dir(Path(folder))
    Traceback (most recent call last):
    ValueError: checkpoint_dir ... is in use by another run of this process: two ...
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise ValueError(
            f"{name} {str(checkpoint_dir)!r} cannot be locked on a system without fcntl.flock: two"
            " runs on one folder could not be detected"
        ) from error
    descriptor = os.open(checkpoint_dir / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fdopen(descriptor, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
    except OSError as error:
        holder = file.read().strip() if _is_held(error) else ""
        file.close()
        raise ValueError(_lock_error(error, f"{name} {str(checkpoint_dir)!r}", holder)) from error
    return file


def _is_held(error: OSError) -> bool:
    return error.errno in (errno.EWOULDBLOCK, errno.EACCES)


def _lock_error(error: OSError, folder: str, holder: str) -> str:
    if not _is_held(error):
        return f"{folder} cannot be locked ({error}): give another folder"
    who = f"process {holder}" if holder else "another run"
    who = "another run of this process" if holder == str(os.getpid()) else who
    return (
        f"{folder} is in use by {who}: two runs on one folder would make two"
        " releases under one certificate. Wait until that run has ended, or give another folder"
    )
