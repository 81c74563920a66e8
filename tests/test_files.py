"""Files that are replaced whole, and one run at a time on one checkpoint folder."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import optax
import pytest

import dpjax.training.checkpoint
from dpjax import _files
from dpjax._files import lock_folder, write_atomically
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import train
from dpjax.training.checkpoint import CheckpointStore, Identity

IDENTITY = Identity("a", "b", "c")
MECHANISM = SubsampledGaussian(
    PoissonSampling(8, 0.5), l2_clip=1.0, noise_multiplier=1.0, num_steps=4, adjacency="add_remove"
)
# The module alone, without dpjax and JAX: a child that starts at once.
HOLD = f"""
import pathlib, runpy, sys, time
lock_folder = runpy.run_path({_files.__file__!r})["lock_folder"]
lock = lock_folder(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def run(folder, **options):
    def loss(w, x):
        return jnp.sum((w - x) ** 2)

    options = {"steps_per_call": 2, "progress": False, "checkpoint_dir": folder, **options}
    key = jax.random.key(0)
    return train(
        key, loss, jnp.zeros(2), jnp.ones((8, 2)), optax.sgd(0.1), mechanism=MECHANISM, **options
    )


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_lock_folder_refuses_a_second_process_until_the_first_is_killed(tmp_path, holder):
    words = f"checkpoint_dir '{tmp_path}' is in use by process {holder.pid}: two runs"
    with pytest.raises(ValueError, match=words):
        run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}  # nothing was touched
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").read_text() == str(holder.pid)  # left behind, and locks nothing
    assert run(tmp_path).mechanism == MECHANISM


@pytest.mark.slow
def test_lock_folder_refuses_a_second_run_of_the_process(tmp_path):
    refused = []

    def second(report):
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(run, tmp_path).exception()
        refused.append(str(error))

    run(tmp_path, on_report=second)
    assert len(refused) == 2
    assert all("in use by another run of this process" in words for words in refused)
    assert run(tmp_path).mechanism == MECHANISM  # and the end of the first releases it


def test_lock_folder_gives_one_of_many_threads_the_folder(tmp_path):
    start, outcomes = threading.Barrier(8), []

    def attempt():
        start.wait()
        try:
            lock = lock_folder(tmp_path)
        except ValueError:
            outcomes.append(None)
        else:
            outcomes.append(lock)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lock,) = [outcome for outcome in outcomes if outcome]
    lock.close()
    lock_folder(tmp_path).close()


def test_checkpoint_store_that_cannot_be_opened_leaves_no_lock(tmp_path):
    with CheckpointStore(tmp_path, IDENTITY, True) as store:
        store.save(jnp.zeros(2), 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="another data"):
            CheckpointStore(tmp_path, IDENTITY._replace(data="other"), True)


def test_power_without_lock_folder_two_runs_are_accepted(tmp_path, monkeypatch):
    """The refusal above comes from the lock."""
    monkeypatch.setattr(dpjax.training.checkpoint, "lock_folder", lambda folder: nullcontext())
    with (
        CheckpointStore(tmp_path, IDENTITY, True),
        CheckpointStore(tmp_path, IDENTITY, True),
    ):
        pass


def test_lock_folder_names_a_file_system_without_locks(tmp_path, monkeypatch):
    import fcntl

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ValueError, match=f"'{tmp_path}' cannot be locked .*No locks available"):
        lock_folder(tmp_path)


def test_write_atomically_is_whole_at_every_moment(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"old")
    contents = []

    def watch(source, target):
        contents.append((path.read_bytes(), source.read_bytes()))
        replace(source, target)

    replace = os.replace
    monkeypatch.setattr(os, "replace", watch)
    write_atomically(path, b"new")
    assert contents == [(b"old", b"new")]
    assert path.read_bytes() == b"new"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
