"""Journals of holders, nodes and analyst: files on disk that are written once.

What a party must not do twice it records here before it acts: a holder the messages that it sends,
a node what it received and the set of holders that it opens. A process that was killed continues
from its journal.

An older copy of a journal lacks what the party has done since. It cannot be distinguished from the
journal of a process that was killed at that time, as all that a party keeps is restored with it. So
a journal is never restored from a backup or a snapshot of the machine.
"""

import os
from pathlib import Path
from typing import Self

from dpjax._checks import check
from dpjax._files import LOCK_NAME, lock_folder, sync_folder, write_atomically
from dpjax._hashing import hash_bytes

_DIGEST_BYTES = 16
_OWNER, _UNFINISHED = "owner", ".unfinished"


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
        sync_folder(self._folder.parent)
        self._lock = lock_folder(self._folder, "journal")
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
        return sorted(names - {_OWNER, LOCK_NAME, _UNFINISHED})

    def read(self, name: str) -> bytes | None:
        """Returns an entry, or ``None`` where there is none; a damaged one is refused."""
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
        """Writes a new entry to disk: all of it or, where the process is killed, nothing."""
        path, unfinished = self._folder / name, self._folder / _UNFINISHED
        check(not path.exists(), "name", name, "of a new entry")
        write_atomically(path, data + hash_bytes(data), unfinished=unfinished, mode=0o600)

    def delete(self, *names: str) -> None:
        """Deletes entries."""
        for name in names:
            os.unlink(self._folder / name)
        sync_folder(self._folder)
