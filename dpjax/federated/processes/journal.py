"""Journals of holders, nodes and analyst: files on disk that are written once.

What a party must not do twice it records here before it acts: a holder the messages that it sends,
a node what it received and the set of holders that it opens. A process that was killed continues
from its journal.

An older copy of a journal lacks what the party has done since. No entry tells it from the journal
of a process that was killed at that time, as all that a party keeps is restored with it. So a
journal is never restored from a backup or a snapshot of the machine.
"""

import os
from pathlib import Path
from typing import Self

from dpjax._checks import check
from dpjax._hashing import hash_bytes
from dpjax.training.checkpoint_lock import lock_checkpoint_dir

_DIGEST_BYTES = 16
_OWNER, _LOCK, _UNFINISHED = "owner", "lock", ".unfinished"


class Journal:
    """A write-once, crash-safe store of one party's messages, locked against other processes.

    An entry is on disk, whole, when `write` returns, and is never written again. Files have mode
    0600: those of a holder are as secret as its records, as its messages to all nodes together
    have one share of noise alone.

    Args:
      folder: made if it is missing.
      owner: the party and the fingerprint of its plan.

    Raises:
      ValueError: the folder is another party's or of another plan, is in use by another process,
        or has a damaged entry.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), "node 0") as journal:
    ...     journal.write("opening-0", b"bytes")
    ...     journal.read("opening-0"), journal.read("opening-1"), journal.names()
    (b'bytes', None, ['opening-0'])
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync(self._folder.parent)
        self._lock = lock_checkpoint_dir(self._folder, "journal")
        try:
            known = self.read(_OWNER)
            if known is None:
                check(not self.names(), "journal", str(folder), "an empty folder, or a journal")
                self.write(_OWNER, owner.encode())
            same = known is None or known == owner.encode()
            check(same, "journal", str(folder), f"a new folder, or the journal of {owner}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlocks the folder."""
        self._lock.close()

    def names(self) -> list[str]:
        """Returns the names of all entries."""
        names = {path.name for path in self._folder.iterdir()}
        return sorted(names - {_OWNER, _LOCK, _UNFINISHED})

    def read(self, name: str) -> bytes | None:
        """Returns an entry, or ``None`` where there is none.

        Args:
          name: of the entry.

        Raises:
          ValueError: the file is not what was written.
        """
        path = self._folder / name
        if not path.exists():
            return None
        data = path.read_bytes()
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        allowed = (
            "undamaged: a party whose journal is lost or damaged stays out of the round, as an"
            " older copy lacks what it has sent or opened since"
        )
        check(hash_bytes(body) == digest, "journal", str(path), allowed)
        return body

    def write(self, name: str, data: bytes) -> None:
        """Writes an entry to disk: all of it or, where the process is killed, nothing.

        Args:
          name: of the entry, new.
          data: its bytes.

        Raises:
          ValueError: there is such an entry.
        """
        path, unfinished = self._folder / name, self._folder / _UNFINISHED
        check(not path.exists(), "name", name, "of a new entry")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data + hash_bytes(data))
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        _sync(self._folder)

    def delete(self, *names: str) -> None:
        """Deletes entries."""
        for name in names:
            os.unlink(self._folder / name)
        _sync(self._folder)


def _sync(folder: Path) -> None:
    """Writes the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
