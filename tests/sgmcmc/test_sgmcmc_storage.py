"""Kept states on the host and on disk."""

import errno
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.bayes.sgmcmc.chains import SampleStore
from dpjax.training import TrainState

STATES = {"w": jnp.arange(12.0).reshape(2, 3, 2)}  # two states of three chains
PARAMS = {"w": jnp.zeros((3, 2))}


def store_of(params, num_kept, folder, resumed=False):
    store = SampleStore(num_kept, 0, 1, folder)
    store.open(TrainState(params, None, None), resumed=resumed)
    return store


def test_states_of_chains_become_chains_of_states(tmp_path):
    for folder in (None, tmp_path):
        store = store_of(PARAMS, 4, folder)
        store.write(1, STATES)
        np.testing.assert_array_equal(store.samples["w"][:, 1:3], np.swapaxes(STATES["w"], 0, 1))
    again = store_of(PARAMS, 4, tmp_path, resumed=True).samples["w"]
    np.testing.assert_array_equal(again, store.samples["w"])


def test_files_that_no_run_has_begun_are_replaced(tmp_path):
    store_of(PARAMS, 9, tmp_path).write(0, STATES)
    new = store_of(PARAMS, 4, tmp_path).samples["w"]
    assert new.shape == (3, 4, 2)
    assert not new.any()


def gone(path):
    path.unlink()


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def of_other_numbers(path):
    np.save(path, np.load(path)[:, :2])


@pytest.mark.parametrize("damage", [gone, cut_off, of_other_numbers])
def test_files_of_a_run_that_has_begun_are_as_they_were_left(tmp_path, damage):
    store_of(PARAMS, 4, tmp_path).write(1, STATES)
    path = tmp_path / "samples_0.npy"
    damage(path)
    left = path.read_bytes() if path.exists() else None
    with pytest.raises(ValueError, match=f"checkpoint_dir .*{tmp_path.name}.* in 'samples_0.npy'"):
        store_of(PARAMS, 4, tmp_path, resumed=True)
    assert (path.read_bytes() if path.exists() else None) == left


def test_half_precision_that_numpy_has_no_files_of_becomes_single():
    samples = store_of(jnp.zeros((3, 2), jnp.bfloat16), 4, None).samples
    assert samples.dtype == np.float32


def test_room_for_all_states_is_taken_at_once(tmp_path, monkeypatch):
    """A sparse file mapped into memory ends the process by SIGBUS where the disk is full."""
    store_of({"w": jnp.zeros((3, 1000))}, 20, tmp_path)
    found = (tmp_path / "samples_0.npy").stat()
    assert found.st_blocks * 512 >= found.st_size > 3 * 20 * 1000 * 4

    def disk_is_full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", disk_is_full)
    with pytest.raises(
        OSError, match=rf"checkpoint_dir '{tmp_path}' has no room for the 240,000 bytes"
    ):
        store_of({"w": jnp.zeros((3, 1000))}, 20, tmp_path)


def test_only_the_first_process_writes_files(tmp_path, monkeypatch):
    first = store_of(PARAMS, 4, tmp_path)
    first.write(0, STATES)
    path = tmp_path / "samples_0.npy"
    left = path.read_bytes()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    for resumed in (False, True):
        other = store_of(PARAMS, 4, tmp_path, resumed=resumed)
        other.write(2, STATES)
        assert path.read_bytes() == left
        np.testing.assert_array_equal(other.samples["w"][:, 2:], first.samples["w"][:, :2])
    np.testing.assert_array_equal(other.samples["w"][:, :2], first.samples["w"][:, :2])
