"""The parts of the records that `make distributed` gives to its processes."""

import numpy as np
import pytest

from experiments.distributed.__main__ import _JOBS, compare, describe_end
from experiments.distributed.processes import Outcome
from experiments.distributed.worker import NUM_EXAMPLES, Config, all_records, own_part, part_sizes


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_own_part_splits_the_records(num_processes):
    configs = [
        Config((), "127.0.0.1:1", num_processes, process, "") for process in range(num_processes)
    ]
    parts = [own_part(config) for config in configs]
    assert [len(part["y"]) for part in parts] == part_sizes(num_processes)
    assert sum(part_sizes(num_processes)) == NUM_EXAMPLES
    together = np.concatenate([part["x"] for part in parts])
    np.testing.assert_array_equal(together, all_records()["x"])


def released(noise=0.0, weight=0.0):
    return {
        **{f"{job} epsilon": np.array(1.0) for job in _JOBS},
        "noise out": np.array([noise]),
        "sgd out": np.array([weight]),
    }


def test_compare_needs_equal_noise_and_close_parameters(capsys):
    assert compare(released(weight=1e-8), released())
    assert not compare(released(weight=1e-5), released())
    assert not compare(released(noise=1e-8), released())
    assert not compare({**released(), "refused key": np.array("")}, released())
    assert "noise: parameters differ by at most 1.0e-08" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "output", "end"),
    [
        (0, "", "done"),
        (1, "dpjax.training.processes.LostProcessError: process 0 of 4", "LostProcessError"),
        (-6, "F1 Terminating process because the JAX distributed service", "ended by JAX"),
        (1, "ValueError: UNKNOWN: Gloo all-reduce failed", ""),
        (-9, "", ""),
    ],
)
def test_describe_end(status, output, end):
    assert describe_end(Outcome(status, output, 1.0)) == end
