"""Processes are compared by hashes: here those of pretended ones."""

import jax
import numpy as np
import pytest

from dpjax._hashing import hash_arrays
from dpjax.training import LostProcessError, processes
from dpjax.training.checkpoint import CheckpointStore, Identity
from dpjax.training.processes import (
    check_all,
    check_different,
    check_equal,
    explain_lost_process,
    to_host,
)


@pytest.fixture
def three(monkeypatch):
    """Pretends that there are three processes; the values of the other two are given."""
    others = []

    def gather(values):
        return np.stack([values, *(np.asarray(other, values.dtype) for other in others)])

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(processes, "all_gather", gather)
    return others


def words(found):
    return np.frombuffer(bytes.fromhex(found), np.uint8)


def test_check_equal_passes_equal_hashes(three):
    mine = hash_arrays(jax.random.key(0))
    three[:] = [words(mine)] * 2
    check_equal({"key": mine})


def test_check_equal_names_the_process_that_differs(three):
    mine, other = (hash_arrays(jax.random.key(seed)) for seed in (0, 1))
    three[:] = [words(mine), words(other)]
    with pytest.raises(
        ValueError, match=r"key must be the same .* of process 0 on process 2$"
    ) as e:
        check_equal({"key": mine})
    assert mine not in str(e.value)


def test_check_different_refuses_equal_records_but_not_empty_ones(three):
    mine, other = (hash_arrays(np.arange(size)) for size in (3, 4))
    three[:] = [words("00" * 32)] * 2
    check_different("data", mine)
    check_different("data", None)
    three[:] = [words(other)] * 2
    with pytest.raises(ValueError, match=r"processes 1 and 2 have the same records"):
        check_different("data", mine)


def test_check_all_fails_where_another_process_fails(three):
    three[:] = [[False], [True]]
    with pytest.raises(ValueError, match="checkpoint_dir was rejected on process 2"):
        check_all(lambda: 1, "checkpoint_dir")
    three[:] = [[False], [False]]
    assert check_all(lambda: 1, "checkpoint_dir") == 1


def test_hash_arrays_depends_on_values_types_and_shapes():
    x = np.arange(6, dtype=np.float32)
    different = [x, x.astype(np.float64), x.reshape(2, 3), x[::-1], {"x": x}, jax.random.key(0)]
    assert len({hash_arrays(each) for each in different}) == len(different)


def test_checks_of_one_process_pass():
    check_equal({"key": "00"})
    assert check_all(lambda: "done", "x") == "done"
    assert jax.random.key_data(processes.shared_release_key()).tolist()[0] != 0


GLOO = "UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error: Connection reset by peer"
BARRIER = (
    "INTERNAL: Barrier failed because: UNAVAILABLE: Task 2 heartbeat timeout."
    " [type.googleapis.com/tensorflow.CoordinationServiceError='']"
)


@pytest.mark.parametrize("text", [GLOO, BARRIER, "INTERNAL: NCCL operation failed"])
@pytest.mark.parametrize("kind", [ValueError, RuntimeError, jax.errors.JaxRuntimeError])
def test_explain_lost_process_names_the_release_and_the_remedy(text, kind, three):
    with (
        pytest.raises(LostProcessError, match=r"process 0 of 3 lost .* after release 7: ") as found,
        explain_lost_process(lambda: "after release 7"),
    ):
        raise kind(text)
    assert "start all again with the same arguments" in str(found.value)
    assert isinstance(found.value.__cause__, kind)


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
        ValueError("the barrier option must be above zero, got -1"),
        OSError(GLOO),
    ],
)
def test_explain_lost_process_passes_other_errors(error, three):
    with pytest.raises(type(error)) as found, explain_lost_process(lambda: "now"):
        raise error
    assert found.value is error


def test_explain_lost_process_passes_errors_of_one_process():
    with pytest.raises(ValueError, match="Gloo"), explain_lost_process(lambda: "now"):
        raise ValueError(GLOO)


def test_checkpoint_store_tells_a_lost_process_from_a_full_disk(tmp_path, monkeypatch):
    class Manager:
        def save(self, *arguments, **options):
            raise jax.errors.JaxRuntimeError(BARRIER)

    with CheckpointStore(tmp_path, Identity("1", "2", "3"), seeded=True) as store:
        monkeypatch.setattr(store, "_manager", Manager())
        with monkeypatch.context() as several:
            several.setattr(jax, "process_count", lambda: 3)
            with pytest.raises(LostProcessError, match="while writing release 5: it has ended"):
                store.save({"x": np.zeros(2)}, 5)
        with pytest.raises(OSError, match="cannot be written"):  # of one process alone
            store.save({"x": np.zeros(2)}, 5)


def test_to_host_reads_an_array_of_one_process():
    np.testing.assert_array_equal(to_host(jax.numpy.arange(3)), np.arange(3))
