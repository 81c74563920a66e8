"""Journals: entries that are whole or absent, of one party, in use by one process."""

import os
import stat

import numpy as np
import pytest
from helpers.federated_cases import count_release, plan_of
from helpers.federated_simulation import KillableOs, Killed

from dpjax import _files
from dpjax.federated import ProtocolError
from dpjax.federated.processes.holder import journalled_messages, spent_rounds
from dpjax.federated.processes.journal import Journal


class PointsUntil:
    """Points of which one with a given number is the end of the process."""

    def __init__(self, last):
        self.left = last

    def pass_one(self, name):
        self.left -= 1
        if self.left < 0:
            raise Killed


def test_write_is_whole_or_absent_wherever_the_process_ends(monkeypatch, tmp_path):
    outcomes = []
    for last in range(10):
        with Journal(tmp_path / str(last), "node 0") as own, monkeypatch.context() as patched:
            points = PointsUntil(last)
            patched.setattr(_files, "os", KillableOs(points))
            try:
                own.write("entry", b"0123456789")
                outcomes.append("written")
            except Killed:
                outcomes.append("killed")
        with Journal(tmp_path / str(last), "node 0") as again:
            found = again.read("entry")
            assert found in (None, b"0123456789")
            if found is None:
                again.write("entry", b"another")  # what was left unfinished is no hindrance
            assert again.names() == ["entry"]
        if outcomes[-1] == "written":
            assert found == b"0123456789"
            break
    assert outcomes[-1] == "written"
    assert outcomes.count("killed") >= 5


class RecordedOs:
    """The calls of ``os`` that a journal makes, with the sizes of files that are synced."""

    def __init__(self, calls):
        self.calls = calls

    def __getattr__(self, name):
        return getattr(os, name)

    def fsync(self, descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        size = None if is_folder else os.fstat(descriptor).st_size
        self.calls.append(("fsync", os.path.basename(path), size))

    def replace(self, source, target):
        self.calls.append(("replace", source.name, target.name))
        os.replace(source, target)


def test_write_is_on_disk_before_it_has_its_name(monkeypatch, tmp_path):
    """The whole file first, then its name, then the folder's list of names."""
    calls = []
    with Journal(tmp_path / "own", "node 0") as own:
        monkeypatch.setattr(_files, "os", RecordedOs(calls))
        own.write("entry", b"0123456789")
        size = (tmp_path / "own" / "entry").stat().st_size
    assert size > 10
    unfinished = calls[0][1]
    assert calls == [
        ("fsync", unfinished, size),
        ("replace", unfinished, "entry"),
        ("fsync", "own", None),
    ]


def test_write_refuses_an_entry_that_exists(tmp_path):
    with Journal(tmp_path, "node 0") as own:
        own.write("entry", b"one")
        with pytest.raises(ValueError, match="name must be of a new entry, got 'entry'"):
            own.write("entry", b"two")
        assert own.read("entry") == b"one"
        own.delete("entry")
        assert own.read("entry") is None


def test_journal_files_are_readable_by_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        with Journal(tmp_path / "new", "node 0") as own:
            own.write("entry", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes == {0o600}


def test_journal_refuses_other_processes_parties_and_folders(tmp_path):
    with (
        Journal(tmp_path / "one", "node 0"),
        pytest.raises(ValueError, match=r"journal '.*one' is in use by another run"),
    ):
        Journal(tmp_path / "one", "node 0")
    with pytest.raises(ValueError, match="a new folder, or the journal of node 1"):
        Journal(tmp_path / "one", "node 1")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "letter.txt").write_text("")
    with pytest.raises(ValueError, match="an empty folder, or a journal"):
        Journal(tmp_path / "two", "node 0")
    Journal(tmp_path / "one", "node 0").close()  # refusals leave no lock


def test_read_refuses_damage(tmp_path):
    with Journal(tmp_path, "node 0") as own:
        own.write("entry", b"0123456789")
        path = tmp_path / "entry"
        for data in (b"", path.read_bytes()[:-1], b"1" + path.read_bytes()[1:]):
            path.write_bytes(data)
            # A copy of it would be older than what has left the party.
            with pytest.raises(ValueError, match=r"journal must be undamaged.*stays out.*entry"):
                own.read("entry")


def test_journalled_messages_are_the_same_in_a_round(tmp_path):
    plan = plan_of(count_release())
    with Journal(tmp_path, "holder 2") as own:
        assert spent_rounds(own) == frozenset()
        sent = journalled_messages(plan, 2, np.array([3.0, 1.0]), own)
        assert spent_rounds(own) == {0}
    with Journal(tmp_path, "holder 2") as own:
        assert journalled_messages(plan, 2, np.array([3.0, 1.0]), own) == sent
        with pytest.raises(ProtocolError, match=r"^spent$"):
            journalled_messages(plan, 2, np.array([3.0, 2.0]), own)
        assert spent_rounds(own) == {0}
    assert len(sent) == 3
    assert {len(data) for data in sent} == {plan.message_format.length("share")}
